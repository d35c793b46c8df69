"""The exact Pareto front where stages may use their slack: every layout, bottleneck clock and share of slack.

Branch and bound (`jointopt.search.boxes`), from the exact front of the uniform clocks, down to single clocks of the
bottleneck, whose shares of slack are then evaluated. A stage's clock moved freely may still be better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.search.boxes import may_improve, open_clocks, worth_evaluating
from jointopt.search.breeding import Seen
from jointopt.search.exact import STAGE_CELLS_PER_CHUNK, ExactFront, exact_front, promising
from jointopt.search.genome import SLACK_LEVELS
from jointopt.search.pareto import front_order, merge
from jointopt.search.problem import Problem, Progress, StageClocks

MOST_AT_ONCE = 512  # layouts at one clock, whose shares of slack are evaluated before the front rules others out
LITTLE = 0.3  # share of slack
SLACKS = np.linspace(0.0, 1.0, SLACK_LEVELS)[1:]


@dataclass
class ProfileSweep:
    """The running front, which rules plans out, and how many were evaluated or bounded one by one."""

    problem: Problem
    stage_clocks: StageClocks
    front: Columns
    evaluated: int = 0

    def add(self, batch: Columns) -> None:
        """Takes evaluated plans into the front."""
        self.front = merge(self.front, batch)

    def worth(self, layouts: Ints, clocks: Floats, bounds: Floats) -> Ints:
        """Indices of plans to evaluate, as `worth_evaluating` has them."""
        return worth_evaluating(self.problem, self.front, layouts, clocks, bounds)

    def settle(self, layouts: Ints, time_lb_s: Floats, energy_lb_j: Floats) -> None:
        """Settles layouts of any depth, (n,), whose plans' times and energies are not below these."""
        left = may_improve(self.front, time_lb_s, energy_lb_j)
        depth_of = self.problem.layouts["pp"][layouts[left]]
        for depth in np.unique(depth_of).tolist():
            some = left[depth_of == depth]
            step = max(1, STAGE_CELLS_PER_CHUNK // (depth * self.problem.num_clocks))
            for start in range(0, len(some), step):
                rows = some[start : start + step]
                rows = rows[may_improve(self.front, time_lb_s[rows], energy_lb_j[rows])]
                self._settle_depth(layouts[rows], time_lb_s[rows])

    def _settle_depth(self, layouts: Ints, fastest_s: Floats) -> None:
        """Settles layouts of one depth."""
        if not len(layouts):
            return
        clocks, depth = self.problem.num_clocks, int(self.problem.layouts["pp"][layouts[0]])
        every = np.repeat(layouts, clocks), np.tile(np.arange(clocks), len(layouts))
        relaxed = self.stage_clocks(*every, np.ones(len(layouts) * clocks))[:, :depth].reshape(-1, clocks, depth)
        place, least = _of_halves(relaxed)

        def slowest(row: Ints, low: Ints, high: Ints) -> Floats:
            return np.asarray(least[place[low, high], row])

        found = list(open_clocks(self.problem, lambda: self.front, layouts, fastest_s, slowest))
        layout, clock = np.concatenate([np.stack(pair) for pair in found], axis=1)
        for start in range(0, len(layout), MOST_AT_ONCE):
            some = slice(start, start + MOST_AT_ONCE)
            self._evaluate(layout[some], clock[some])

    def _evaluate(self, layouts: Ints, clocks: Ints) -> None:
        """All shares of slack of layouts at a bottleneck clock each, merged into the front.

        In lots: the best by their bounds, then little slack, then what these leave, as more slack is never faster.
        """
        of = np.repeat(np.arange(len(layouts)), len(SLACKS))
        layout, clock, slack = layouts[of], clocks[of], np.tile(SLACKS, len(layouts))
        clocks_mhz = self.problem.decode_clocks(layout, clock, slack)
        left = Seen().add(layout, clocks_mhz)  # several shares may decode to the same clocks
        bounds, least_s = np.empty((2, len(of))), np.zeros(len(layouts))
        bounds[:, left] = self.problem.bounds(layout[left], clocks_mhz[left])
        self.evaluated += len(left)
        for lot in range(3):
            left = left[self.worth(layout[left], clocks_mhz[left], bounds[:, left])]
            rows = [front_order(*bounds[:, left]), np.flatnonzero(slack[left] <= LITTLE), np.arange(len(left))][lot]
            some, left = left[rows], np.delete(left, rows)
            batch = self.problem.evaluated(layout[some], clock[some], slack[some], clocks_mhz[some])
            self.add(batch)
            little = slack[some] <= LITTLE
            np.maximum.at(least_s, of[some[little]], batch["iteration_time_s"][little])
            known_s = np.where(slack[left] > LITTLE, least_s[of[left]], 0.0)
            bounds[:, left] = self.problem.raised(layout[left], bounds[0, left], bounds[1, left], known_s)


def _of_halves(clocks: Floats) -> tuple[Ints, Floats]:
    """(place[low, high], least[place] (n, S)): the least of clocks (n, C, S) in every range that halving C leads to.

    Halved as `open_clocks` does.
    """
    count = clocks.shape[1]
    place, least = np.zeros((count, count), np.int64), np.empty((2 * count - 1, len(clocks), clocks.shape[2]))
    ranges = [(0, count - 1)]
    for low, high in ranges:  # which grows
        middle = (low + high) // 2
        ranges += [(low, middle), (middle + 1, high)] * (low < high)
    for at, (low, high) in reversed(list(enumerate(ranges))):
        place[low, high], middle = at, (low + high) // 2
        if low == high:
            least[at] = clocks[:, low]
        else:
            np.minimum(least[place[low, middle]], least[place[middle + 1, high]], out=least[at])
    return place, least


def exact_front_of_profiles(problem: Problem, *, progress: Progress | None = None) -> ExactFront:
    """The front over all layouts, bottleneck clocks and shares of slack (multiples of 0.1); memory is bounded.

    ``covered`` counts the plans of that space. Without ``stage_clocks`` or ``energy_slope_w`` it is the front of the
    uniform clocks. ``progress`` is as for `exact_front`.
    """
    uniform = exact_front(problem, progress=progress)
    if problem.stage_clocks is None or not problem.has_slope or not problem.num_layouts:
        return uniform
    sweep = ProfileSweep(problem, problem.stage_clocks, uniform.front)
    pipelines = np.flatnonzero(problem.layouts["pp"] > 1).astype(np.int64)
    sweep.settle(*promising(problem, sweep.front, pipelines))
    covered = uniform.covered + len(pipelines) * problem.num_clocks * len(SLACKS)
    evaluated = uniform.evaluated + sweep.evaluated
    return ExactFront(sweep.front, covered, evaluated, uniform.sample)
