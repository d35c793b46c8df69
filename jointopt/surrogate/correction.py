"""The one correction of predictions, by a surrogate and measured runs of a source."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import UsageError, nearest_hint
from jointopt.core.schema import LAYOUT_COLUMNS, Bools, Columns, Floats, Ints
from jointopt.jobs.catalog.frameworks import job_of_efficiency
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel, HeatScale, by_mean_power
from jointopt.physics.sensitivities import CONSTANTS, moved
from jointopt.surrogate.clock_response import TOP_ONLY, ClockResponse, MeasuredClocks
from jointopt.surrogate.data_doubts import as_wide_as_doubt, span_of_doubt
from jointopt.surrogate.evidence import Evidence, as_it_is, far_by
from jointopt.surrogate.features import PEAK, RISE, delay_of, heat_of, network_half_width, runs_of
from jointopt.surrogate.intervals import (
    APART,
    RESULTS,
    above_peak,
    add_intervals,
    bounds_within_limits,
    narrower,
    new_kinds,
    open_doubts,
    physics_errors,
    share_of_unlike,
    supported,
    with_measured_intervals,
    with_new_interval,
    with_time_interval,
)
from jointopt.surrogate.kernel import Runs, together
from jointopt.surrogate.own_mix import at_rest_w
from jointopt.surrogate.power import PowerScale, at_limit

if TYPE_CHECKING:
    from jointopt.surrogate.own_cluster import OwnRuns
    from jointopt.surrogate.surrogate import Conditioned, Surrogate

_MODELS = Path(__file__).parents[1] / "models"


def surrogate_names() -> tuple[str, ...]:
    """Names of the surrogates that come with jointopt."""
    return tuple(sorted(card.parent.name for card in _MODELS.glob("*/card.json")))


@functools.cache
def load_surrogate(name: str) -> Surrogate | None:
    """The shipped surrogate of that name, the one in that folder, or None for ``none``; UsageError names the known."""
    from jointopt.surrogate.files import load

    if name == "none":
        return None
    if ((shipped := _MODELS / name) / "card.json").is_file():
        return load(shipped)
    if Path(name).is_dir():
        return load(Path(name))
    known = (*surrogate_names(), "none")
    raise UsageError(
        f"The surrogate {name!r} is neither shipped nor a folder; expected one of {', '.join(known)}, or the folder "
        f"that `jointopt retrain --out` wrote{nearest_hint(name, known)}."
    )


@dataclass(frozen=True)
class Correction:
    """A surrogate conditioned on the runs of one source, whose framework has a ``fitted`` profile or none.

    Where they show a network far from the assumed one, it is of the physics with its constants moved ``by`` so much:
    plans are to be priced on `moved`.
    """

    surrogate: Surrogate
    source: str
    fitted: bool
    evidence: Evidence = field(default_factory=Evidence)

    @functools.cached_property
    def recipe_class(self) -> str | None:
        """The class by which all is priced, as what the surrogate remembers of the source was; None: by its own."""
        return self.surrogate.class_of(self.source)

    def of_class(self, job: Job) -> Job:
        """The job by `recipe_class`; what was learned on one class would count twice on another."""
        return job if self.recipe_class is None else job_of_efficiency(job, self.recipe_class)

    @functools.cached_property
    def _priced(self) -> Evidence:
        """The evidence by `recipe_class`, runs under power limits by what was measured of power."""
        jobs = [work.job for part in self.evidence.priced for work in part.works]
        evidence = self.evidence
        if any(self.of_class(job) is not job for job in jobs):
            evidence = evidence.under(self.of_class) or evidence
        own = self.surrogate.own_of(self.source)
        return evidence if own is not None and own.knows_power else evidence.under_measured_power()

    @functools.cached_property
    def _settled(self) -> tuple[Conditioned, Floats, Evidence]:
        """The correction, what constants are moved by, and the evidence there."""
        evidence, own, stays = self._priced, self.surrogate.own_of(self.source), np.zeros(len(CONSTANTS))
        power = None if own is None else own.measured_power
        limited = power is not None and any((part.limits_w != power.limit_w).any() for part in evidence.priced)
        if self._response is not None or limited:
            evidence = evidence.under(as_it_is if self._response is None else self._response.on, power) or evidence
        conditioned = self._conditioned(evidence)
        if not conditioned.movable or evidence.runs is None:
            return conditioned, stays, evidence
        constants = conditioned.posterior.constants
        by = far_by(self._priced, constants, lambda some: self._conditioned(some).posterior.log_evidence_near)
        again = self._priced.moved(by) if by.any() else None
        return (conditioned, stays, self._priced) if again is None else (self._conditioned(again), by, again)

    def _conditioned(self, evidence: Evidence) -> Conditioned:
        return self.surrogate.conditioned(self.source, self.fitted, evidence.known, evidence.bounds)

    @functools.cached_property
    def _response(self) -> ClockResponse | None:
        """How the cluster's kernels follow the clock, by many runs of its own."""
        own = self.surrogate.own_of(self.source)
        return None if own is None or own.response is None else own.response.response

    @property
    def by(self) -> Floats:
        """Logarithms by which runs move the physics' constants, (`CONSTANTS`,); zeros where sensitivities do."""
        return self._settled[1]

    @property
    def own(self) -> OwnRuns | None:
        """Learned from many runs of the source; None where there were few."""
        return self._settled[0].own

    def log_clock_response(self, job: Job, layout: Columns, stage_clock_mhz: Floats) -> float:
        """log(time with the learned clock response / time without it) of one layout at its clocks (1, S)."""
        if self._response is None:
            return 0.0
        each = (CostModel(one, layout) for one in (self._response.on(job), job))
        with_it, without = (p.evaluate(np.zeros(1, np.int64), stage_clock_mhz)["iteration_time_s"][0] for p in each)
        return float(np.log(with_it / without))

    @property
    def _own_power(self) -> OwnRuns | None:
        return self.own if self.own is not None and self.own.knows_power else None

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
        """The line in the power of the physics as moved: one for all of ``runs``, or of each of them.

        ``watts`` (clocks, n): of the physics at all `power_clocks`, under `power_limit_w`, where there are such.
        """
        scale, own = self._settled[2].power, self._own_power
        if watts is None or self.power_limit_w is None:
            return scale
        if own is not None:
            scale = own.targets["power"].line(runs, watts[:-1], own.power_clocks, at_rest_w(own.source))
        return scale.within(self.power_limit_w, watts[-1])

    def heat(self, job: Job, layouts: Columns) -> Callable[[Ints], HeatScale]:
        """Peak power and temperature of ``layouts`` (L,) of a job as moved, by the source's own runs.

        Each layout is worked out once, when a plan of it needs that.
        """
        own, there = self.own, self.as_measured(job)
        if own is None or not own.heat:
            return by_mean_power
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

    def as_measured(self, job: Job) -> Job:
        """The job under the power limit that its power was measured under, whatever its own, where there is such."""
        return at_limit(job, self.power_limit_w)

    @property
    def moves_physics(self) -> bool:
        """Whether `moved` changes a job."""
        own = self.recipe_class is not None or self._response is not None
        return own or (self.evidence.runs is not None and bool(self.by.any()))

    def moved(self, job: Job) -> Job:
        """The job on which plans are to be priced."""
        job = self.of_class(job)
        there = job if self._response is None else self._response.on(job)
        return moved(there, self.by) if self.evidence.runs is not None else there

    @property
    def moves_time(self) -> bool:
        """Whether the predicted time of any plan changes."""
        known = self.evidence.runs is not None or self.surrogate.own_of(self.source) is not None
        trees = self.surrogate.trees
        return known or len(self.surrogate.remembered(self.source)) > 0 or (trees is not None and trees.strength > 0.0)

    def log_factor(self, runs: Runs) -> Floats:
        """Mean of log(time / physics), (n,)."""
        return self._settled[0].mean(runs)

    @property
    def has_new_groups(self) -> bool:
        """Whether a few runs may count in part for groups of which none is known."""
        return self.surrogate.new_groups_of(self.source) is not None

    def counted_in_part(self, runs: Runs) -> tuple[str, ...]:
        """A sentence where a few runs count in part for the first of ``runs``, of whose group none is known."""
        conditioned = self._settled[0]
        if conditioned.new_groups is None or conditioned.parts(runs.take(np.zeros(1, np.int64)))[0][0] == 1.0:
            return ()
        return (conditioned.new_groups.sentence,)

    @property
    def _measured_clocks(self) -> MeasuredClocks:
        return TOP_ONLY if self.own is None else MeasuredClocks(*self.own.clocks, self.own.off_below)

    def apart(self, job: Job, columns: Columns, runs: Runs, first: int) -> tuple[Floats, MeasuredClocks]:
        """(90 % half-width (n,), measured clocks) of `differences.Apart`, of plans against that in row ``first``.

        Where nothing supports one of both, it is at least that of the physics in unknown territory, as far as the
        two plans are unlike.
        """
        conditioned, clocks = self._settled[0], self._measured_clocks
        one = runs.take(np.full(1, first))
        half = conditioned.difference(runs, one)[1]
        new = new_kinds(job, self._measured_jobs)
        found = open_doubts(job, columns, conditioned.knows_kind(runs), clocks, new=new)  # whatever the network is
        inside = conditioned.inside(runs) & supported(found, APART)
        unlike = share_of_unlike(conditioned.posterior.kernel, runs, one)
        unknown = physics_errors()["difference"]["unknown"] * unlike
        return np.where(inside & inside[first], half, np.maximum(half, unknown)), clocks

    def doubts(self, job: Job, columns: Columns, runs: Runs) -> dict[str, Bools]:
        """Why nothing recorded or measured supports plans of a job, (n,) each, by the keys of `DOUBTS`."""
        zero = np.zeros(len(runs))
        return Move(self, runs, zero, zero, zero > 0.0, PowerScale()).doubts(job, columns)

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

    def moves(self, parts: Sequence[Runs], watts: Sequence[Floats | None]) -> list[Move]:
        """The correction of the plans of each of ``parts``, which are of one job each; ``watts``: as `power`'s.

        Trees are evaluated for all parts at once: few rows cost as much.
        """
        lengths, whole = [len(runs) for runs in parts], together(parts)
        of_parts = (np.split(values, np.cumsum(lengths)[:-1]) for values in self._settled[0].predict(whole))
        of_physics = [values for values in watts if values is not None]
        if len(of_physics) < len(parts):
            powers = [self.power(runs, values) for runs, values in zip(parts, watts, strict=True)]
        else:
            powers = self.power(whole, np.concatenate(of_physics, axis=1)).split(lengths)
        pieces = zip(parts, *of_parts, powers, strict=True)
        return [Move(self, runs, mean, half, inside.astype(bool), power) for runs, mean, half, inside, power in pieces]


