"""The catalogue as rows: plain mappings, one per name, with the unit in the name of each figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jointopt.jobs.catalog.clusters import cluster_names, load_cluster
from jointopt.jobs.catalog.frameworks import framework_names, load_framework
from jointopt.jobs.catalog.gpus import gpu_ids, load_gpu
from jointopt.jobs.catalog.models import load_model, model_names
from jointopt.jobs.catalog.recipes import recipes_of
from jointopt.jobs.jobfile import shipped_job, shipped_jobs
from jointopt.report.tables import WIDTH, TextColumn, lay_out, line_width, pick, table_width

_LISTINGS: dict[str, tuple[Callable[[], Iterable[str]], Callable[[str], Any], str]] = {
    # names, entry of a name, attributes; "name=attribute" where the column has another name
    "gpus": (gpu_ids, load_gpu,
             "bf16_tflops=peak_tflops.bf16 fp16_tflops=peak_tflops.fp16 fp8_tflops=peak_tflops.fp8 memory_gib "
             "memory_gbytes_per_s intra_node_gbytes_per_s gpus_per_node=usual_gpus_per_node clock_min_mhz "
             "clock_max_mhz clock_step_mhz tdp_w"),
    "models": (model_names, load_model,
               "parameters active_parameters num_layers hidden_size ffn_hidden_size num_attention_heads "
               "num_query_groups num_experts moe_router_topk vocab_size"),
    "frameworks": (framework_names, load_framework,
                   "recipe_class zero_stages recompute=recomputes interleaving context_parallel"),
    "clusters": (cluster_names, load_cluster,
                 "gpu=gpu.id nodes gpus_per_node intra_node_gbytes_per_s inter_node_gbytes_per_s"),
    "jobs": (shipped_jobs, shipped_job,
             "model=model.name gpu=cluster.gpu.id nodes=cluster.nodes gpus_per_node=cluster.gpus_per_node "
             "global_batch_size=training.global_batch_size seq_length=training.seq_length "
             "framework=training.framework.name"),
}  # fmt: skip
# Headers of columns whose names are no headers; the others are their own, one line per word.
_HEADERS = {
    "bf16_tflops": "bf16\nTFLOP/s", "fp16_tflops": "fp16\nTFLOP/s", "fp8_tflops": "fp8\nTFLOP/s",
    "memory_gib": "memory\nGiB", "memory_gbytes_per_s": "memory\nGB/s",
    "intra_node_gbytes_per_s": "in node\nGB/s", "inter_node_gbytes_per_s": "network\nGB/s",
    "clock_min_mhz": "lowest\nMHz", "clock_max_mhz": "highest\nMHz", "clock_step_mhz": "step\nMHz",
    "tdp_w": "TDP\nW", "gpus_per_node": "GPUs\n/node", "ffn_hidden_size": "FFN\nsize",
    "num_attention_heads": "heads", "parameters": "params", "active_parameters": "active\nparams",
    "num_query_groups": "KV\nheads", "moe_router_topk": "top\nk", "zero_stages": "ZeRO\nstages",
    "global_batch_size": "batch",
}  # fmt: skip
_IN_JSON_ALONE = ("source", "name")


def listing(what: str, model: str = "") -> list[dict[str, Any]]:
    """Rows of ``gpus``, ``models``, ``frameworks``, ``clusters``, ``jobs`` or ``recipes``; None: no source states it.

    Recipes are published plans, of one ``model`` where it is given.
    """
    if what == "recipes":
        return [asdict(recipe) for recipe in recipes_of(model)]
    names, load, columns = _LISTINGS[what]
    return [{what.removesuffix("s"): name} | pick(load(name), columns) for name in names()]


def listing_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as an aligned table, one header line per word of a column's name; sources are left to JSON."""
    columns = []
    for name, first in rows[0].items():
        if name in _IN_JSON_ALONE:
            continue
        head = _HEADERS.get(name, name.removeprefix("num_").removesuffix("_size").replace("_", "\n"))
        columns.append(TextColumn(head, [_cell(row[name]) for row in rows], left=isinstance(first, str | tuple)))
    return "\n".join(lay_out(columns, "  " if table_width(columns, "  ") <= line_width(WIDTH) else " "))


def _cell(value: Any) -> str:
    """A figure of the catalogue as its table shows it; counts are in millions, from ten billion on in billions."""
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, int) and value >= 10**10:
        return f"{value / 1e9:,.1f} B"
    if isinstance(value, int) and value >= 10**6:
        return f"{value / 1e6:,.0f} M"
    return f"{value:g}" if isinstance(value, float) else str(value)
