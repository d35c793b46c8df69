"""The model of one job that every verb uses: physics, calibration, surrogate, and evidence from measured runs."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, POWER_LIMIT, Bools, Columns, Floats, Ints
from jointopt.core.units import GIB
from jointopt.jobs.calibration import Calibration, calibrated
from jointopt.jobs.clocks import without_limits
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job, on_machine
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel, Drawn, by_mean_power, memory_limit_gib
from jointopt.runs.database import may_hold_rows
from jointopt.surrogate.correction import Correction, load_surrogate, surrogate_names
from jointopt.surrogate.differences import Apart, against, of_limits, recorded
from jointopt.surrogate.evidence import Evidence, far_words
from jointopt.surrogate.features import clocks_reached, runs_of, watts_at
from jointopt.surrogate.intervals import DOUBTS, add_intervals, bounds_within_limits, doubt_names, doubts
from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.kin import answering, in_part, of_kind, remembered, source_here, warn_of_left_aside
from jointopt.surrogate.memory import MemoryPosterior
from jointopt.surrogate.network_doubt import network_assumed, network_delay
from jointopt.surrogate.one_recipe import as_learned, as_measured
from jointopt.surrogate.out_of_memory import surely_out
from jointopt.surrogate.power import CLOCKS, MeasuredPower, PowerScale, drawn_by, other_limits, within_limits

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements
    from jointopt.surrogate.surrogate import Surrogate

_log = logging.getLogger(__name__)
# A layout is corrected by one factor at every clock: measured runs hardly ever vary the clock.
_CHUNK = 20_000  # layouts that are corrected in one pass


@dataclass(frozen=True)
class JobModel:
    """Predictions for ``job``: its physics, corrected by ``surrogate`` (None: not at all) and ``evidence``."""

    job: Job
    surrogate: Surrogate | None = None
    evidence: Evidence = field(default_factory=Evidence)
    name: str = "none"  # of the surrogate, as results give it
    out: tuple[Columns, ...] = field(default=(), compare=False)  # layouts of measured runs that ran out of memory
    # plans as runs, the last ones: their intervals are followed by their differences
    _last: dict[bytes, tuple[CostModel, Ints, Runs]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # clocks that power limits leave plans, of the last ones: intervals are followed by doubts and differences
    _last_clocks: dict[bytes, Floats] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls, job: Job | JobModel, surrogate: str = "default", measured: pd.DataFrame | Measurements | None = None,
        calibration: Calibration | None = None, storage: str | None = None, machine: Machine | None = None,
        plans: tuple[str, ...] = (),
    ) -> JobModel:  # fmt: skip
        """The model that a command's options stand for; a model is returned as it is.

        ``surrogate``: a shipped one's name, a folder, or none. ``measured``: runs at hand. ``storage``: the URL of a
        database, whose measurements count too, of many those of ``plans`` first (`jointopt.runs.relevance.plan_key`).
        ``machine``: figures that stand in for what the job does not state.
        UsageError for an unknown surrogate, or a calibration or machine of another GPU,
        TableError for measured times that are in another unit, and runs at hand of which none can be learned from.
        """
        if isinstance(job, JobModel):
            return job
        learned = load_surrogate(surrogate)
        model = cls(on_machine(calibrated(job, calibration), machine), learned, name=surrogate)
        model = model.fit_evidence(*_measurements(measured, storage, job, plans))
        return model if learned is None or surrogate in surrogate_names() else model.of_user()

    def of_user(self) -> JobModel:
        """The model with what its surrogate, one of the user's own, learned from runs on such a cluster."""
        if self.surrogate is None:
            return self
        before, measured = self.surrogate, self.evidence.runs is not None
        surrogate, source = answering(before, self.source, self.job, measured)
        if measured and before.own_of(source) is None:
            warn_of_left_aside(answering(before, self.source, self.job, False)[0], self.name, source)
            return self
        own, near = remembered(surrogate, source)
        if not len(own) and not len(near):
            return self
        place = of_surrogate(self.name)
        counts = {place: len(own), in_part(place): len(near)}
        counts = {name: count for name, count in counts.items() if count}
        evidence = replace(self.evidence, counts=counts | dict(self.evidence.counts))
        job = as_learned(self.job, surrogate.class_of(source), surrogate.support.take(own))  # `Correction` prices by it
        return replace(self, job=job, surrogate=surrogate, evidence=evidence)

    def fit_evidence(self, *measurements: Measurements) -> JobModel:
        """The model after measured runs on the job's kind of cluster: its GPU, GPUs per node and framework.

        Runs and job are of one recipe class and one attention kernel, those that either states. Without a surrogate
        nothing is learned but the layouts that ran out of memory.
        """
        if self.surrogate is None:
            return replace(self, out=tuple(runs.ran_out(self.job) for runs in measurements))
        job = as_measured(self.job, measurements)
        parts = [runs.evidence(job, self.source) for runs in measurements]
        kin = [runs.kin_evidence(job, self.source) for runs in measurements]
        evidence = Evidence.joined(parts).beside(kin)
        of_kin = {in_part(place): count for part in kin for place, count in part.counts.items()}
        out = tuple(runs.ran_out(job) for runs in measurements)
        return replace(self, job=job, evidence=replace(evidence, counts=dict(evidence.counts) | of_kin), out=out)

    @functools.cached_property
    def source(self) -> str:
        """Key of the source that the job's runs are of: one with many runs learned from, else its own."""
        here = source_here(self.job)
        own = [] if self.surrogate is None else [own.source for own in self.surrogate.own]
        return next(iter(of_kind(own, here, self.job)), here)

    @functools.cached_property
    def memory(self) -> MemoryPosterior:
        """The memory model after measured runs."""
        return self.evidence.memory_posterior(self.job.training.framework.name)

    def fit_probability(self, physics: CostModel) -> Floats:
        """Probability (n,) that each layout of `cost_model` fits in memory."""
        found = self.fit_probability_of(physics.memory_bytes / physics.memory_factor)
        return np.where(self.surely_out(physics.layouts), 0.0, found)

    def surely_out(self, layouts: Columns) -> Bools:
        """Which layouts (n,) run out of memory since a measured run did (`jointopt.surrogate.out_of_memory`)."""
        return surely_out(self.job, layouts, self.out)

    def fit_probability_of(self, peak_bytes: Floats) -> Floats:
        """Probability (n,) of fitting by the memory of the physics alone; 0 beyond a bound that the job states."""
        load = peak_bytes / (memory_limit_gib(self.job) * GIB)
        found = self.memory.fit_probability(np.log(load))
        if self.job.constraints.memory_fraction is None:
            return found
        return np.where(self.memory.factor * load <= 1.0, found, 0.0)

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
        return None if self.surrogate is None else Correction(self.surrogate, self.source, fitted, self.evidence)

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
        log_time, power, drawn = self._moves_under_limits(layouts)
        physics = CostModel(self._moved, layouts, peak_bytes=peak_bytes, lazily=lazily, drawn=drawn)
        memory = self.memory.factor
        if self.job.constraints.memory_fraction is None:  # a stated bound is one on the prediction
            physics.memory_reach = memory * self.memory.reach
        if log_time is None and memory == 1.0 and (power.factor, power.offset_w) == (1.0, 0.0):
            return physics
        time_factor = np.ones(len(layouts["pp"])) if log_time is None else np.exp(log_time)
        power = power if drawn is None else within_limits(power, physics)
        heat = by_mean_power if self._correction is None else self._correction.heat(self._moved, physics.layouts)
        return physics.corrected(time_factor, memory, power.factor, power.offset_w, heat)

    def _moves_under_limits(self, layouts: Columns) -> tuple[Floats | None, PowerScale, Drawn | None]:
        """Log of the factor on time (L,), scale of mean power, and of what kernels draw; None where nothing is known.

        What was learned is of the layout under the limit that runs were measured under, whatever its own.
        """
        correction, power, limit_w = self._correction, self.evidence.power, self.evidence.power_limit_w
        if correction is None or not correction.moves_time:
            drawn = None if limit_w is None else MeasuredPower(power, limit_w).drawn(self._moved, layouts)
            return None, power, drawn
        bare, of = without_limits(layouts)
        limit_w = correction.power_limit_w
        limited = limit_w is not None and other_limits(self._moved, layouts, limit_w)
        log_time, factor, offset_w, *cells = self._moves(bare, limited=limited)[:, of]
        drawn = Drawn.of_cells(limit_w, np.stack(cells)) if limit_w is not None and limited else None
        return log_time, PowerScale(factor, None, offset_w), drawn

    def _moves(self, layouts: Columns, *, limited: bool = False) -> Floats:
        """Log of the factor on time, factor on power and watts beside it, (3, n), of every layout.

        ``limited``: then `Drawn.cells`, for plans under other limits than power was measured under.
        """
        count = len(layouts["pp"])
        out = np.zeros((3 + limited * (2 + 2 * len(CLOCKS)), count))
        out[1] = 1.0
        if (correction := self._correction) is None:
            return out
        # those of one depth and number of chunks in a row: all that follows works on such at once
        order = np.lexsort((layouts["vpp"], layouts["pp"])).astype(np.int64)
        for start in range(0, count, _CHUNK):
            at = order[start : start + _CHUNK]
            physics, every = CostModel(correction.as_measured(self._moved), _rows(layouts, at)), np.arange(len(at))
            runs = self._runs(physics, uniform_stage_clocks(physics.layouts["pp"], physics.top_mhz), every)
            power = correction.power(runs, _watts(correction, physics, every))
            out[0, at], out[1, at], out[2, at] = correction.log_factor(runs), power.factor, power.offset_w
            if limited and (limit_w := correction.power_limit_w) is not None:
                out[3:, at] = drawn_by(physics, power, limit_w).cells
        return out

    def learned(self, layouts: Columns, stage_clock_mhz: Floats | None = None) -> tuple[str, ...]:
        """Sentences on what many runs of the cluster move time, power and heat of the first of ``layouts`` by.

        ``stage_clock_mhz`` (n, S): clocks of the plans, None: the top one. Of a few runs `shown_by_few`.
        """
        correction = self._correction
        if correction is None or correction.own is None:
            return self.shown_by_few(layouts)
        from jointopt.surrogate.own_words import learned_sentences

        clocks = None if stage_clock_mhz is None else stage_clock_mhz[:1]
        return learned_sentences(correction, self.job, _rows(layouts, slice(1)), clocks)

    def shown_by_few(self, layouts: Columns) -> tuple[str, ...]:
        """Sentences where a few runs show a network or host far from what was assumed (`far_words`), or count in part.

        The latter where none of them is of the group of the first of ``layouts``.
        """
        if self._correction is None:
            return ()
        far = tuple(filter(None, [far_words(self._correction.by, self.job)]))
        return (*far, *self._counted_in_part(layouts))

    def _counted_in_part(self, layouts: Columns) -> tuple[str, ...]:
        if self._correction is None or not self._correction.has_new_groups:
            return ()
        physics = CostModel(self._moved, _rows(layouts, slice(1)))
        top = uniform_stage_clocks(layouts["pp"][:1], physics.top_mhz)
        return self._correction.counted_in_part(self._runs(physics, top, np.zeros(1, np.int64)))

    def intervals(self, columns: Columns) -> Columns:
        """Plans and results of `cost_model` plus ``_low`` and ``_high`` of every result (90 %) and ``in_domain``."""
        if POWER_LIMIT in columns:
            held = self.intervals(self._held(columns))
            limited = held | {name: columns[name] for name in (POWER_LIMIT, "stage_clock_mhz")}
            overshoot = None if self._correction is None else self._correction.peak_overshoot
            return bounds_within_limits(self.job, limited, overshoot)
        if self._correction is None:
            return add_intervals(self.job, columns, network=self._network(columns))
        physics, layout, runs = self._as_runs(columns)
        watts = _watts(self._correction, physics, layout)
        return self._correction.moves([runs], [watts])[0].bounded(self.job, columns)

    def doubts(self, columns: Columns) -> dict[str, Bools]:
        """Why nothing recorded or measured supports plans of `intervals`, (n,) each, by the keys of `DOUBTS`."""
        if POWER_LIMIT in columns:
            return self.doubts(self._held(columns))
        if self._correction is None:
            return doubts(self.job, columns, network=self._network(columns))
        return self._correction.doubts(self.job, columns, self._as_runs(columns)[2])

    def bounded(self, columns: Columns) -> Columns:
        """As `intervals`, with ``doubts``: names of the doubts of each plan, joined by a blank (`doubt_names`)."""
        found = self.intervals(columns)
        return found | {"doubts": doubt_names(self.doubts(found), found["in_domain"])}

    def reasons(self, plan: Columns) -> tuple[str, ...]:
        """`doubts` of one plan (columns of one row) in words."""
        return tuple(DOUBTS[name] for name, of in self.doubts(plan).items() if of[0])

    def _network(self, columns: Columns) -> Floats | float:
        """Doubt of plans for an assumed network by the physics alone, (n,)."""
        return network_delay(*self._layouts_of(columns)) if network_assumed(self.job) else 0.0

    def _held(self, columns: Columns) -> Columns:
        """Plans under power limits as plans at the clocks that these leave them."""
        layouts = {name: columns[name] for name in (*LAYOUT_COLUMNS, POWER_LIMIT)}
        key = _bytes(columns, (*layouts, "stage_clock_mhz"))
        if key not in self._last_clocks:
            physics = CostModel(self._moved, layouts, drawn=self._moves_under_limits(layouts)[2])
            self._last_clocks.clear()
            self._last_clocks[key] = clocks_reached(physics, columns["stage_clock_mhz"])
        bare = {name: values for name, values in columns.items() if name != POWER_LIMIT}
        return bare | {"stage_clock_mhz": self._last_clocks[key]}

    def differences(self, columns: Columns, first: int) -> Columns:
        """Differences of `cost_model`'s plans from that in row ``first``, (n,) each: see `differences.against`.

        Plans under power limits (all then have one) are compared at the clocks that these leave them.
        """
        held = self._held(columns) if POWER_LIMIT in columns else columns
        if self._correction is None:
            _, layout = self._layouts_of(held)
            apart = Apart(recorded(self.job, held, first), layout != layout[first])
        else:
            _, layout, runs = self._as_runs(held)
            half, measured = self._correction.apart(self.job, held, runs, first)
            apart = Apart(half, layout != layout[first], measured)
        if POWER_LIMIT in columns:
            apart = replace(apart, by_limit=of_limits(*self._off_limits(columns, held), first, apart.other_layout))
        return against(self.job, held, first, apart)

    def _off_limits(self, columns: Columns, held: Columns) -> tuple[Floats, Floats]:
        """Changes of log(time) and log(energy) of plans on GPUs that draw less than predicted, and by how much less.

        (2, n) and the 90 % half-width (n,) of the logarithm of power. Under its limit such a GPU runs at the clock that
        one as predicted reaches under a limit higher by as much, up to the cluster's. ``held``: the plans as `_held`.
        """
        known = columns if "avg_power_w_low" in columns else self.intervals(held)
        count = len(columns["pp"])
        half = np.log(known["avg_power_w"] / known["avg_power_w_low"])
        limit_w = columns[POWER_LIMIT]
        higher_w = np.maximum(np.minimum(limit_w * np.exp(half), self.job.cluster.power_limit_w), limit_w)
        both = {name: np.concatenate([columns[name]] * 2) for name in LAYOUT_COLUMNS}
        physics = self.cost_model(both | {POWER_LIMIT: np.concatenate([limit_w, higher_w])})
        found = physics.evaluate(np.arange(2 * count), np.concatenate([columns["stage_clock_mhz"]] * 2))
        logs = np.log([found[name].reshape(2, count) for name in ("iteration_time_s", "energy_j")])
        return logs[:, 1] - logs[:, 0], half

    def _as_runs(self, columns: Columns) -> tuple[CostModel, Ints, Runs]:
        """`_layouts_of` plans, and the plans as runs of the source."""
        key = _bytes(columns, (*LAYOUT_COLUMNS, "stage_clock_mhz"))
        if key not in self._last:
            physics, layout = self._layouts_of(columns)
            self._last.clear()
            self._last[key] = physics, layout, self._runs(physics, columns["stage_clock_mhz"], layout)
        return self._last[key]

    def _runs(self, physics: CostModel, stage_clock_mhz: Floats, layout: Ints) -> Runs:
        """Plans of the ``layout`` (n,) each of the physics as moved, as runs of the source."""
        return runs_of(physics, stage_clock_mhz, layout, self.source)

    def _layouts_of(self, columns: Columns) -> tuple[CostModel, Ints]:
        """The physics of the layouts of plans, each once, and which of them is each plan's, (n,).

        Plans of a front share few layouts, and each is priced once for every constant.
        """
        cells = np.stack([columns[name].astype(float) for name in LAYOUT_COLUMNS], axis=1)
        _, first, layout = np.unique(cells, axis=0, return_index=True, return_inverse=True)
        return CostModel(self._moved, _rows(columns, first)), layout.reshape(-1)


