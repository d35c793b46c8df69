"""Correction of a job's plans by a few of them that were measured: a regression on log(measured / predicted)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from jointopt.core.facts import Source
from jointopt.core.schema import LOG_COLUMNS, POWER_LIMIT, SWITCHES, Bools, Columns, Floats, Ints
from jointopt.surrogate.evidence import beyond
from jointopt.surrogate.kernel import Kernel, Runs, together
from jointopt.surrogate.own_cluster import (
    LEAST_RUNS,
    SUPPORT,
    Measured,
    OwnRuns,
    crossed_process,
    learn_own,
    supporting,
)
from jointopt.surrogate.own_mix import FOLDS, LEAST_GAIN, count_distinct, mixed_again
from jointopt.surrogate.power import PowerScale

if TYPE_CHECKING:
    from jointopt.surrogate.surrogate import Surrogate


@dataclass(frozen=True)
class Spread:
    """Standard deviations of log(measured / predicted), chosen on recorded groups (tests/bench/bench_replay.py)."""

    shared: float = 0.2  # common to all plans of a job: what the kernel table and the cluster share
    trend: float = 0.03  # per doubling of a degree, wherever the others stand
    noise: float = 0.07  # of one plan, not explained by the others


# CPU cores: their figures are an order of magnitude, and processes that share cores pay for work rather than for
# waiting. In a sweep of 18 plans (tests/bench/bench_tune_cpu.py) the usual spread took slow plans for stalled runs and
# ended 41 % behind the best after 8 runs; shared 0.5 to 1 with trend 0.1 to 0.4 came within 1 % in 5 or 6.
ROUGH = Spread(shared=0.7, trend=0.2, noise=0.1)
INFORMED = Spread(shared=0.1, trend=0.02, noise=0.05)  # where other jobs of the same cluster have moved plan by plan
# Of average power, with what `power_scale` counts on in common and of a run. On made-up clusters 0.02 to 0.05 per
# doubling and 0.02 to 0.07 of a plan change errors of energy by half a point, up on one and down on another.
OF_POWER = Spread(shared=0.15, trend=0.03, noise=0.05)

_TAIL = 3.0  # degrees of freedom of the noise: some runs are several times slower for reasons of their own
_NOISE_RUNS = 4.0  # how many runs the prior of the noise is worth against those measured
_BOUND_ROUNDS = 10  # of expecting what runs that were ended early would have taken
_ROUNDS = 20  # of reweighting; the weights settle to a few per cent in ten


def plan_features(plans: Columns) -> Floats:
    """Plans as points (n, 11), 12 with power limits, in which a doubling of any degree is a step of 1, around the mean.

    ``plans`` holds the layout columns and ``stage_clock_mhz``; a switch is half a doubling, an octave of clock two.
    """
    doublings = [np.log2(plans[name].astype(float)) for name in LOG_COLUMNS]
    switches = [plans[name].astype(float) / 2 for name in SWITCHES[::-1]]
    clock = 2 * np.log2(np.nanmean(plans["stage_clock_mhz"], axis=1))
    limits = []
    if POWER_LIMIT in plans and np.isfinite(plans[POWER_LIMIT]).any():  # no limit is as much as the highest of them
        watts = plans[POWER_LIMIT]
        limits = [2 * np.log2(np.where(np.isfinite(watts), watts, np.nanmax(watts)))]
    points = np.stack([*doublings, *switches, clock, *limits], axis=1)
    centred: Floats = points - points.mean(axis=0)
    return centred


@dataclass(frozen=True)
class Adapted:
    """Logarithms of what a run of each plan (n,) would show."""

    mean: Floats
    loadings: Floats  # (n, d): what plans err by together, per independent unit normal
    noise: float  # standard deviation of what each errs by alone

    @property
    def deviation(self) -> Floats:
        """Standard deviations (n,), each plan's own noise included."""
        return np.asarray(np.sqrt((self.loadings**2).sum(axis=1) + self.noise**2))

    @property
    def apart(self) -> Floats:
        """Standard deviations (n,) without what all plans err by."""
        return np.asarray(np.sqrt(((self.loadings - self.loadings.mean(axis=0)) ** 2).sum(axis=1) + self.noise**2))

    def draws(self, count: int, rng: np.random.Generator) -> Floats:
        """Joint draws (n, count): plans alike are wrong alike."""
        together = self.loadings @ rng.standard_normal((self.loadings.shape[1], count))
        return np.asarray(self.mean[:, None] + together + self.noise * rng.standard_normal((len(self.mean), count)))


