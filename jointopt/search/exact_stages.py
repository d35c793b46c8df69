"""The exact Pareto front where stages may use their slack: every layout, bottleneck clock and share of slack.

Branch and bound again (`jointopt.search.exact`), from the exact front of the uniform clocks, by two promises of the
problem (`Problem.energy_slope_w`): a faster clock of any stage is never slower, and ``energy - slope * time``, the
energy left as work, never falls as a clock rises. Between two bottleneck clocks of a layout, whatever the share of
slack, no plan then beats the box

    time >= time(one clock, the highest),  work >= work(the lowest clock that each stage has among them).

Ranges whose box the front covers are left out, the others halved down to single clocks, whose shares of slack are then
evaluated. A stage's clock moved freely may still be better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.search.exact import STAGE_CELLS_PER_CHUNK, ExactFront, exact_front, may_improve, promising
from jointopt.search.genome import SLACK_LEVELS
from jointopt.search.pareto import merge
from jointopt.search.problem import Problem, Progress

SLACKS = np.linspace(0.0, 1.0, SLACK_LEVELS)[1:]


@dataclass
class _Sweep:
    """The running front over chunks of layouts; ``relaxed`` (layouts, clocks, S): stage clocks with all slack used."""

    problem: Problem
    slope_w: float
    front: Columns
    evaluated: int = 0

    def layouts(self, layouts: Ints) -> None:
        """Settles these layouts."""
        clocks = self.problem.num_clocks
        index, clock = np.repeat(layouts, clocks), np.tile(np.arange(clocks), len(layouts))
        relaxed = self.problem.decode_clocks(index, clock, np.ones(len(index)))
        table = relaxed.reshape(len(layouts), clocks, self.problem.max_pp)
        nothing = np.zeros(len(layouts), dtype=np.int64)
        # ranges of bottleneck clocks: columns of (row of the table, lowest clock, highest clock)
        boxes = np.stack([np.arange(len(layouts)), nothing, nothing + clocks - 1])
        while boxes.size:
            boxes = boxes[:, self._may_improve(layouts, table, boxes)]
            row, low, high = boxes
            single = low == high
            self._evaluate(layouts[row[single]], low[single])
            row, low, high = boxes[:, ~single]
            middle = (low + high) // 2
            boxes = np.concatenate([[row, low, middle], [row, middle + 1, high]], axis=1)

    def _may_improve(self, layouts: Ints, table: Floats, boxes: Ints) -> Ints:
        """Indices of the boxes that the front does not cover, by more than rounding."""
        layout, highest = layouts[boxes[0]], boxes[2]
        slowest = np.empty((len(layout), self.problem.max_pp))
        for box, (row, low, high) in enumerate(boxes.T):
            slowest[box] = table[row, low : high + 1].min(axis=0)  # NaN stays where there is no stage
        time_s, _ = self.problem.bounds(layout, self.problem.uniform_clocks(layout, highest))
        slow_s, slow_j = self.problem.bounds(layout, slowest)
        self.evaluated += 2 * len(layout)
        least_j = slow_j - self.slope_w * (slow_s - time_s)
        return may_improve(self.front, time_s, least_j)

    def _evaluate(self, layouts: Ints, clocks: Ints) -> None:
        """All shares of slack of layouts at a bottleneck clock each, merged into the front."""
        if len(layouts):
            layout, clock = np.repeat(layouts, len(SLACKS)), np.repeat(clocks, len(SLACKS))
            slack = np.tile(SLACKS, len(layouts))
            clocks_mhz = self.problem.decode_clocks(layout, clock, slack)
            self.evaluated += len(layout)
            left = np.arange(len(layout))
            if self.problem.bound is not None:
                left = may_improve(self.front, *self.problem.bounds(layout, clocks_mhz))
            batch = self.problem.evaluated(layout[left], clock[left], slack[left], clocks_mhz[left])
            self.front = merge(self.front, batch)


def exact_front_of_profiles(problem: Problem, *, progress: Progress | None = None) -> ExactFront:
    """The front over all layouts, bottleneck clocks and shares of slack (multiples of 0.1); memory is bounded.

    ``covered`` counts the plans of that space. Without ``stage_clocks`` or ``energy_slope_w`` it is the front of the
    uniform clocks. ``progress`` is as for `exact_front`.
    """
    uniform = exact_front(problem, progress=progress)
    if problem.stage_clocks is None or problem.energy_slope_w is None or not problem.num_layouts:
        return uniform
    sweep = _Sweep(problem, problem.energy_slope_w, uniform.front)
    pipelines = np.flatnonzero(problem.layouts["pp"] > 1).astype(np.int64)
    step = max(1, STAGE_CELLS_PER_CHUNK // (problem.max_pp * problem.num_clocks))
    order, time_lb_s, energy_lb_j = promising(problem, sweep.front, pipelines)
    left = may_improve(sweep.front, time_lb_s, energy_lb_j)  # the front of one clock leaves few, so chunks are few
    for start in range(0, len(left), step):
        rows = left[start : start + step]
        sweep.layouts(order[rows][may_improve(sweep.front, time_lb_s[rows], energy_lb_j[rows])])
    covered = uniform.covered + len(pipelines) * problem.num_clocks * len(SLACKS)
    evaluated = uniform.evaluated + sweep.evaluated
    return ExactFront(sweep.front, covered, evaluated, covered - evaluated, uniform.sample)
