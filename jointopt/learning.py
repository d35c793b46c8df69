"""Where surrogates meet the physics: tables as runs with residuals, training, and held-out errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from jointopt.catalog.kernels import kernel_constants
from jointopt.cells import MEASURED, floats, shown
from jointopt.errors import JointOptError, TableError
from jointopt.physics.describe import CONSTANTS, sensitivities, shape_columns, share_columns
from jointopt.physics.estimate import Estimator, memory_limit_gib
from jointopt.schema import Columns, Floats, Ints
from jointopt.spec.job import Job
from jointopt.surrogate.gaussian import Runs
from jointopt.workloads import Workload, workloads


@dataclass(frozen=True)
class Priced:
    """Rows of a table with the physics' answer. ``rows`` are positions in the table; arrays follow them."""

    rows: Ints
    runs: Runs
    physics: Columns  # predictions of the physics alone
    fitted: np.ndarray[Any, Any]  # whether the row's framework has a profile of its own
    assumed: np.ndarray[Any, Any]
    memory_limit_gib: Floats
    reasons: dict[int, str]  # rows that nothing can be said about, and why

    def residual(self, time_s: Floats) -> Floats:
        """log(measured / physics) of measured times (n,) in the order of ``rows``; NaN where not measured."""
        return np.asarray(np.log(time_s / self.physics["iteration_time_s"]))


def with_results(table: pd.DataFrame) -> pd.DataFrame:
    """A copy, rows numbered from 0, with numbers or NaN as iteration time and other results, and a blank status as ok.

    Raises TableError that names row, column and value where a result is no number.
    """
    clean = table.reset_index(drop=True)
    for name in clean.columns.intersection(pd.Index(MEASURED)):
        values = floats(clean[name])
        wrong = values.isna() & clean[name].notna() & (clean[name].astype(str).str.strip() != "")
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            raise TableError(
                f"Row {row + 1} of the table: {name} must be a number or blank; got {shown(clean, row, name)}."
            )
        clean[name] = values
    status = clean["status"].fillna("ok") if "status" in clean else "ok"
    return clean.reindex(columns=clean.columns.union(["iteration_time_s"], sort=False)).assign(status=status)


def timed_runs(table: pd.DataFrame) -> pd.DataFrame:
    """Rows that ran and have an iteration time, numbered from 0, as `with_results` reads them; perhaps none."""
    clean = with_results(table)
    return clean[(clean["status"] == "ok") & (clean["iteration_time_s"] > 0)].reset_index(drop=True)


def price(table: pd.DataFrame) -> Priced:
    """The physics' predictions and features of every row that can be priced; TableError where none can."""
    found, reasons = workloads(table)
    works: list[Workload] = []
    parts: list[tuple[Columns, Columns, Floats]] = []
    for work in found:
        try:
            parts.append(_described(work))
            works.append(work)
        except JointOptError as error:
            reasons |= dict.fromkeys(work.rows.tolist(), str(error))
    if not works:
        raise TableError(
            f"No row of the table can be priced; row {min(reasons) + 1}: {reasons[min(reasons)]}"
        )
    rows = np.concatenate([w.rows for w in works])
    names = {name: None for _, features, _ in parts for name in features}
    lengths = [len(w.rows) for w in works]
    limits = [memory_limit_gib(w.job) for w in works]
    habits = [w.job.training.framework for w in works]
    source, group = _kinship(table, works)
    return Priced(
        rows=rows,
        runs=Runs(
            np.concatenate([moved for _, _, moved in parts]),
            {n: np.concatenate([f[n] for _, f, _ in parts]) for n in names},
            source,
            group,
        ),
        physics={n: np.concatenate([v[n] for v, _, _ in parts]) for n in parts[0][0]},
        fitted=np.repeat([h.fitted for h in habits], lengths),
        assumed=np.concatenate([np.asarray(w.assumed, dtype=object) for w in works]),
        memory_limit_gib=np.repeat(limits, lengths),
        reasons=reasons,
    )


def _described(work: Workload) -> tuple[Columns, Columns, Floats]:
    """(predictions, features, sensitivities) of one workload's rows."""
    physics = Estimator(work.job, kernel_constants(work.job.cluster.gpu), work.plans)
    values = physics.evaluate(np.arange(len(work.rows)), work.stage_clock_mhz)
    return values, *described(physics, work.stage_clock_mhz, values["iteration_time_s"])


def described(physics: Estimator, stage_clock_mhz: Floats, time_s: Floats) -> tuple[Columns, Floats]:
    """(features by name (n,), sensitivities (n, constants)) of the layouts of ``physics``, which take ``time_s``."""
    gpu, index = physics.job.cluster.gpu, np.arange(len(time_s))
    features = shape_columns(physics.job, physics.layouts, stage_clock_mhz)
    features |= share_columns(physics, index, stage_clock_mhz)
    peak = gpu.peak_tflops.get("bf16", gpu.peak_tflops.get("fp16", 1.0))
    features["log2_peak"] = np.full(len(index), np.log2(peak))
    return features, sensitivities(physics, index, stage_clock_mhz, time_s)


def group_key(job: Job) -> str:
    """What runs must share to be of one group: model, batch, GPUs and sequence length."""
    return (
        f"{job.model.name}|{job.training.global_batch_size}|{job.cluster.num_gpus}|{job.training.seq_length}"
    )


def _kinship(table: pd.DataFrame, works: list[Workload]) -> tuple[Any, Any]:
    """(source, group) of every priced row: the table's own word for the source, GPU, node and software; one job."""
    origin = table["source"].astype(str).to_numpy() if "source" in table else np.full(len(table), "")
    framework = table["framework"].astype(str).to_numpy() if "framework" in table else np.full(len(table), "")
    source, group = [], []
    for work in works:
        job = work.job
        habits = job.training.framework
        own = group_key(job)
        for row in work.rows:
            name = habits.name if habits.fitted else framework[row].lower()
            source.append(f"{origin[row]}|{name}|{job.cluster.gpu.id}|{job.cluster.gpus_per_node}")
            group.append(own)
    return np.asarray(source, dtype=str), np.asarray(group, dtype=str)


__all__ = ["CONSTANTS", "Priced", "price", "timed_runs", "with_results"]
