"""How a plan differs from another of its job: what predictions of both are off by cancels.

Errors of time and of power add in squares. Clocks of one layout count by how time and power answer to the clock,
which is no evidence of layouts: what is learned of a layout moves it by one factor at every clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats
from jointopt.core.units import Z_90
from jointopt.jobs.job import Job
from jointopt.surrogate.clock_response import TOP_ONLY, MeasuredClocks
from jointopt.surrogate.intervals import clock_half_width, physics_errors, supported
from jointopt.surrogate.kernel import Kernel, Runs
from jointopt.surrogate.posterior import SCALES, SHARES, Posterior

_ROUNDING = 1e-9  # of a logarithm: what two ways to one sum leave
# 90 % half-widths, of logarithms. Of the logarithm of a clock: stages of A100 take 0.82-0.97 of it in time (two models,
# forward and backward), their power is within 0.8 % over a range of 0.4; without a sweep over clocks, power goes with
# a power of the clock between 0.8 (A100 below the knee of its voltage) and 2.2 (above it).
CLOCK_TIME, CLOCK_POWER, UNKNOWN_CLOCK_POWER = 0.1, 0.05, 0.7
# Power of one layout against another's at one clock. No public table has it; ranks of pipelines of 4 and 8 GPUs, which
# idle for different shares, are within 1 % of the law that prices them. A judgement.
LAYOUT_POWER = 0.05
_ERFC = np.frompyfunc(math.erfc, 1, 1)  # scipy.special would take every proposal 0.15 s to import


@dataclass(frozen=True)
class Apart:
    """Doubt of layouts alone, between each of n plans and one of them."""

    half_width: Floats  # 90 %, of log(time / time of the one), (n,)
    other_layout: Bools  # (n,)
    measured: MeasuredClocks = TOP_ONLY  # clocks of runs of the cluster
    by_limit: Floats = field(default_factory=lambda: np.zeros((2, 1)))  # `of_limits`, (2, n)


def recorded(job: Job, columns: Columns, first: int, known: bool = False) -> Floats:
    """90 % half-width (n,) of a difference by the physics alone, from its errors on recorded runs.

    ``known`` runs of the same cluster support any plan.
    """
    at_top, errors = supported(job, columns, known)[1], physics_errors()["difference"]
    return np.asarray(np.where(at_top & at_top[first], errors["known"], errors["unknown"]))


def of_limits(moved: Floats, half_width: Floats, first: int, other_layout: Bools) -> Floats:
    """90 % half-widths (2, n) of differences in log(time) and log(energy) for what power limits leave plans.

    ``moved`` (2, n): by how much both change for GPUs that draw less than predicted by the ``half_width`` (n,) of the
    logarithm of their power. GPUs of all plans are off by the same, of other layouts by `LAYOUT_POWER` beside that.
    """
    share = np.minimum(LAYOUT_POWER / np.maximum(half_width, LAYOUT_POWER), 1.0)
    return np.hypot(moved - moved[:, first : first + 1], np.where(other_layout, share * moved, 0.0))


def against(job: Job, columns: Columns, first: int, apart: Apart) -> Columns:
    """Differences of plans (n,) from that in row ``first``, as predicted and with 90 % intervals.

    ``columns``: plans and their results. Percentages of time and of energy, and the probabilities that a plan is really
    faster or leaner: 0 for the plan itself.
    """
    clocks = columns["stage_clock_mhz"]
    clock = np.abs(_log_clocks(clocks) - _log_clocks(clocks[first : first + 1])).max(axis=0)
    unmeasured = clock_half_width(job, clocks, apart.measured)
    of_layout = np.where(apart.other_layout, apart.half_width, 0.0)
    time = np.hypot(of_layout, np.hypot(CLOCK_TIME * clock, unmeasured - unmeasured[first]))
    measured_response = job.cluster.gpu.id in physics_errors()["clock_response_gpus"]
    by_clock = clock * (CLOCK_POWER if measured_response else UNKNOWN_CLOCK_POWER)
    power = np.hypot(np.where(apart.other_layout, LAYOUT_POWER, 0.0), by_clock)
    out: Columns = {}
    for name, result, better, half in (
        ("time", "iteration_time_s", "faster", np.hypot(time, apart.by_limit[0])),
        ("energy", "energy_j", "leaner", np.hypot(np.hypot(time, power), apart.by_limit[1])),
    ):
        change = np.log(columns[result] / columns[result][first])
        change = np.where(np.abs(change) < _ROUNDING, 0.0, change)
        ends = {"": 0.0, "_low": -half, "_high": half}
        out |= {f"{name}_vs_first_percent{end}": 100.0 * np.expm1(change + by) for end, by in ends.items()}
        out[f"{better}_probability"] = _below_zero(change, half / Z_90)
    return out


def _log_clocks(stage_clock_mhz: Floats) -> Floats:
    """Logarithms of the lowest and of the mean clock of plans (n, S), (2, n)."""
    logs = np.log(stage_clock_mhz)
    return np.stack([np.nanmin(logs, axis=1), np.nanmean(logs, axis=1)])


def _below_zero(mean: Floats, deviation: Floats) -> Floats:
    """Probability that a normal number is below zero; of one without deviation whether it is, NaN for a NaN."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sure = np.where(np.isnan(mean), np.nan, (mean < 0.0).astype(float))
        below = 0.5 * _ERFC(mean / deviation / np.sqrt(2.0)).astype(float)
        return np.asarray(np.where(deviation > 0.0, below, sure))


