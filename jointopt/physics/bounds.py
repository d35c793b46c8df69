"""Lower bounds of time and energy of layouts, and the clocks that their stages may have.

`quick_bound` takes sums over stages, a tenth of the work of pricing: no array of it has a column per stage, so that
layouts of all depths are bounded at once.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter

import numpy as np

from jointopt.core.schema import SCHEDULE, Columns, Floats, Ints
from jointopt.core.units import PICO
from jointopt.jobs.clocks import without_limits
from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE
from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import even_domain, placement
from jointopt.physics.clock_law import (
    busy_power_w,
    capped_clock_mhz,
    duty_cycled_time_s,
    scaled_time_s,
    squared_voltage,
)
from jointopt.physics.cooling import Cooler, DutyCycle
from jointopt.physics.costs import LayerCosts, layer_costs, layer_traffic, waiting_sm_s, with_recompute
from jointopt.physics.layers import Pass
from jointopt.physics.layouts import LayoutArrays, job_layers, split_of
from jointopt.physics.makespan import StageTimes
from jointopt.physics.stage_costs import StageCosts
from jointopt.physics.traffic import Hardware, Traffic

_BLOCK = 16_384  # layouts: each array then takes 128 KiB of the cache
_Kind = tuple[int, Pass, Traffic]  # how many layers of it the model has; kernels and collectives of one, (L,)


def quick_bound(
    job: Job, hw: Hardware, layouts: Columns, power: PowerConstants, cooler: Cooler
) -> tuple[Floats, Floats]:
    """Lower bounds over all clocks of (seconds, joules of all GPUs), (L,) each, of layouts of any depths.

    Derived here. The time is that of `_pipeline_s` for kernels and exposed collectives alone: sends, gradients,
    ZeRO-3's gathers, optimizer step, host, and clocks below the top one only add to it. The energy is that of the same
    work at the lowest voltage, and of GPUs that idle for that time: `pipeline_floor_j` with fewer parts.
    """
    layouts, of = without_limits(layouts)
    bound, profile = np.empty((2, len(layouts["pp"]))), job.training.framework
    for block in (slice(start, start + _BLOCK) for start in range(0, len(layouts["pp"]), _BLOCK)):
        lay = LayoutArrays(job, {name: values[block] for name, values in layouts.items()})
        layer = layer_costs(job, hw, lay)
        kinds = _kinds(job, hw, lay, layer)
        time_s = _pipeline_s(job, lay, layer, kinds) + profile.iteration_overhead_s
        whole = [one.times(count) for count, one, _ in kinds]
        work = functools.reduce(operator.add, [*whole, layer.embedding, layer.head]).clocked(profile)
        joules = sum((count * sent.joules for count, _, sent in kinds), np.zeros(len(time_s)))
        flops = (work.forward.flops + work.backward.flops) * hw.kernels.flop_energy
        waiting_s = sum(one.ffn == "experts" for one in job_layers(job)) * waiting_sm_s(lay, layer)
        sm_s = work.forward.sm_s + work.backward.sm_s - waiting_s
        clocked_j = power.pj_per_flop * PICO * flops + power.active_w * sm_s
        fixed_j = power.pj_per_hbm_byte * PICO * (work.forward.hbm_bytes + work.backward.hbm_bytes) + joules
        clocked_j, fixed_j = lay.micro_batches * clocked_j, lay.micro_batches * fixed_j
        floor_j = pipeline_floor_j(clocked_j, fixed_j, time_s * lay.pp, power, cooler)
        bound[:, block] = time_s, floor_j * (lay.dp * lay.tp * lay.cp)
    time_s, energy_j = bound
    return time_s[of], energy_j[of]


def _kinds(job: Job, hw: Hardware, lay: LayoutArrays, layer: LayerCosts) -> list[_Kind]:
    """The kinds of layers that the model has, as `layouts.job_kinds`."""
    groups = placement(lay.layouts, even_domain(job.cluster), job.training.framework.experts_span_tp)
    per_layer = layer_traffic(job, hw, lay, groups, layer).values()
    found = []
    every = Counter(job_layers(job))
    for place, (work, kind) in enumerate(zip(with_recompute(job, hw, lay, layer), lay.kinds, strict=True)):
        sent = [part for of_kinds in per_layer if (part := of_kinds[place]) is not None]
        found.append((every[kind], work, functools.reduce(operator.add, sent)))
    return found


def _pipeline_s(job: Job, lay: LayoutArrays, layer: LayerCosts, kinds: list[_Kind]) -> Floats:
    """Lower bound of the makespan in seconds, (L,), by two paths of `makespan.path_bound_s`.

    The path through rank j takes the first chunks of the ranks before it and all work of its own. In the mean over j
    that is all work over pp and (pp - 1) / 2 chunks; through the last rank it is pp - 1 chunks, its layers and the
    head, which schedules with passes of their own may have elsewhere. A chunk has at least as many layers as the
    smallest, of the faster kind, and forward passes alone where a schedule has passes of its own. Where a last group
    of micro-batches is not full no chunk is counted: each rank's own work still is (`makespan.makespan_s`).
    """
    pp, vpp, batches = lay.layouts["pp"], lay.layouts["vpp"], lay.micro_batches
    ends_s = [part.time_s for end in (layer.embedding, layer.head) for part in (end.forward, end.backward)]
    forward_s = [work.forward.time_s + sent.forward_s for _, work, sent in kinds]
    backward_s = [work.backward.time_s + sent.backward_s for _, work, sent in kinds]
    layers = zip(kinds, forward_s, backward_s, strict=True)
    work_s = sum((kind[0] * (forward + backward) for kind, forward, backward in layers), sum(ends_s))
    fewest = _fewest_layers(job, lay)
    own = np.isin(lay.layouts["schedule"], [SCHEDULE.code(name) for name in CHUNKS_OF_SCHEDULE])
    passes_s = [f + np.where(own, 0.0, b) for f, b in zip(forward_s, backward_s, strict=True)]
    first_s = fewest * np.minimum.reduce(passes_s)
    before_s = np.where((vpp == 1) | (batches % pp == 0), (pp - 1) * first_s, 0.0)
    last_s = vpp * first_s + np.where(own, 0.0, layer.head.forward.time_s + layer.head.backward.time_s)
    path_s = np.maximum(batches * work_s / pp + before_s / 2.0, batches * last_s + before_s)
    return np.asarray(path_s + batches * job.training.framework.micro_batch_overhead_s)


def _fewest_layers(job: Job, lay: LayoutArrays) -> Floats:
    """Layers of the smallest chunk of each layout, (L,)."""
    pp, vpp, stated = (lay.layouts[name].astype(np.int64) for name in ("pp", "vpp", "stage_layers"))
    keys, which = np.unique(pp << 48 | vpp << 32 | stated, return_inverse=True)
    shapes = [(key >> 48, key >> 32 & 0xFFFF, key & 0xFFFFFFFF) for key in keys.tolist()]
    return np.array([min(split_of(job, *shape)) for shape in shapes], float)[which]


# Clocks of pipeline stages: those that spend slack, those that power limits leave; and bounds over all clocks.


_CELLS = 16_384  # plans times stages per block: what is in between stays in the cache, half the time of all at once


def stage_clocks_mhz(
    costs: StageCosts, ceiling_mhz: Floats, rows: Ints, bottleneck_mhz: Floats, slack: Floats, grid_mhz: Floats,
    top_mhz: float, gather_overlap: Floats | float,
) -> Floats:  # fmt: skip
    """One clock in MHz per stage, (n, pp): ``bottleneck_mhz`` (n,) of the slowest, others slower by ``slack`` (n,).

    (n, K) where ``costs`` are of the K ranks that differ.
    At slack 1 a stage runs at the lowest grid clock at which it keeps up with the slowest, at 0 at the same clock (the
    intrinsic energy bloat of Perseus, Chung et al., SOSP'24). Snapped up, so that no stage is a new bottleneck.
    """
    out, step = np.empty((len(rows), ceiling_mhz.shape[1])), max(_CELLS // ceiling_mhz.shape[1], 1)
    hidden = np.broadcast_to(gather_overlap, (len(rows), 1))
    for some in (slice(start, start + step) for start in range(0, len(rows), step)):
        shared_mhz, of = bottleneck_mhz[some, None], rows[some]
        stretch = top_mhz / np.minimum(shared_mhz, ceiling_mhz.take(of, 0))
        gather = costs.gather_s.take(of, 0)  # hides under either pass, up to the overlap
        exposed = (1.0 - hidden[some]) * gather
        host = costs.host_s.take(of, 0)
        passes = []
        for sm_s, memory_s, comm_s, part in (
            (costs.forward_sm_s, costs.forward_memory_s, costs.forward_comm_s, 3.0),
            (costs.backward_sm_s, costs.backward_memory_s, costs.backward_comm_s, 1.5),
        ):
            sm, rest = sm_s.take(of, 0), memory_s.take(of, 0) + comm_s.take(of, 0) + exposed
            least = np.maximum(host / part + exposed, gather)
            passes.append((sm, rest, np.maximum(sm * stretch + rest, least)))
        own = passes[0][2] + passes[1][2]
        longest = own.max(axis=1, keepdims=True)
        room = longest / np.maximum(own, 1e-12)  # both passes may take this much longer; of an idle stage any time
        lowest = np.maximum(*(sm * top_mhz / np.maximum(own * room - rest, 1e-12) for sm, rest, own in passes))
        wanted = shared_mhz + slack[some, None] * (np.minimum(lowest, shared_mhz) - shared_mhz)
        at = np.minimum(np.searchsorted(grid_mhz, wanted - 1e-6), len(grid_mhz) - 1)
        out[some] = np.minimum(grid_mhz[at], shared_mhz)
    return out


def clock_ceilings(
    costs: StageCosts, constants: PowerConstants, limit_w: Floats, top_mhz: float, lowest_mhz: float
) -> tuple[Floats, Floats]:
    """(Clock at which each stage meets its power limit in MHz, time with pauses over time without), (L, pp) each.

    Pauses are left where even the lowest clock draws more than the limit.

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


def duty_cycle(costs: StageCosts, t: StageTimes, wait_w: float) -> DutyCycle:
    """The `DutyCycle` of layouts at the highest clocks that they reach; lower clocks leave no less power to kernels.

    Kernels alone count as running, those of collectives as in `StageCosts.collective_sm_s`.
    """
    running_s = t.kernel_s - costs.waiting_sm_s + costs.collective_sm_s
    busy_s = costs.num_micro_batches[:, None] * running_s + costs.optimizer_s
    return busy_s / t.total_s[:, None], t.total_s[:, None], wait_w


def pipeline_floor_j(
    clocked_j: Floats, fixed_j: Floats, rank_s: Floats, constants: PowerConstants, cooler: Cooler
) -> Floats:
    """Lower bound over all clocks of the energy in J of one GPU per stage, (L,); ``rank_s``: stages' summed seconds.

    Derived here from `clock_law.energy_parts_j`: static power and leakage over the fastest time, dynamic work, which
    follows V², at the lowest voltage, all bytes and links.
    """
    lowest = float(squared_voltage(0.0, 1.0, constants.knee_fraction, constants.voltage_ratio))
    return np.asarray(lowest * clocked_j + fixed_j + idle_power_w(constants, cooler) * rank_s)


def idle_power_w(constants: PowerConstants, cooler: Cooler) -> float:
    """The least power of a GPU in W: static power and leakage."""
    return max(constants.static_w + cooler.mean_leakage_w, 0.0)


def energy_slope_w(constants: PowerConstants, cooler: Cooler, num_gpus: int) -> float:
    """Power w in W of all GPUs for which energy - w x time never falls as a uniform clock rises.

    Derived here: with w the waiting power of all GPUs, what is left is work: kernels, whose energy grows with the
    clock, less the waiting that they displace, which shrinks as they get faster.
    """
    return num_gpus * (max(constants.wait_w, constants.static_w) + cooler.mean_leakage_w)
