"""How far a cluster's kernels follow the SM clock, learned from its own runs at several clocks.

Two shares of the physics (`Framework.compute_clock_share` and ``memory_clock_share``), the same for all layouts, so
that predicted time still falls with the clock of every stage, and searches keep what they promise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.job import Job
from jointopt.physics.sensitivities import time_with_clock_shares_s, with_clock_shares
from jointopt.surrogate.kernel import Kernel, Runs, covariance_terms

if TYPE_CHECKING:
    from jointopt.surrogate.dataset import Priced, PricedPlans

CLOCK = "clock"  # the feature that has a run's clock as a share of the top one
LEAST_BELOW = 20  # runs below the top clock, below which nothing is learned
LEAST_TOP = 5  # runs at it, whose errors those below are judged by
# The error below the top clock may be MOST_BELOW times that at it plus EXTRA_BELOW: beyond, something else than the
# clock changed these runs. A judgement; sweeps on made-up clusters leave about as much below as at the top.
MOST_BELOW, EXTRA_BELOW = 2.0, 0.02
# What shares from none to all leave over below the top clock, of a logarithm and in standard deviations, beyond which
# it is no response of kernels: on made-up clusters (studies/learning) 0.02 and 0.7 of sound sweeps, 0.19 and 6 of runs
# below the top that are a half slower, a fifth faster, or follow the clock by half as much again.
MOST_LEFT, MOST_DEVIATIONS = 0.05, 4.0
MOST_RUNS = 1000  # that it is learned from
# Standard deviations of both shares before runs: what three boards' passes leave open of the share of a time that
# follows the clock is 0.11 in nine of ten (`tests/bench/bench_clock_share.py`), of a compute share of three quarters.
DEVIATION = 0.15
LOWEST = 0.3  # share that compute-bound kernels follow at least
STEP = 0.1  # of a share, for finite differences
ROUNDS = 2  # of linearisation
MULTIPLES = (2.5, 1.0, 1.0, 1.5)  # of the kernel's deviations, as a new cluster needs (`posterior.SCALES`)
LARGEST = 0.5  # residual beside the median, beyond which lie runs that went wrong
LEAST_GAIN = 0.03  # of the error on runs left out, below which the response of the physics stays


@dataclass(frozen=True)
class ClockResponse:
    """Shares of the time of kernels bound by compute, and by memory or latency, that follow the SM clock."""

    compute: float = 1.0
    memory: float = 0.0

    def on(self, job: Job) -> Job:
        """The job whose kernels follow the clock so."""
        return with_clock_shares(job, self.compute, self.memory)

    @property
    def words(self) -> str:
        """Both shares in words."""
        return f"{self.compute:.0%} of compute-bound and {self.memory:.0%} of other kernels' time"


@dataclass(frozen=True)
class LearnedResponse:
    """A response, and the median error of time below the top clock on what was left out, without and with it."""

    response: ClockResponse = field(default_factory=ClockResponse)
    before: float = 0.0
    after: float = 0.0


@dataclass(frozen=True)
class Sweep:
    """A response of runs at several clocks, or why there is none.

    ``holds``: whether predictions at their clocks are as good as they are at the top. ``off_below``: the median error
    below the top clock where they are not, which are then not to be learned from. ``remark``: why they do not count.
    """

    response: LearnedResponse | None = None
    holds: bool = True
    off_below: float = 0.0
    remark: str = ""


@dataclass(frozen=True)
class _Swept:
    """Runs at clocks of all kinds, priced once for any response."""

    plans: list[PricedPlans]
    order: Ints

    def log_time(self, response: ClockResponse) -> Floats:
        """Logarithm of the seconds of every run, (n,)."""
        shares = response.compute, response.memory
        each = (
            time_with_clock_shares_s(p.physics, p.layout, p.plans.clock_mhz, *shares)[p.plan_of_row] for p in self.plans
        )
        return np.asarray(np.log(np.concatenate(list(each)))[self.order])

    def slopes(self, at: ClockResponse) -> Floats:
        """Derivatives of `log_time`, (n, 2): of compute-bound kernels following the clock less, of others more."""
        moved = ClockResponse(at.compute - STEP, at.memory), ClockResponse(at.compute, at.memory + STEP)
        here = self.log_time(at)
        return np.stack([(self.log_time(response) - here) / STEP for response in moved], axis=1)


def learn_response(
    priced: Priced, residual: Floats, kernel: Kernel, fold: Ints, kinds: str = "models", seed: int = 0
) -> Sweep:
    """How the kernels of one source follow the clock by its runs, as far as that holds on those left out.

    ``residual``, ``fold`` (n,): log(measured / physics), and which runs are left out together, by ``kinds``.
    Generalised least squares of both shares beside the process of ``kernel``, which explains what layouts are off by
    at any clock.
    """
    below = priced.runs.features[CLOCK] < BELOW_TOP
    count, why = int(below.sum()), ""
    if not count:
        return Sweep()
    if count < LEAST_BELOW:
        why = f"{count} run{'s' * (count != 1)} below the top clock are fewer than {LEAST_BELOW}"
    elif len(np.unique(fold[below])) < 2:
        why = f"runs below the top clock are of too few {kinds}"
    if why:
        return Sweep(holds=False, remark=f"{why}: no clock response learned, and their clocks count as not measured")
    # about `MOST_RUNS` rows: all of some jobs, since each takes as long to price as many of its rows
    order = np.random.default_rng(seed).permutation(np.unique(priced.work))
    ends = np.cumsum([int((priced.work == work).sum()) for work in order])
    works = order[: int(np.searchsorted(ends, MOST_RUNS)) + 1]
    rows = np.flatnonzero(np.isin(priced.work, works))[: 2 * MOST_RUNS].astype(np.int64)
    if below[rows].sum() < LEAST_BELOW:  # of a table of many thousands
        rows = np.union1d(rows, np.flatnonzero(below)[:MOST_RUNS]).astype(np.int64)
    some, y, fold, below = priced.take(rows), residual[rows], fold[rows], below[rows]
    y = np.clip(y, *(np.median(y) + np.array([-LARGEST, LARGEST])))
    covariance = np.tensordot(np.square(MULTIPLES), covariance_terms(kernel, some.runs, some.runs), 1)
    covariance += kernel.noise**2 * np.eye(len(y))
    swept, still = _Swept(some.plans_under(lambda job: job), some.in_order), ClockResponse()
    slopes = swept.slopes(still)
    error, gained = (np.abs(np.expm1(_cross_fitted(covariance, y, by, fold))) for by in (np.zeros_like(slopes), slopes))
    before, after = (float(np.median(each[below])) for each in (error, gained))
    gains = after < (1.0 - LEAST_GAIN) * before
    found = _shares(swept, y, np.linalg.inv(covariance))
    off, how = _unexplained_below_top(covariance, y - swept.log_time(found) + swept.log_time(still), some.runs), ""
    if off:
        how = " in common as no kernel's time follows the clock"
    else:
        error = gained if gains else error
        median, at_top = float(np.median(error[below])), error[~below]
        # any, where too few at the top show what is usual
        most = MOST_BELOW * float(np.median(at_top)) + EXTRA_BELOW if len(at_top) >= LEAST_TOP else np.inf
        off = median if median > most else 0.0
    if off:
        remark = f"runs below the top clock are {off:.0%} off{how}: no clock response learned, and they are left out"
        return Sweep(holds=False, off_below=round(off, 4), remark=remark)
    return Sweep(LearnedResponse(found, before, after) if gains else None)


def _unexplained_below_top(covariance: Floats, residual: Floats, runs: Runs) -> float:
    """Common error of the runs below the top clock that no response explains, a share; 0 where it may be chance.

    ``residual`` (n,) is what the likeliest shares leave. By a step below the top clock, and a slope over clocks: most
    runs may be wrong, and those that are right are then few, and far off what is learned of all.
    """
    clock = runs.features[CLOCK]
    below, depth = clock < BELOW_TOP, np.log(clock.max() / clock)
    columns = np.stack([below, np.where(below, depth, 0.0)], axis=1)
    weighted = columns.T @ np.linalg.inv(covariance)
    variance = np.linalg.inv(weighted @ columns + np.eye(2))
    found = variance @ (weighted @ residual)
    low, high = np.quantile(depth[below], (0.1, 0.9))
    # in the middle of the sweep, and from its one end to the other
    for way in (np.array([1.0, float(np.median(depth[below]))]), np.array([0.0, high - low])):
        off = abs(float(way @ found))
        if off > max(MOST_LEFT, MOST_DEVIATIONS * float(np.sqrt(way @ variance @ way))):
            return float(np.expm1(off))
    return 0.0


def _shares(swept: _Swept, residual: Floats, inverse: Floats) -> ClockResponse:
    """The likeliest shares of all runs, linearised where the last round found them."""
    found = ClockResponse()
    first = swept.log_time(found)
    for _ in range(ROUNDS):
        slopes, at = swept.slopes(found), np.array([1.0 - found.compute, found.memory])
        left = residual - (swept.log_time(found) - first) + slopes @ at
        compute, memory = _likeliest(inverse, left, slopes).tolist()
        found = ClockResponse(round(1.0 - compute, 4), round(memory, 4))
    return found


def _likeliest(inverse: Floats, y: Floats, slopes: Floats) -> Floats:
    """The two amounts, (2,), each within what it may be, that make ``y`` (n,) likeliest.

    Two convex terms in a box: the free optimum where it lies inside, else the best on the box's edges.
    """
    from scipy.optimize import lsq_linear

    precision = slopes.T @ inverse @ slopes + np.eye(2) / DEVIATION**2
    root = np.linalg.cholesky(precision).T
    target = np.linalg.solve(root.T, slopes.T @ (inverse @ y))
    return np.asarray(lsq_linear(root, target, bounds=([0.0, 0.0], [1.0 - LOWEST, 1.0])).x)


def _cross_fitted(covariance: Floats, y: Floats, slopes: Floats, fold: Ints) -> Floats:
    """What runs of other folds, by process and both shares, leave of the residual of every run, (n,)."""
    out = np.empty(len(y))
    for one in np.unique(fold):
        at, rest = np.flatnonzero(fold == one), np.flatnonzero(fold != one)
        inverse = np.asarray(np.linalg.inv(covariance[np.ix_(rest, rest)]), np.float64)
        shares = _likeliest(inverse, y[rest], slopes[rest])
        left = y - slopes @ shares
        out[at] = left[at] - covariance[np.ix_(at, rest)] @ (inverse @ left[rest])
    return out


# At which clocks a cluster's own runs are evidence of its time.


BELOW_TOP = 0.97  # share of the top clock below which a run is evidence of the response
ABOVE_MEASURED = 1.05  # times the highest measured clock, beyond which nothing was measured


@dataclass(frozen=True)
class MeasuredClocks:
    """Lowest and highest clock of a cluster's runs as shares of the top one.

    ``off_below``: median error of runs below the top clock, where these hold nothing that could be learned.
    """

    low: float = 1.0
    high: float = 1.0
    off_below: float = 0.0


TOP_ONLY = MeasuredClocks()
