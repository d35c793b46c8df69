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
from jointopt.surrogate.intervals import clock_half_width, physics_errors, supported
from jointopt.surrogate.measured_clocks import TOP_ONLY, MeasuredClocks

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
