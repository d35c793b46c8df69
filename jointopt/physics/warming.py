"""Temperature within an iteration and after a start: a first-order response of GPU and heat sink to power."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats
from jointopt.physics.breakdown import Breakdown, breakdown
from jointopt.physics.cooling import throttle_c
from jointopt.physics.cost_model import CostModel
from jointopt.physics.power_swing import MOST_PASSES, joules_of_ranks
from jointopt.physics.timeline import timeline


@dataclass(frozen=True)
class Warming:
    """Temperatures in °C of the hottest GPU of each stage (pp,) once iterations repeat, and seconds to get there.

    ``settles_s``: from then on within 5 % of a step of power. ``throttles_s`` (pp,): from the air's temperature to the
    throttle's if kernels ran without a pause; infinite where they would not get there.
    """

    peak_c: Floats
    trough_c: Floats
    settles_s: float
    throttles_s: Floats


def warming(physics: CostModel, index: int, stage_clock_mhz: Floats, parts: Breakdown | None = None) -> Warming:
    """Temperature of layout row ``index`` at one clock per stage (pp,) in MHz, with the assumed time constant.

    Derived here: C·dT/dt = P - (T - T_air)/R, with P of `timeline.stage_power_w`; leakage, which follows temperature,
    makes swings larger and slower by the same factor.
    """
    parts, cooler = parts or breakdown(physics, index, stage_clock_mhz), physics.cooler
    line = timeline(physics, index, stage_clock_mhz, MOST_PASSES)
    curves = joules_of_ranks(physics, index, parts, line)
    kelvin_per_w = cooler.resistance_k_per_w * cooler.slowing
    swing_w = np.array([_swing_w(at, joules, cooler.time_constant_s) for at, joules in curves])
    high_c, low_c = parts.stage_temperature_c + kelvin_per_w * swing_w.T
    g, rows = int(physics.group_of[index]), physics.row_of[[index]]
    air_c = np.where(physics.in_exhaust(g, rows)[0], cooler.hottest_inlet_c, cooler.inlet_c)
    lasting_k = cooler.resistance_k_per_w * parts.stage_peak_power_w
    after_s = reached_s(throttle_c(physics.job.cluster.gpu) - air_c, lasting_k, cooler.time_constant_s)
    return Warming(high_c, low_c, float(np.log(20.0)) * cooler.time_constant_s, after_s)


def reached_s(rise_k: Floats, lasting_k: Floats, time_constant_s: float) -> Floats:
    """Seconds until a first-order response to a step of ``lasting_k`` has risen by ``rise_k``; infinite if never."""
    with np.errstate(divide="ignore", invalid="ignore"):
        after_s = -time_constant_s * np.log1p(-np.maximum(rise_k, 0.0) / lasting_k)
    return np.where(lasting_k > rise_k, after_s, np.inf)


def _swing_w(at: Floats, joules: Floats, time_constant_s: float) -> tuple[float, float]:
    """(highest, lowest) of the power that a first-order response feels, beyond its mean, iteration after iteration."""
    felt = felt_w(np.diff(at), np.diff(joules), time_constant_s) - joules[-1] / at[-1]
    return float(felt.max()), float(felt.min())


def felt_w(seconds: Floats, joules: Floats, time_constant_s: float) -> Floats:
    """Power in W as a first-order response feels it at the end of each segment of an iteration that repeats itself.

    Within a segment of constant power P it goes from x to P + (x - P)·e^(-t/τ) (derived here).
    """
    there = seconds > 0.0
    decay = np.exp(-seconds[there] / time_constant_s)
    steps = (joules[there] / seconds[there] * (1.0 - decay)).tolist()
    end, kept = 0.0, float(np.prod(decay))
    for step, left in zip(steps, decay.tolist(), strict=True):
        end = end * left + step
    felt, now = [], end / (1.0 - kept)
    for step, left in zip(steps, decay.tolist(), strict=True):
        now = now * left + step
        felt.append(now)
    return np.array(felt)
