"""The place of one plan's layout among all layouts of its job."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Columns
from jointopt.physics.cost_model import CostModel
from jointopt.report.layout_table import Rank
from jointopt.search.fastest import fastest, rank
from jointopt.search.problem import Problem
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.problem import at_top, most_top_times, prepared, top_times
from jointopt.workflows.search_steps import Stopwatch


def rank_of(model: JobModel, layout: Columns) -> Rank:
    """The rank of a layout (columns of one row) at the GPU's highest clock, its time and energy beside the first's.

    InfeasibleError where no layout is feasible.
    """
    ready = prepared(model, Stopwatch(quiet=True))
    alone = model.cost_model(layout)
    own_s, own_j = _at_top(alone, 0)
    time_of = top_times(ready.problem, ready.physics)
    place = place_of(ready.problem, ready.physics, alone)
    first_s, first_j = _at_top(ready.physics, fastest(ready.problem, np.arange(ready.problem.num_layouts), time_of))
    is_first = place == 1  # the very same layout, but for rounding
    return Rank(
        place, of=ready.problem.num_distinct, behind=0.0 if is_first else own_s / first_s - 1.0,
        energy_behind=None if not np.isfinite(own_j / first_j) else 0.0 if is_first else own_j / first_j - 1.0,
    )  # fmt: skip


def place_of(problem: Problem, physics: CostModel, alone: CostModel) -> int | None:
    """The rank of the layout that ``alone`` prices by its time at the GPU's highest clock; None: beyond `MOST`.

    Among the ``problem``'s layouts, which ``physics`` prices.
    """
    own_s = _at_top(alone, 0)[0]
    return rank(problem, own_s, top_times(problem, physics), most_top_times(problem, physics))


def _at_top(physics: CostModel, index: int) -> tuple[float, float]:
    """(s, J) of an iteration of one layout with every clock at its highest."""
    values, _ = at_top(physics, index)
    return float(values["iteration_time_s"][0]), float(values["energy_j"][0])
