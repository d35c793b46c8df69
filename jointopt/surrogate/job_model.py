"""The physics of one job, moved by what was measured on its cluster, with intervals that say how sure it is.

What is learned of a layout is one factor on its time, the same at every clock: measured runs hardly ever vary the
clock, so they say nothing of how the error changes with it, and a search keeps its promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import TableError
from jointopt.core.schema import LAYOUT_COLUMNS, Bools, Columns, Floats, Ints
from jointopt.physics.estimate import Estimator
from jointopt.runs.database import without_password
from jointopt.spec.catalog.gpus import gpu_id
from jointopt.spec.catalog.kernels import kernel_constants
from jointopt.spec.job import Job
from jointopt.spec.plans.clocks import uniform_stage_clocks
from jointopt.surrogate.correction import load_surrogate, surrogate_names
from jointopt.surrogate.dataset import (
    Priced,
    described,
    group_key,
    power_log_ratio,
    price,
    together,
    with_results,
)
from jointopt.surrogate.feasibility import GRID, MemoryEvidence, source_weights
from jointopt.surrogate.intervals import add_intervals, supported, with_power_interval, with_time_interval
from jointopt.surrogate.memory import memory_evidence, memory_margin
from jointopt.surrogate.off_scale import scale_of
from jointopt.surrogate.power_scale import PowerScale, power_scale
from jointopt.surrogate.residual_gp import Runs

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.model import Surrogate

_CHUNK = 20_000  # layouts that are corrected in one pass
_HERE = "this job"  # the source that the job's own runs share

Known = tuple[Runs, Floats]


@dataclass(frozen=True)
class Informed:
    """Predictions for a job: ``surrogate`` (None = physics alone) moved by the runs ``known`` of the same cluster.

    ``told`` counts these runs by where they came from; ``memory_factor`` is measured over predicted memory there.
    """

    job: Job
    surrogate: Surrogate | None = None
    known: Known | None = None
    told: Mapping[str, int] = field(default_factory=dict)
    memory_factor: float = 1.0
    power: PowerScale = field(default_factory=PowerScale)

    def correct(self, physics: Estimator) -> Estimator:
        """``physics`` with time and memory of every layout moved by what is known; itself where nothing is."""
        count = len(physics.layouts["pp"])
        if self.surrogate is None or (self.known is None and not self.surrogate.speaks_of_strangers):
            same = self.memory_factor == 1.0 and self.power.factor == 1.0
            return physics if same else self._corrected(physics, np.ones(count))
        factor = np.empty(count)
        for start in range(0, count, _CHUNK):
            layouts = _rows(physics.layouts, np.arange(start, min(start + _CHUNK, count)))
            clocks = uniform_stage_clocks(layouts["pp"], physics.top_mhz)
            factor[start : start + _CHUNK] = np.exp(
                self._predict(self.surrogate, self._runs(layouts, clocks))[0]
            )
        return self._corrected(physics, factor)

    def _corrected(self, physics: Estimator, time_factor: Floats) -> Estimator:
        return physics.corrected(time_factor, self.memory_factor, self.power.factor)

    def with_intervals(self, columns: Columns) -> Columns:
        """Columns of plans and results plus ``_low`` and ``_high`` of every result (90 %) and ``in_domain``."""
        out = add_intervals(self.job, columns)
        if self.surrogate is None:
            return out
        if self.power.half_width is not None:
            out = with_power_interval(out, self.power.half_width)
        plans = _rows(columns, slice(None))
        runs = self._runs(plans, columns["stage_clock_mhz"])
        _, half, inside = self._predict(self.surrogate, runs)
        known = self.known is not None and self.surrogate.knows_kinds([runs], self.known)[0]
        in_domain = inside & supported(self.job, columns, known)
        widened = inside if known else in_domain
        return with_time_interval(self.job, out, half, widened, known) | {"in_domain": in_domain}

    def _runs(self, layouts: Columns, stage_clock_mhz: Floats) -> Runs:
        """Plans of the job as runs that the surrogate can be asked about."""
        physics = Estimator(self.job, kernel_constants(self.job.cluster.gpu), layouts)
        count = len(layouts["pp"])
        features, moved = described(physics, stage_clock_mhz, np.arange(count))
        return Runs(moved, features, np.full(count, _HERE), np.full(count, group_key(self.job)))

    def _predict(self, surrogate: Surrogate, runs: Runs) -> tuple[Floats, Floats, Bools]:
        """(mean, 90 % half-width, whether inside) of log(time / physics), (n,) each."""
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
    runs = {name: found for name, table in tables.items() if (found := _Runs.of(job, table)) is not None}
    timed = {name: known for name, found in runs.items() if (known := found.timed()) is not None}
    if not timed and surrogate not in surrogate_names():
        own = _same_kind(job, learned.support.source, job.training.framework.fitted)
        if len(own):
            timed = {f"the surrogate {surrogate}": (_here(learned.support.take(own)), learned.residual[own])}
    told = {name: len(residual) for name, (_, residual) in timed.items()}
    of_here = list(runs.values())
    timed_here = _together(list(timed.values()))
    return Informed(job, learned, timed_here, told, _memory_factor(of_here), _power(of_here))


def inform_from(
    job: Job, surrogate: str, measured: pd.DataFrame | None, storage: str | None
) -> Informed:  # fmt: skip
    """`inform` by a table of measured runs and by the measurements of a database, where they are given."""
    if measured is not None and surrogate != "none":
        scale_of(measured)
    tables = {} if measured is None else {"the measured runs given": measured}
    if storage is not None and surrogate != "none":
        from jointopt.runs.store import Store

        tables[without_password(storage)] = Store(storage).read()
    return inform(job, surrogate, tables)


@dataclass(frozen=True)
class _Runs:
    """Rows of a table on the job's kind of cluster that ran or ran out of memory, with what the physics says."""

    table: pd.DataFrame
    priced: Priced

    @classmethod
    def of(cls, job: Job, table: pd.DataFrame) -> _Runs | None:
        """None where the table has no such row."""
        known = with_results(table)
        if "gpu" not in known:
            return None
        same = [name for name in known["gpu"].dropna().unique() if gpu_id(name) == job.cluster.gpu.id]
        known = known[known["gpu"].isin(same) & known["status"].isin(["ok", "oom"])].reset_index(drop=True)
        try:
            priced = price(known, job.cluster) if len(known) else None
        except TableError:  # none of them can be priced, which says nothing against the job
            priced = None
        if priced is None:
            return None
        at = _same_kind(job, priced.runs.source, priced.fitted)
        return cls(known, _taken(priced, at)) if len(at) else None

    def timed(self) -> Known | None:
        """Runs with a time, and their residuals; None where there are none."""
        rows = self.priced.rows
        time_s = self.table["iteration_time_s"].to_numpy(float)[rows]
        good = np.flatnonzero((self.table["status"].to_numpy(str)[rows] == "ok") & (time_s > 0)).astype(
            np.int64
        )
        return (self.priced.runs.take(good), self.priced.residual(time_s)[good]) if len(good) else None