def _watts(correction: Correction, physics: CostModel, layout: Ints) -> Floats | None:
    """The power of the physics that `Correction.power` needs."""
    clocks = correction.power_clocks
    return None if clocks is None else watts_at(physics, layout, clocks)


def _bytes(columns: Columns, names: Iterable[str]) -> bytes:
    return b"".join(np.ascontiguousarray(columns[name], dtype=np.float64).tobytes() for name in names)


def _rows(columns: Columns, rows: Ints | slice) -> Columns:
    return {name: columns[name][rows] for name in LAYOUT_COLUMNS}


def _measurements(
    measured: pd.DataFrame | Measurements | None, storage: str | None, job: Job, plans: tuple[str, ...]
) -> list[Measurements]:
    """Measured runs at hand, and those of a database that are related to the job."""
    if measured is None and not (storage and may_hold_rows(storage)):
        return []
    from jointopt.surrogate.measurements import Measurements  # it imports pandas

    runs = [] if measured is None else [Measurements.given(measured)]
    for given in runs:
        given.warn_of_others(job)
    return [*runs, Measurements.stored(storage, job, plans)] if storage else runs


def of_surrogate(name: str) -> str:
    """Where runs are from that a surrogate remembers, in `Evidence.counts`."""
    return f"the surrogate {name}"
