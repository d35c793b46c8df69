"""Clock, power and energy of one rank.

At clock f, with x = f / f_max and v = V(f) / V(f_max), a piece of work takes and costs

    t(x) = sm_s / x + other_s
    E(x) = static·t + active·x·v²·t + pj_per_flop·flops·v² + pj_per_hbm_byte·bytes + communication

Power E/t never falls as x rises, so the clock that meets a power limit is unique and does not depend on the clock
asked for. Array arguments broadcast against each other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import Floats
from jointopt.core.units import PICO
from jointopt.spec.cluster import PowerConstants

Array = npt.NDArray[np.float64] | float

# 200,000 random loads meet their limit to 2e-5 after 3 steps, to 2e-10 after 4.
_NEWTON_STEPS = 4


def relative_voltage(
    clock_mhz: Array, max_clock_mhz: float, knee_fraction: float, voltage_ratio: float
) -> Floats:
    """V(f) / V(f_max): 1 / voltage_ratio up to the knee, linear above it, 1 at the maximum clock.

    The shape of A100 and A40 training stages at every clock (Perseus, SOSP'24); no sweep of a newer GPU is public.
    """
    rise = 0.0 if knee_fraction >= 1.0 else (1.0 - 1.0 / voltage_ratio) / (1.0 - knee_fraction)
    v = np.maximum(np.asarray(clock_mhz) / max_clock_mhz, knee_fraction)
    v -= 1.0
    v *= rise
    v += 1.0
    return np.asarray(v, dtype=np.float64)


def squared_voltage(
    clock_mhz: Array, max_clock_mhz: float, knee_fraction: float, voltage_ratio: float
) -> Floats:
    """(V(f) / V(f_max))²: the factor on the energy of one operation at that clock."""
    v = relative_voltage(clock_mhz, max_clock_mhz, knee_fraction, voltage_ratio)
    v *= v
    return v


def scaled_time_s(sm_s: Array, other_s: Array, clock_mhz: Array, max_clock_mhz: float) -> Floats:
    """Time of work whose ``sm_s`` part (at f_max) follows the SM clock and whose ``other_s`` part does not.

    t = t0 + t1·f_max/min(f, f_cap) fits the 8 A100-SXM stage profiles, 855-1410 MHz, to 0.23 %.
    """
    return np.asarray(np.divide(max_clock_mhz, clock_mhz) * sm_s + other_s, dtype=np.float64)


def busy_power_w(
    constants: PowerConstants,
    clock_mhz: Array,
    max_clock_mhz: float,
    busy_s: Array,
    flops: Array,
    hbm_bytes: Array,
    comm_j: Array = 0.0,
) -> Floats:
    """Mean power while work runs that takes ``busy_s`` at that clock, before any limit; a stage may have none."""
    v2 = squared_voltage(clock_mhz, max_clock_mhz, constants.knee_fraction, constants.voltage_ratio)
    work_j = np.multiply(flops, constants.pj_per_flop * PICO) * v2
    work_j += np.multiply(hbm_bytes, constants.pj_per_hbm_byte * PICO)
    work_j += comm_j
    v2 *= clock_mhz
    v2 *= constants.active_w / max_clock_mhz
    v2 += constants.static_w
    return np.asarray(v2 + work_j / np.maximum(busy_s, np.finfo(float).tiny), dtype=np.float64)


def capped_clock_mhz(
    constants: PowerConstants,
    sm_s: Array,
    other_s: Array,
    flops: Array,
    hbm_bytes: Array,
    limit_w: Array,
    max_clock_mhz: float,
    min_clock_mhz: float,
    comm_j: Array = 0.0,
) -> Floats:
    """Highest clock at which the work's mean power meets the limit; ``max_clock_mhz`` where the limit does not bind.

    Work asked to run at f runs at min(f, this). Never below ``min_clock_mhz``: what the limit still demands there is
    `duty_cycled_time_s`. Only the elements over the limit are solved for.
    """
    top_s = np.add(sm_s, other_s)
    power = busy_power_w(constants, max_clock_mhz, max_clock_mhz, top_s, flops, hbm_bytes, comm_j)
    exceeds = np.asarray(power > limit_w)
    clock = np.full(exceeds.shape, max_clock_mhz)
    over = np.flatnonzero(exceeds)
    if over.size:
        some = [_take(a, exceeds.shape, over) for a in (sm_s, other_s, flops, hbm_bytes, comm_j, limit_w)]
        sm, other, operations, moved, link_j, limit = some
        compute_j = operations * (constants.pj_per_flop * PICO)
        fixed_j = moved * (constants.pj_per_hbm_byte * PICO) + link_j
        x = _limited(constants, compute_j, fixed_j, sm, other, limit, floor=min_clock_mhz / max_clock_mhz)
        clock.reshape(-1)[over] = x * max_clock_mhz
    return clock


def _take(a: Array, shape: tuple[int, ...], index: npt.NDArray[np.intp]) -> Floats:
    if np.ndim(a) == 0:
        return np.full(index.shape, a, dtype=np.float64)
    return np.asarray(np.broadcast_to(a, shape).reshape(-1).take(index), dtype=np.float64)


def _limited(
    k: PowerConstants,
    compute_j: Floats,
    fixed_j: Floats,
    sm_s: Floats,
    other_s: Floats,
    limit_w: Floats,
    *,
    floor: float,
) -> Floats:
    """Root x = f / f_max in [floor, 1] of power = limit, for work that is over the limit at x = 1."""
    lowest = float(squared_voltage(0.0, 1.0, k.knee_fraction, k.voltage_ratio))
    room_w = limit_w - k.static_w
    x = _root_below_knee(k.active_w * lowest, compute_j * lowest + fixed_j, sm_s, other_s, room_w)
    above = np.flatnonzero(~(x <= k.knee_fraction))  # also where no clock below the knee draws that much
    if above.size:
        load = [a[above] for a in (compute_j, fixed_j, sm_s, other_s, room_w)]
        x[above] = _root_above_knee(k, *load)
    return np.maximum(x, floor, out=x)


def _root_below_knee(
    active_w: float, work_j: Floats, sm_s: Floats, other_s: Floats, room_w: Floats
) -> Floats:
    """Positive root of active·x + work·x / (sm + other·x) = room; the voltage does not change below the knee."""
    # q·x² + p·x − c = 0, in the form that does not cancel; zero where the static power alone is over the limit
    c = np.maximum(room_w, 0.0) * sm_s
    p = active_w * sm_s + work_j - room_w * other_s
    root = np.sqrt(p * p + 4.0 * active_w * other_s * c)
    with np.errstate(divide="ignore", invalid="ignore"):
        forward = 2.0 * c / (p + root)
        back = (root - p) / (2.0 * active_w * other_s)
    return np.where(p > 0.0, forward, back)


def _root_above_knee(
    k: PowerConstants, compute_j: Floats, fixed_j: Floats, sm_s: Floats, other_s: Floats, room_w: Floats
) -> Floats:
    """Root in [knee, 1] by Newton from the right, where the power curves upwards."""
    rise = (1.0 - 1.0 / k.voltage_ratio) / (1.0 - k.knee_fraction)
    x = np.ones_like(room_w)
    for _ in range(_NEWTON_STEPS):
        v = 1.0 + rise * (x - 1.0)
        v2 = v * v
        v *= 2.0 * rise
        per_s = 1.0 / (sm_s + other_s * x)
        work_w = (compute_j * v2 + fixed_j) * per_s
        excess = x * (k.active_w * v2 + work_w) - room_w
        per_s *= sm_s
        slope = k.active_w * (v2 + x * v) + x * compute_j * v / (sm_s + other_s * x) + work_w * per_s
        x -= excess / slope
        np.clip(x, k.knee_fraction, 1.0, out=x)
    return x


def duty_cycled_time_s(busy_s: Array, busy_w: Array, limit_w: Array, static_w: float) -> Floats:
    """Time of work that would draw ``busy_w`` for ``busy_s``, paused so that its mean power is within the limit.

    Pauses cost static power, so busy_s·(busy_w − static_w)/(limit_w − static_w) where the limit binds; infinite where
    the limit is not above the static power. It is what is left to a GPU that is at its lowest clock.
    """
    room = np.maximum(np.subtract(limit_w, static_w), 0.0)
    with np.errstate(divide="ignore"):
        stretch = np.divide(np.subtract(busy_w, static_w), room)
    return np.asarray(np.multiply(busy_s, np.where(np.greater(busy_w, limit_w), stretch, 1.0)))


def energy_parts_j(
    constants: PowerConstants,
    clock_mhz: Array,
    max_clock_mhz: float,
    total_s: Array,
    busy_s: Array,
    flops: Array,
    hbm_bytes: Array,
    comm_j: Array,
) -> dict[str, Floats]:
    """Energy of one rank over ``total_s``, of which kernels run for ``busy_s`` at ``clock_mhz``, by part, in J.

    The parts add up to the rank's energy. Waiting is what blocking on others
    draws above the static power, clamped at zero.
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
