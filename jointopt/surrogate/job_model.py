"""The model of one job that every verb uses: physics, calibration, surrogate, and evidence from measured runs."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats, Ints
from jointopt.core.units import GIB
from jointopt.physics.cost_model import CostModel
from jointopt.physics.limits import memory_limit_gib
from jointopt.runs.database import may_hold_rows
from jointopt.spec.calibration import Calibration, calibrated
from jointopt.spec.job import Job
from jointopt.spec.machine import Machine, on_machine
from jointopt.spec.plans.clocks import uniform_stage_clocks
from jointopt.surrogate.correction import Correction, load_surrogate, surrogate_names
from jointopt.surrogate.evidence import Evidence, relabelled, sources_of_kind
from jointopt.surrogate.features import runs_of
from jointopt.surrogate.intervals import add_intervals
from jointopt.surrogate.memory import MemoryPosterior
from jointopt.surrogate.residual_gp import Runs

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements
    from jointopt.surrogate.model import Surrogate

# A layout is corrected by one factor at every clock: measured runs hardly ever vary the clock.
_CHUNK = 20_000  # layouts that are corrected in one pass
HERE = "this job||none|0"  # the source that the job's own runs share: that of no other runs


@dataclass(frozen=True)
class JobModel:
    """Predictions for ``job``: its physics, corrected by ``surrogate`` (None: not at all) and ``evidence``."""

    job: Job
    surrogate: Surrogate | None = None
    evidence: Evidence = field(default_factory=Evidence)
    name: str = "none"  # of the surrogate, as results give it

    @classmethod
    def of(
        cls, job: Job | JobModel, surrogate: str = "default", measured: pd.DataFrame | Measurements | None = None,
        calibration: Calibration | None = None, storage: str | None = None, machine: Machine | None = None,
    ) -> JobModel:  # fmt: skip
        """The model that a command's options stand for; a model is returned as it is.

        ``surrogate``: a shipped one's name, a folder, or none. ``measured``: runs at hand. ``storage``: the URL of a
        database, whose measurements count too. ``machine``: figures that stand in for what the job does not state.
        UsageError for an unknown surrogate, or a calibration or machine of another GPU,
        TableError for measured times that are in another unit.
        """
        if isinstance(job, JobModel):
            return job
        learned = load_surrogate(surrogate)
        model = cls(on_machine(calibrated(job, calibration), machine), learned, name=surrogate)
        if learned is None:
            return model
        model = model.fit_evidence(*_measurements(measured, storage))
        if model.evidence.runs is None and surrogate not in surrogate_names():
            return replace(model, evidence=_own_runs(learned, surrogate, model))
        return model

    def fit_evidence(self, *measurements: Measurements) -> JobModel:
        """The model after measured runs on the job's kind of cluster: its GPU, GPUs per node and framework."""
        if self.surrogate is None:
            return self
        return replace(self, evidence=Evidence.joined([runs.evidence(self.job, HERE) for runs in measurements]))

    @functools.cached_property
    def memory(self) -> MemoryPosterior:
        """The memory model after measured runs."""
        return self.evidence.memory_posterior(self.job.training.framework.name)

    def fit_probability(self, physics: CostModel) -> Floats:
        """Probability (n,) that each layout of `cost_model` fits in memory."""
        load = physics.memory_bytes / (physics.memory_factor * memory_limit_gib(self.job) * GIB)
        return self.memory.fit_probability(np.log(load))

    @property
    def fingerprint(self) -> str:
        """A text that is equal for models of one job that learned from the same runs; blank where nothing corrects."""
        if self._correction is None or not (self._correction.moves_time or self.evidence.counts):
            return ""
        power = self.evidence.power
        moved = f"{power.factor:.6g} {power.offset_w:.6g}"
        return f"{self.evidence.counts} {self.evidence.residual.sum():.6g} {moved}"

    @functools.cached_property
    def _correction(self) -> Correction | None:
        fitted = self.job.training.framework.fitted
        return None if self.surrogate is None else Correction(self.surrogate, HERE, fitted, self.evidence)

    @functools.cached_property
    def _moved(self) -> Job:
        """The job with the network that measured runs show, where it is far from the stated or usual one."""
        return self.job if self._correction is None else self._correction.moved(self.job)

    def physics(self, layouts: Columns) -> CostModel:
        """The physics alone, for these layouts."""
        return CostModel(self.job, layouts)

    def cost_model(self, layouts: Columns, peak_bytes: Floats | None = None, *, lazily: bool = False) -> CostModel:
        """The physics of these layouts with time, power and memory moved by what is known.

        ``peak_bytes`` (L,): memory of the layouts by the physics alone, where it is known already. ``lazily``: as for
        `CostModel`.
        """
        physics = CostModel(self._moved, layouts, peak_bytes=peak_bytes, lazily=lazily)
        scale = self.evidence.power if self._correction is None else self._correction.power
        memory, power = self.memory.factor, (scale.factor, scale.offset_w)
        if self.job.constraints.memory_fraction is None:  # a stated bound is one on the prediction
            physics.memory_reach = memory * self.memory.reach
        if self._correction is None or not self._correction.moves_time:
            same = memory == 1.0 and power == (1.0, 0.0)
            return physics if same else physics.corrected(np.ones(len(layouts["pp"])), memory, *power)
        return physics.corrected(np.exp(self.log_time_factor(layouts)), memory, *power)

    def log_time_factor(self, layouts: Columns) -> Floats:
        """Mean of log(time / physics) of every layout (n,), the physics as moved; zeros where nothing is corrected."""
        count = len(layouts["pp"])
        if self._correction is None:
            return np.zeros(count)
        top_mhz = self.job.cluster.gpu.clock_max_mhz or 1.0
        parts = []
        for start in range(0, count, _CHUNK):
            some = _rows(layouts, np.arange(start, min(start + _CHUNK, count)))
            every, clocks = np.arange(len(some["pp"])), uniform_stage_clocks(some["pp"], top_mhz)
            parts.append(self._correction.log_factor(self._runs(some, every, clocks)))
        return np.concatenate(parts)

    def intervals(self, columns: Columns) -> Columns:
        """Plans and results of `cost_model` plus ``_low`` and ``_high`` of every result (90 %) and ``in_domain``."""
        if self._correction is None:
            return add_intervals(self.job, columns)
        # plans of a front share few layouts, and each is priced once for every constant
        cells = np.stack([columns[name].astype(float) for name in LAYOUT_COLUMNS], axis=1)
        _, first, layout = np.unique(cells, axis=0, return_index=True, return_inverse=True)
        runs = self._runs(_rows(columns, first), layout.reshape(-1), columns["stage_clock_mhz"])
        return self._correction.moves([runs])[0].bounded(self.job, columns)

    def _runs(self, layouts: Columns, layout: Ints, stage_clock_mhz: Floats) -> Runs:
        """Plans of the ``layout`` (n,) each as runs that the surrogate can be queried about."""
        by = None if self._correction is None else self._correction.by
        return runs_of(CostModel(self._moved, layouts), stage_clock_mhz, layout, HERE, by)