def _taken(priced: Priced, at: Ints) -> Priced:
    """Some rows of ``priced``, as runs of the job's own source."""
    return replace(
        priced, rows=priced.rows[at], runs=_here(priced.runs.take(at)), fitted=priced.fitted[at],
        physics={name: values[at] for name, values in priced.physics.items()}, assumed=priced.assumed[at],
        memory_limit_gib=priced.memory_limit_gib[at],
    )  # fmt: skip


def _memory_factor(runs: list[_Runs]) -> float:
    """Measured over predicted memory by all that ran or ran out of memory; 1 where nothing was read."""
    found = [memory_evidence(part.table, part.priced)[_HERE] for part in runs]
    if not any(map(len, found)):
        return 1.0
    names = [f.name for f in fields(MemoryEvidence)]
    evidence = MemoryEvidence(*(np.concatenate([getattr(e, n) for e in found]) for n in names))
    return float(np.exp(source_weights(memory_margin(), evidence) @ GRID))


def _power(runs: list[_Runs]) -> PowerScale:
    ratios = [power_log_ratio(part.table, part.priced) for part in runs]
    return power_scale(np.concatenate(ratios)) if ratios else PowerScale()


def _same_kind(job: Job, source: Any, fitted: Any) -> Ints:
    """Rows of the job's GPU, GPUs per node and framework profile (any framework without one, where it has none)."""
    habits, cluster = job.training.framework, job.cluster
    there = f"|{cluster.gpu.id}|{cluster.gpus_per_node}"
    wanted = f"|{habits.name}{there}" if habits.fitted else there
    same = np.char.endswith(source, wanted) & (np.asarray(fitted) == habits.fitted)
    return np.flatnonzero(same).astype(np.int64)


def _here(runs: Runs) -> Runs:
    return replace(runs, source=np.full(len(runs), _HERE))


def _together(parts: list[Known]) -> Known | None:
    if not parts:
        return None
    runs, residuals = zip(*parts, strict=True)
    return together(runs), np.concatenate(residuals)
