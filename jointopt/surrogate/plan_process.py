"""The process of one job's plans: what a few that were measured have in common with the others predicts these.

Where a source has constants that the physics is off by, plans of one job have a trend per doubling of each degree:
after few runs that orders them better (docs/appendix/surrogate-experiments.md).
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from jointopt.core.schema import LOG_COLUMNS, POWER_LIMIT, SWITCHES, Bools, Columns, Floats, Ints
from jointopt.surrogate.evidence import expected_above
from jointopt.surrogate.kernel import Kernel, Runs
from jointopt.surrogate.posterior import Posterior, condition_alone

_NOISES = {0.4: 0.9, 1.7: 0.1}  # of plans that follow the trends, and of plans that are off for reasons of their own
_TAIL = 3.0  # degrees of freedom of the density that runs left out are judged by


class PlanKernel(Kernel):
    """A kernel whose smooth function is one of the `plan_runs`' points: plans alike are off alike."""

    def inputs(self, runs: Runs) -> Floats:
        """The points (n, 12)."""
        return runs.sensitivity


def plan_kernel(shared: float, trend: float, noise: float, smooth: float = 0.0) -> PlanKernel:
    """A kernel of `plan_runs`, by standard deviations of log(measured / predicted).

    ``shared``: common to all plans of a job, ``trend``: per doubling of a degree, wherever the others stand,
    ``smooth``: common to plans that are alike, ``noise``: of one plan, not explained by the others.
    """
    dimensions = len(LOG_COLUMNS) + len(SWITCHES) + 2
    return PlanKernel((trend,) * dimensions, shared, smooth, (ALIKE,) * dimensions, noise)


ALIKE = 1.5  # doublings within which plans are alike
# Chosen on simulated spaces and recorded groups (tests/bench/bench_runs.py, bench_replay.py). By trends a run in the
# middle of a space says much of its far corners, and these are least sure, so that gains were looked for there.
USUAL = plan_kernel(shared=0.2, trend=0.0, noise=0.07, smooth=0.1)
# CPU cores: their figures are an order of magnitude, and processes that share cores pay for work rather than for
# waiting. In a sweep of 18 plans (tests/bench/bench_tune_cpu.py) the usual kernel took slow plans for stalled runs and
# ended 41 % behind the best after 8 runs; shared 0.5 to 1 with trend 0.1 to 0.4 came within 1 % in 5 or 6.
ROUGH = plan_kernel(shared=0.7, trend=0.2, noise=0.1)
INFORMED = plan_kernel(shared=0.1, trend=0.02, noise=0.05)  # where other jobs of the cluster have moved plan by plan
# Of average power, with what `power_scale` counts on in common and of a run. On made-up clusters 0.02 to 0.05 per
# doubling and 0.02 to 0.07 of a plan change errors of energy by half a point, up on one and down on another.
OF_POWER = plan_kernel(shared=0.15, trend=0.03, noise=0.05)


def plan_runs(plans: Columns) -> Runs:
    """Plans (n,) as runs whose sensitivities are their points (n, 12): a doubling of any degree is a step of 1.

    ``plans`` holds the layout columns and ``stage_clock_mhz``; a switch is half a doubling, an octave of clock or power
    limit two. Points are around their mean.
    """
    doublings = [np.log2(plans[name].astype(float)) for name in LOG_COLUMNS]
    switches = [plans[name].astype(float) / 2 for name in SWITCHES[::-1]]
    clock = 2 * np.log2(np.nanmean(plans["stage_clock_mhz"], axis=1))
    watts = plans.get(POWER_LIMIT, np.full(len(clock), np.nan))
    known = np.isfinite(watts)  # no limit is as much as the highest of them
    limit = 2 * np.log2(np.where(known, watts, watts[known].max(initial=1.0)))
    points = np.stack([*doublings, *switches, clock, limit], axis=1)
    return Runs(points - points.mean(axis=0), {}, np.full(len(points), ""), np.full(len(points), ""))


def after_runs(kernel: Kernel, plans: Runs, index: Ints, residual: Floats, bounded: Bools | None = None) -> Posterior:
    """The process of ``plans`` after runs of those ``index`` (m,), ``residual`` (m,) being log(measured / predicted).

    A run that stalled moves the others little, and many that scatter widen everything. Of runs that are ``bounded``
    (m,) it is the least: where it says something, it counts as what is expected beyond by all other runs.
    """
    if bounded is not None and bounded.any():
        known, at = np.flatnonzero(~bounded), np.flatnonzero(bounded)
        alone = after_runs(kernel, plans, index[known], residual[known])
        kept, expected = expected_above(residual[at], *alone.predict(plans.take(index[at])))
        index = index[np.concatenate([known, at[kept]])]
        residual = np.concatenate([residual[known], expected])
    return condition_alone(kernel, plans.take(index), residual, _NOISES, np.inf)


def leave_one_out(kernel: Kernel, plans: Runs, index: Ints, residual: Floats, bounded: Bools) -> tuple[Floats, Floats]:
    """(error, its standard deviation), (m,) each, of each measured plan's logarithm as predicted from all others.

    NaN for those that are ``bounded``, of which only the least is known.
    """
    found = np.full((2, len(index)), np.nan)
    for i in np.flatnonzero(~bounded):
        others = np.arange(len(index)) != i
        rest = after_runs(kernel, plans, index[others], residual[others], bounded[others])
        found[:, i] = np.concatenate(rest.predict(plans.take(index[i : i + 1])))
    return residual - found[0], found[1]


def mean_loss(off: Floats, deviation: Floats) -> float:
    """Mean negative log density of errors ``off`` (m,) of that expected ``deviation`` (m,); NaN aside.

    Student's density, whose tails one stalled run does not decide by.
    """
    known = np.isfinite(off)
    off, deviation = off[known], deviation[known]
    scaled = 1.0 + (off / deviation) ** 2 / _TAIL
    constant = gammaln((_TAIL + 1.0) / 2.0) - gammaln(_TAIL / 2.0) - 0.5 * np.log(_TAIL * np.pi)
    return float(np.mean(np.log(deviation) - constant + 0.5 * (_TAIL + 1.0) * np.log(scaled)))
