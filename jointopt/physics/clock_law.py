"""The clock law: time, voltage and power of work on one GPU over x = f / f_max, and what a power limit leaves.

Power never falls as x rises, so the clock that meets a limit is unique. Array arguments broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import Floats
from jointopt.core.units import PICO
from jointopt.jobs.cluster import PowerConstants

Array = npt.NDArray[np.float64] | float

# 200,000 random loads meet their limit to 2e-5 after 3 steps, to 2e-10 after 4.
_NEWTON_STEPS = 4
_HIGHEST = 2.5  # x up to which a limit is turned into a clock where readings have soft corners
_POWER_CORNER = 0.5  # width of power's corner at the limit over that of the clock's
_PAUSE_CORNER = 0.03
_FLOOR_CORNER = 0.015
_LOWEST_CORNER = 0.03
_LOWEST_POWER_CORNER = 0.01
_RAMP_S = 0.025  # in which a GPU that waits is back at the clock that was set, of A100-PCIe ranks under limits


def voltage_slope(knee: float, voltage_ratio: float) -> float:
    """dv/dx above the knee of `squared_voltage`; 0 for a curve without one (knee at the top)."""
    return 0.0 if knee >= 1.0 else (1.0 - 1.0 / voltage_ratio) / (1.0 - knee)


def relative_voltage(clock_mhz: Array, max_clock_mhz: float, knee: float, voltage_ratio: float) -> Floats:
    """The voltage curve V(f)/V(f_max): 1/``voltage_ratio`` up to the ``knee`` (of f_max), linear above, 1 at the top.

    Fitted to training stages of A100 and A40 at every clock (published with Perseus, SOSP'24), power to 0.8-0.9 % on
    the A100. Knee and ratio of newer GPUs, of which no sweep is public, are assumed (``catalog/power.yaml``).
    """
    v = np.maximum(np.asarray(clock_mhz) / max_clock_mhz, knee)
    v -= 1.0
    v *= voltage_slope(knee, voltage_ratio)
    v += 1.0
    return np.asarray(v, dtype=np.float64)


def squared_voltage(clock_mhz: Array, max_clock_mhz: float, knee: float, voltage_ratio: float) -> Floats:
    """(V(f) / V(f_max))²: the factor on the energy of one operation, as CMOS switching takes C·V² (textbook law)."""
    return np.square(relative_voltage(clock_mhz, max_clock_mhz, knee, voltage_ratio))


def scaled_time_s(sm_s: Array, other_s: Array, clock_mhz: Array, max_clock_mhz: float) -> Floats:
    """Seconds of work whose ``sm_s`` (at f_max) follow the SM clock and whose ``other_s`` (memory, links) do not.

    sm_s·f_max/f + other_s fits the 8 A100-SXM stage profiles of Perseus (SOSP'24), 855-1410 MHz, to 0.23 %.
    """
    return np.asarray(np.divide(max_clock_mhz, clock_mhz) * sm_s + other_s, dtype=np.float64)


def busy_power_w(
    constants: PowerConstants, clock_mhz: Array, max_clock_mhz: float, busy_s: Array, flops: Array, hbm_bytes: Array
) -> Floats:
    """Mean power in W of one GPU while work runs that takes ``busy_s`` at that clock (0 for none), before any limit.

    static + active·x·v² + (pj_per_flop·flops·v² + pj_per_hbm_byte·bytes) / busy_s: P0 + c·f·V² of the readings
    of `relative_voltage`, its second term split by a count of operations and bytes (derived here).
    """
    v2 = squared_voltage(clock_mhz, max_clock_mhz, constants.knee_fraction, constants.voltage_ratio)
    work_j = np.multiply(flops, constants.pj_per_flop * PICO) * v2
    work_j += np.multiply(hbm_bytes, constants.pj_per_hbm_byte * PICO)

    v2 *= clock_mhz
    v2 *= constants.active_w / max_clock_mhz
    v2 += constants.static_w
    return np.asarray(v2 + work_j / np.maximum(busy_s, np.finfo(float).tiny), dtype=np.float64)


def capped_clock_mhz(
    constants: PowerConstants, sm_s: Array, other_s: Array, flops: Array, hbm_bytes: Array, limit_w: Array,
    max_clock_mhz: float, min_clock_mhz: float,
) -> Floats:  # fmt: skip
    """Highest clock in MHz at which the work's mean power meets the limit; the maximum where the limit does not bind.

    Work set to f runs at min(f, this): NVML's clock event reason "SW power cap". Never below ``min_clock_mhz``: what
    the limit still demands there is `duty_cycled_time_s`. Derived here: the root of `busy_power_w` = limit, to 2e-10.
    """
    top_s = np.add(sm_s, other_s)
    power = busy_power_w(constants, max_clock_mhz, max_clock_mhz, top_s, flops, hbm_bytes)
    exceeds = np.asarray(power > limit_w)
    clock = np.full(exceeds.shape, max_clock_mhz, np.float64)
    over = np.flatnonzero(exceeds)
    if over.size:
        some = (sm_s, other_s, flops, hbm_bytes, limit_w)
        sm, other, operations, moved, limit = (
            np.broadcast_to(np.asarray(a, np.float64), exceeds.shape).reshape(-1).take(over) for a in some
        )
        compute_j = operations * (constants.pj_per_flop * PICO)
        fixed_j = moved * (constants.pj_per_hbm_byte * PICO)
        load = (np.full_like(sm, constants.active_w), compute_j, fixed_j, sm, other)
        x = _clock_at_power(load, limit - constants.static_w, constants.knee_fraction, constants.voltage_ratio)
        clock.reshape(-1)[over] = np.maximum(x, min_clock_mhz / max_clock_mhz) * max_clock_mhz
    return clock


_Load = tuple[Floats, Floats, Floats, Floats, Floats]
"""W that follow x·v², J that follow v², J that follow nothing, s that follow 1/x, s that follow nothing: (n,) each."""


def _clock_at_power(load: _Load, room_w: Floats, knee: float, voltage_ratio: float, highest: float = 1.0) -> Floats:
    """Root x = f / f_max, (n,), at most ``highest``, of power above static = ``room_w``: exact up to the knee.

    Above it by Newton from the right, where the power curves upwards.
    """
    active_w, compute_j, fixed_j, sm_s, other_s = load
    # below the knee the voltage stays: active·x + work·x / (sm + other·x) = room, as q·x² + p·x − c = 0 in the form
    # that does not cancel; zero where the static power alone is over the limit
    lowest = float(squared_voltage(0.0, 1.0, knee, voltage_ratio))
    below_w = active_w * lowest
    c = np.maximum(room_w, 0.0) * sm_s
    p = below_w * sm_s + (compute_j * lowest + fixed_j) - room_w * other_s
    root = np.sqrt(p * p + 4.0 * below_w * other_s * c)
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.where(p > 0.0, 2.0 * c / (p + root), (root - p) / (2.0 * below_w * other_s))
    above = np.flatnonzero(~(x <= knee))  # also where no clock below the knee draws that much
    if not above.size:
        return x
    active_w, compute_j, fixed_j, sm_s, other_s, room_w = (part[above] for part in (*load, room_w))
    faster, rise = np.ones_like(room_w), voltage_slope(knee, voltage_ratio)
    for _ in range(_NEWTON_STEPS):
        v = 1.0 + rise * (faster - 1.0)
        v2 = v * v
        v *= 2.0 * rise
        per_s = 1.0 / (sm_s + other_s * faster)
        work_w = (compute_j * v2 + fixed_j) * per_s
        excess = faster * (active_w * v2 + work_w) - room_w
        slope = active_w * (v2 + faster * v) + faster * compute_j * v * per_s + work_w * per_s * sm_s
        faster -= excess / slope
        np.clip(faster, knee, highest, out=faster)
    x[above] = faster
    return x


def duty_cycled_time_s(busy_s: Array, busy_w: Array, limit_w: Array, static_w: float) -> Floats:
    """Seconds of work that would draw ``busy_w`` for ``busy_s``, paused so that its mean power is within the limit.

    Derived here: pauses cost static power, so busy_s·(busy_w − static_w)/(limit_w − static_w) where the limit binds;
    infinite where the limit is not above the static power. What is left to a GPU that is at its lowest clock.
    """
    room = np.maximum(np.subtract(limit_w, static_w), 0.0)
    with np.errstate(divide="ignore"):
        stretch = np.divide(np.subtract(busy_w, static_w), room)
    return np.asarray(np.multiply(busy_s, np.where(np.greater(busy_w, limit_w), stretch, 1.0)))


def energy_parts_j(
    constants: PowerConstants, clock_mhz: Array, max_clock_mhz: float, total_s: Array, busy_s: Array, flops:
    Array, hbm_bytes: Array, comm_j: Array,
) -> dict[str, Floats]:  # fmt: skip
    """Energy in J of one rank over ``total_s``, of which kernels run for ``busy_s`` at ``clock_mhz``, by part.

    Kernels are those of collectives too, for the share of the SMs that they run on (`StageCosts.collective_sm_s`).
    The parts add up to P(x)·busy_s + wait_w·(total_s − busy_s): 1.3 % on held-out plans of A100 and A40 pipelines.
    ``waiting`` is what blocking on others draws above the static power, clamped at zero.
    """
    v2 = squared_voltage(clock_mhz, max_clock_mhz, constants.knee_fraction, constants.voltage_ratio)
    active = v2 * clock_mhz
    active *= busy_s
    active *= constants.active_w / max_clock_mhz
    v2 *= constants.pj_per_flop * PICO
    waiting = np.maximum(np.subtract(total_s, busy_s), 0.0)
    waiting *= max(constants.wait_w - constants.static_w, 0.0)
    return {
        "static": np.asarray(np.multiply(total_s, constants.static_w)),
        "active": np.asarray(active),
        "compute": np.asarray(v2 * flops),
        "memory": np.asarray(np.multiply(hbm_bytes, constants.pj_per_hbm_byte * PICO)),
        "communication": np.asarray(comm_j, dtype=np.float64),
        "waiting": np.asarray(waiting),
    }


@dataclass(frozen=True)
class GpuConstants:
    """Parameters of the clock law that all work on one GPU shares, as `calibrate` finds them; x = f / f_max."""

    knee: float  # x below which the voltage no longer falls
    rise: float  # voltage ratio - 1
    softness: float  # width of the corner in x where the limit begins to bite
    floor: float  # x below which a limit pauses the work instead
    idle_w: float  # during those pauses
    lowest: float = 0.12  # x of the lowest clock: no limit makes work slower than that


@dataclass(frozen=True)
class CurveConstants:
    """Constants of the clock law for the work (say, one stage's forward pass) of each row; arrays broadcast."""

    log_time_s: Floats  # at the maximum clock, without a limit
    share: Floats  # of that time which follows the clock
    static_w: Floats
    switching_w: Floats  # at the maximum clock, beyond static
    limit_factor: Floats  # power at which the limit holds it, over the limit


def switching_shape(x: Floats, knee: float, rise: float) -> Floats:
    """x·v², the factor on switching power (C·V²·f), for x = f / f_max; 1 at the maximum clock."""
    return np.asarray(x * squared_voltage(x, 1.0, knee, 1.0 + rise))


def soft_min(a: Floats, b: Floats, width: float) -> Floats:
    """min(a, b) with a round corner of that width, never above it: −width·ln(e^(−a/width) + e^(−b/width))."""
    return np.asarray(-width * np.logaddexp(-np.asarray(a) / width, -np.asarray(b) / width))


def reached_clock(shape: GpuConstants, work: CurveConstants, x: Floats, limit_w: Floats) -> Floats:
    """Clock that every row reaches, as a fraction of the maximum, when ``x`` is set under the limit.

    The sharp clock of `capped_clock_mhz` with a soft corner, as a limited GPU dithers between clocks, and with a floor
    near the knee, below which a clock saves no voltage; both fitted to A100-PCIe and A40 ranks under power limits.
    """
    room_w = np.maximum(limit_w * work.limit_factor - work.static_w, 1.0)
    room_w, switching_w = np.broadcast_arrays(room_w, work.switching_w)
    nothing = np.zeros(room_w.size)
    load = (switching_w.ravel(), nothing, nothing, nothing + 1.0, nothing)
    ceiling = _clock_at_power(load, room_w.ravel(), shape.knee, 1.0 + shape.rise, _HIGHEST).reshape(room_w.shape)
    reached = soft_min(x, ceiling, shape.softness)
    return np.minimum(-soft_min(-reached, -np.minimum(shape.floor, x), _FLOOR_CORNER), x)


def log_time_s(shape: GpuConstants, work: CurveConstants, x: Floats, limit_w: Floats) -> Floats:
    """Logarithm of the seconds that the work takes when ``x`` is set under the limit; pauses (as above) included.

    Under the deepest limits of A40 pipelines all ranks take as long as at the lowest clock, and draw more than allowed.
    """
    floor_w = _power_w(shape, work, np.minimum(shape.floor, x))
    room_w = np.maximum(limit_w * work.limit_factor - shape.idle_w, 5.0)
    pause = np.log(np.maximum(floor_w - shape.idle_w, 1.0) / room_w)
    paused = _PAUSE_CORNER * np.logaddexp(0.0, pause / _PAUSE_CORNER)
    slowed = np.log(_relative_time(work, reached_clock(shape, work, x, limit_w))) + paused
    longest = np.log(_relative_time(work, np.minimum(shape.lowest, x)))
    return np.asarray(work.log_time_s + soft_min(slowed, longest, _LOWEST_CORNER))


def log_power_w(shape: GpuConstants, work: CurveConstants, x: Floats, limit_w: Floats) -> Floats:
    """Logarithm of the watts drawn while the work runs with ``x`` set under the limit.

    Above the limit only where it is less than `log_time_s`'s longest pauses leave.
    """
    free = np.log(_power_w(shape, work, x))
    held = soft_min(free, np.log(limit_w * work.limit_factor), _POWER_CORNER * shape.softness)
    floor, lowest = np.minimum(shape.floor, x), np.minimum(shape.lowest, x)
    runs = _relative_time(work, floor) / _relative_time(work, lowest)  # share of the time under the longest pauses
    least_w = shape.idle_w + (_power_w(shape, work, floor) - shape.idle_w) * runs
    least = np.minimum(np.log(np.maximum(least_w, 1.0)), free)
    return np.asarray(np.minimum(-soft_min(-held, -least, _LOWEST_POWER_CORNER), free))


def _power_w(shape: GpuConstants, work: CurveConstants, x: Floats) -> Floats:
    return np.asarray(work.static_w + work.switching_w * switching_shape(x, shape.knee, shape.rise))


def _relative_time(work: CurveConstants, x: Floats | float) -> Floats:
    return scaled_time_s(work.share, 1.0 - work.share, x, 1.0)


def lead_s(lag_s: Array, gap_s: Floats) -> Floats:
    """Seconds for which work runs at its set clock after a pause of ``gap_s``, before a limit holds it down.

    A limit reacts ``lag_s`` late, 25 ms on A100-PCIe and 15-50 ms on A40 whatever the limit, so that work after short
    pauses draws more than the limit: fitted to ranks of 1F1B pipelines, whose passes wait on one side.
    """
    return np.asarray(-lag_s * np.expm1(-gap_s / _RAMP_S))


def lagged_limit(free: Floats, held: Floats, ahead_s: Floats) -> Floats:
    """(seconds, watts) (2, n) of work that runs as if unlimited for ``ahead_s`` (n,), then under its limit.

    ``free``, ``held`` (2, n): (seconds, watts) of the whole work without the limit, and under it.
    """
    burst_s = np.minimum(ahead_s, free[0])
    rest_s = (1.0 - burst_s / free[0]) * held[0]
    return np.stack([burst_s + rest_s, (free[1] * burst_s + held[1] * rest_s) / (burst_s + rest_s)])
