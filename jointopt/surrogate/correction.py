"""The one correction of predictions, by a surrogate and measured runs of a source."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import UsageError, nearest
from jointopt.core.schema import LAYOUT_COLUMNS, Bools, Columns, Floats, Ints
from jointopt.jobs.catalog.frameworks import of_efficiency
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel, HeatScale, by_mean_power
from jointopt.physics.sensitivities import CONSTANTS, moved
from jointopt.surrogate.clock_response import TOP_ONLY, ClockResponse, MeasuredClocks
from jointopt.surrogate.data_doubts import as_wide_as_doubt, span_of_doubt
from jointopt.surrogate.evidence import Evidence, as_it_is, far_by
from jointopt.surrogate.features import PEAK, RISE, delay_of, heat_of, network_half_width, runs_of
from jointopt.surrogate.intervals import (
    RESULTS,
    above_peak,
    add_intervals,
    bounds_within_limits,
    narrower,
    new_kinds,
    open_doubts,
    physics_errors,
    supported,
    with_heat_intervals,
    with_new_interval,
    with_power_interval,
    with_time_interval,
)
from jointopt.surrogate.kernel import Runs, together
from jointopt.surrogate.own_mix import OwnTarget
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
        f"that `jointopt retrain --out` wrote{nearest(name, known)}."
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
        return job if self.recipe_class is None else of_efficiency(job, self.recipe_class)

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
        evidence, by = self._under_own_response(), np.zeros(len(CONSTANTS))
        conditioned = self._conditioned(evidence)
        if not conditioned.movable or evidence.runs is None:
            return conditioned, by, evidence
        by = far_by(self._priced, conditioned.posterior.constants, self._log_evidence)
        again = self._priced.moved(by) if by.any() else None
        return (
            (conditioned, np.zeros(len(by)), self._priced) if again is None else (self._conditioned(again), by, again)
        )

    @functools.cached_property
    def _response(self) -> ClockResponse | None:
        """How the cluster's kernels follow the clock, by many runs of its own."""
        own = self.surrogate.own_of(self.source)
        return None if own is None or own.response is None else own.response.response

    def _under_own_response(self) -> Evidence:
        own = self.surrogate.own_of(self.source)
        if own is None:
            return self._priced
        power = own.measured_power
        of_limits = power is not None and any((part.limits_w != power.limit_w).any() for part in self._priced.priced)
        if self._response is None and not of_limits:
            return self._priced
        return self._priced.under(as_it_is if self._response is None else self._response.on, power) or self._priced

    def _conditioned(self, evidence: Evidence) -> Conditioned:
        return self.surrogate.conditioned(self.source, self.fitted, evidence.known, evidence.bounds)

    def _log_evidence(self, evidence: Evidence) -> float:
        return self._conditioned(evidence).posterior.log_evidence_near

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
        of_evidence = self._settled[2].power
        if watts is None or self.power_limit_w is None:
            return of_evidence
        scale = of_evidence if self._own_power is None else self._own_power.power_scale(runs, watts[:-1])
        return scale.within(self.power_limit_w, watts[-1])

    def _powers(self, parts: Sequence[Runs], whole: Runs, watts: Sequence[Floats | None]) -> list[PowerScale]:
        """`power` of each of ``parts``, from trees evaluated for the ``whole`` at once: few rows cost as much."""
        of_physics = [values for values in watts if values is not None]
        if len(of_physics) < len(parts):
            return [self.power(runs, values) for runs, values in zip(parts, watts, strict=True)]
        return self.power(whole, np.concatenate(of_physics, axis=1)).split([len(runs) for runs in parts])

    def heat(self, job: Job, layouts: Columns) -> Callable[[Ints], HeatScale]:
        """Peak power and temperature of ``layouts`` of a job as moved, by the source's own runs."""
        own = self.own
        if own is None or not own.heat:
            return by_mean_power
        return LearnedHeat(self.as_measured(job), layouts, self.source, own.heat, own.power_clocks)

    @property
    def _heat_half_widths(self) -> dict[str, float]:
        targets = {} if self.own is None else self.own.heat
        return {name: half for name, target in targets.items() if (half := target.scale.half_width) is not None}

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
        known = known or self.surrogate.remembers(self.source)
        return known or self.surrogate.moves_unseen_sources

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
        return TOP_ONLY if self.own is None else self.own.measured_clocks

    def apart(self, job: Job, columns: Columns, runs: Runs, first: int) -> tuple[Floats, MeasuredClocks]:
        """(90 % half-width (n,), measured clocks) of `differences.Apart`, of plans against that in row ``first``.

        Where nothing supports one of both, it is at least that of the physics in unknown territory, as far as the
        two plans are unlike.
        """
        conditioned, clocks = self._settled[0], self._measured_clocks
        one = runs.take(np.full(1, first))
        half = conditioned.difference(runs, one)[1]
        known = conditioned.knows_kind(runs)
        supports = supported(job, columns, known, clocks, new=self._new(job))[1]  # whatever the network is
        inside = conditioned.inside(runs) & supports
        unknown = physics_errors()["difference"]["unknown"] * conditioned.share_of_unlike(runs, one)
        return np.where(inside & inside[first], half, np.maximum(half, unknown)), clocks

    def doubts(self, job: Job, columns: Columns, runs: Runs) -> dict[str, Bools]:
        """Why nothing recorded or measured supports plans of a job, (n,) each, by the keys of `DOUBTS`."""
        network = network_half_width(job, delay_of(runs), self._seen)
        known = self._settled[0].knows_kind(runs)
        found = open_doubts(job, columns, known, self._measured_clocks, network, self._new(job))
        return found | {"unit": np.full(len(runs), self._time_span is not None), "peak": above_peak(job, columns)}

    def _new(self, job: Job) -> frozenset[str]:
        return new_kinds(job, self._measured_jobs)

    @functools.cached_property
    def _measured_jobs(self) -> tuple[Job, ...]:
        """Jobs of the few runs that are known; none of those that a surrogate learned from, whose jobs it has not."""
        return () if self.own is not None else tuple(work.job for part in self.evidence.priced for work in part.works)

    @property
    def _seen(self) -> float:
        """`network_delay` of the run of the source that depends on the network between nodes most."""
        known = self._settled[0].known
        return float(delay_of(known)[known.source == self.source].max(initial=0.0))

    @functools.cached_property
    def _time_span(self) -> tuple[float, float] | None:
        """`span_of_doubt` of the timed runs of the source, by the physics that plans are priced on."""
        evidence = self._settled[2]
        if evidence.runs is None:
            return None
        return span_of_doubt(evidence.residual[evidence.runs.source == self.source])

    def moves(self, parts: Sequence[Runs], watts: Sequence[Floats | None]) -> list[Move]:
        """The correction of the plans of each of ``parts``, which are of one job each; ``watts``: as `power`'s."""
        conditioned, ends, whole = self._settled[0], np.cumsum([len(runs) for runs in parts])[:-1], together(parts)
        of_parts = (np.split(values, ends) for values in conditioned.predict(whole))
        pieces = zip(parts, self._powers(parts, whole, watts), *of_parts, strict=True)
        stays = not self.by.any()  # else the runs contradict what was assumed
        return [
            Move(
                mean, half, inside.astype(bool), conditioned.knows_kind(runs), self._settled[2],
                power, self._measured_clocks, self._heat_half_widths, conditioned.new(runs),
                conditioned.at_most(runs) if stays else None, delay_of(runs), self._seen,
                self._measured_jobs, self.peak_overshoot, self._time_span,
            )
            for runs, power, mean, half, inside in pieces
        ]  # fmt: skip