def adapted(
    features: Floats, log_predicted: Floats, index: Ints, log_measured: Floats, spread: Spread | None = None,
    bounded: Bools | None = None,
) -> Adapted:  # fmt: skip
    """The log of every plan (n,), given that of the measured ones ``index`` (m,).

    Bayesian linear regression (Rasmussen and Williams 2006, equation 2.8) on a common factor and the features (n, d);
    without measurements, the prediction itself. Noise is Student's, by reweighting, and its scale is learned, so that
    one run that stalled moves the others little and many that scatter widen everything. Of runs that are ``bounded``
    (m,) the time is what they would have taken at least: each counts as what is expected beyond (Schmee and Hahn 1979).
    """
    if bounded is not None and bounded.any():
        log_measured = _beyond(features, log_predicted, index, log_measured, spread, bounded)
    spread = spread or Spread()
    scaled = np.column_stack([np.full(len(features), spread.shared), spread.trend * features])
    if not len(index):
        return Adapted(log_predicted, scaled, spread.noise)
    residual = log_measured - log_predicted[index]
    seen = scaled[index]
    variance, scale = _noise(seen @ seen.T, residual, spread.noise**2)
    precision = np.eye(scaled.shape[1]) + (seen.T / variance) @ seen
    weights = np.linalg.solve(precision, (seen.T / variance) @ residual)
    root = np.linalg.inv(np.linalg.cholesky(precision)).T
    return Adapted(log_predicted + scaled @ weights, scaled @ root, float(np.sqrt(scale)))


def _beyond(
    features: Floats, log_predicted: Floats, index: Ints, log_measured: Floats, spread: Spread | None, bounded: Bools
) -> Floats:
    """The measured logarithms (m,), those of bounded runs as expected from all runs, beyond their bounds."""
    bound, known = log_measured[bounded], ~bounded
    expected = np.array(log_measured)
    found = adapted(features, log_predicted, index[known], log_measured[known], spread)
    for _ in range(_BOUND_ROUNDS):
        mean, deviation = found.mean[index[bounded]], found.deviation[index[bounded]]
        expected[bounded] = beyond(bound, mean, deviation)
        found = adapted(features, log_predicted, index, expected, spread)
    return expected


