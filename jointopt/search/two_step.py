"""The two-step answer, the fastest layout with its clocks tuned afterwards, and what a joint front saves against it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Columns, Floats
from jointopt.search.exact import exact_front_of_profiles
from jointopt.search.local_search import move_stages
from jointopt.search.pareto import front_order, objectives
from jointopt.search.problem import Problem


@dataclass(frozen=True)
class Saving:
    """The largest share of one objective that a front saves at equal value of the other, and that value."""

    share: float
    at: float
    plan: int  # row of the front that saves it
    other: int  # row of the other front that it is saved against


def two_step_front(problem: Problem, layout: int, evaluations: int) -> Columns:
    """The front of one ``layout`` under all its power limits, searched as the joint search does all layouts.

    One clock and slack come first, then clocks of single stages, with ``evaluations`` as for `move_stages`. It is empty
    if the layout breaks a constraint at every clock. ``layout_index`` of its plans is that of ``problem``.
    """
    rows = problem.under_all_limits(layout)
    alone = problem.of_layouts(rows)
    front, _ = move_stages(alone, exact_front_of_profiles(alone).front, evaluations)
    beyond = (0, 0), (0, problem.max_pp - front["stage_clock_mhz"].shape[1])
    clocks = np.pad(front["stage_clock_mhz"], beyond, constant_values=np.nan)
    return front | {"layout_index": rows[front["layout_index"]], "stage_clock_mhz": clocks}


def energy_saving(front: Columns, other: Columns) -> Saving | None:
    """The largest share of energy that ``front`` saves in no more time than a plan of ``other``; None: no plans."""
    return _saving(*objectives(front), *objectives(other))


def time_saving(front: Columns, other: Columns) -> Saving | None:
    """The largest share of time that ``front`` saves at no more energy than a plan of ``other``; None: no plans."""
    return _saving(*objectives(front)[::-1], *objectives(other)[::-1])


def _saving(equal: Floats, saved: Floats, other_equal: Floats, other_saved: Floats) -> Saving | None:
    if not len(equal) or not len(other_equal):
        return None
    order = front_order(equal, saved)
    left = np.searchsorted(equal[order], other_equal, side="right") - 1
    reached = np.where(left >= 0, saved[order][np.maximum(left, 0)], np.inf)
    share = np.maximum(1.0 - reached / other_saved, 0.0)  # a search that ends where gains are small may miss one
    best = int(share.argmax())
    plan = int(order[max(int(left[best]), 0)])
    return Saving(float(share[best]), float(other_equal[best]), plan, best)
