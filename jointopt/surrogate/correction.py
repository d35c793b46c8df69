"""The one correction of predictions, by a surrogate and measured runs of a source."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import CONSTANTS, LAYOUT_COLUMNS, Bools, Columns, Floats, Ints
from jointopt.jobs.catalog.frameworks import job_of_efficiency
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel, HeatScale, unmeasured_heat
from jointopt.physics.curves import Curves
from jointopt.physics.sensitivities import with_constants
from jointopt.surrogate.data_doubts import span_of_doubt, widen_to_doubt
from jointopt.surrogate.evidence import Evidence, far_constants, same_job
from jointopt.surrogate.features import PEAK, RISE, delay_of, heat_of, network_half_width, runs_of
from jointopt.surrogate.intervals import (
    ADDED_DOUBTS,
    TOP_ONLY,
    MeasuredClocks,
    above_peak,
    add_intervals,
    bounds_within_limits,
    dissimilarity,
    nearest_bounds,
    new_kinds,
    open_doubts,
    physics_errors,
    with_measured_intervals,
    with_new_interval,
    with_time_interval,
    without_doubts,
)
from jointopt.surrogate.kernel import Runs, joined_runs
from jointopt.surrogate.own_mix import at_clocks, at_rest_w
from jointopt.surrogate.power import PowerScale, at_limit

if TYPE_CHECKING:
    from jointopt.surrogate.own_cluster import OwnRuns
    from jointopt.surrogate.surrogate import Conditioned, Surrogate


@dataclass(frozen=True)
class Correction:
    """A surrogate conditioned on the runs of one source, whose framework has a ``fitted`` profile or none.

    Where the runs show a network or host far from the assumed one, plans are priced on a job with the physics'
    constants changed by `shifts`: `priced_job`.
    """

    surrogate: Surrogate
    source: str
    fitted: bool
    evidence: Evidence = field(default_factory=Evidence)

    @functools.cached_property
    def recipe_class(self) -> str | None:
        """The recipe class by which the source's remembered runs were priced; None: each by its own."""
        return self.surrogate.class_of(self.source)

    def of_class(self, job: Job) -> Job:
        """The job priced by `recipe_class`, since what was learned on one class would count twice on another."""
        return job if self.recipe_class is None else job_of_efficiency(job, self.recipe_class)

    @functools.cached_property
    def _priced(self) -> Evidence:
        """The evidence priced by `recipe_class`, and under power limits by measured power."""
        jobs = [work.job for part in self.evidence.priced for work in part.works]
        evidence = self.evidence
        if any(self.of_class(job) is not job for job in jobs):
            evidence = evidence.under(self.of_class) or evidence
        own = self.surrogate.own_of(self.source)
        return evidence if own is not None and own.knows_power else evidence.under_measured_power()

    @functools.cached_property
    def _settled(self) -> tuple[Conditioned, Floats, Evidence]:
        """(The conditioned surrogate, `shifts`, the evidence as priced with these)."""
        evidence, own, stays = self._priced, self.surrogate.own_of(self.source), np.zeros(len(CONSTANTS))
        power = None if own is None else own.measured_power
        limited = power is not None and any((part.limits_w != power.limit_w).any() for part in evidence.priced)
        if limited:
            evidence = evidence.under(same_job, power) or evidence
        conditioned = self._conditioned(evidence)
        if not conditioned.movable or evidence.runs is None:
            return conditioned, stays, evidence
        constants = conditioned.posterior.constants
        by = far_constants(self._priced, constants, lambda some: self._conditioned(some).posterior.log_evidence_near)
        again = self._priced.with_constants(by) if by.any() else None
        return (conditioned, stays, self._priced) if again is None else (self._conditioned(again), by, again)

    def _conditioned(self, evidence: Evidence) -> Conditioned:
        return self.surrogate.conditioned(self.source, self.fitted, evidence.known, evidence.bounds)

    @property
    def shifts(self) -> Floats:
        """Changes of the physics' constants, (`CONSTANTS`,), by `far_constants`; zeros where sensitivities suffice."""
        return self._settled[1]

    @property
    def own(self) -> OwnRuns | None:
        """Learned from many runs of the source; None where there were few."""
        return self._settled[0].own

    @property
    def _own_power(self) -> OwnRuns | None:
        return self.own if self.own is not None and self.own.knows_power else None

    @property
    def learns_power(self) -> bool:
        """Whether many runs of the source taught its power."""
        return self._own_power is not None

    @property
    def power_limit_w(self) -> float | None:
        """The limit in W that power was measured under, and times with it; None where nothing is known of power."""
        own = self._own_power
        return self._settled[2].power_limit_w if own is None else own.measured_limit_w

    @property
    def power_clocks(self) -> tuple[float, ...] | None:
        """Shares of the top clock at which `power` needs the physics' power, the last one 1; None: it does not."""
        if self.power_limit_w is None:
            return None
        return (*(() if self._own_power is None else self._own_power.power_clocks), 1.0)

    def power(self, runs: Runs, watts: Floats | None) -> PowerScale:
        """The line from the physics' power, of a `priced_job`, to the measured: one for all of ``runs``, or of each.

        ``watts`` (clocks, n): of the physics at all `power_clocks`, under `power_limit_w`; None: there are no such.
        """
        scale, own = self._settled[2].power, self._own_power
        if watts is None or self.power_limit_w is None:
            return scale
        if own is not None:
            learned = own.targets["power"]
            of = learned.curves if len(own.power_clocks) > 1 else learned.line
            scale = of(runs, watts[:-1], own.power_clocks, at_rest_w(own.source))
        return scale.within(self.power_limit_w, watts[-1])

    def heat(self, job: Job, layouts: Columns) -> Callable[[Ints], HeatScale]:
        """`CostModel.heat_scale` of the L ``layouts`` of a `priced_job`, by the source's own runs.

        Each layout is worked out once, when a plan of it needs that.
        """
        own, there = self.own, self.at_measured_limit(job)
        if own is None or not own.heat:
            return unmeasured_heat
        lines = {name: np.full((2, len(layouts["pp"])), np.nan) for name in own.heat}  # factor and offset
        peak = own.heat.get(PEAK)
        overshoot = np.inf if peak is None or peak.overshoot is None else peak.overshoot

        def scales(index: Ints) -> HeatScale:
            unknown = np.unique(index[np.isnan(next(iter(lines.values()))[0, index])])
            if len(unknown):
                some = {name: layouts[name][unknown] for name in LAYOUT_COLUMNS}
                for name, line in heat_lines(own, CostModel(there, some), self.source).items():
                    lines[name][:, unknown] = line
            of_peak, of_rise = (lines[name][:, index] if name in lines else None for name in (PEAK, RISE))
            return HeatScale(of_peak, of_rise, overshoot)

        return scales

    @property
    def peak_overshoot(self) -> float | None:
        """The share of a power limit that peaks reach at most, by the source's own runs; None: not learned."""
        peak = None if self.own is None else self.own.heat.get(PEAK)
        return None if peak is None else peak.overshoot

    def at_measured_limit(self, job: Job) -> Job:
        """The job under the power limit that its power was measured under, whatever its own, where there is such."""
        return at_limit(job, self.power_limit_w)

    def priced_job(self, job: Job) -> Job:
        """The job on which plans are to be priced."""
        job = self.of_class(job)
        return with_constants(job, self.shifts) if self.evidence.runs is not None else job

    @property
    def changes_time(self) -> bool:
        """Whether the predicted time of any plan changes."""
        known = self.evidence.runs is not None or self.surrogate.own_of(self.source) is not None
        return known or len(self.surrogate.remembered(self.source)) > 0

    @property
    def time_clocks(self) -> tuple[float, ...]:
        """Shares of the top clock at which `time` needs the physics' time; none where it moves by one factor."""
        own = self.own
        return own.power_clocks if own is not None and len(own.power_clocks) > 1 else ()

    def time(self, runs: Runs, seconds: Floats | None) -> TimeScale:
        """From the physics' time of each of ``runs`` (n,) to the measured; ``seconds``: of it at `time_clocks`, (k, n).

        ``runs`` are layouts at the top clock; what was learned at each of the clocks is what the curve goes through.
        """
        clocks, settled = self.time_clocks, self._settled[0]
        if seconds is None or not clocks:
            return TimeScale(settled.mean(runs))
        logs = np.log(seconds)
        found = logs + settled.mean(at_clocks(runs, clocks)).reshape(logs.shape)
        curves = Curves.rising(logs, found)
        return TimeScale((curves.y - curves.x).min(axis=0), curves)

    def counted_in_part(self, runs: Runs) -> tuple[str, ...]:
        """A sentence where a few runs count in part for the first of ``runs``, of whose group none is known."""
        conditioned = self._settled[0]
        if conditioned.new_groups is None or conditioned.parts(runs.take(np.zeros(1, np.int64)))[0][0] == 1.0:
            return ()
        return (conditioned.new_groups.sentence,)

    @property
    def _measured_clocks(self) -> MeasuredClocks:
        return TOP_ONLY if self.own is None else MeasuredClocks(*self.own.clocks)

    def difference_doubt(self, job: Job, columns: Columns, runs: Runs, first: int) -> tuple[Floats, MeasuredClocks]:
        """(``half_width`` (n,), ``measured``) of an `intervals.DifferenceDoubt` of plans and that in row ``first``.

        Where nothing supports one of the two, the half-width is at least that of the physics in unknown territory, as
        far as the plans are unlike.
        """
        conditioned, clocks = self._settled[0], self._measured_clocks
        one = runs.take(np.full(1, first))
        half = conditioned.difference(runs, one)[1]
        new = new_kinds(job, self._measured_jobs)
        found = open_doubts(job, columns, conditioned.knows_kind(runs), clocks, new=new)  # whatever the network is
        inside = conditioned.inside(runs) & without_doubts(found, ADDED_DOUBTS)
        unlike = dissimilarity(conditioned.posterior.kernel, runs, one)
        unknown = physics_errors()["difference"]["unknown"] * unlike
        return np.where(inside & inside[first], half, np.maximum(half, unknown)), clocks

    def doubts(self, job: Job, columns: Columns, runs: Runs) -> dict[str, Bools]:
        """Why nothing recorded or measured supports plans of a job, (n,) each, by the keys of `DOUBTS`."""
        zero = np.zeros(len(runs))
        return PlanCorrection(self, runs, zero, zero, zero > 0.0, TimeScale(zero), PowerScale()).doubts(job, columns)

    @functools.cached_property
    def _measured_jobs(self) -> tuple[Job, ...]:
        """Jobs of the few runs that are known; none of those that a surrogate learned from, whose jobs it has not."""
        return () if self.own is not None else tuple(work.job for part in self.evidence.priced for work in part.works)

    @functools.cached_property
    def _time_span(self) -> tuple[float, float] | None:
        """`span_of_doubt` of the timed runs of the source, by the physics that plans are priced on."""
        evidence = self._settled[2]
        if evidence.runs is None:
            return None
        return span_of_doubt(evidence.residual[evidence.runs.source == self.source])

    def plan_corrections(self, parts: Sequence[Described]) -> list[PlanCorrection]:
        """The correction of the plans of each of ``parts``, each of one job.

        Trees are evaluated for all parts at once: few rows cost as much.
        """
        lengths = [len(part.layouts) for part in parts]
        plans, layouts = (joined_runs([getattr(part, name) for part in parts]) for name in ("plans", "layouts"))
        ends = np.cumsum([len(part.plans) for part in parts])[:-1]
        of_parts = (np.split(values, ends) for values in self._settled[0].predict(plans))
        seconds, watts = joined([part.seconds for part in parts]), joined([part.watts for part in parts])
        times = self.time(layouts, seconds).split(lengths)
        if watts is None:
            powers = [self.power(part.layouts, part.watts) for part in parts]
        else:
            powers = self.power(layouts, watts).split(lengths)
        pieces = zip(parts, *of_parts, times, powers, strict=True)
        return [
            PlanCorrection(self, part.plans, mean, half, inside.astype(bool), time, power)
            for part, mean, half, inside, time, power in pieces
        ]


