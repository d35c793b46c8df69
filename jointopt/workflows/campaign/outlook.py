"""Expectations of every candidate of a tune after all runs so far, and how far they are to be trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.jobs.job import OBJECTIVES, Job
from jointopt.measure.launchers.rows import is_bounded
from jointopt.physics.cost_model import judged_by, stated
from jointopt.search.acquire import SAMPLES
from jointopt.surrogate.memory import FEASIBLE, MemoryEvidence, MemoryPosterior
from jointopt.surrogate.tune_model import (
    INFORMED,
    OF_POWER,
    Adapted,
    Spread,
    adapted,
    left_out,
    mean_loss,
    plan_features,
    unmoved_scatter,
)
from jointopt.workflows.campaign.candidates import Candidates
from jointopt.workflows.campaign.earlier import Earlier
from jointopt.workflows.campaign.growing import Growing

ENOUGH_TO_JUDGE = 6  # runs from which on a prediction must be better on those left out than the physics alone
_HALF_INTERVAL = 1.6448536269514722  # standard deviations of a 90 % interval
_LEARNED, _OWN_RUNS, _PHYSICS = "earlier runs of the cluster", "the runs of this job", "the physics alone"
_TOGETHER = "a model of the cluster's runs, those of this job among them,"
# Of the mean log of the likelihood of a run: by less, recorded groups were predicted worse as often as better
# (bench_growing.py; where it helped it was ahead by 0.09 to 0.5)
AHEAD = 0.05
_PARTS = ("iteration_time_s", "avg_power_w")  # of energy


@dataclass(frozen=True)
class Expected:
    """``columns`` (n): objectives with ``_low`` and ``_high`` (90 %), ``probability_fits`` in memory and constraints.

    ``draws``: the same as joint draws, and ``fits``. ``apart`` (n): standard deviations of the objectives' logarithms
    without what all candidates err by. ``basis`` says what the predicted time rests on. ``likely`` (n): to fit in
    memory, by the one gate of all verbs; a run decides, and plans that are not come after those that are.
    """

    columns: Columns
    draws: Columns
    apart: Columns
    basis: str
    likely: Bools


@dataclass(frozen=True)
class _Found:
    """A result of every candidate, what it rests on, and by how much runs (m,) were missed from the others.

    ``off`` and its standard deviation ``deviation`` are of logarithms, NaN of what was not measured or not judged.
    """

    adapted: Adapted
    source: str
    off: Floats
    deviation: Floats


class Outlook:
    """Predictions for candidates, moved by earlier runs of other jobs, by those of this one, or ``growing`` by both."""

    def __init__(
        self, job: Job, candidates: Candidates, earlier: Earlier, spread: Spread, rng: np.random.Generator,
        growing: Growing | None = None,
    ) -> None:  # fmt: skip
        self._candidates, self._earlier, self._spread, self._rng = candidates, earlier, spread, rng
        self._growing = growing
        self._features = plan_features(candidates.plans)
        self._framework = job.training.framework.name
        self._job = job

    def after(self, objectives: tuple[str, ...], index: Ints, rows: Sequence[Mapping[str, Any]]) -> Expected:
        """The posterior after measurements ``rows`` of candidates ``index`` (m,)."""
        probability, fits = self._fits(index, rows)
        columns: Columns = {"probability_fits": probability}
        draws: Columns = {"fits": fits}
        basis = _PHYSICS
        found_by_name: dict[str, Adapted] = {}
        memo: dict[str, _Found] = {}
        for name in dict.fromkeys([*objectives, *judged_by(self._job)]):
            found = self._found(name, index, rows, memo)
            found_by_name[name] = found.adapted
            basis = found.source if name == "iteration_time_s" else basis
            if name in objectives:
                mean, deviation = found.adapted.mean, found.adapted.deviation
                columns[name] = np.exp(mean)
                columns[f"{name}_low"] = np.exp(mean - _HALF_INTERVAL * deviation)
                columns[f"{name}_high"] = np.exp(mean + _HALF_INTERVAL * deviation)
                draws[name] = np.exp(found.adapted.draws(SAMPLES, self._rng))
        for kept in kept_probabilities(self._job, found_by_name):
            columns["probability_fits"] = columns["probability_fits"] * kept
            draws["fits"] = draws["fits"] & (self._rng.random(draws["fits"].shape) < kept[:, None])
        apart = {name: found_by_name[name].apart for name in objectives}
        return Expected(columns, draws, apart, basis, probability >= FEASIBLE)

    def _found(self, name: str, index: Ints, rows: Sequence[Mapping[str, Any]], memo: dict[str, _Found]) -> _Found:
        """A result of every candidate after runs ``rows`` of candidates ``index`` (m,); ``memo``: those worked out."""
        if name not in memo:
            direct = memo[name] = self._adapted(name, index, rows)
            if name == "energy_j" and np.isfinite(direct.off).sum() >= ENOUGH_TO_JUDGE:
                parts = [self._found(part, index, rows, memo) for part in _PARTS]
                memo[name] = self._of_parts(direct, *parts)
        return memo[name]

    def _of_parts(self, direct: _Found, time: _Found, power: _Found) -> _Found:
        """Energy from time and power where that says more of runs left out than what was learned of energy alone."""
        off, deviation = time.off + power.off, np.hypot(time.deviation, power.deviation)
        known = np.isfinite(off) & np.isfinite(direct.off)
        if known.sum() < ENOUGH_TO_JUDGE:
            return direct
        if mean_loss(off[known], deviation[known]) >= mean_loss(direct.off[known], direct.deviation[known]):
            return direct
        gpus = np.log(self._candidates.predicted["energy_j"])
        for name in _PARTS:
            gpus = gpus - np.log(self._candidates.predicted[name])
        loadings = np.hstack([time.adapted.loadings, power.adapted.loadings])
        noise = float(np.hypot(time.adapted.noise, power.adapted.noise))
        width = np.hypot(time.adapted.deviation, power.adapted.deviation)
        both = Adapted(time.adapted.mean + power.adapted.mean + gpus, width, loadings, noise)
        return _Found(both, time.source, off, deviation)

    def _adapted(self, name: str, index: Ints, rows: Sequence[Mapping[str, Any]]) -> _Found:
        """The log of a result of every candidate, and what it rests on."""
        values = np.array([result(row, name) for row in rows], float)
        bounds = np.array([lower_bound(row, name) for row in rows], float)
        held = bounds > 0
        good = np.flatnonzero((values > 0) | held)
        at, seen, held = index[good], np.log(np.where(held, bounds, values)[good]), held[good]
        physics, best = np.log(self._candidates.predicted[name]), 0
        own = OF_POWER if name == "avg_power_w" else self._spread
        # the physics comes first until runs show otherwise, unless other jobs are known to order plans better
        choices = [(physics, own, _OWN_RUNS)]
        if (log_factor := self._earlier.log_factor_on(name)) is not None:
            learned = (physics + log_factor, INFORMED, _LEARNED)
            choices.insert(0 if self._earlier.first else 1, learned)
        off = np.full((2, len(rows)), np.nan)
        if (~held).sum() >= ENOUGH_TO_JUDGE:
            if (grown := self._grown(name, index, rows)) is not None:
                choices.append((physics + grown, INFORMED, _TOGETHER))
            without = [left_out(self._features, prior, at, seen, spread, held) for prior, spread, _ in choices]
            losses = [
                mean_loss(*errors) + AHEAD * (source == _TOGETHER)
                for errors, (_, _, source) in zip(without, choices, strict=True)
            ]
            if choices[-1][2] == _TOGETHER and losses[-1] >= mean_loss(
                *left_out(self._features, physics, at, seen, INFORMED, held)
            ):  # ahead by its narrower spread alone: so is the physics (vTrain's 175B, 1.4 to 2.4 and 1.8 to 4.6 %)
                losses[-1] = np.inf
            best, far = int(np.argmin(losses)), np.where(held, np.nan, seen - physics[at])
            unmoved = far, unmoved_scatter(far, own.noise)
            if mean_loss(*unmoved) < losses[best]:
                off[:, good] = unmoved
                scatter = max(float(np.sqrt(np.nanmean(far**2))), own.noise)
                fixed = adapted(self._features, physics, at[:0], seen[:0], Spread(1e-6, 1e-6, scatter))
                return _Found(fixed, _PHYSICS, *off)
            off[:, good] = without[best]
        prior, spread, source = choices[best]
        return _Found(adapted(self._features, prior, at, seen, spread, held), source, *off)

    def _grown(self, name: str, index: Ints, rows: Sequence[Mapping[str, Any]]) -> Floats | None:
        """Logarithm of the factor (n,) on a result by runs of the cluster and of this job; None: nothing is known.

        That on the time, and on energy too, beside what is known of power.
        """
        if self._growing is None or name not in OBJECTIVES:
            return None
        log_time = np.log([result(row, "iteration_time_s") for row in rows])
        ran = np.flatnonzero(np.isfinite(log_time))
        residual = (log_time - np.log(self._candidates.predicted["iteration_time_s"])[index])[ran]
        found = self._growing.log_factor(index[ran], residual)
        power = self._earlier.log_factors.get("avg_power_w", 0.0) if name == "energy_j" else 0.0
        return None if found is None else found + power

    def _fits(self, index: Ints, rows: Sequence[Mapping[str, Any]]) -> tuple[Floats, Any]:
        """Probability and draws of fitting, by runs that trained or ran out of memory alone."""
        load, room = self._candidates.log_load, self._candidates.log_room
        status = np.array([row["status"] for row in rows], str)
        fitted = (status == "ok") | np.array([is_bounded(row) for row in rows], bool)
        own = MemoryEvidence(ok_load=load[index[fitted]], oom_load=load[index[status == "oom"]])
        posterior = MemoryPosterior(self._earlier.memory + own, self._framework)
        return posterior.fit_probability(load - room), posterior.fit_draws(load - room, SAMPLES, self._rng)


def of_candidate(columns: Columns, index: int) -> dict[str, float]:
    """Results expected of one candidate, its fit in memory aside."""
    return {name: float(values[index]) for name, values in columns.items() if name != "probability_fits"}


def kept_probabilities(job: Job, found: Mapping[str, Adapted]) -> Iterator[Floats]:
    """For each bound that the job states, memory's aside, how probably every candidate keeps it, (n,).

    What is worked out from several results counts as log-normal, as wide as if all of them erred the same way.
    """
    middle, high = (
        {name: np.exp(each.mean + step * each.deviation) for name, each in found.items()} for step in (0.0, 1.0)
    )
    above = stated(job, high)  # by one standard deviation
    for name, (values, bound) in stated(job, middle).items():
        yield _probability_below(np.log(values), np.log(above[name][0] / values), bound)


def _probability_below(mean: Floats, deviation: Floats, bound: float) -> Floats:
    """Of log-normals; 1 where nothing is predicted, since then the run itself must show it."""
    chance = ndtr((np.log(bound) - mean) / deviation)
    return np.asarray(np.where(np.isfinite(mean), chance, 1.0))


def result(row: Mapping[str, Any], name: str) -> float:
    """A measured result, NaN where the run failed or did not measure it; power follows from energy and time."""
    if row.get("status") != "ok":
        return float("nan")
    value = row.get(name)
    known = float("nan") if value is None else float(value)
    if name == "avg_power_w" and not known > 0 and row.get("num_gpus"):
        return result(row, "energy_j") / result(row, "iteration_time_s") / float(row["num_gpus"])
    return known


def lower_bound(row: Mapping[str, Any], name: str = "iteration_time_s") -> float:
    """The least time or energy that a run which was ended early would have taken; NaN of others, and where unknown."""
    known = row.get(name) if name in OBJECTIVES and is_bounded(row) else None
    return float("nan") if known is None else float(known)


def broken_constraints(job: Job, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the job's constraints that a measured run does not keep; what was not measured counts as kept."""
    return tuple(name for name, (value, bound) in held_to(job, row).items() if value > bound)


def held_to(job: Job, row: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """(what a run measured, NaN where it did not; the job's upper bound), by the constraint's name."""
    measured = {name: np.array([result(row, name)]) for name in judged_by(job)}
    held = {name: (float(values[0]), bound) for name, (values, bound) in stated(job, measured).items()}
    if (fraction := job.constraints.memory_fraction) is not None:
        held["memory_fraction"] = result(row, "peak_memory_gib") / job.cluster.gpu.memory_gib, fraction
    return held