def _rows(columns: Columns, rows: Ints | slice) -> Columns:
    return {name: columns[name][rows] for name in LAYOUT_COLUMNS}


def _measurements(measured: pd.DataFrame | Measurements | None, storage: str | None) -> list[Measurements]:
    """Measured runs at hand, and those of a database."""
    if measured is None and not (storage and may_hold_rows(storage)):
        return []
    from jointopt.surrogate.measurements import Measurements  # it imports pandas

    runs = [] if measured is None else [Measurements.given(measured)]
    return [*runs, Measurements.stored(storage)] if storage else runs


def _own_runs(surrogate: Surrogate, name: str, model: JobModel) -> Evidence:
    """The model's evidence with the timed runs that a surrogate of the user's own was trained on.

    A shipped one was trained on clusters of others, and sharing across those made held-out errors worse (vtrain 10 % to
    27 % with bigscience's runs).
    """
    keys = sources_of_kind(np.unique(surrogate.support.source).tolist(), model.job)
    at = np.flatnonzero(np.isin(surrogate.support.source, keys)).astype(np.int64)
    if not len(at):
        return model.evidence
    runs, counts = relabelled(surrogate.support.take(at), HERE), {f"the surrogate {name}": len(at)}
    return replace(model.evidence, runs=runs, residual=surrogate.residual[at], counts=counts)