@dataclass(frozen=True)
class Move:
    """Correction of plans: mean and 90 % half-width of log(time / physics), and whether training supports them."""

    mean: Floats
    half_width: Floats
    inside: Bools
    known: bool  # runs of the same source, dtype and kind of model are among those learned from
    evidence: Evidence
    power: PowerScale
    measured: MeasuredClocks = TOP_ONLY  # clocks of runs of the source
    heat_half_width: Mapping[str, float] = field(default_factory=dict)  # 90 %, of logarithms, by `heat_names`
    new: tuple[Floats, Floats] | None = None  # 90 % half-widths below and above, where no run of the source is known
    at_most: tuple[Floats, Floats] | None = None  # the same, where runs are known and lie within these
    network_delay: Floats | float = 0.0  # of plans and of the source's runs, as for `network_half_width`
    network_seen: float = 0.0
    measured_jobs: tuple[Job, ...] = ()  # as for `new_kinds`
    peak_overshoot: float | None = None  # as of `Correction`
    time_span: tuple[float, float] | None = None  # as `span_of_doubt` has it of the source's runs

    def scaled(self, columns: Columns) -> Columns:
        """Results of the physics alone, corrected."""
        factor, power = np.exp(self.mean), self.power.over(columns["avg_power_w"])
        by = (factor, factor * power, power, self.evidence.memory_posterior().factor)
        return columns | {name: columns[name] * move for name, move in zip(RESULTS, by, strict=True)}

    def doubts(self, job: Job, columns: Columns) -> dict[str, Bools]:
        """Why nothing recorded or measured supports corrected plans, (n,) each, by the keys of `DOUBTS`."""
        kinds = new_kinds(job, self.measured_jobs)
        found = open_doubts(job, columns, self.known, self.measured, self._network(job), kinds)
        unit = np.full(len(self.mean), self.time_span is not None)
        return found | {"unit": unit, "peak": above_peak(job, columns)}

    def _network(self, job: Job) -> Floats:
        return network_half_width(job, np.asarray(self.network_delay), self.network_seen)

    def bounded(self, job: Job, columns: Columns) -> Columns:
        """Corrected plans and results with ``_low`` and ``_high`` of every result (90 %) and ``in_domain``."""
        network = self._network(job)
        out = add_intervals(job, columns, self.measured, network)
        out = with_heat_intervals(job, out, self.heat_half_width)
        if self.power.half_width is not None:
            out = with_power_interval(out, self.power.half_width)
        out = bounds_within_limits(job, out, self.peak_overshoot)
        kinds = new_kinds(job, self.measured_jobs)
        supports, at_top = supported(job, columns, self.known, self.measured, network, kinds)
        inside, new = self.inside & at_top, self.at_most if self.new is None else self.new
        of_new = None if new is None else with_new_interval(job, out, new, self.measured, network)
        if self.new is None or of_new is None:
            out = with_time_interval(job, out, self.half_width, inside, self.known, self.measured, network)
        if of_new is not None:
            out = of_new if self.new is not None else narrower(out, of_new)
        out = as_wide_as_doubt(out, self.mean, self.time_span)
        possible = (self.time_span is None) & ~above_peak(job, columns)
        return out | {"in_domain": self.inside & supports & possible}


