"""One plan with a clock of its own for each forward and backward pass of a micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats
from jointopt.physics import clock_law
from jointopt.physics.cost_model import CostModel
from jointopt.physics.makespan import dp_exposed_s, makespan_s


@dataclass(frozen=True)
class InstructionCosts:
    """Time and energy of the passes of one layout at each of the clocks (c,), for every stage: (pp, c).

    Times are of one micro-batch through all chunks of the rank, with what else occupies it. Both are as
    `CostModel.corrected` has them, but for watts beside the power: they come on top like waiting. Energy is that of all
    GPUs of the stage beyond waiting, leakage included; waiting and what no clock changes come on top.
    """

    clock_mhz: Floats  # (c,)
    forward_s: Floats
    backward_s: Floats
    forward_j: Floats
    backward_j: Floats
    step_j: Floats  # of the optimizer step, at the clock that the last backward pass leaves behind


def instruction_costs(physics: CostModel, index: int, clock_mhz: Floats) -> InstructionCosts:
    """Time and energy of every stage's passes at the clocks (c,), by the formulas of `CostModel.times` and `power`."""
    g, row = int(physics.group_of[index]), int(physics.row_of[index])
    costs, k = physics.groups[g], physics.power
    depth, count = costs.depth, len(clock_mhz)
    everywhere = np.repeat(clock_mhz[:, None], depth, axis=1)
    t = physics.times(g, np.full(count, row), everywhere)
    forward_flops = costs.forward_flops[row]
    stretch = physics.top_mhz / t.clock_mhz
    collectives_s = costs.collective_sm_s[row] / 2.0  # as many forward as backward
    waiting_s = costs.waiting_sm_s[row] / 3.0  # for ranks with more tokens, backward twice as long as forward
    forward_rest_s = costs.forward_memory_s[row] + collectives_s
    backward_rest_s = costs.backward_memory_s[row] + collectives_s
    slower = physics.time_factor[index]
    gpus = slower * physics.power_factor[index] * costs.replicas[row]

    def joules(kernel_s: Floats, flops: Floats | float) -> Floats:
        """Energy of kernels on all GPUs of a stage that follows its clock, less the waiting that they displace."""
        parts = clock_law.energy_parts_j(k, t.clock_mhz, physics.top_mhz, kernel_s, kernel_s, flops, 0.0, 0.0)
        waiting_j = max(k.wait_w - k.static_w, 0.0) * kernel_s
        return np.asarray((parts["active"] + parts["compute"] - waiting_j) * gpus).T

    return InstructionCosts(
        clock_mhz=clock_mhz, forward_s=slower * t.forward_s.T, backward_s=slower * t.backward_s.T,
        forward_j=joules((costs.forward_sm_s[row] - waiting_s) * stretch + forward_rest_s, forward_flops),
        backward_j=joules(
            (costs.backward_sm_s[row] - 2.0 * waiting_s) * stretch + backward_rest_s, costs.flops[row] - forward_flops
        ),
        step_j=joules(np.broadcast_to(costs.optimizer_s[row], stretch.shape), 0.0),
    )  # fmt: skip


def beyond_schedule_s(physics: CostModel, index: int) -> Callable[[Floats, Floats], float]:
    """Seconds of the iteration beyond its schedule: gradients that do not hide, optimizer step, overhead.

    The function returned takes the time of the first forward and of the last backward pass of each stage, (pp,):
    gradients hide under the last backward pass, gathered weights under the first forward pass.
    """
    g, rows = int(physics.group_of[index]), physics.row_of[[index]]
    costs = physics.groups[g]
    profile, slower = physics.job.training.framework, float(physics.time_factor[index])
    fixed_s = float(costs.slowest_step_s[rows[0]]) + profile.iteration_overhead_s
    overlap = costs.dp_overlap(physics.job, rows)

    def seconds(first_forward_s: Floats, last_backward_s: Floats) -> float:
        passes = first_forward_s[None] / slower, last_backward_s[None] / slower
        exposed = dp_exposed_s(
            costs, rows, passes, makespan_s(costs.pipelines, rows, *passes), overlap, profile.ddp_window
        )
        return slower * (float(exposed[0]) + fixed_s)

    return seconds
