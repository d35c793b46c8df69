"""The fastest layouts by the lower bounds of their times: only those are worked out that the quick bound leaves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.search.boxes import ROUNDING
from jointopt.search.problem import LowerBound, Problem

TimeOf = Callable[[Ints], Floats]  # layouts (n,) -> times (n,) that are not below the problem's bounds
FEW = 64  # layouts whose bounds are worked out first
MOST = 1000  # layouts that a plan is ranked among; those behind are as good as last


def fastest(problem: Problem, layouts: Ints, time_of: TimeOf | None = None) -> int:
    """The one of ``layouts`` with the least time by ``time_of``, else with the least lower bound; the first of several.

    The problem has bounds. Times, which are not below them, are worked out where a bound is not above a known time.
    """
    bound, quick_bound = _bounds(problem)
    of = time_of or (lambda some: bound(some)[0])
    quick_s, _ = quick_bound(layouts)
    few = layouts[np.argsort(quick_s, kind="stable")[:FEW]]
    known_s = of(few[bound(few)[0].argmin()][None])[0]
    left = layouts[quick_s * (1.0 - ROUNDING) <= known_s]
    left = left[bound(left)[0] * (1.0 - ROUNDING) <= known_s]
    return int(left[of(left).argmin()])


def ranked(problem: Problem, most: int) -> tuple[Ints, Floats]:
    """The layouts with the lowest lower bounds on time, at most ``most``, and these bounds.

    The problem has bounds. They are worked out in the order of the quick ones, twice as many each time, until no
    other can be among them.
    """
    bound, quick_bound = _bounds(problem)
    quick_s, _ = quick_bound(np.arange(problem.num_layouts))
    order = np.argsort(quick_s, kind="stable")
    left, least_s, count = order, np.empty(0), most
    while len(left):
        least_s = np.concatenate([least_s, bound(left[:count])[0]])
        left, count = left[count:], 2 * count
        if len(least_s) >= most:
            left = left[quick_s[left] * (1.0 - ROUNDING) <= np.partition(least_s, most - 1)[most - 1]]
    known = order[: len(least_s)]
    best = np.lexsort([known, least_s])[:most]
    return known[best], least_s[best]


def count_faster(
    problem: Problem, time_s: float, most: int = MOST, time_of: TimeOf | None = None, at_most: TimeOf | None = None
) -> int | None:
    """Number of layouts whose time by ``time_of``, else its lower bound, is below ``time_s``; None: more than ``most``.

    The problem has bounds. They are worked out in the order of the quick ones, where the faster layouts come first. A
    layout counts once, under its highest power limit: none is faster under a lower one. ``at_most``: times that those
    of ``time_of`` do not exceed, for less than these.
    """
    bound, quick_bound = _bounds(problem)
    layouts = np.arange(problem.num_distinct)
    quick_s, _ = quick_bound(layouts)
    left = np.flatnonzero(quick_s * (1.0 - ROUNDING) < time_s)
    left = left[np.argsort(quick_s[left], kind="stable")]
    found = 0
    for start in range(0, len(left), most):
        some = layouts[left[start : start + most]]
        some = some[bound(some)[0] < time_s]
        surely = np.full(len(some), time_of is None) if at_most is None else at_most(some) < time_s
        found += int(np.count_nonzero(surely))
        if time_of is not None and found <= most and not surely.all():
            found += int(np.count_nonzero(time_of(some[~surely]) < time_s))
        if found > most:
            return None
    return found


def rank(problem: Problem, time_s: float, time_of: TimeOf | None = None, at_most: TimeOf | None = None) -> int | None:
    """The rank of a layout by its time ``time_s``: 1 is the first, None is beyond `MOST`; as in `count_faster`."""
    sooner_s = time_s * (1.0 - 1e-9)  # none is faster than itself
    faster = count_faster(problem, sooner_s, time_of=time_of, at_most=at_most)
    return None if faster is None else 1 + faster


def _bounds(problem: Problem) -> tuple[LowerBound, LowerBound]:
    bound = problem.lower_bound
    if bound is None:
        raise ValueError("a problem without lower bounds")
    return bound, problem.quick_bound or bound
