"""Power of one plan's GPUs by what they do: kernels bound by compute, by memory, collectives and sends, and waiting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats
from jointopt.physics.breakdown import Breakdown, breakdown
from jointopt.physics.cost_model import CostModel
from jointopt.physics.hierarchy import product_share

PHASES = ("compute_bound", "memory_bound", "communication", "waiting")


@dataclass(frozen=True)
class Phase:
    """Seconds of an iteration that a GPU of each stage spends in a phase, and watts that it draws then, (pp,) each."""

    time_s: Floats
    power_w: Floats  # NaN where the phase takes no time


def phases(physics: CostModel, index: int, stage_clock_mhz: Floats, parts: Breakdown | None = None) -> dict[str, Phase]:
    """`PHASES` of layout row ``index`` at one clock per stage (pp,) in MHz; times and energies add up to ``parts``.

    Derived here from the parts of `clock_law.energy_parts_j`: operations, and the bytes of products, are of the time
    that follows the clock, all other bytes and the optimizer step of the time that does not. Traffic that hides under
    kernels counts with them, as does what it draws. A limit holds the mean of a micro-batch's kernels, above which are
    those bound by compute.
    """
    parts = parts or breakdown(physics, index, stage_clock_mhz)
    of_gpu = {name: joules / parts.gpus_per_stage for name, joules in parts.stage_energy_parts_j.items()}
    compute_s, memory_s, comm_s, collective_s = _seconds(physics, index, stage_clock_mhz)
    total_s = parts.busy_s + parts.idle_s
    waiting_s = np.maximum(total_s - compute_s - memory_s - comm_s, 0.0)
    sent_j = of_gpu["communication"]
    hidden_j = np.where(comm_s > 0.0, 0.0, sent_j)
    always_w = (of_gpu["static"] + of_gpu["leakage"] + hidden_j) / total_s
    active_w = _over(of_gpu["active"], compute_s + memory_s + collective_s)
    blocked_w = _over(of_gpu["waiting"], comm_s + waiting_s)
    products = product_share(physics, index)
    found = {
        "compute_bound": (compute_s, active_w + _over(of_gpu["compute"] + products * of_gpu["memory"], compute_s)),
        "memory_bound": (memory_s, active_w + _over((1.0 - products) * of_gpu["memory"], memory_s)),
        "communication": (comm_s, blocked_w + _over(sent_j - hidden_j + active_w * collective_s, comm_s)),
        "waiting": (waiting_s, blocked_w),
    }
    return {name: Phase(time, np.where(time > 0.0, always_w + watts, np.nan)) for name, (time, watts) in found.items()}


def _seconds(physics: CostModel, index: int, stage_clock_mhz: Floats) -> tuple[Floats, ...]:
    """Seconds (pp,) of kernels that follow the clock, of those that do not, of exposed traffic, and of SMs in it."""
    g, rows = int(physics.group_of[index]), physics.row_of[[index]]
    costs, stretch = physics.groups[g], float(physics.time_factor[index])
    t = physics.times(g, rows, np.asarray(stage_clock_mhz, float)[None, : costs.depth])
    batches, row = float(costs.num_micro_batches[rows[0]]), rows[0]
    memory_s = batches * (costs.forward_memory_s + costs.backward_memory_s)[row] + costs.optimizer_s[row]
    kernels_s = batches * t.kernel_s[0] + costs.optimizer_s[row]
    parts_s = np.sum([seconds[row] for seconds in costs.comm_parts_s.values()], axis=0)
    exposed_s = batches * (parts_s + 2.0 * costs.p2p_s[row] + t.gather_exposed_s[0]) + t.dp_exposed_s[0]
    seconds = np.broadcast_arrays(kernels_s - memory_s, memory_s, exposed_s, batches * costs.collective_sm_s[row])
    return tuple(stretch * each for each in seconds)


def _over(joules: Floats, seconds: Floats) -> Floats:
    """Watts, and 0 over no time."""
    return np.asarray(joules / np.where(seconds > 0.0, seconds, np.inf))