@dataclass(frozen=True)
class Described:
    """Plans (n,) of one job as runs at their clocks, and their layouts (L,) at the top one.

    ``seconds``, ``watts``: by the physics at `Correction.time_clocks`, (k, L), and `Correction.power_clocks`; None
    where these are none.
    """

    plans: Runs
    layouts: Runs
    seconds: Floats | None
    watts: Floats | None


def joined(parts: Sequence[Floats | None]) -> Floats | None:
    """Arrays (k, n) one after the other along n; None where one is."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known, axis=1) if len(known) == len(parts) else None


@dataclass(frozen=True)
class TimeScale:
    """From the physics' time to the measured of each of L layouts: the logarithm of a factor, or of the least of it.

    Where there are ``curves`` of logarithms, those say what a plan takes.
    """

    log_factor: Floats
    curves: Curves | None = None

    def split(self, lengths: Sequence[int]) -> list[TimeScale]:
        """The scale of each of consecutive pieces of the layouts, which have ``lengths`` layouts."""
        places = np.split(np.arange(sum(lengths)), np.cumsum(lengths)[:-1])
        return [TimeScale(self.log_factor[at], self.curves and self.curves.take(at)) for at in places]


@dataclass(frozen=True)
class PlanCorrection:
    """Correction of n plans of one job."""

    correction: Correction
    runs: Runs  # the plans
    mean: Floats  # (n,) of log(time / physics)
    half_width: Floats  # (n,) 90 %
    inside: Bools  # (n,) whether training supports them
    time: TimeScale  # of the layouts
    power: PowerScale  # of the layouts

    @property
    def evidence(self) -> Evidence:
        """Of the source, by the physics that plans are priced on."""
        return self.correction._settled[2]

    def _network(self, job: Job) -> Floats:
        """`network_half_width` (n,) of the plans, given the run of the source that depends on the network most."""
        known = self.correction._settled[0].known
        seen = float(delay_of(known)[known.source == self.correction.source].max(initial=0.0))
        return network_half_width(job, delay_of(self.runs), seen)

    def doubts(self, job: Job, columns: Columns) -> dict[str, Bools]:
        """Why nothing recorded or measured supports corrected plans, (n,) each, by the keys of `DOUBTS`."""
        known, new = self.correction._settled[0].knows_kind(self.runs), new_kinds(job, self.correction._measured_jobs)
        found = open_doubts(job, columns, known, self.correction._measured_clocks, self._network(job), new)
        unit = np.full(len(self.mean), self.correction._time_span is not None)
        return found | {"unit": unit, "peak": above_peak(job, columns)}

    def bounded(self, job: Job, columns: Columns) -> Columns:
        """Corrected plans and results with ``_low`` and ``_high`` of every result (90 %) and ``in_domain``."""
        conditioned, own, measured = self.correction._settled[0], self.correction.own, self.correction._measured_clocks
        network, of_new, is_new = self._network(job), None, own is None and not len(conditioned.known)
        out = add_intervals(job, columns, measured, network)
        scales = {} if own is None else {name: target.scale for name, target in own.heat.items()}
        halves = {name: scale.half_width for name, scale in (scales | {"avg_power_w": self.power}).items()}
        out = with_measured_intervals(job, out, {name: half for name, half in halves.items() if half is not None})
        out = bounds_within_limits(job, out, self.correction.peak_overshoot)
        if is_new and not self.correction.changes_time:  # recorded runs say how sure the physics is
            return out
        # where constants are moved, the runs contradict what was assumed of a new source
        if not self.correction.shifts.any() and (bounds := conditioned.bounds_of_new(self.runs)) is not None:
            of_new = with_new_interval(job, out, bounds, measured, network)
        found = self.doubts(job, columns)
        if not is_new or of_new is None:
            inside = self.inside & without_doubts(found, ADDED_DOUBTS | {"unit", "peak"})
            known = conditioned.knows_kind(self.runs)
            out = with_time_interval(job, out, self.half_width, inside, known, measured, network)
        if of_new is not None:
            out = of_new if is_new else nearest_bounds(out, of_new)
        return widen_to_doubt(out, self.mean, self.correction._time_span) | {
            "in_domain": self.inside & without_doubts(found)
        }


def heat_lines(own: OwnRuns, physics: CostModel, source: str) -> dict[str, Floats]:
    """Factor and offset (2, L) of peak power and temperature of the physics' layouts, by many runs of a source."""
    every, depth = np.arange(len(physics.layouts["pp"])), physics.layouts["pp"]
    runs = runs_of(physics, uniform_stage_clocks(depth, physics.top_mhz), every, source)
    clocks = [uniform_stage_clocks(depth, share * physics.top_mhz) for share in own.power_clocks]
    values = [heat_of(physics, every, mhz) for mhz in clocks]
    lines = {
        name: target.line(runs, np.stack([one[name] for one in values]), own.power_clocks)
        for name, target in own.heat.items()
    }
    return {name: np.stack(np.broadcast_arrays(line.factor, line.offset_w)) for name, line in lines.items()}
