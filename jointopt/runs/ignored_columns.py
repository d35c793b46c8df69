"""Sentences on what tables hold in vain: rows that teach nothing, and columns and words that nothing reads."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import CatalogError
from jointopt.core.schema import ATTENTIONS, COLUMNS, STATUSES, TABLE_NAMES, Bools, Columns
from jointopt.jobs.catalog.frameworks import framework_names, named_release, recognise_framework
from jointopt.jobs.catalog.gpus import known_gpus, load_gpu
from jointopt.jobs.cluster import FAR_LINK, Gpu
from jointopt.jobs.defaults import PLAIN_LINK_GBYTES_PER_S
from jointopt.jobs.job import TF32
from jointopt.runs.cells import floats, named_attention, quoted_cell, with_precision
from jointopt.runs.dtype_names import named_dtype, named_precision, named_recipe
from jointopt.runs.workloads import runnable_dtype

if TYPE_CHECKING:
    import pandas as pd

_RESULTS = ("iteration_time_s", "peak_memory_gib", "energy_j", "avg_power_w")
A_RESULT = f"a result ({', '.join(_RESULTS)}) nor the status oom or failed"  # what measured runs have one of
_NETWORK = "inter_node_gbytes_per_s"
_MOST_NAMED = 5  # columns, each in a sentence of its own


def unused_lines(runs: pd.DataFrame) -> list[str]:
    """One sentence for each reason why sound rows of a measurement table teach nothing; none where all of them do."""
    if runs.empty:
        return []
    gpus = runs["gpu"] if "gpu" in runs else runs.assign(gpu=None)["gpu"]
    lines = unread_lines(runs)
    if count := int(gpus.isna().sum()):
        names = "row names" if count == 1 else "rows name"
        lines.append(f"{count:,} {names} no GPU (column gpu): kept, but never learned from.")
    for name, count in gpus.value_counts(sort=False).items():
        try:
            load_gpu(str(name))
        except CatalogError as error:
            lines.append(f"{_rows(count, 'is', 'are')} kept, but never learned from: {error}")
    return lines + _silent_lines(runs) + unfinished_lines(runs)


def by_reason(reasons: Mapping[int, str]) -> list[tuple[str, int, int]]:
    """(reason, how many rows, the first of them), the commonest first."""
    rows: dict[str, list[int]] = {}
    for row, reason in sorted(reasons.items()):
        rows.setdefault(reason, []).append(row)
    return sorted(((r, len(at), at[0]) for r, at in rows.items()), key=lambda found: (-found[1], found[2]))


def left_out_lines(runs: pd.DataFrame, reasons: Mapping[int, str], refused: Bools | None = None) -> list[str]:
    """One sentence for each reason why measured runs teach nothing: the ``reasons`` of rows, or no result.

    ``refused`` (n,): rows of which another sentence says that their results are not used.
    """
    lines = [
        f"{count:,} of {len(runs):,} measured runs teach{'es' * (count == 1)} nothing (row {row + 1}): {reason}"
        for reason, count, row in by_reason(reasons)
    ]
    return lines + _silent_lines(runs if refused is None else runs[~refused]) + unfinished_lines(runs)


def without_result(runs: pd.DataFrame) -> Bools:
    """Rows (n,) of a measurement table that have no result that anything learns from."""
    found = runs.reindex(columns=list(_RESULTS)).isna().all(axis=1)
    if "status" in runs:
        found &= ~runs["status"].isin(STATUSES[1:])
    return found.to_numpy(bool)


def _silent_lines(runs: pd.DataFrame) -> list[str]:
    """One sentence where rows are `without_result`."""
    count = int(without_result(runs).sum())
    return [f"{_rows(count, 'has', 'have')} neither {A_RESULT}."] * bool(count)


def _none_ended_well(runs: pd.DataFrame) -> tuple[str, set[str]]:
    """A clause with the count of each status where no run of a table ended well, and these; blank where one did."""
    if runs.empty or "status" not in runs or runs["status"].isna().any():
        return "", set()
    status = runs["status"].astype(str).str.strip().str.lower()
    counts = status.value_counts(sort=False)
    found = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    return ("", set()) if "ok" in counts else (f"none of {len(runs):,} runs ended well ({found})", set(counts.index))


def unfinished_lines(runs: pd.DataFrame) -> list[str]:
    """One sentence where no run of a measurement table ended well: what the others teach, if anything."""
    clause, statuses = _none_ended_well(runs)
    if not clause:
        return []
    fits, bounds = "oom" in statuses, False
    if "iteration_time_s" in runs:
        timeout = runs["status"].astype(str).str.strip().str.lower() == "timeout"
        bounds = bool(runs["iteration_time_s"][timeout].notna().any())
    taught = " and ".join(["which plans fit"] * fits + ["lower bounds of time"] * bounds) or "nothing"
    return [f"{clause}: they teach {taught}{', and nothing of time or power' * (fits and not bounds)}."]


def _rows(count: int, one: str, many: str) -> str:
    return f"1 row {one}" if count == 1 else f"{count:,} rows {many}"


# Sentences on cells that nothing is read from, or that may be of another unit.


def unread_lines(table: pd.DataFrame) -> list[str]:
    """One sentence for each column that nothing reads, or of whose cells some mean nothing."""
    stated = with_precision(table)
    return [*misspelt_lines(table), *_unknown_words(table), *_precision_lines(stated), *_node_lines(table)]


_DTYPES = "bf16, fp16, fp32, tf32, fp8 or fp4"
# Columns of free text: what a cell of each means, and the words to take where it means nothing.
_READINGS: dict[str, tuple[Callable[[str], str | None], str]] = {
    "precision": (lambda text: named_recipe(text) or named_precision(text), _DTYPES), "dtype": (named_dtype, _DTYPES),
    # a log of Megatron-LM may give bounds alone
    "framework_release": (lambda text: named_release(text.lstrip("<>= ")), "a release such as 26.06 or 0.16.1"),
    "attention": (lambda text: named_attention(text)[0], f"{', '.join(ATTENTIONS[:-1])} or {ATTENTIONS[-1]}"),
}  # fmt: skip


def _unknown_words(table: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on words that mean nothing, frameworks nearly known, and layers of LoRA without a rank."""
    for name, (reading, expected) in _READINGS.items():
        if name in table:
            unknown = [cell for cell in table[name].dropna().unique() if not reading(str(cell))]
            if (rows := np.flatnonzero(table[name].isin(unknown))).size:
                yield (
                    f"{_rows(len(rows), 'has', 'have')} an unknown {name} (row {rows[0] + 1}: "
                    f"{quoted_cell(table, rows[0], name)}), which is not read: the usual one is assumed. "
                    f"Expected {expected}."
                )
    for text, count in table["framework"].value_counts(sort=False).items() if "framework" in table else ():
        close = difflib.get_close_matches(str(text).strip().lower(), framework_names(), n=1, cutoff=_ALIKE)
        if close and not recognise_framework(str(text))[1]:
            row = int(np.flatnonzero(table["framework"] == text)[0]) + 1
            yield (
                f"{_rows(count, 'has', 'have')} an unknown framework (row {row}: {text!r}), predicted like any other "
                f"without a profile (did you mean {close[0]!r}?)."
            )
    if "lora_target_modules" in table:
        lacking = table["lora_dim"].isna() if "lora_dim" in table else True
        if (rows := np.flatnonzero(table["lora_target_modules"].notna() & lacking)).size:
            yield (
                f"{_rows(len(rows), 'states', 'state')} lora_target_modules without lora_dim (row {rows[0] + 1}), the "
                "rank of the adapters: all weights are taken to be trained."
            )