# Peak power and temperature of plans as learned from a cluster's own runs, worked out for the plans that need it.


_KINDS = (PEAK, RISE)


class LearnedHeat:
    """`HeatScale` of layouts by their index; each layout is worked out once.

    ``layouts`` (L,) of ``job``; ``source``: key of that whose runs taught ``targets``, read at shares of the top clock.
    """

    def __init__(
        self, job: Job, layouts: Columns, source: str, targets: Mapping[str, OwnTarget], clocks: tuple[float, ...]
    ) -> None:
        self._job, self._layouts, self._source = job, layouts, source
        self._targets, self._clocks = targets, clocks
        self._lines = np.full((2 * len(_KINDS), len(layouts["pp"])), np.nan)  # factor and offset of every kind

    def __call__(self, index: Ints) -> HeatScale:
        """The scales of layouts ``index`` (n,)."""
        unknown = np.unique(index[np.isnan(self._lines[0, index])])
        if len(unknown):
            self._lines[:, unknown] = self._worked_out(unknown)
        peak, rise = self._lines[:2, index], self._lines[2:, index]
        of_peak = self._targets.get(PEAK)
        overshoot = np.inf if of_peak is None or of_peak.overshoot is None else of_peak.overshoot
        return HeatScale(peak if of_peak else None, rise if RISE in self._targets else None, overshoot)

    def _worked_out(self, index: Ints) -> Floats:
        layouts = {name: self._layouts[name][index] for name in LAYOUT_COLUMNS}
        physics, every = CostModel(self._job, layouts), np.arange(len(index))
        depth = physics.layouts["pp"]
        runs = runs_of(physics, uniform_stage_clocks(depth, physics.top_mhz), every, self._source)
        clocks = [uniform_stage_clocks(depth, share * physics.top_mhz) for share in self._clocks]
        values = [heat_of(physics, every, mhz) for mhz in clocks]
        out = np.ones((2 * len(_KINDS), len(index)))
        for at, name in enumerate(_KINDS):
            if name in self._targets:
                line = self._targets[name].line(runs, np.stack([one[name] for one in values]), self._clocks)
                out[2 * at], out[2 * at + 1] = line.factor, line.offset_w
        return out