# How far two plans of one job are apart by the process: errors of plans that are alike cancel.


# Deviation of a difference by what plans differ in, at which half of the noise of each counts. What the process takes
# for noise is mostly what it cannot tell of a plan, and a plan that moves a layer shares it. Recorded pairs of 0.05 to
# 0.25 do as well; with all of the noise plans alike are as wide as others (docs/surrogate-experiments.md).
ALIKE = 0.15
UNLIKE = 0.3  # the same deviation of half of recorded pairs: what all of them differ by counts in full from here on
_SAME = 1e-6  # of features and sensitivities, as rounding has it


def half_width_apart(posterior: Posterior, runs: Runs, against: Runs) -> Floats:
    """90 % half-width (n,) of the difference of residuals of ``runs`` and of ``against`` (as many or one).

    By what is known, and the noise of both as far as the two plans differ; at least that of repeats, `Kernel.noise`.
    """
    left = posterior.contrast_variance(runs, against)
    return _half_width(posterior, left, apart(posterior.kernel, runs, against))


def half_width_of_new(kernel: Kernel, runs: Runs, against: Runs) -> Floats:
    """`half_width_apart` (n,) where no run of the source is known."""
    prior = apart(kernel, runs, against)
    return _half_width(_of_new(kernel), prior, prior)


def share_of_unlike(kernel: Kernel, runs: Runs, against: Runs) -> Floats:
    """Half-width (n,) over that of plans as unlike as recorded pairs mostly are, both by roots; 1 at most."""
    unlike = np.array([UNLIKE**2])
    usual = _half_width(_of_new(kernel), unlike, unlike)
    return np.minimum(np.sqrt(half_width_of_new(kernel, runs, against) / usual), 1.0)


def most_beyond_new(prior: Floats) -> Floats:
    """By how much runs of the source may make differences wider than `half_width_of_new` has them, (n,).

    Of plans alike by nothing: that some runs scatter is no evidence that a layer more or less does. ``prior``: `apart`.
    """
    return np.asarray(1.0 + prior / ALIKE**2)


def apart(kernel: Kernel, runs: Runs, against: Runs) -> Floats:
    """Prior variance (n,) of the difference of residuals, noise not included: 0 of plans that differ in nothing."""
    return _of_new(kernel).contrast_variance(runs, against)


def are_twins(runs: Runs, against: Runs) -> Bools:
    """Whether runs (n,) are of the plan of those that they are compared with."""
    first, second = (np.hstack([each.sensitivity, each.matrix(runs.names)]) for each in (runs, against))
    return np.asarray((np.abs(first - second) <= _SAME).all(axis=1))


def _half_width(posterior: Posterior, left: Floats, prior: Floats) -> Floats:
    noise = posterior.noise_of_two
    counted = np.maximum(noise * prior / (prior + ALIKE**2), min(4.0 * posterior.kernel.noise**2, noise))
    return np.asarray(Z_90 * np.sqrt(left + counted))


def _of_new(kernel: Kernel) -> Posterior:
    """The posterior where no run of the source is known."""
    return Posterior(kernel, np.square(SCALES), SHARES)