@dataclass(frozen=True)
class Move:
    """Correction of plans: mean and 90 % half-width of log(time / physics), and whether training supports them."""

    correction: Correction
    runs: Runs  # the plans, of one job
    mean: Floats
    half_width: Floats
    inside: Bools
    power: PowerScale

    @property
    def evidence(self) -> Evidence:
        """Of the source, by the physics that plans are priced on."""
        return self.correction._settled[2]

    def scaled(self, columns: Columns) -> Columns:
        """Results of the physics alone, corrected."""
        factor, power = np.exp(self.mean), self.power.over(columns["avg_power_w"])
        by = (factor, factor * power, power, self.evidence.memory_posterior().factor)
        return columns | {name: columns[name] * move for name, move in zip(RESULTS, by, strict=True)}

    def _network(self, job: Job) -> Floats:
        """The doubt of an assumed network, less by the run of the source that depends on it most."""
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
        # where constants are moved, the runs contradict what was assumed of a new source
        if not self.correction.by.any() and (bounds := conditioned.bounds_of_new(self.runs)) is not None:
            of_new = with_new_interval(job, out, bounds, measured, network)
        found = self.doubts(job, columns)
        if not is_new or of_new is None:
            inside = self.inside & supported(found, APART | {"unit", "peak"})
            known = conditioned.knows_kind(self.runs)
            out = with_time_interval(job, out, self.half_width, inside, known, measured, network)
        if of_new is not None:
            out = of_new if is_new else narrower(out, of_new)
        return as_wide_as_doubt(out, self.mean, self.correction._time_span) | {
            "in_domain": self.inside & supported(found)
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
