"""Clocks that spend the slack of pipeline stages, and bounds that no clock goes below."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.cluster import PowerConstants
from jointopt.physics.clock_law import (
    busy_power_w,
    capped_clock_mhz,
    duty_cycled_time_s,
    scaled_time_s,
    squared_voltage,
)
from jointopt.physics.cooling import Cooler, Rests
from jointopt.physics.makespan import StageTimes
from jointopt.physics.stage_costs import EnergyTerms, StageCosts

_CELLS = 16_384  # plans times stages per block: what is in between stays in the cache, half the time of all at once


def stage_clocks_mhz(
    costs: StageCosts, ceiling_mhz: Floats, rows: Ints, bottleneck_mhz: Floats, slack: Floats, grid_mhz: Floats,
    top_mhz: float, gather_overlap: Floats | float,
) -> Floats:  # fmt: skip
    """One clock per stage (n, pp): the slowest at ``bottleneck_mhz`` (n,), the others slower by ``slack`` (n,).

    Of ``costs`` of ranks that differ, theirs (n, K).
    At slack 1 a stage runs at the lowest grid clock at which it keeps up with the slowest, at 0 at the same clock (the
    intrinsic energy bloat of Perseus, Chung et al., SOSP'24). Snapped up, so that no stage is a new bottleneck.
    """
    step = max(_CELLS // ceiling_mhz.shape[1], 1)
    out = np.empty((len(rows), ceiling_mhz.shape[1]))
    for some in (slice(start, start + step) for start in range(0, len(rows), step)):
        genes = rows[some], bottleneck_mhz[some], slack[some]
        hidden = gather_overlap if isinstance(gather_overlap, float) else gather_overlap[some]
        out[some] = _stage_clocks_mhz(costs, ceiling_mhz, *genes, grid_mhz, top_mhz, hidden)
    return out


def _stage_clocks_mhz(
    costs: StageCosts, ceiling_mhz: Floats, rows: Ints, bottleneck_mhz: Floats, slack: Floats, grid_mhz: Floats,
    top_mhz: float, gather_overlap: Floats | float,
) -> Floats:  # fmt: skip
    shared_mhz = bottleneck_mhz[:, None]
    stretch = top_mhz / np.minimum(shared_mhz, ceiling_mhz.take(rows, 0))
    gather = costs.gather_s.take(rows, 0)  # hides under either pass, up to the overlap
    exposed = (1.0 - gather_overlap) * gather
    forward, backward = (
        (sm_s.take(rows, 0), memory_s.take(rows, 0) + comm_s.take(rows, 0) + exposed)
        for sm_s, memory_s, comm_s in (
            (costs.forward_sm_s, costs.forward_memory_s, costs.forward_comm_s),
            (costs.backward_sm_s, costs.backward_memory_s, costs.backward_comm_s),
        )
    )
    host = costs.host_s.take(rows, 0)
    own_forward = np.maximum(forward[0] * stretch + forward[1], np.maximum(host / 3.0 + exposed, gather))
    own_backward = np.maximum(backward[0] * stretch + backward[1], np.maximum(host / 1.5 + exposed, gather))
    own = own_forward + own_backward
    longest = own.max(axis=1, keepdims=True)
    room = longest / np.maximum(own, 1e-12)  # both passes may take this much longer; of a stage without work any time
    passes = ((*forward, own_forward), (*backward, own_backward))
    lowest = np.maximum(*(sm * top_mhz / np.maximum(own * room - rest, 1e-12) for sm, rest, own in passes))
    wanted = shared_mhz + slack[:, None] * (np.minimum(lowest, shared_mhz) - shared_mhz)
    at = np.minimum(np.searchsorted(grid_mhz, wanted - 1e-6), len(grid_mhz) - 1)
    return np.asarray(np.minimum(grid_mhz[at], shared_mhz))


def ceilings(
    costs: StageCosts, constants: PowerConstants, limit_w: Floats, top_mhz: float, lowest_mhz: float
) -> tuple[Floats, Floats]:
    """Clock at which each stage meets its power limit, (L, pp) MHz, and the pauses left at the lowest, over the work.

    The board averages over milliseconds (25-50 ms on A100-PCIe and A40, `clock_law.lead_s`), longer than a collective
    takes: kernels may draw more than the limit by as much as the collectives between them draw less. Of a collective
    the part counts that its kernels would fill the GPU for, so that the clock is rather too low than too high.
    """
    sm_s = costs.forward_sm_s + costs.backward_sm_s
    other_s = costs.forward_memory_s + costs.backward_memory_s + costs.collective_sm_s
    work = (costs.flops, costs.hbm_bytes)
    clock = capped_clock_mhz(constants, sm_s, other_s, *work, limit_w, top_mhz, lowest_mhz)
    busy_s = scaled_time_s(sm_s, other_s, clock, top_mhz)
    burst_w = busy_power_w(constants, clock, top_mhz, busy_s, *work)
    return clock, duty_cycled_time_s(1.0, burst_w, limit_w * (1.0 + 1e-6), constants.static_w)


def rests(costs: StageCosts, t: StageTimes, wait_w: float) -> Rests:
    """How GPUs of layouts run and rest at the highest clocks that they reach; lower ones leave no less power to each.

    Kernels alone count as running, those of collectives as in `StageCosts.collective_sm_s`.
    """
    running_s = t.kernel_s - costs.waiting_sm_s + costs.collective_sm_s
    busy_s = costs.num_micro_batches[:, None] * running_s + costs.optimizer_s
    return Rests(busy_s / t.total_s[:, None], t.total_s[:, None], wait_w)


def energy_floor_j(
    costs: StageCosts, terms: EnergyTerms, constants: PowerConstants, cooler: Cooler, fastest_s: Floats
) -> Floats:
    """Energy (L,) in J of the whole job that no clocks of a layout go below, given its time at the top clock (L,).

    Derived here from `clock_law.energy_parts_j`: static power and leakage over the fastest time, dynamic work at
    the lowest voltage, all bytes and links.
    """
    clocked_j = terms.clocked_j.sum(axis=1)
    return costs.replicas * pipeline_floor_j(clocked_j, terms.fixed_j, fastest_s * costs.depth, constants, cooler)


def pipeline_floor_j(
    clocked_j: Floats, fixed_j: Floats, rank_s: Floats, constants: PowerConstants, cooler: Cooler
) -> Floats:
    """`energy_floor_j` of one GPU per stage, (L,): work that follows V², work that does not, seconds of all stages."""
    lowest = float(squared_voltage(0.0, 1.0, constants.knee_fraction, constants.voltage_ratio))
    return np.asarray(lowest * clocked_j + fixed_j + idle_power_w(constants, cooler) * rank_s)


def idle_power_w(constants: PowerConstants, cooler: Cooler) -> float:
    """Power in W that no GPU goes below: static power and leakage."""
    return max(constants.static_w + cooler.leakage_w, 0.0)


def energy_slope_w(constants: PowerConstants, cooler: Cooler, num_gpus: int) -> float:
    """Power w in W of all GPUs for which energy - w x time never falls as a uniform clock rises.

    Derived here: with w the waiting power of all GPUs, what is left is work: kernels, whose energy grows with the
    clock, less the waiting that they displace, which shrinks as they get faster.
    """
    return num_gpus * (max(constants.wait_w, constants.static_w) + cooler.leakage_w)
