"""Power above a board's limit for milliseconds: what kernels draw after a pause, before the limit holds their clock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats
from jointopt.physics.breakdown import Breakdown, breakdown
from jointopt.physics.clock_law import busy_power_w, lead_s, scaled_time_s
from jointopt.physics.cost_model import CostModel
from jointopt.physics.heat import as_peaks
from jointopt.physics.power_swing import MOST_PASSES
from jointopt.physics.timeline import Timeline, timeline

# Perseus' A100-PCIe ranks under limits (`clock_law.lead_s`), 15 to 50 ms on its A40; of newer boards none is published
REACTION_S = 0.025


@dataclass(frozen=True)
class Excursion:
    """Power of each stage's hottest GPU, (pp,): ``peak_w`` before the limit acts, at the clock that the plan sets.

    ``lasts_s``: the longest time above the limit at a stretch; ``share``: of the iteration.
    """

    peak_w: Floats
    limit_w: Floats
    lasts_s: Floats
    share: Floats


def excursion(physics: CostModel, index: int, stage_clock_mhz: Floats, parts: Breakdown | None = None) -> Excursion:
    """Power of layout row ``index`` at one clock per stage (pp,) in MHz beyond what its limit leaves in the mean.

    Derived here: a pass that follows a pause runs at its own clock for `clock_law.lead_s`, as boards under a limit were
    measured to do; where no pass waits, or no limit binds, nothing is above it. Mean power of a pass's kernels: single
    kernels may draw more for microseconds.
    """
    parts = parts or breakdown(physics, index, stage_clock_mhz)
    line = timeline(physics, index, stage_clock_mhz, MOST_PASSES)
    free_w, limit_w = _free_w(physics, index, stage_clock_mhz), parts.stage_power_limit_w
    above = free_w > limit_w * (1.0 + 1e-6)
    lasts, share = np.array([_leads(line, rank) for rank in range(len(free_w))]).T
    there = above & (lasts > 0.0)
    held_w = np.minimum(free_w, parts.stage_peak_power_w)
    return Excursion(
        np.where(there, free_w, held_w), limit_w, np.where(there, lasts, 0.0), np.where(there, share, 0.0)
    )  # fmt: skip


def _free_w(physics: CostModel, index: int, stage_clock_mhz: Floats) -> Floats:
    """Watts (pp,) of the hottest GPU while a micro-batch's kernels run at the clocks set, whatever the limit."""
    g, rows = int(physics.group_of[index]), physics.row_of[[index]]
    costs = physics.groups[g]
    clock = np.asarray(stage_clock_mhz, float)[None, : costs.depth]
    sm_s = costs.forward_sm_s[rows] + costs.backward_sm_s[rows]
    memory_s = costs.forward_memory_s[rows] + costs.backward_memory_s[rows]
    busy_s = scaled_time_s(sm_s, memory_s, clock, physics.top_mhz)
    free_w = busy_power_w(physics.power, clock, physics.top_mhz, busy_s, costs.flops[rows], costs.hbm_bytes[rows])
    leaks_w = physics.cooler.peak_leakage_w(physics.in_exhaust(g, rows))
    return np.asarray(as_peaks(physics, np.array([index]), free_w + leaks_w)[0])


def _leads(line: Timeline, rank: int) -> tuple[float, float]:
    """(the longest, share of the iteration) that passes of a rank run before a limit holds them."""
    own = line.rank == rank
    starts, ends = line.start_s[own], line.end_s[own]
    before = np.concatenate([[ends[-1] - line.iteration_s], ends[:-1]])
    left, right = line.repeated_s
    unlisted = (starts >= right) & (before <= left) & (right > left)  # passes that repeat: no pause
    gaps = np.where(unlisted, 0.0, starts - before)
    ahead = np.minimum(lead_s(REACTION_S, np.maximum(gaps, 0.0)), ends - starts)
    return float(ahead.max()), float(ahead.sum() / line.iteration_s)