def left_out(
    features: Floats, log_predicted: Floats, index: Ints, log_measured: Floats, spread: Spread,
    bounded: Bools | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """(error, its standard deviation) (m,) of the log of each measured plan when all others are known.

    NaN for those that are ``bounded``, of which only the least is known.
    """
    bounded = np.zeros(len(index), bool) if bounded is None else bounded
    off, deviation = np.full((2, len(index)), np.nan)
    for i in np.flatnonzero(~bounded):
        row, others = index[i], np.arange(len(index)) != i
        rest = adapted(features, log_predicted, index[others], log_measured[others], spread, bounded[others])
        off[i], deviation[i] = log_measured[i] - rest.mean[row], rest.deviation[row]
    return off, deviation


def mean_loss(off: Floats, deviation: Floats) -> float:
    """The mean of -log of the density of errors ``off`` (m,) that are expected to be so wide; NaN aside.

    Student's density, whose tails one stalled run does not decide by.
    """
    known = np.isfinite(off)
    off, deviation = off[known], deviation[known]
    scaled = 1.0 + (off / deviation) ** 2 / _TAIL
    constant = gammaln((_TAIL + 1.0) / 2.0) - gammaln(_TAIL / 2.0) - 0.5 * np.log(_TAIL * np.pi)
    return float(np.mean(np.log(deviation) - constant + 0.5 * (_TAIL + 1.0) * np.log(scaled)))


def unmoved_scatter(off: Floats, least: float) -> Floats:
    """Standard deviation (m,) of errors ``off`` (m,) of what runs do not move, by all others; NaN aside.

    ``least``: the least of them.
    """
    squares = off**2
    others = max(np.isfinite(squares).sum() - 1, 1)
    return np.asarray(np.maximum(np.sqrt((np.nansum(squares) - squares) / others), least))


def _noise(kernel: Floats, residual: Floats, usual: float) -> tuple[Floats, float]:
    """Variance of each run (m,) and of a plan not run.

    Expectation maximisation for Student's noise, whose scale has an inverse-gamma prior around ``usual``.
    """
    scale, weight = usual, np.ones(len(residual))
    for _ in range(_ROUNDS):
        gain = kernel @ np.linalg.inv(kernel + np.diag(scale / weight))
        error = (residual - gain @ residual) ** 2 + np.diag(kernel - gain @ kernel)
        weight = (_TAIL + 1.0) / (_TAIL + error / scale)
        scale = float((_NOISE_RUNS * usual + (weight * error).sum()) / (_NOISE_RUNS + len(residual)))
    return scale / weight, scale


# A model of a cluster from its runs of other jobs, for the first runs of a new one, and beside these.


MOST = 2_000  # runs that are learned from: more take longer than they are worth before a run
BROKEN = 2.0  # times slower or faster than predicted: a run that went wrong


@dataclass(frozen=True)
class OtherJobs:
    """A ``surrogate`` that learned from runs of other jobs, and how far plans of one left out are off by it.

    ``without`` and with it (``error``): means of absolute logarithms, what all plans of a job have in common aside.
    """

    surrogate: Surrogate
    without: float
    error: float

    @property
    def orders_better(self) -> bool:
        """Whether plans of a job left out are ordered better by it."""
        return self.error < (1.0 - LEAST_GAIN) * self.without


def sound_runs(known: Measured, source: str, most: int = MOST, seed: int = 0) -> Measured:
    """At most so many of the ``known`` runs of a source, drawn at random, without those that went wrong."""
    of_source = (np.abs(known.residual) < np.log(BROKEN)) & (known.runs.source == source)
    rows = np.flatnonzero(of_source).astype(np.int64)
    return known.take(np.sort(np.random.default_rng(seed).permutation(rows)[:most]))


def of_other_jobs(source: Source, known: Measured, shared: Surrogate, seed: int = 0) -> OtherJobs | None:
    """What ``known`` runs of other jobs on the cluster teach of the next one; None where they are few.

    ``shared``: the surrogate with the kernel of all sources.
    """
    some = sound_runs(known, str(source), seed=seed)
    if count_distinct(some.runs) < LEAST_RUNS:
        return None
    own, crossed, _ = learn_own(str(source), some, shared.kernel, seed)
    if own.knows_power and own.errors["power"] >= own.errors["power physics"]:
        own = replace(own, power=PowerScale())
    kept = supporting(np.arange(len(some.runs), dtype=np.int64), seed)
    learned = replace(
        shared, support=some.runs.take(kept), residual=some.residual[kept], own=(own,), new_groups=(),
        card={"recipe_classes": {str(source): "several"}},  # each job is priced by its own
    )  # fmt: skip
    without, error = (_apart(off, some.runs.group) for off in (some.residual, some.residual - crossed))
    return OtherJobs(learned, without, error)


def with_own_rows(
    plans: Runs, index: Ints, residual: Floats, known: Measured | None, shared: Kernel, seed: int = 0
) -> Floats:
    """log(measured / physics) (n,) of plans by runs of plans ``index`` (m,), ``residual`` (m,), and of other jobs.

    At plans that ran it is what runs say of them of which a fifth is left out at a time, so that it can be judged there
    beside other predictions. ``known``: runs of other jobs on the cluster. By the process of all sources; from
    `LEAST_RUNS` in all on by one of the cluster's own and trees, as far as they help on jobs left out (`learn_own`).
    """
    source, runs, y = str(plans.source[0]), plans.take(index), residual
    if known is not None:
        others = sound_runs(known, source, max(SUPPORT - len(index), 0), seed)
        runs, y = together([others.runs, runs]), np.concatenate([others.residual, residual])
    blank = np.full(len(y), np.nan)
    every, own = Measured(runs, y, blank, blank, np.nan), OwnRuns(source)
    if count_distinct(runs) >= LEAST_RUNS:
        own = learn_own(source, every, shared, seed)[0]
    fold = np.random.default_rng(seed).permutation(len(y)) % FOLDS
    near, _ = crossed_process(own, shared, every, fold, seed)
    found = own.mean(own.process(shared, runs, y), plans, runs)
    found[index] = mixed_again(own.time, runs, y, near, fold, seed)[-len(index) :]
    return found


def _apart(log_ratio: Floats, group: np.ndarray[tuple[int], np.dtype[np.str_]]) -> float:
    """Mean distance from the median of each run's group."""
    middle = {name: np.median(log_ratio[group == name]) for name in np.unique(group)}
    return float(np.mean([abs(value - middle[name]) for value, name in zip(log_ratio, group, strict=True)]))
