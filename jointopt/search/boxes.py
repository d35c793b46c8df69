"""Branch and bound over boxes: a layout and a range of clocks, halved until the front covers it or one clock is left.

By two promises of the problem (`Problem.energy_slope_w`): a faster clock of any stage is never slower, and the work,
energy less slope times time, never falls as a clock rises. So no plan of a range of clocks beats the box

    time >= time(one clock, the highest),  work >= work(the lowest clock that each stage has among them),

and none keeps the constraints where such a time, energy and power break them. Each half of a box keeps one of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.search.pareto import is_covered, objectives
from jointopt.search.problem import Problem

ROUNDING = 1e-9  # relative; a bound computed in another order may exceed the truth by rounding

Slowest = Callable[[Ints, Ints, Ints], Floats]


def may_improve(front: Columns | None, time_lb_s: Floats, energy_lb_j: Floats) -> Ints:
    """Indices of the bounds that the front does not cover, by more than rounding."""
    if front is None:
        return np.arange(len(time_lb_s))
    low = 1.0 - ROUNDING
    return np.flatnonzero(~is_covered(*objectives(front), time_lb_s * low, energy_lb_j * low))


def may_be_feasible(
    problem: Problem, layouts: Ints, time_lb_s: Floats, energy_lb_j: Floats, power_lb_w: Floats | float = 0.0
) -> Bools:
    """Whether plans of layouts whose time, energy and power are not below these may keep the constraints, (n,)."""
    if problem.least_violation is None:
        return np.ones(len(layouts), np.bool_)
    power_w = np.broadcast_to(power_lb_w, len(layouts))
    return np.asarray(~(problem.least_violation(layouts, time_lb_s, energy_lb_j, power_w) > ROUNDING))


def worth_evaluating(problem: Problem, front: Columns | None, layouts: Ints, clocks: Floats, bounds: Floats) -> Ints:
    """Indices of plans of explicit stage clocks (n, S) that may be feasible and improve the front.

    ``bounds`` (2, n): time and energy that they are not below.
    """
    left = may_improve(front, *bounds)
    power_w = 0.0 if problem.least_power_w is None else problem.least_power_w(layouts[left], clocks[left])
    time_s, energy_j = bounds[:, left]
    return left[may_be_feasible(problem, layouts[left], time_s, energy_j, power_w)]


def open_clocks(
    problem: Problem, front: Callable[[], Columns | None], layouts: Ints, fastest_s: Floats, slowest: Slowest
) -> Iterator[tuple[Ints, Ints]]:
    """Yield (layouts, clock indices) of single clocks that may hold a plan that the ``front``, as it then is, lacks.

    ``fastest_s``: a time that no plan of each layout is below. ``slowest(rows, low, high)``: clocks (n, S) of layouts
    in those rows that no stage goes below in plans of the clocks ``low`` to ``high``. The problem has a slope.
    """

    def bounds(row: Ints, low: Ints, high: Ints) -> Floats:
        """Work and power, (2, n), that plans of these clocks are not below."""
        clocks = slowest(row, low, high)
        power = np.zeros(len(row)) if problem.least_power_w is None else problem.least_power_w(layouts[row], clocks)
        return np.stack([problem.work(layouts[row], clocks), power])

    rows = np.arange(len(layouts))
    boxes = np.stack([rows, np.zeros_like(rows), np.full_like(rows, problem.num_clocks - 1)])
    time_s, least = fastest_s, bounds(*boxes)
    while True:
        energy_j = least[0] + problem.slope_w(layouts[boxes[0]]) * time_s
        left = may_improve(front(), time_s, energy_j)
        left = left[may_be_feasible(problem, layouts[boxes[0, left]], time_s[left], energy_j[left], least[1, left])]
        single = boxes[1, left] == boxes[2, left]
        yield layouts[boxes[0, left[single]]], boxes[1, left[single]]
        left = left[~single]
        if not len(left):
            return
        row, low, high = boxes[:, left]
        middle = (low + high) // 2
        middle_s = problem.least_time(layouts[row], problem.clocks_mhz[middle, None])
        boxes = np.concatenate([[row, low, middle], [row, middle + 1, high]], axis=1)
        time_s = np.concatenate([middle_s, time_s[left]])
        least = np.concatenate([least[:, left], bounds(row, middle + 1, high)], axis=1)
