"""The place of one plan's layout among all layouts of its job."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Columns
from jointopt.report.explanation import Rank
from jointopt.search.fastest import fastest, rank
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import cost_of_failing
from jointopt.workflows.problem import prepared
from jointopt.workflows.search_steps import Stopwatch


def rank_of(model: JobModel, layout: Columns) -> Rank:
    """The rank of a layout (columns of one row) by the time at the GPU's highest clock, and the distance to the first.

    As `propose` ranks: by the least that the time is at that clock, tight layouts behind their time. InfeasibleError
    where no layout is feasible.
    """
    problem = prepared(model, Stopwatch(quiet=True)).problem
    alone, only = model.cost_model(layout), np.zeros(1, np.int64)
    time_s = float((alone.lower_bound(only)[0] * cost_of_failing(model.fit_probability(alone)))[0])
    first = fastest(problem, np.arange(problem.num_layouts))
    least_s = float(problem.lower_bound(np.array([first]))[0][0]) if problem.lower_bound else time_s
    return Rank(rank(problem, time_s), of=problem.num_layouts, behind=max(time_s / least_s - 1.0, 0.0))
