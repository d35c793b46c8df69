"""The catalogue as rows: plain mappings, one per name, with the unit in the name of each figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jointopt.report.table import WIDTH, TextColumn, lay_out, table_width
from jointopt.spec.catalog.clusters import cluster_names, load_cluster
from jointopt.spec.catalog.frameworks import framework_names, load_framework
from jointopt.spec.catalog.gpus import gpu_ids, load_gpu
from jointopt.spec.catalog.models import load_model, model_names
from jointopt.spec.jobfile import shipped_job, shipped_jobs

Row = dict[str, Any]


def listing(what: str) -> list[Row]:
    """Rows of ``gpus``, ``models``, ``frameworks``, ``clusters`` or ``jobs``; None is what no source states."""
    names, row = _LISTINGS[what]
    return [row(name) for name in names()]


def listing_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as an aligned table, one header line per word of a column's name."""
    columns = [
        TextColumn(
            _header(name), [_cell(row[name]) for row in rows], left=isinstance(rows[0][name], str | tuple)
        )
        for name in (rows[0] if rows else ())
    ]
    gap = "  " if table_width(columns, "  ") <= WIDTH else " "
    return "\n".join(lay_out(columns, gap)) if columns else "nothing"


def _gpu(name: str) -> Row:
    gpu = load_gpu(name)
    return {
        "gpu": gpu.id,
        "bf16_tflops": gpu.peak_tflops.get("bf16"),
        "fp16_tflops": gpu.peak_tflops.get("fp16"),
        "fp8_tflops": gpu.peak_tflops.get("fp8"),
        "memory_gib": gpu.memory_gib,
        "memory_gbytes_per_s": gpu.memory_gbytes_per_s,
        "intra_node_gbytes_per_s": gpu.intra_node_gbytes_per_s,
        "gpus_per_node": gpu.usual_gpus_per_node,
        "clock_min_mhz": gpu.clock_min_mhz,
        "clock_max_mhz": gpu.clock_max_mhz,
        "clock_step_mhz": gpu.clock_step_mhz,
        "tdp_w": gpu.tdp_w,
    }


def _model(name: str) -> Row:
    model = load_model(name)
    return {
        "model": name,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_query_groups": model.num_query_groups,
        "num_experts": model.num_experts,
        "moe_router_topk": model.moe_router_topk,
        "vocab_size": model.vocab_size,
    }


def _framework(name: str) -> Row:
    habits = load_framework(name)
    return {
        "framework": name,
        "zero_stages": habits.zero_stages,
        "recompute": habits.recomputes,
        "interleaving": habits.interleaving,
        "context_parallel": habits.context_parallel,
    }


def _cluster(name: str) -> Row:
    cluster = load_cluster(name)
    return {
        "cluster": name,
        "gpu": cluster.gpu.id,
        "nodes": cluster.nodes,
        "gpus_per_node": cluster.gpus_per_node,
        "intra_node_gbytes_per_s": cluster.intra_node_gbytes_per_s,
        "inter_node_gbytes_per_s": cluster.inter_node_gbytes_per_s,
    }


def _job(name: str) -> Row:
    job = shipped_job(name)
    return {
        "job": name,
        "model": job.model.name,
        "gpu": job.cluster.gpu.id,
        "nodes": job.cluster.nodes,
        "gpus_per_node": job.cluster.gpus_per_node,
        "global_batch_size": job.training.global_batch_size,
        "seq_length": job.training.seq_length,
        "framework": job.training.framework.name,
    }


_LISTINGS: dict[str, tuple[Callable[[], tuple[str, ...]], Callable[[str], Row]]] = {
    "gpus": (gpu_ids, _gpu),
    "models": (model_names, _model),
    "frameworks": (framework_names, _framework),
    "clusters": (cluster_names, _cluster),
    "jobs": (shipped_jobs, _job),
}


# Headers of columns whose names are no headers; the others are their own, one line per word.
_HEADERS = {
    "bf16_tflops": "bf16\nTFLOP/s",
    "fp16_tflops": "fp16\nTFLOP/s",
    "fp8_tflops": "fp8\nTFLOP/s",
    "memory_gib": "memory\nGiB",
    "memory_gbytes_per_s": "memory\nGB/s",
    "intra_node_gbytes_per_s": "in node\nGB/s",
    "inter_node_gbytes_per_s": "network\nGB/s",
    "clock_min_mhz": "lowest\nMHz",
    "clock_max_mhz": "highest\nMHz",
    "clock_step_mhz": "step\nMHz",
    "tdp_w": "TDP\nW",
    "gpus_per_node": "GPUs\n/node",
    "ffn_hidden_size": "FFN\nsize",
    "num_attention_heads": "heads",
    "parameters": "params",
    "active_parameters": "active\nparams",
    "num_query_groups": "KV\nheads",
    "moe_router_topk": "top\nk",
    "zero_stages": "ZeRO\nstages",
    "global_batch_size": "batch",
}


def _header(name: str) -> str:
    return _HEADERS.get(name, name.removeprefix("num_").removesuffix("_size").replace("_", "\n"))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, int) and value >= 10**6:
        return f"{value / 1e6:,.0f} M"
    return f"{value:g}" if isinstance(value, float) else str(value)
