"""Peak power and temperature of plans, by the physics or as they were measured."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.physics.cooling import position_temperatures_c, power_limit_w
from jointopt.physics.makespan import StageTimes, least_makespan_s
from jointopt.physics.stage_costs import summed

if TYPE_CHECKING:
    from jointopt.physics.cost_model import CostModel

HEAT = ("peak_power_w", "temperature_c")


@dataclass(frozen=True)
class HeatScale:
    """Factor on what the physics predicts of layouts, and what is beside it, (2, n): as measured, None: not measured.

    ``peak``: of peak power, in W; ``rise``: of the temperature over the inlet air, in K. ``overshoot``: the share of
    the limit in effect that measured peaks reach, where boards hold them; unlimited by default.
    """

    peak: Floats | None = None
    rise: Floats | None = None
    overshoot: float = np.inf


def by_mean_power(index: Ints) -> HeatScale:
    """Nothing was measured of peaks and temperature of layouts ``index``: what they are follows mean power."""
    return HeatScale()


def unscaled(index: Ints) -> HeatScale:
    """The scale that changes nothing, whatever is known of mean power."""
    same = np.stack([np.ones(len(index)), np.zeros(len(index))])
    return HeatScale(same, same)


def by_physics_alone(physics: CostModel, index: Ints, stage_clock_mhz: Floats) -> Columns:
    """`heat` of plans without what was measured of power, peaks or temperature."""
    alone = copy.copy(physics)
    alone.heat_scale = unscaled
    return heat(alone, index, stage_clock_mhz)


def heat(physics: CostModel, index: Ints, stage_clock_mhz: Floats) -> Columns:
    """``peak_power_w`` and ``temperature_c`` (n,) of the hottest stage of plans: see `CostModel.heat`."""
    out = {name: np.empty(len(index)) for name in HEAT}
    for g, at, rows, depth in physics.parts(index):
        t = physics.times(g, rows, stage_clock_mhz[at, :depth])
        out["temperature_c"][at] = temperature_c(physics, index[at], t).max(axis=1)
        out["peak_power_w"][at] = peak_w(physics, index[at], t).max(axis=1)
    return out


def peak_w(physics: CostModel, index: Ints, t: StageTimes) -> Floats:
    """Peak power (n, pp) of layouts ``index`` of one group: `CostModel.burst_w`, or as it was measured.

    No more than the limit allows where mean power alone was measured, by which it then is; than `HeatScale.overshoot`
    of it where peaks were, and then no less than the mean.
    """
    g, scale = int(physics.group_of[index[0]]), physics.heat_scale(index)
    burst_w = physics.burst_w(g, physics.row_of[index], t)
    found_w = as_peaks(physics, index, burst_w)
    limit_w = power_limit_w(physics.job.cluster, physics.layouts, index, physics.groups[g].depth)
    if scale.peak is None:
        return np.minimum(found_w, np.maximum(limit_w, burst_w))
    if scale.overshoot == np.inf:
        return found_w
    held_w = np.minimum(_mean_w(physics, index, t), limit_w)
    return np.maximum(np.minimum(found_w, scale.overshoot * limit_w), held_w)


def as_peaks(physics: CostModel, index: Ints, burst_w: Floats) -> Floats:
    """Power (n, pp) of layouts ``index`` while kernels run, of that of the physics, whatever the limit."""
    line = physics.heat_scale(index).peak
    if line is None:
        if physics.drawn is None:
            return _as_mean(physics, index, burst_w)
        line = physics.drawn.line[:, index]
    return np.asarray(line[0][:, None] * burst_w + line[1][:, None])


def layout_burst_w(physics: CostModel, share: float) -> Floats:
    """Power (L,) in W of the hottest GPU of layouts while kernels run at a share of the top clock, by the physics."""
    index, out = np.arange(len(physics.layouts["pp"])), np.empty(len(physics.layouts["pp"]))
    for g, at, rows, depth in physics.parts(index):
        t = physics.times(g, rows, np.full((len(at), depth), share * physics.top_mhz), least_makespan_s)
        out[at] = physics.burst_w(g, rows, t).max(axis=1)
    return out


def temperature_c(physics: CostModel, index: Ints, t: StageTimes) -> Floats:
    """Temperature (n, pp) in °C of the hottest GPU of each stage of layouts ``index`` of one group."""
    exhaust = physics.in_exhaust(int(physics.group_of[index[0]]), physics.row_of[index])
    return _measured_c(physics, index, physics.cooler.temperature_c(_heating_w(physics, index, t), exhaust))


def stage_positions_c(physics: CostModel, index: Ints, t: StageTimes) -> dict[str, Floats]:
    """Temperature (pp,) in °C of the stages of one layout by where a GPU sits: ``inlet`` and ``exhaust``."""
    replicas = int(physics.groups[int(physics.group_of[index[0]])].replicas[physics.row_of[index[0]]])
    watts = _heating_w(physics, index, t)[0]
    found = position_temperatures_c(physics.job.cluster, physics.cooler, watts, replicas)
    return {name: _measured_c(physics, index, celsius[None])[0] for name, celsius in found.items()}


def _as_mean(physics: CostModel, index: Ints, watts: Floats) -> Floats:
    """Watts (n, pp) moved as mean power is."""
    return np.asarray(physics.power_factor[index, None] * watts + physics.power_offset_w[index, None])


def _mean_w(physics: CostModel, index: Ints, t: StageTimes) -> Floats:
    """Mean power (n, pp) of stages of layouts ``index`` of one group, as corrected, leakage included."""
    parts = physics.energy_parts(int(physics.group_of[index[0]]), physics.row_of[index], t)
    return _as_mean(physics, index, summed(parts.values()) / t.total_s[:, None])


def _heating_w(physics: CostModel, index: Ints, t: StageTimes) -> Floats:
    """Mean power (n, pp) that heats GPUs: as measured, but that of the physics where its temperature is corrected."""
    mean_w = physics.cold_power_w(int(physics.group_of[index[0]]), physics.row_of[index], t)
    return mean_w if physics.heat_scale(index).rise is not None else _as_mean(physics, index, mean_w)


def _measured_c(physics: CostModel, index: Ints, celsius: Floats) -> Floats:
    """Temperatures (n, pp) with their rise over the air as it was measured."""
    rise, air_c = physics.heat_scale(index).rise, physics.job.cluster.inlet_temperature_c
    return celsius if rise is None else air_c + rise[0][:, None] * (celsius - air_c) + rise[1][:, None]