def _precision_lines(runs: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on rows `with_precision`: in one that no source states a rate of on their GPU, or in none."""
    if {"gpu", "dtype"} <= set(runs):
        counts = runs.groupby(["gpu", "dtype"], sort=False).size()
        gpus = known_gpus(runs["gpu"].dropna().unique())
        for (name, text), count in zip(counts.index.tolist(), counts.tolist(), strict=True):
            gpu, dtype, taken = gpus.get(name), named_precision(str(text)), list[str]()
            if gpu and dtype and (wider := runnable_dtype(str(text), gpu, taken)) and taken:
                known = ", ".join((*gpu.peak_tflops, *[TF32] * gpu.has_tf32))
                yield (
                    f"{_rows(count, 'is', 'are')} in {dtype} on {name}, of which no source states a rate: priced in "
                    f"{wider}, and marked out of domain; expected one of {known}."
                )
    if "seq_length" in runs:
        blank = runs["dtype"].isna() if "dtype" in runs else True
        if count := int((runs["seq_length"].notna() & blank).sum()):
            yield (
                f"{_rows(count, 'states', 'state')} no precision (columns dtype, precision, fp8_recipe): the 16-bit "
                "format of the GPU is assumed, and nothing recorded supports what is predicted of them."
            )


# Of nodes: which rows on a GPU (n,) are doubted, by the numbers of their cells, and what is said of them.
_NODE_DOUBTS: tuple[tuple[Callable[[Gpu, Columns], Bools], str], ...] = (
    (lambda gpu, cells: cells[_NETWORK] > FAR_LINK * (gpu.usual_inter_node_gbytes_per_s or np.nan),
     f"a network over {FAR_LINK} times as fast as the {{gpu.usual_inter_node_gbytes_per_s:g}} GB/s of the reference "
     f"system of {{name}} (row {{row}}: {_NETWORK}={{link:g}}): is it in Gb/s per GPU? Then it is {{eighth:g}}."),
    (lambda gpu, cells: cells["power_limit_w"] > (gpu.tdp_w or np.nan),
     "a power limit above the {gpu.tdp_w:g} W that {name} is rated for (row {row}: power_limit_w={limit:g}): taken as "
     "stated, though few boards allow it."),
    (lambda gpu, cells: np.isnan(cells[_NETWORK]) & (cells["num_gpus"] > np.where(
        np.isnan(cells["gpus_per_node"]), gpu.usual_gpus_per_node or 8, cells["gpus_per_node"])
     ) & (not gpu.is_cpu and not gpu.usual_inter_node_gbytes_per_s),
     "no network between nodes, and no source states a usual one of {name} (row {row}): "
     f"{PLAIN_LINK_GBYTES_PER_S:g} GB/s per GPU is assumed; state {_NETWORK}."),
)  # fmt: skip


def _node_lines(runs: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence for each of `_NODE_DOUBTS` and each GPU with such rows."""
    gpus = known_gpus(runs["gpu"].dropna().unique()) if "gpu" in runs else {}
    columns = (_NETWORK, "power_limit_w", "gpus_per_node", "num_gpus")
    cells = {n: floats(runs[n]).to_numpy() if n in runs else np.full(len(runs), np.nan) for n in columns}
    for doubted, words in _NODE_DOUBTS:
        for name, gpu in gpus.items():
            if (rows := np.flatnonzero((runs["gpu"] == name).to_numpy(bool) & doubted(gpu, cells))).size:
                link, limit = (cells[column][rows[0]] for column in columns[:2])
                said = words.format(name=name, gpu=gpu, row=rows[0] + 1, link=link, eighth=link / 8, limit=limit)
                yield f"{_rows(len(rows), 'states', 'state')} {said}"


# Columns by the names that other programs and people give them, and the units that such names state.


TIME = "iteration_time_s"
# Names in configs of Megatron-LM, Hugging Face, DeepSpeed and torchtitan, and what tables often call these.
_COLUMN_BY_OTHER_NAME = {
    name: column for column, names in {
        "dp": "data_parallel data_parallel_size dp_size", "cp": "context_parallel context_parallel_size cp_size",
        "tp": "tensor_parallel tensor_parallel_size tensor_model_parallel_size tp_size",
        "pp": "pipeline_parallel pipeline_parallel_size pipeline_model_parallel_size pp_size",
        "ep": "expert_parallel expert_parallel_size expert_model_parallel_size ep_size",
        "etp": "expert_tensor_parallel_size", "gtp": "gtp_weight_remat_size", "egtp": "expert_gtp_weight_remat_size",
        "vpp": "virtual_pipeline virtual_pipeline_model_parallel_size virtual_pipeline_parallel_size vp_size",
        "micro_batch_size": "mbs micro_batch microbatch_size per_device_train_batch_size",
        "global_batch_size": "gbs global_batch batch_size train_batch_size",
        "zero_stage": "zero zero_level", "recompute": "recompute_granularity activation_checkpointing rc",
        "sequence_parallel": "sp", "num_gpus": "gpus n_gpus world_size", "gpus_per_node": "ngpus_per_node",
        "num_layers": "layers n_layers n_layer num_hidden_layers", "hidden_size": "hidden d_model n_embd",
        "num_attention_heads": "heads n_heads n_head num_heads",
        "num_query_groups": "kv_heads num_kv_heads num_key_value_heads n_kv_heads",
        "ffn_hidden_size": "ffn intermediate_size ffn_size", "vocab_size": "vocab vocabulary",
        "seq_length": "seq_len sequence_length max_seq_length max_position_embeddings",
        "moe_router_topk": "experts_per_token num_experts_per_tok top_k topk",
        "num_experts": "experts n_experts num_local_experts n_routed_experts",
        "moe_ffn_hidden_size": "moe_intermediate_size",
        "iteration_time_s": "step_time step_time_s iteration_time iter_time time_s elapsed_time_per_iteration "
        "time_per_iteration time_per_step time_per_iter seconds_per_iteration seconds_per_step sec_per_iter "
        "sec_per_step s_per_it s_per_step s_per_iter iteration_latency step_latency",
        "avg_power_w": "power power_w average_power_w", "peak_memory_gib": "memory_gib max_memory_gib",
        "energy_j": "energy",
        "lora_dim": "lora_rank lora_r peft_dim",
        "lora_target_modules": "lora_targets lora_target target_modules lora_modules",
        "attention": "attn attention_kernel attention_backend attn_implementation attention_impl",
        "dtype": "mixed_precision compute_dtype data_type", "framework": "software library",
        "token_dispatcher": "moe_token_dispatcher_type moe_token_dispatcher",
        "cuda_graph": "cuda_graph_impl cuda_graphs cudagraph cudagraphs enable_cuda_graph",
        "compile": "torch_compile compiled use_torch_compile", "framework_release": "release version software_version "
        "container_version nemo_version megatron_version torchtitan_version",
        "dp_overlap": "overlap_comm overlap_grad_sync grad_overlap dp_comm_overlap",
        "tp_overlap": "ub_tp_comm_overlap enable_async_tensor_parallel async_tp",
        "ep_overlap": "overlap_moe_expert_parallel_comm moe_a2a_overlap a2a_overlap",
        "moe_routing": "routing moe_force_load_balance force_load_balancing",
        "fp8_activations": "activation_func_fp8_input_store fp8_activation",
        "cross_entropy": "cross_entropy_fusion_impl cross_entropy_loss_fusion fused_cross_entropy loss_fn",
        "logits_chunks": "num_output_chunks loss_chunks",
        "gpu": "gpu_type gpu_name gpu_model accelerator",
    }.items() for name in names.split()
}  # fmt: skip
_WITHIN_NODE = {"intra", "intranode", "nvlink", "nvswitch"}  # words of links of which tables have no column
_ALIKE = 0.8  # of two names of a column: step_time_s is no iteration_time_s, iteration_time_ms is
# What to do to a column in the unit that ends its name, by that of the column meant.
_CONVERSIONS = {
    "s": {"ms": "divide it by 1,000", "us": "divide it by 1,000,000", "min": "multiply it by 60",
          "h": "multiply it by 3,600"},
    "j": {"kj": "multiply it by 1,000", "mj": "multiply it by 1,000,000", "wh": "multiply it by 3,600",
          "kwh": "multiply it by 3,600,000"},
    "w": {"kw": "multiply it by 1,000", "mw": "divide it by 1,000"},
    "gib": {"gb": "multiply it by 0.9313", "mib": "divide it by 1,024", "mb": "divide it by 1,074",
            "bytes": "divide it by 1,073,741,824"},
    "mhz": {"ghz": "multiply it by 1,000"},
}  # fmt: skip
_UNIT_SPELLINGS = {
    "msec": "ms", "millis": "ms", "milliseconds": "ms", "usec": "us", "microseconds": "us", "minutes": "min",
    "hours": "h", "sec": "s", "secs": "s", "seconds": "s",
}  # fmt: skip


def _words(name: str) -> tuple[list[str], str]:
    """The words of a name in lower case, and its unit, blank for none: ``Step Time (msec)`` is step, time, ms; ms."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    words[-1:] = [_UNIT_SPELLINGS.get(word, word) for word in words[-1:]]
    known = {*_CONVERSIONS, *(unit for units in _CONVERSIONS.values() for unit in units)}
    return words, words[-1] if len(words) > 1 and words[-1] in known else ""


def _column_meant(name: str, lacking: Iterable[str]) -> str:
    """The column of those ``lacking`` that a name nearly is, or that other programs call so; empty for none."""
    (words, unit), lacking = _words(name), set(lacking)
    for spelled in ("_".join(words), "_".join(words[:-1]) if unit else ""):
        if spelled in _COLUMN_BY_OTHER_NAME:
            return _COLUMN_BY_OTHER_NAME[spelled] if _COLUMN_BY_OTHER_NAME[spelled] in lacking else ""
    close = difflib.get_close_matches("_".join(words), sorted(lacking), n=1, cutoff=_ALIKE)
    return close[0] if close and _WITHIN_NODE.isdisjoint(words) else ""


def _conversion(name: str, column: str, before: str) -> str:
    """The change that makes cells of a column called ``name`` those of ``column``; blank where no other unit shows."""
    change = _CONVERSIONS.get(column.rsplit("_", 1)[-1], {}).get(_words(name)[1], "")
    return f"{before}, and {change}" * bool(change)


def misspelt_lines(table: pd.DataFrame) -> list[str]:
    """One sentence for each column that nothing reads and whose name is another spelling of one that is lacking.

    That is a similar name, or what other programs call it; of many columns one for all. A column that is just more than
    is known has none. A blank column is lacking.
    """
    lacking = {*COLUMNS, "clock_mhz"} - {str(name) for name, cells in table.items() if cells.notna().any()}
    others = [name for name in map(str, table.columns) if name not in {*COLUMNS, *TABLE_NAMES, "clock_mhz"}]
    named = {name: column for name in others if (column := _column_meant(name, lacking))}
    links = [
        f"column {name} is kept, but nothing reads it: tables have no column for the links within a node; the job file "
        "(cluster.intra_node_gbytes_per_s) and the machine file have."
        for name in others if not _WITHIN_NODE.isdisjoint(_words(name)[0])
    ][:1]  # fmt: skip
    if len(named) > _MOST_NAMED:
        first, column = next(iter(named.items()))
        return [
            *links,
            f"{len(named)} columns are kept, but nothing reads them ({', '.join([*named][:_MOST_NAMED])}, ...): "
            f"did you mean {column!r} by {first}, and so on?",
        ]
    return [
        f"column {name} is kept, but nothing reads it (did you mean {one!r}?"
        f"{_conversion(name, one, ' Then rename it')})."
        for name, one in named.items()
    ] + links


def renamed_time(table: pd.DataFrame) -> str:
    """How to turn a column that holds times by another name into the one that is read, as the end of a sentence."""
    names = (str(name) for name in table.columns if str(name) not in COLUMNS)
    name = next((name for name in names if _column_meant(name, {TIME})), "")
    return f"; rename the column {name} to {TIME}{_conversion(name, TIME, '')}" if name else ""


def without_time(table: pd.DataFrame) -> str:
    """Why a measurement table has no time of a run that ended well and what to do, as the end of a sentence.

    Blank where no reason shows.
    """
    renamed, (clause, _) = renamed_time(table), _none_ended_well(table)
    if renamed or not clause:
        return renamed
    return (
        f"; {clause}: add runs that did, or give these to `jointopt propose --measured`, which learns from runs that "
        "are out of memory which plans fit"
    )


def untimed_lines(table: pd.DataFrame) -> list[str]:
    """One sentence where rows, as `with_results` reads them, ended well and have no time, by whatever name."""
    rows = np.flatnonzero((table["status"] == "ok") & table[TIME].isna())
    if not len(rows) or renamed_time(table):
        return []
    ended = "row says that its run ended" if len(rows) == 1 else "rows say that their runs ended"
    return [
        f"{len(rows):,} {ended} well (status ok or blank) but {'has' if len(rows) == 1 else 'have'} no {TIME} (row "
        f"{rows[0] + 1} is the first): not learned from; fill it in, or delete these rows."
    ]
