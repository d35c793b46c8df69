"""Plans within constraints that only clocks of single stages keep, from the front without constraints."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jointopt.core.schema import Columns
from jointopt.search.exact import ExactFront
from jointopt.search.exact_stages import exact_front_of_profiles
from jointopt.search.local_search import move_stages
from jointopt.search.pareto import merge, take
from jointopt.search.problem import Problem


def front_within_limits(
    problem: Problem, exact: ExactFront, free: Problem, evaluations: int
) -> tuple[ExactFront, Columns]:
    """(the ``exact`` front with what else keeps the constraints of ``problem``, the front of ``free``).

    For where one clock, and slack, keep few constraints or none: ``free`` is the problem without them. They bound time,
    energy and their ratio, so that what keeps them lies on its front, or behind a plan of it that draws more power.
    ``evaluations``: of plans with clocks of single stages moved, at most.
    """
    swept = exact_front_of_profiles(free)
    moved, spent = move_stages(free, swept.front, evaluations)
    plans = problem.again(moved)
    front = merge(exact.front, take(plans, np.flatnonzero(plans["violation"] <= 0.0)))
    return replace(exact, front=front, evaluated=exact.evaluated + swept.evaluated + spent), moved
