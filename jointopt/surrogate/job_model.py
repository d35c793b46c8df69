"""The model of one job that every verb uses: physics, calibration, surrogate, and evidence from measured runs."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.facts import Source
from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, POWER_LIMIT, Bools, Columns, Floats, Ints
from jointopt.core.units import GIB
from jointopt.jobs.calibration import Calibration, calibrated
from jointopt.jobs.clocks import without_limits
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job, on_machine
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import BoardPower, CostModel, memory_limit_gib
from jointopt.physics.curves import Curves
from jointopt.physics.sensitivities import CATEGORY
from jointopt.runs.database import may_hold_rows
from jointopt.surrogate.correction import Correction, Described, PlanCorrection, TimeScale
from jointopt.surrogate.evidence import Evidence, far_constants_words, source_of_job
from jointopt.surrogate.features import (
    HEAT_COLUMNS,
    HEAT_NAMES,
    PEAK,
    clocks_reached,
    heat_of,
    network_assumed,
    network_delay,
    runs_of,
    seconds_at,
    watts_at,
)
from jointopt.surrogate.files import load_surrogate, surrogate_names
from jointopt.surrogate.intervals import (
    DOUBTS,
    NOT_AS_STATED,
    RESULTS,
    DifferenceDoubt,
    add_intervals,
    bounds_within_limits,
    doubt_names,
    doubts,
    limit_half_widths,
    outside_of_domain,
    physics_difference_half_width,
    plan_differences,
    widened_by,
)
from jointopt.surrogate.kernel import CLOCK, Runs, row_keys
from jointopt.surrogate.memory import MemoryPosterior, certain_oom
from jointopt.surrogate.mixture import Mixture, mixture_of
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.own_mix import PREDICTED, SENSITIVITY, Mix
from jointopt.surrogate.power import PowerScale, board_power_of, other_limits, within_limits
from jointopt.surrogate.sources import (
    THIS_JOB,
    job_as_learned,
    job_as_measured,
    kin_place,
    remembered_runs,
    sources_of_kind,
    surrogate_for_job,
)

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.measurements import Measurements
    from jointopt.surrogate.surrogate import Surrogate


_log = logging.getLogger(__name__)
_CHUNK = 20_000  # layouts that are corrected in one pass


@dataclass(frozen=True)
class JobModel:
    """Predictions for ``job``: its physics, corrected by ``surrogate`` (None: not at all) and ``evidence``."""

    job: Job
    surrogate: Surrogate | None = None
    evidence: Evidence = field(default_factory=Evidence)
    name: str = "none"  # of the surrogate, as results give it
    out: tuple[Columns, ...] = field(default=(), compare=False)  # layouts of measured runs that ran out of memory
    stated_source: Source | None = None  # of the runs that a table has of the job, which may name where they are from
    as_stated: bool = True  # false where something stands in for the precision or attention kernel of such runs
    # layouts of plans, the last ones: predictions are followed by their intervals, and these by differences
    _last: dict[bytes, _Layouts] = field(default_factory=dict, init=False, repr=False, compare=False)
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
        runs: list[Measurements] = []
        if measured is not None or (storage and may_hold_rows(storage)):
            from jointopt.surrogate.measurements import Measurements  # it imports pandas

            runs += [] if measured is None else [Measurements.given(measured)]
            for given in runs:
                given.warn_of_others(job)
            runs += [Measurements.stored(storage, job, plans)] if storage else []
        model = model.fit_evidence(*runs)
        return model if learned is None or surrogate in surrogate_names() else model.of_user()

    def of_user(self) -> JobModel:
        """The model with what its surrogate, one of the user's own, learned from runs on such a cluster."""
        if self.surrogate is None:
            return self
        before, measured = self.surrogate, self.evidence.runs is not None
        surrogate, source = surrogate_for_job(before, self.source, self.job, measured)
        if measured and before.own_of(str(source)) is None:
            if count := len(remembered_runs(surrogate_for_job(before, self.source, self.job, False)[0], source)[0]):
                _log.warning(
                    "%s: the %s runs on this kind of cluster that it learned from are left aside for the measured "
                    "ones; `jointopt retrain` on both together uses both.", self.name, f"{count:,}",
                )  # fmt: skip
            return self
        own, near = remembered_runs(surrogate, source)
        if not len(own) and not len(near):
            return self
        place = surrogate_place(self.name)
        counts = {place: len(own), kin_place(place): len(near)}
        counts = {name: count for name, count in counts.items() if count}
        evidence = replace(self.evidence, counts=counts | dict(self.evidence.counts))
        # `Correction` prices by the class
        job = job_as_learned(self.job, surrogate.class_of(str(source)), surrogate.support.take(own))
        return replace(self, job=job, surrogate=surrogate, evidence=evidence)

    def fit_evidence(self, *measurements: Measurements) -> JobModel:
        """The model after measured runs on the job's kind of cluster: its GPU, GPUs per node and framework.

        Runs and job are of one recipe class and one attention kernel, those that either states. Without a surrogate
        nothing is learned but the layouts that ran out of memory.
        """
        if self.surrogate is None:
            return replace(self, out=tuple(runs.layouts_out_of_memory(self.job) for runs in measurements))
        job = job_as_measured(self.job, measurements)
        parts = [runs.evidence(job, self.source) for runs in measurements]
        kin = [runs.kin_evidence(job, self.source) for runs in measurements]
        evidence = Evidence.joined(parts).with_runs_of(kin)
        of_kin = {kin_place(place): count for part in kin for place, count in part.counts.items()}
        out = tuple(runs.layouts_out_of_memory(job) for runs in measurements)
        return replace(self, job=job, evidence=replace(evidence, counts=dict(evidence.counts) | of_kin), out=out)

    def of_job(self, job: Job, as_stated: bool = True) -> JobModel:
        """The model of another job, for which nothing need be learned anew where its runs are of the same source."""
        other = replace(self, job=job, as_stated=as_stated)
        if other.source == self.source:
            vars(other).update({name: getattr(self, name) for name in ("_correction", "_is_corrected", "memory")})
        return other

    def learn(self) -> None:
        """Learn what is otherwise learned when a plan is first predicted."""
        if self._correction is not None:
            _ = self._correction.shifts

    @property
    def learned_heat(self) -> tuple[str, ...]:
        """Columns of peak power and temperature as far as runs of the source taught them."""
        own = None if self._correction is None else self._correction.own
        return () if own is None else tuple(HEAT_COLUMNS[name] for name in own.heat)

    @functools.cached_property
    def source(self) -> Source:
        """The source that the job's runs are of: one with many runs learned from, else its own."""
        if self.stated_source is not None:
            return self.stated_source
        here = source_of_job(self.job, THIS_JOB)
        own = [] if self.surrogate is None else [own.source for own in self.surrogate.own]
        return next(iter(sources_of_kind(own, here, self.job)), here)

    @functools.cached_property
    def memory(self) -> MemoryPosterior:
        """The memory model after measured runs."""
        return self.evidence.memory_posterior(self.job.training.framework.name)

    def fit_probability(self, physics: CostModel) -> Floats:
        """Probability (n,) that each layout of `cost_model` fits in memory."""
        found = self.fit_probability_of(physics.memory_bytes / physics.memory_factor)
        return np.where(self.certain_oom(physics.layouts), 0.0, found)

    def certain_oom(self, layouts: Columns) -> Bools:
        """Which layouts (n,) run out of memory since a measured run did (`jointopt.surrogate.memory`)."""
        return certain_oom(self.job, layouts, self.out)

    def fit_probability_of(self, peak_bytes: Floats) -> Floats:
        """Probability (n,) of fitting by the memory of the physics alone; 0 beyond a bound that the job states."""
        load = peak_bytes / (memory_limit_gib(self.job) * GIB)
        found = self.memory.fit_probability(np.log(load))
        if self.job.constraints.memory_fraction is None:
            return found
        return np.where(self.memory.factor * load <= 1.0, found, 0.0)

    @property
    def fingerprint(self) -> str:
        """A text that is equal for models of one job that learned from the same runs; blank: nothing is corrected."""
        if self._correction is None or not (self._correction.changes_time or self.evidence.counts):
            return ""
        power = self.evidence.power
        moved = f"{power.factor:.6g} {power.offset_w:.6g}"
        return f"{self.evidence.counts} {self.evidence.residual.sum():.6g} {moved}"

    @functools.cached_property
    def _correction(self) -> Correction | None:
        fitted = self.job.training.framework.fitted
        return None if self.surrogate is None else Correction(self.surrogate, str(self.source), fitted, self.evidence)

    @functools.cached_property
    def _priced_job(self) -> Job:
        """The job on which plans are priced: `Correction.priced_job`."""
        return self.job if self._correction is None else self._correction.priced_job(self.job)

    def physics(self, layouts: Columns) -> CostModel:
        """The physics alone, for these layouts."""
        return CostModel(self.job, layouts)

    def predict(self, plans: Columns, correction: PlanCorrection | None = None) -> Columns:
        """Plans (n,) with results, peaks and temperature, 90 % intervals, ``fit_probability``, and doubts as `bounded`.

        ``plans``: layouts, ``stage_clock_mhz`` (n, S), or (n, 1) of all stages, and power limits where they have any.
        ``correction``: that of `plan_corrections`, where these are worked out for several jobs at once.
        """
        clocks = plans["stage_clock_mhz"]
        if POWER_LIMIT in plans:
            physics = self.cost_model({name: plans[name] for name in (*LAYOUT_COLUMNS, POWER_LIMIT)})
            layout = np.arange(len(clocks))
        else:
            known = self._layouts_of(plans)
            layout, limited, figures = known.layout, known.physics.job is not self._priced_job, None
            correction = correction if correction is not None else self.plan_corrections([self.described(plans)])[0]
            if self._is_corrected and correction is not None:
                figures = self._figures_of(known.physics, correction.time, correction.power, limited=limited)
            physics = self._corrected(known.physics.layouts, figures, None if limited else known.physics)
        columns = {name: physics.layouts[name][layout] for name in (*LAYOUT_COLUMNS, POWER_LIMIT) if name in plans}
        results = physics.evaluate(layout, clocks)
        columns |= {name: results[name] for name in RESULTS} | physics.heat(layout, clocks)
        columns |= {"fit_probability": self.fit_probability(physics)[layout], "stage_clock_mhz": clocks}
        return self.bounded(columns, correction)

    def described(self, plans: Columns) -> Described | None:
        """Plans (n,) without power limits as runs, and what the physics says of them; None without a surrogate."""
        if self._correction is None:
            return None
        known = self._layouts_of(plans)
        return Described(self._as_runs(plans), known.runs, known.seconds, known.watts)

    def plan_corrections(self, described: Sequence[Described | None]) -> Sequence[PlanCorrection | None]:
        """The correction of plans of jobs of this model's source as `described`: for many jobs as quick as for one."""
        if self._correction is None:
            return [None] * len(described)
        known = [each for each in described if each is not None]
        return self._correction.plan_corrections(known) if known else []

    def cost_model(self, layouts: Columns, peak_bytes: Floats | None = None, *, lazily: bool = False) -> CostModel:
        """The physics of these layouts with time, power and memory corrected by what is known.

        ``peak_bytes`` (L,): memory of the layouts by the physics alone, where it is known already. ``lazily``: as for
        `CostModel`.
        """
        return self._corrected(layouts, self._layout_figures(layouts), peak_bytes=peak_bytes, lazily=lazily)

    @functools.cached_property
    def _is_corrected(self) -> bool:
        """Whether anything moves time or power."""
        correction = self._correction
        return correction is not None and (correction.changes_time or correction.power_limit_w is not None)

    def _corrected(
        self, layouts: Columns, figures: Floats | None, known: CostModel | None = None, **options: Any
    ) -> CostModel:
        """The physics of L layouts, corrected by their ``figures`` (`_figures_of`); None: time and power stay.

        ``known``: their physics where it is priced already, else priced with ``options``.
        """
        limit_w = None if self._correction is None else self._correction.power_limit_w
        time, power, board_cells = self._unpacked(figures)
        board = None
        if limit_w is not None and len(board_cells):
            board = BoardPower.of_cells(limit_w, board_cells)
        physics = CostModel(self._priced_job, layouts, board_power=board, **options) if known is None else known
        memory = self.memory.factor
        if self.job.constraints.memory_fraction is None:  # a stated bound is one on the prediction
            physics.memory_reach = memory * self.memory.reach
        if self._correction is None or (figures is None and memory == 1.0):
            return physics
        power = power if board is None else within_limits(power, physics)
        time_factor = np.broadcast_to(np.exp(time.log_factor), len(physics.layouts["pp"]))
        heat = self._correction.heat(self._priced_job, physics.layouts)
        line = power.factor, power.offset_w
        return physics.corrected(time_factor, memory, *line, heat, time.curves, power.curves)

    def _unpacked(self, figures: Floats | None) -> tuple[TimeScale, PowerScale, Floats]:
        """Time and power of layouts, and `BoardPower.cells` or none, by `_figures_of`; None: as in the physics."""
        if figures is None or self._correction is None:
            return TimeScale(np.zeros(1)), PowerScale(), np.empty((0, 0))
        k = len(self._correction.time_clocks)
        of_time, of_power = 2 * k + bool(k), (2 * k + 1) * (k > 0 and self._correction.learns_power)
        (log_time, factor, offset_w), rest = figures[:3], figures[3:]
        times, powers, board = np.split(rest, [of_time, of_time + of_power])
        time = TimeScale(log_time, Curves.of_cells(times) if of_time else None)
        return time, PowerScale(factor, None, offset_w, Curves.of_cells(powers) if of_power else None), board

    def _layout_figures(self, layouts: Columns) -> Floats | None:
        """`_figures_of` every layout, under the power limit that runs were measured under; None: nothing is known."""
        correction = self._correction
        if correction is None or not self._is_corrected:
            return None
        bare, of = without_limits(layouts)
        limit_w, count = correction.power_limit_w, len(bare["pp"])
        limited = limit_w is not None and other_limits(self._priced_job, layouts, limit_w)
        parts = []
        # those of one depth and number of chunks in a row: all that follows works on such at once
        order = np.lexsort((bare["vpp"], bare["pp"])).astype(np.int64)
        for start in range(0, count, _CHUNK):
            at = order[start : start + _CHUNK]
            known = self._priced(bare, at)
            time, power = correction.time(known.runs, known.seconds), correction.power(known.runs, known.watts)
            parts.append(self._figures_of(known.physics, time, power, limited=limited))
        return np.asarray(np.concatenate(parts, axis=1)[:, np.argsort(order)][:, of]) if parts else None

    def _figures_of(self, physics: CostModel, time: TimeScale, power: PowerScale, *, limited: bool) -> Floats:
        """(log factor on time, factor on power, offset of power in W) of the layouts of ``physics``, and their curves.

        (figures, L). ``limited``: then `BoardPower.cells`, for plans under other limits than power was measured under.
        """
        line = (np.broadcast_to(value, len(time.log_factor)) for value in (power.factor, power.offset_w))
        figures = [np.stack([time.log_factor, *line])]
        figures += [curves.cells for curves in (time.curves, power.curves) if curves is not None]
        if limited and self._correction is not None and (limit_w := self._correction.power_limit_w) is not None:
            figures.append(board_power_of(physics, power, limit_w).cells)
        return np.concatenate(figures)

    def learned(self, layouts: Columns, stage_clock_mhz: Floats | None = None) -> tuple[str, ...]:
        """Sentences on what many runs of the cluster move time, power and heat of the first of ``layouts`` by.

        ``stage_clock_mhz`` (n, S): clocks of the plans, None: the top one. Of a few runs `shown_by_few`.
        """
        correction = self._correction
        if correction is None or correction.own is None:
            return self.shown_by_few(layouts)
        clocks = None if stage_clock_mhz is None else stage_clock_mhz[:1]
        return learned_sentences(correction, self.job, _rows(layouts, slice(1)), clocks)

    def shown_by_few(self, layouts: Columns) -> tuple[str, ...]:
        """Sentences on what a few runs show: `far_constants_words`, and that they count in part.

        The latter where none of them is of the group of the first of ``layouts``.
        """
        if self._correction is None:
            return ()
        found = filter(None, [far_constants_words(self._correction.shifts, self.job)])
        if self._correction.surrogate.new_groups_of(self._correction.source) is None:
            return tuple(found)
        return (*found, *self._correction.counted_in_part(self._priced(layouts, slice(1)).runs))

    def intervals(self, columns: Columns, correction: PlanCorrection | None = None) -> Columns:
        """Plans and results of `cost_model` plus ``_low`` and ``_high`` of every result (90 %) and ``in_domain``.

        ``correction``: as for `predict`.
        """
        if POWER_LIMIT in columns:
            held = self.intervals(self._held(columns))
            limited = held | {name: columns[name] for name in (POWER_LIMIT, "stage_clock_mhz")}
            overshoot = None if self._correction is None else self._correction.peak_overshoot
            return bounds_within_limits(self.job, limited, overshoot)
        correction = correction if correction is not None else self.plan_corrections([self.described(columns)])[0]
        if correction is None:
            found = add_intervals(self.job, columns, network=self._network(columns))
        else:
            found = correction.bounded(self.job, columns)
        if mixture := self.mixture(columns):
            found = widened_by(self.job, found, *mixture.of_all)
        return outside_of_domain(found) if self._guess_open else found

    def mixture(self, columns: Columns) -> Mixture | None:
        """The times of plans (n,) under what open settings may be; None where nothing is open or runs show it."""
        if self.evidence.counts or (self._correction is not None and self._correction.changes_time):
            return None
        known = self._layouts_of(columns)
        return known.mixture.take(known.layout) if known.mixture.mean else None

    @property
    def _guess_open(self) -> bool:
        """Whether the job rests on a guess (`as_stated`) that no measured run shares."""
        return not (self.as_stated or (self._correction is not None and self.evidence.shares_guess(self.job)))

    def doubts(self, columns: Columns) -> dict[str, Bools]:
        """Why nothing recorded or measured supports plans of `intervals`, (n,) each, by the keys of `DOUBTS`."""
        if POWER_LIMIT in columns:
            return self.doubts(self._held(columns))
        if self._correction is None:
            return doubts(self.job, columns, network=self._network(columns))
        return self._correction.doubts(self.job, columns, self._as_runs(columns))

    def bounded(self, columns: Columns, correction: PlanCorrection | None = None) -> Columns:
        """As `intervals`, with ``doubts``: names of the doubts of each plan, joined by a blank (`doubt_names`)."""
        found = self.intervals(columns, correction)
        why = self.doubts(found) | ({NOT_AS_STATED: ~found["in_domain"]} if self._guess_open else {})
        return found | {"doubts": doubt_names(why, found["in_domain"])}

    def reasons(self, plan: Columns) -> tuple[str, ...]:
        """`doubts` of one plan (columns of one row) in words."""
        return tuple(DOUBTS[name] for name, of in self.doubts(plan).items() if of[0])

    def _network(self, columns: Columns) -> Floats | float:
        """Doubt of plans for an assumed network by the physics alone, (n,)."""
        if not network_assumed(self.job):
            return 0.0
        known = self._layouts_of(columns)
        return known.delay[known.layout]

    def _held(self, columns: Columns) -> Columns:
        """Plans under power limits as plans without, at the clocks (n, S) that the limits leave them."""
        layouts = {name: columns[name] for name in (*LAYOUT_COLUMNS, POWER_LIMIT)}
        key = _bytes(columns, (*layouts, "stage_clock_mhz"))
        if key not in self._last_clocks:
            self._last_clocks.clear()
            self._last_clocks[key] = clocks_reached(self.cost_model(layouts), columns["stage_clock_mhz"])
        bare = {name: values for name, values in columns.items() if name != POWER_LIMIT}
        return bare | {"stage_clock_mhz": self._last_clocks[key]}

    def differences(self, columns: Columns, first: int) -> Columns:
        """Differences of `cost_model`'s plans from that in row ``first``, (n,) each: see `plan_differences`.

        Plans under power limits (all then have one) are compared at the clocks that these leave them.
        """
        held = self._held(columns) if POWER_LIMIT in columns else columns
        layout = self._layouts_of(held).layout
        other = layout != layout[first]
        if self._correction is None:
            apart = DifferenceDoubt(physics_difference_half_width(self.job, held, first), other)
        else:
            half, measured = self._correction.difference_doubt(self.job, held, self._as_runs(held), first)
            apart = DifferenceDoubt(half, other, measured)
        if POWER_LIMIT in columns:
            apart = replace(apart, by_limit=limit_half_widths(*self._off_limits(columns, held), first, other))
        return plan_differences(self.job, held, first, apart)

    def _off_limits(self, columns: Columns, held: Columns) -> tuple[Floats, Floats]:
        """The two arguments ``shift`` (2, n) and ``half_width`` (n,) of `limit_half_widths`.

        A GPU that draws less than predicted runs, under its limit, at the clock that one as predicted reaches under a
        limit higher by as much, up to the cluster's. ``held``: the plans as `_held`.
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

    def _as_runs(self, columns: Columns) -> Runs:
        """Plans as runs of the source, (n,)."""
        known = self._layouts_of(columns)
        runs, lowest_mhz = known.runs.take(known.layout), np.nanmin(columns["stage_clock_mhz"], axis=1)
        return replace(runs, features=runs.features | {CLOCK: lowest_mhz / known.physics.top_mhz})

    def _layouts_of(self, columns: Columns) -> _Layouts:
        """The layouts of plans, each once."""
        key = _bytes(columns, LAYOUT_COLUMNS)
        if key not in self._last:
            cells = row_keys([columns[name].astype(float) for name in LAYOUT_COLUMNS])
            _, first, layout = np.unique(cells, return_index=True, return_inverse=True)
            self._last.clear()
            self._last[key] = replace(self._priced(columns, first), layout=layout, first=first)
        return self._last[key]

    def _priced(self, columns: Columns, rows: Ints | slice) -> _Layouts:
        """The layouts in those rows, priced under the limit that power was measured under, where it was."""
        correction, layouts = self._correction, _rows(columns, rows)
        every = np.arange(len(layouts["pp"]))
        if correction is None:
            return _Layouts(CostModel(self._priced_job, layouts), every, self.source)
        physics = CostModel(correction.at_measured_limit(self._priced_job), layouts)
        return _Layouts(physics, every, self.source, correction.power_clocks, correction.time_clocks)


@dataclass(frozen=True)
class _Layouts:
    """The physics of the layouts of plans, which share few, and which of them each plan has, (n,)."""

    physics: CostModel
    layout: Ints
    source: Source
    clocks: tuple[float, ...] | None = None  # shares of the top one at which power is learned
    time_clocks: tuple[float, ...] = ()  # and time
    first: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # plan of each layout, (L,)

    @functools.cached_property
    def runs(self) -> Runs:
        """The layouts (L,) at the top clock as runs of the source."""
        depth = self.physics.layouts["pp"]
        top = uniform_stage_clocks(depth, self.physics.top_mhz)
        return runs_of(self.physics, top, np.arange(len(depth)), str(self.source))

    @functools.cached_property
    def watts(self) -> Floats | None:
        """Power of the physics that `Correction.power` needs, (clocks, L)."""
        every = np.arange(len(self.physics.layouts["pp"]))
        return None if self.clocks is None else watts_at(self.physics, every, self.clocks)

    @functools.cached_property
    def seconds(self) -> Floats | None:
        """Time of the physics that `Correction.time` needs, (clocks, L)."""
        every = np.arange(len(self.physics.layouts["pp"]))
        return seconds_at(self.physics, every, self.time_clocks) if self.time_clocks else None

    @functools.cached_property
    def mixture(self) -> Mixture:
        """`mixture_of` the layouts, (L,)."""
        return mixture_of(self.physics)

    @functools.cached_property
    def delay(self) -> Floats:
        """`network_delay` of the layouts, (L,)."""
        return network_delay(self.physics, np.arange(len(self.physics.layouts["pp"])))


def _bytes(columns: Columns, names: Iterable[str]) -> bytes:
    return b"".join(np.ascontiguousarray(columns[name], dtype=np.float64).tobytes() for name in names)


def _rows(columns: Columns, rows: Ints | slice) -> Columns:
    return {name: columns[name][rows] for name in LAYOUT_COLUMNS}


def surrogate_place(name: str) -> str:
    """Where runs are from that a surrogate remembers, in `Evidence.counts`."""
    return f"the surrogate {name}"


# Sentences on what was learned from a cluster's own runs.


_NAMED = 3  # groups of features of a plan that are named
_LEAST = 0.003  # of a logarithm, below which one is not
_SHOWN = 0.0005  # of a logarithm: a digit of what is printed


def learned_sentences(
    correction: Correction, job: Job, layout: Columns, stage_clock_mhz: Floats | None
) -> tuple[str, ...]:
    """A sentence on each quantity that a cluster's own runs move, of one ``layout`` of a job at clocks (1, S) in MHz.

    None: at the top clock. ``correction``: by many runs, as `OwnRuns` of them says.
    """
    own, first, moved = correction.own, np.zeros(1, np.int64), correction.priced_job(job)
    if own is None:
        return ()
    physics, source = CostModel(moved, layout), correction.source
    top = uniform_stage_clocks(layout["pp"], physics.top_mhz)
    stage_clock_mhz = top if stage_clock_mhz is None else stage_clock_mhz
    runs = runs_of(physics, top, first, source)
    seconds = seconds_at(physics, first, correction.time_clocks) if correction.time_clocks else None
    scale = correction.time(runs, seconds)
    learned = physics.corrected(np.exp(scale.log_factor), time_curves=scale.curves)
    before, after = ([p.iteration_time_s(first, mhz)[0] for mhz in (top, stage_clock_mhz)] for p in (physics, learned))
    moves = np.log(np.divide(after, before)).tolist()
    there = replace(runs, features=runs.features | {CLOCK: np.nanmax(stage_clock_mhz, axis=1) / physics.top_mhz})
    sentence = learned_sentence(own, moves[0], moves[1], own.within_clocks(there))
    if not own.targets:
        return (sentence,)
    measured = CostModel(correction.at_measured_limit(moved), layout)
    one = runs_of(measured, top, first, source)
    # the physics' power and heat at the clocks that lines are learned at, and at those of the plan
    clocks = [uniform_stage_clocks(layout["pp"], share * measured.top_mhz) for share in own.power_clocks]
    *values, at_plan = [
        (heat_of(measured, first, mhz) if own.heat else {}) | {"power": measured.evaluate(first, mhz)["avg_power_w"]}
        for mhz in (*clocks, stage_clock_mhz)
    ]
    at_shares = {name: np.stack([each[name] for each in values]) for name in own.targets}
    lines = {name: target.line(one, at_shares[name], own.power_clocks) for name, target in own.targets.items()}
    if "power" in lines and (shares := correction.power_clocks) is not None:
        lines["power"] = correction.power(one, watts_at(measured, first, shares))
    return (sentence, *target_sentences(own, one, lines, at_shares, at_plan))


def target_sentences(
    own: OwnRuns, one: Runs, lines: Mapping[str, PowerScale], at_shares: Columns, values: Columns
) -> tuple[str, ...]:
    """By how much the own runs of a cluster move power, its peak and temperature of a plan, and why: a sentence each.

    ``one`` (1,): its layout. ``lines``: by which each is predicted from that of the physics, which has ``at_shares``
    (clocks, 1) where lines are learned and ``values`` (1,) at the plan's clocks. Reasons of the trees are means over
    the first.
    """
    found = []
    for name, target in own.targets.items():
        swept = target.swept(one, at_shares[name], own.power_clocks)
        log_ratio = float(np.log(lines[name].over(values[name]))[0])
        share = {"power": 1.0, PEAK: target.overshoot}.get(name)  # of the limit, that is not exceeded
        most = np.inf if share is None else math.log(share * own.measured_limit_w / float(values[name][0]))
        total = f"They move its {HEAT_NAMES.get(name, name)} by {_percent(min(log_ratio, most))} at this plan's clocks"
        held = ", where the power limit ends it" * (log_ratio > most - _SHOWN)
        counts = target.mix.trees is not None and target.mix.weight
        found.append(f"{total}{held}.{f' Of this, {_trees_words(target.mix, swept)}.' if counts else ''}")
    return tuple(found)


def learned_sentence(own: OwnRuns, at_top: float, at_plan: float, runs: Runs) -> str:
    """By how much the own runs of a cluster move the time of the first of ``runs``, and by which of its features.

    ``at_top``, ``at_plan``: logarithms of factors on its time at the top clock, and at the clocks of the plan.
    """
    total = f"The cluster's own runs move the physics' time by {_percent(at_top)}"
    if abs(at_plan - at_top) > _SHOWN:
        total += f" at the top clock and {_percent(at_plan)} at this plan's"
    if own.time.trees is None or not own.time.weight:
        return f"{total}."
    return f"{total}. Of this, {_trees_words(own.time, runs.take(np.zeros(1, np.int64)))}."


def _trees_words(mix: Mix, runs: Runs) -> str:
    """All that trees add to a plan: what they do to the cluster's runs in the mean, and why that here.

    By SHAP values, whose sum it is: by groups of features, the largest named. ``runs``: the plan, at one clock or more.
    """
    names, of_each = mix.contributions(runs)
    added = of_each.mean(axis=0, keepdims=True)
    several = len(runs) > 1  # whose clock is none
    values = {name: float(column[0]) for name, column in runs.features.items() if not (several and name == CLOCK)}
    by_group: dict[str, float] = {}
    for name, value in zip(names, added[0].tolist(), strict=False):
        feature = name.removeprefix(SENSITIVITY).split(CATEGORY)[0]
        group = _GROUP.get(feature, feature)  # what is in none is a group of its own
        by_group[group] = by_group.get(group, 0.0) + value
    largest = sorted((name for name in by_group if abs(by_group[name]) > _LEAST), key=lambda n: -abs(by_group[n]))
    named, of_all = largest[:_NAMED], float(added[0, -1])
    parts = [f"{_percent(of_all)} common to all of these runs"] * (abs(of_all) > _LEAST)
    parts += [f"{_percent(by_group[name])} for {group_words(name, values)}" for name in named]
    others = float(added.sum()) - of_all * (abs(of_all) > _LEAST) - sum(by_group[name] for name in named)
    parts += [f"{_percent(others)} for the rest"] * (abs(others) >= _SHOWN and bool(parts))
    what = "slopes and trees" if mix.slopes else "trees"
    return f"{what} give {_percent(float(added.sum()))}{': ' * bool(parts)}{', '.join(parts)}"


# What a feature, or the sensitivity to a constant, describes, in a word of a plan.
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "tp": (
        "log2_tp", "log2_tp_nodes", "log2_width", "log2_aligned_width", "sequence_parallel", "share_tp_comm",
        "intra_node", "tp_overlap",
    ),
    "pp": ("log2_pp", "log2_vpp", "log2_stage_layers", "share_bubble", "share_pp_comm"),
    "cp": ("log2_cp", "share_cp_comm"),
    "ep": ("log2_ep", "share_ep_comm", "moe"),
    "dp": ("log2_dp", "log2_dp_nodes", "zero_stage", "share_dp_comm", "share_zero_comm", "dp_overlap"),
    "micro_batch_size": ("log2_micro_batch_size", "log2_micro_batches", "log2_rank_tokens", "micro_batch"),
    "hidden": (
        "log2_hidden", "log2_layers", "log2_head_dim", "log2_queries_per_key", "attention", "fused_norm", "dtype",
        "loss",
    ),
    "seq_length": ("log2_seq_length",),
    "gpus": ("log2_gpus", "log2_nodes", "log2_peak", "log2_memory", "framework", "inter_node", "iteration"),
    "recompute": ("recompute",),
    "compute": ("share_compute", "occupancy", "efficiency", "communication", "compute", "elementwise"),
    "host": ("share_host", "host"),
    "optimizer": ("share_optimizer",),
    "clock": ("clock",), "the physics' own value": (PREDICTED,),
}  # fmt: skip
_GROUP = {feature: name for name, features in _GROUPS.items() for feature in features}


def group_words(group: str, values: Mapping[str, float]) -> str:
    """A group of features in the words of a plan, by the ``values`` of its features: ``tp 8 at hidden 4,096``."""
    degree = {name.removeprefix("log2_"): f"{2.0**v:,.6g}" for name, v in values.items() if name.startswith("log2_")}
    shares = {name.removeprefix("share_"): v for name, v in values.items() if name.startswith(("share_", CLOCK))}
    share = {name: f"{v:.0%}" for name, v in shares.items()}
    wanted = {
        "tp": [("tp", degree), (" at hidden", degree)], "pp": [("pp", degree), (" with vpp", degree)],
        "cp": [("cp", degree)], "ep": [("ep", degree)], "dp": [("dp", degree)],
        "micro_batch_size": [("micro_batch_size", degree), (" at seq_length", degree)],
        "hidden": [("hidden", degree), (" and layers", degree)], "seq_length": [("seq_length", degree)],
        "gpus": [("gpus", degree)], "compute": [("compute", share)], "host": [("host", share)],
        "optimizer": [("optimizer", share)], "clock": [("clock", share)],
    }.get(group, [])  # fmt: skip
    words = [f"{word} {known[key]}" for word, known in wanted if (key := word.split()[-1]) in known]
    endings = dict.fromkeys(("compute", "host", "optimizer"), " of the time") | {"clock": " of the top"}
    if words:
        return "".join(words) + endings.get(group, "")
    if group == "recompute" and group in values:
        return f"recompute {COLUMNS[group].decode(round(values[group]))}"
    return group.replace("_", " ")


def _percent(log_factor: float) -> str:
    return f"{math.expm1(log_factor):+z.1%}"
