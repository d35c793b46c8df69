"""Measurement tables as jobs: rows with one model, cluster and software become one Job and an array of plans."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from jointopt.catalog.clusters import build_cluster
from jointopt.catalog.frameworks import recognise_framework
from jointopt.catalog.gpus import load_gpu
from jointopt.errors import TableError
from jointopt.schema import RECOMPUTE_CODES, Columns, Floats, Ints
from jointopt.spec.cluster import Gpu
from jointopt.spec.framework import Framework
from jointopt.spec.job import Job, Training
from jointopt.spec.model import Model

_WORKLOAD = (
    "model", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "gated_mlp",
    "vocab_size", "num_experts", "moe_router_topk", "seq_length", "global_batch_size", "dtype", "attention",
    "fused_norm", "framework", "gpu", "gpus_per_node", "num_gpus",
)  # fmt: skip
_USUAL_HEAD_DIM = 128
_PLAIN_NETWORK_GBYTES_PER_S = 12.5  # one 100 Gb/s port per GPU, where the GPU has no reference system
_REQUIRED = ("num_layers", "hidden_size", "seq_length", "global_batch_size", "gpu", "num_gpus")


@dataclass(frozen=True)
class Workload:
    """Rows of a table that share one job. ``rows`` are positions in the table; plans follow the same order."""

    job: Job
    rows: Ints
    plans: Columns  # layout columns
    stage_clock_mhz: Floats  # (n, max pp), NaN beyond a plan's pp
    assumed: list[str]  # per row: names of defaulted columns, joined by a blank


def workloads(table: pd.DataFrame) -> Iterator[Workload]:
    """Split a measurement table (interfaces.md section 3) into workloads; blank plan cells get the framework's habit.

    Raises TableError for a missing column and for rows whose degrees do not multiply to their GPU count.
    """
    missing = [c for c in _REQUIRED if c not in table]
    if missing:
        raise TableError(f"The table lacks the column {missing[0]!r}, without which no run can be predicted.")
    keys = [c for c in _WORKLOAD if c in table]
    numbered = table.reset_index(drop=True)
    for _, rows in numbered.groupby(keys, dropna=False, sort=False):
        yield _workload(rows)


def _workload(rows: pd.DataFrame) -> Workload:
    first = {str(k): v for k, v in rows.iloc[0].items() if not _blank(v)}
    gpu = load_gpu(str(first["gpu"]))
    framework, known = recognise_framework(str(first.get("framework", "")))
    assumed = [] if known else ["framework"]
    training = _training(first, gpu, framework, assumed)
    model = _model(first, assumed)
    num_gpus = int(first["num_gpus"])
    per_node = min(int(first.get("gpus_per_node", gpu.usual_gpus_per_node or 8)), num_gpus)
    where = {"gpu": gpu.id, "nodes": -(-num_gpus // per_node), "gpus_per_node": per_node}
    if gpu.usual_inter_node_gbytes_per_s is None and num_gpus > per_node:
        where["inter_node_gbytes_per_s"] = _PLAIN_NETWORK_GBYTES_PER_S
        assumed.append("inter_node_gbytes_per_s")
    cluster = build_cluster(where)
    job = Job(name=str(first.get("group", model.name)), model=model, training=training, cluster=cluster)
    plans, guessed = _plans(rows, job, num_gpus)
    notes = [" ".join(assumed + [g for g, mask in guessed.items() if mask[i]]) for i in range(len(rows))]
    return Workload(job, rows.index.to_numpy(), plans, _clocks(rows, plans["pp"], gpu), notes)


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value)) or value == "" or value is pd.NA


def _truth(value: Any) -> bool:
    return str(value).strip().lower() in ("true", "1", "1.0", "yes")


def _training(row: dict[str, Any], gpu: Gpu, framework: Framework, assumed: list[str]) -> Training:
    dtype = str(row.get("dtype") or "")
    if not dtype:
        dtype = "bf16" if "bf16" in gpu.peak_tflops else "fp16"
        assumed.append("dtype")
    attention = str(row.get("attention") or "")
    if not attention:
        # no flash kernel was ever released for Volta
        attention = "fused" if gpu.architecture.lower() == "volta" else framework.default_attention
        assumed.append("attention")
    fused_norm = _truth(row.get("fused_norm", True))
    return Training(
        seq_length=int(row["seq_length"]), global_batch_size=int(row["global_batch_size"]), dtype=dtype,
        attention=attention, fused_norm=fused_norm, framework=framework,
    )  # fmt: skip


def _model(row: dict[str, Any], assumed: list[str]) -> Model:
    hidden = int(row["hidden_size"])
    heads = int(row.get("num_attention_heads", max(hidden // _USUAL_HEAD_DIM, 1)))
    gated = _truth(row.get("gated_mlp", False))
    experts = int(row.get("num_experts", 0))
    shape = ("ffn_hidden_size", "vocab_size", "num_attention_heads", "num_query_groups")
    assumed += [c for c in shape if c not in row]
    ffn = int(row.get("ffn_hidden_size", 4 * hidden))
    return Model(
        name=str(row.get("model", "")), num_layers=int(row["num_layers"]), hidden_size=hidden, ffn_hidden_size=ffn,
        num_attention_heads=heads, num_query_groups=int(row.get("num_query_groups", heads)),
        vocab_size=int(row.get("vocab_size", 50257)), head_dim=hidden // heads, gated_mlp=gated, rmsnorm=gated,
        num_experts=experts, moe_router_topk=int(row.get("moe_router_topk", 0)),
        moe_ffn_hidden_size=ffn if experts else 0,
    )  # fmt: skip


def _integers(rows: pd.DataFrame, column: str, default: Ints) -> tuple[Ints, np.ndarray[Any, Any]]:
    if column not in rows:
        return default, np.ones(len(rows), bool)
    raw = pd.to_numeric(rows[column], errors="coerce").to_numpy(float)
    blank = np.isnan(raw)
    return np.where(blank, default, np.nan_to_num(raw)).astype(np.int64), blank


def _plans(rows: pd.DataFrame, job: Job, num_gpus: int) -> tuple[Columns, dict[str, Any]]:
    habits, n = job.training.framework, len(rows)
    one = np.ones(n, np.int64)
    out: Columns = {}
    guessed: dict[str, Any] = {}
    for column in ("tp", "pp", "cp", "ep"):
        out[column], guessed[column] = _integers(rows, column, one)
    rest = num_gpus // np.maximum(out["tp"] * out["pp"] * out["cp"], 1)
    out["dp"], guessed["dp"] = _integers(rows, "dp", rest)
    out["micro_batch_size"], guessed["micro_batch_size"] = _integers(rows, "micro_batch_size", one)
    chunks = job.model.num_layers // np.maximum(out["pp"] * max(habits.default_chunk_layers, 1), 1)
    chunks = np.where((out["pp"] > 1) & (habits.default_chunk_layers > 0), np.maximum(chunks, 1), 1)
    out["vpp"], guessed["vpp"] = _integers(rows, "vpp", chunks)
    habit = np.full(n, habits.default_zero_stage)
    habit = np.where(out["pp"] > 1, np.minimum(habit, max(habits.zero_stages_with_pipeline)), habit)
    out["zero_stage"], guessed["zero_stage"] = _integers(rows, "zero_stage", habit)
    sp, guessed["sequence_parallel"] = _integers(
        rows.assign(sequence_parallel=_flags(rows)),
        "sequence_parallel",
        one * habits.default_sequence_parallel,
    )
    out["sequence_parallel"] = (sp > 0) & (out["tp"] > 1)
    guessed["sequence_parallel"] &= out["tp"] > 1
    named = rows["recompute"] if "recompute" in rows else pd.Series([None] * n, index=rows.index)
    blank = named.isna().to_numpy()
    default = "selective" if habits.default_recompute == "selective" else habits.default_recompute
    out["recompute"] = named.where(~blank, default).map(RECOMPUTE_CODES).to_numpy(np.int8)
    guessed["recompute"] = blank
    guessed = {k: v for k, v in guessed.items() if k not in ("cp", "ep", "dp") or k in rows}
    return out, guessed


def _flags(rows: pd.DataFrame) -> pd.Series:
    if "sequence_parallel" not in rows:
        return pd.Series(np.nan, index=rows.index)
    return rows["sequence_parallel"].map(lambda v: np.nan if _blank(v) else float(_truth(v)))


def _clocks(rows: pd.DataFrame, pp: Ints, gpu: Gpu) -> Floats:
    """One clock per stage from ``stage_clock_mhz``, else ``clock_mhz``, else the GPU's maximum (1.0 if unknown)."""
    out = np.full((len(rows), int(pp.max())), np.nan)
    top = gpu.clock_max_mhz or 1.0
    for i, (_, row) in enumerate(rows.iterrows()):
        text: Hashable = row.get("stage_clock_mhz")
        if _blank(text):
            clock = row.get("clock_mhz")
            out[i, : pp[i]] = top if _blank(clock) else float(clock)  # type: ignore[arg-type]
        else:
            values = [float(x) for x in str(text).split(";")]
            out[i, : pp[i]] = values if len(values) == pp[i] else values[0]
    return out


def with_framework(job: Job, framework: Framework) -> Job:
    """The same job under another profile."""
    return replace(job, training=replace(job.training, framework=framework))
