"""The exact Pareto front of time, energy and a third goal that the layout alone decides, such as memory.

Layouts come by that goal, the least first. What rules out a plan is the front of time and energy of earlier ones, which
are no worse in the third goal; branch and bound is that of `jointopt.search.exact_stages`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.search.boxes import ROUNDING, may_improve, open_clocks
from jointopt.search.exact import promising
from jointopt.search.exact_stages import ProfileSweep
from jointopt.search.pareto import concat, front_of, is_beaten, merge, stacked
from jointopt.search.problem import Problem, Progress

SMALLEST_LEVEL = 64  # layouts; of fewer the calls cost more than the front of earlier levels spares
LEVELS = 256  # at most so many of about equal size


@dataclass
class _Level(ProfileSweep):
    """Plans of layouts of about the same third goal that the front of earlier levels leaves."""

    found: Columns | None = None

    def add(self, batch: Columns) -> None:
        """Keeps evaluated plans; the front stays that of earlier levels."""
        self.found = front_of(batch if self.found is None else concat([self.found, batch]), self.problem.goals)

    def worth(self, layouts: Ints, clocks: Floats, bounds: Floats) -> Ints:
        """Indices of plans that neither the front nor what this level found rules out by their bounds."""
        left = super().worth(layouts, clocks, bounds)
        if self.found is None:
            return left
        third = np.asarray(self.problem.third_goal)[layouts[left]]
        least = np.stack([*bounds[:, left] * (1.0 - ROUNDING), third], axis=1)
        return left[~is_beaten(stacked(self.found, self.problem.goals), least)]

    def uniform(self, layouts: Ints, fastest_s: Floats) -> None:
        """Settles one clock on all stages of layouts, whose times are not below these; the highest clock first."""
        problem = self.problem

        def slowest(_: Ints, low: Ints, __: Ints) -> Floats:
            return problem.clocks_mhz[low, None]

        found = open_clocks(problem, lambda: self.front, layouts, fastest_s, slowest)
        layout, clock = np.concatenate([np.stack(pair) for pair in found], axis=1)
        order = np.argsort(-clock, kind="stable")
        layout, clock = layout[order], clock[order]
        clocks_mhz = problem.clocks_mhz[clock, None]
        left = self.worth(layout, clocks_mhz, np.stack(problem.bounds(layout, clocks_mhz)))
        self.add(problem.plans(layout[left], clock[left], np.zeros(len(left))))
        self.evaluated += len(layout)


def exact_front_of_levels(problem: Problem, *, progress: Progress | None = None) -> tuple[Columns, int]:
    """(front by all three goals over layouts, clocks and shares of slack, plans evaluated or bounded one by one).

    ``problem.has_levels`` must hold. ``progress`` is as for `exact_front`.
    """
    none = np.zeros(0, np.int64)
    parts, evaluated = [problem.plans(none, none, np.zeros(0))], 0
    front, done = parts[0], 0
    for layouts in _levels(problem):
        level = _settled(problem, front, layouts)
        evaluated, done = evaluated + level.evaluated, done + len(layouts)
        if level.found is not None:
            parts.append(level.found)
            front = merge(front, parts[-1])
        if progress is not None:
            progress(done * problem.num_clocks, problem.num_layouts * problem.num_clocks, len(front["slack"]))
    return front_of(concat(parts), problem.goals), evaluated


def _levels(problem: Problem) -> Iterator[Ints]:
    """Yield layouts by their third goal, the least first."""
    order = np.argsort(np.asarray(problem.third_goal), kind="stable").astype(np.int64)
    size = max(SMALLEST_LEVEL, -(-len(order) // LEVELS))
    for start in range(0, len(order), size):
        yield order[start : start + size]


def _settled(problem: Problem, front: Columns, layouts: Ints) -> _Level:
    """The level of these layouts, of which the ``front`` of earlier ones leaves what may improve it."""
    level = _Level(problem, problem.stage_clocks or problem.decode_clocks, front)
    layouts, *bounds = promising(problem, front, layouts)
    left = may_improve(front, *bounds)
    if len(left):
        level.uniform(layouts[left], bounds[0][left])
    if len(left) and problem.stage_clocks is not None:
        left = left[problem.layouts["pp"][layouts[left]] > 1]
        level.settle(layouts[left], *(values[left] for values in bounds))
    return level
