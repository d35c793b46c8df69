"""The fastest layouts by the lower bounds of their times: only those are worked out that the quick bound leaves."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.search.boxes import ROUNDING
from jointopt.search.problem import LowerBound, Problem

FEW = 64  # layouts whose bounds are worked out first


def fastest(problem: Problem, layouts: Ints) -> int:
    """Of ``layouts`` the one whose lower bound on time is the least; of several the first. The problem has bounds."""
    bound, quick_bound = _bounds(problem)
    quick_s, _ = quick_bound(layouts)
    least_s = bound(layouts[np.argsort(quick_s, kind="stable")[:FEW]])[0].min()
    left = layouts[quick_s * (1.0 - ROUNDING) <= least_s]
    return int(left[bound(left)[0].argmin()])


def ranked(problem: Problem, most: int) -> tuple[Ints, Floats]:
    """(at most ``most`` layouts, the least lower bound on time first; those bounds). The problem has bounds."""
    bound, quick_bound = _bounds(problem)
    layouts = np.arange(problem.num_layouts)
    quick_s, _ = quick_bound(layouts)
    some = bound(layouts[np.argsort(quick_s, kind="stable")[:most]])[0]
    left = layouts[quick_s * (1.0 - ROUNDING) <= some.max(initial=0.0)]
    least_s, _ = bound(left)
    order = np.argsort(least_s, kind="stable")[:most]
    return left[order], least_s[order]


def count_faster(problem: Problem, time_s: float) -> int:
    """How many of all layouts have a lower bound on time below ``time_s``. The problem has bounds."""
    bound, quick_bound = _bounds(problem)
    layouts = np.arange(problem.num_layouts)
    left = layouts[quick_bound(layouts)[0] * (1.0 - ROUNDING) < time_s]
    return int(np.count_nonzero(bound(left)[0] < time_s))


def _bounds(problem: Problem) -> tuple[LowerBound, LowerBound]:
    bound = problem.lower_bound
    if bound is None:
        raise ValueError("a problem without lower bounds")
    return bound, problem.quick_bound or bound
