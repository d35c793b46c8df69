"""The physics of one job, moved by what was measured on its cluster, with intervals that say how sure it is.

What is learned of a layout is one factor on its time, the same at every clock: measured runs hardly ever vary the
clock, so they say nothing of how the error changes with it, and a search keeps its promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.catalog.gpus import load_gpu
from jointopt.catalog.kernels import kernel_constants
from jointopt.correcting import load_surrogate, surrogate_names
from jointopt.errors import CatalogError, TableError
from jointopt.intervals import add_intervals, supported, with_time_interval
from jointopt.learning import described, group_key, price, timed_runs
from jointopt.physics.estimate import Estimator
from jointopt.plans.clocks import uniform_stage_clocks
from jointopt.schema import LAYOUT_COLUMNS, Bools, Columns, Floats, Ints
from jointopt.spec.job import Job
from jointopt.surrogate.gaussian import Runs

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.model import Surrogate

_CHUNK = 20_000  # layouts that are corrected in one pass
_HERE = "this job"  # the source that the job's own runs share

Known = tuple[Runs, Floats]


@dataclass(frozen=True)
class Informed:
    """Predictions for a job: ``surrogate`` (None = physics alone) moved by the runs ``known`` of the same cluster.

    ``told`` counts these runs by where they came from.
    """

    job: Job
    surrogate: Surrogate | None = None
    known: Known | None = None
    told: Mapping[str, int] = field(default_factory=dict)

    def correct(self, physics: Estimator) -> Estimator:
        """``physics`` with the time of every layout moved by what is known; itself where nothing is."""
        if self.surrogate is None or (self.known is None and not self.surrogate.speaks_of_strangers):
            return physics
        count = len(physics.layouts["pp"])
        factor = np.empty(count)
        for start in range(0, count, _CHUNK):
            layouts = _rows(physics.layouts, np.arange(start, min(start + _CHUNK, count)))
            clocks = uniform_stage_clocks(layouts["pp"], physics.top_mhz)
            factor[start : start + _CHUNK] = np.exp(self._predict(self.surrogate, layouts, clocks)[0])
        return physics.corrected(factor)

    def with_intervals(self, columns: Columns) -> Columns:
        """Columns of plans and results plus ``_low`` and ``_high`` of every result (90 %) and ``in_domain``."""
        out = add_intervals(self.job, columns)
        if self.surrogate is None:
            return out
        plans = _rows(columns, slice(None))
        _, half, inside = self._predict(self.surrogate, plans, columns["stage_clock_mhz"])
        known = self.known is not None
        in_domain = inside & supported(self.job, columns, known)
        return with_time_interval(out, half, inside if known else in_domain) | {"in_domain": in_domain}

    def _predict(
        self, surrogate: Surrogate, layouts: Columns, stage_clock_mhz: Floats
    ) -> tuple[Floats, Floats, Bools]:
        """(mean, 90 % half-width, whether inside) of log(time / physics), (n,) each."""
        physics = Estimator(self.job, kernel_constants(self.job.cluster.gpu), layouts)
        count = len(layouts["pp"])
        time_s = physics.iteration_time_s(np.arange(count), stage_clock_mhz)
        features, moved = described(physics, stage_clock_mhz, time_s)
        runs = Runs(moved, features, np.full(count, _HERE), np.full(count, group_key(self.job)))
        return surrogate.predict(runs, self.job.training.framework.fitted, self.known)


def _rows(columns: Columns, rows: Ints | slice) -> Columns:
    return {name: columns[name][rows] for name in LAYOUT_COLUMNS}


def inform(job: Job, surrogate: str, tables: Mapping[str, pd.DataFrame]) -> Informed:
    """What can be said of ``job``: the surrogate of that name, and the runs in ``tables`` on the job's kind of cluster.

    Runs count where GPU, GPUs per node and framework are the job's. Where ``tables`` (by the name to tell people) have
    none, those that a surrogate of the user's own was trained on stand in; a shipped one was trained on clusters of
    others, and sharing across those made held-out errors worse (vtrain 10 % to 27 % when told of bigscience's runs).
    """
    learned = load_surrogate(surrogate)
    if learned is None:
        return Informed(job)
    found = {name: runs for name, table in tables.items() if (runs := _measured(job, table)) is not None}
    if not found and surrogate not in surrogate_names():
        own = _related(job, learned.support, learned.residual, job.training.framework.fitted)
        found = {} if own is None else {f"the surrogate {surrogate}": own}
    told = {name: len(residual) for name, (_, residual) in found.items()}
    return Informed(job, learned, _together(list(found.values())), told)


def _measured(job: Job, table: pd.DataFrame) -> Known | None:
    """Timed runs of ``table`` on the job's kind of cluster, with their residuals; None where there are none."""
    timed = timed_runs(table)
    if "gpu" not in timed or timed.empty:
        return None
    same = [name for name in timed["gpu"].dropna().unique() if _gpu_id(name) == job.cluster.gpu.id]
    timed = timed[timed["gpu"].isin(same)].reset_index(drop=True)
    try:
        priced = price(timed) if len(timed) else None
    except TableError:  # none of them can be priced, which says nothing against the job
        priced = None
    if priced is None:
        return None
    residual = priced.residual(timed["iteration_time_s"].to_numpy(float)[priced.rows])
    return _related(job, priced.runs, residual, priced.fitted)


def _gpu_id(name: Any) -> str:
    try:
        return load_gpu(str(name)).id
    except CatalogError:
        return ""


def _related(job: Job, runs: Runs, residual: Floats, fitted: Any) -> Known | None:
    """Runs of the job's GPU, GPUs per node and framework profile (any framework without one, where it has none)."""
    habits, cluster = job.training.framework, job.cluster
    there = f"|{cluster.gpu.id}|{cluster.gpus_per_node}"
    wanted = f"|{habits.name}{there}" if habits.fitted else there
    same = np.char.endswith(runs.source, wanted) & (np.asarray(fitted) == habits.fitted)
    at = np.flatnonzero(same).astype(np.int64)
    if not len(at):
        return None
    kept = runs.take(at)
    return Runs(kept.sensitivity, kept.features, np.full(len(at), _HERE), kept.group), residual[at]


def _together(parts: list[Known]) -> Known | None:
    from jointopt.surrogate.model import joined

    if not parts:
        return None
    runs, residual = parts[0]
    for more, own in parts[1:]:
        runs, residual = joined(runs, more), np.concatenate([residual, own])
    return runs, residual
