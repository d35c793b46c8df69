"""Jobs that differ in speeds, priced as one model: each takes the times that it takes alone, to the last digit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from jointopt.core.schema import CONSTANTS, Columns
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics import sensitivities
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import SharedCosts
from jointopt.physics.sensitivities import with_constants

PRICED = ("compute", "elementwise", "intra_node", "inter_node", "tp_overlap", "loss", "attention")
Layouts = Callable[..., Columns]


def physics_of(job: Job, layouts_of: Layouts) -> CostModel:
    """Plans of three depths, deepest first, one of them twice."""
    return CostModel(job, layouts_of(dp=[2, 8, 16, 4, 8], tp=[2, 1, 1, 2, 1], pp=[4, 2, 1, 2, 2], vpp=[1, 2, 1, 1, 2]))


@pytest.mark.parametrize("cells", [1 << 20, 1])
def test_jobs_side_by_side_take_the_times_that_each_takes_alone(
    make_job: Callable[..., Job], layouts_of: Layouts, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensitivities, "_CELLS", cells)  # all jobs in one model, or each in its own
    job = make_job(16)
    physics, index = physics_of(job, layouts_of), np.array([4, 0, 2, 1, 3, 0])
    clocks = uniform_stage_clocks(physics.layouts["pp"][index], 1200.0)
    jobs = [with_constants(job, 0.1 * (np.array(CONSTANTS) == name)) for name in PRICED]
    common = SharedCosts(physics.hardware, physics.shapes)
    found = list(sensitivities.least_times_s(jobs, physics, index, clocks, common))
    for one, times in zip(jobs, found, strict=True):
        np.testing.assert_array_equal(times, CostModel(one, physics.layouts).least_time_s(index, clocks))
    assert all((times > physics.least_time_s(index, clocks)).any() for times in np.delete(found, 4, axis=0))


def test_row_of_a_model_side_by_side_is_the_layout_of_the_job_in_turn(
    make_job: Callable[..., Job], layouts_of: Layouts
) -> None:
    job = make_job(16)
    physics = physics_of(job, layouts_of)
    jobs = [job, with_constants(job, np.full(len(CONSTANTS), 0.1))]
    model = sensitivities.model_of_jobs(jobs, physics, SharedCosts(physics.hardware, physics.shapes))
    assert len(model.layouts["pp"]) == 10
    for position in range(10):
        alone = CostModel(jobs[position // 5], physics.layouts)
        costs, own = model.groups[model.group_of[position]], alone.groups[alone.group_of[position % 5]]
        row, own_row = model.row_of[position], alone.row_of[position % 5]
        np.testing.assert_array_equal(costs.forward_sm_s[row], own.forward_sm_s[own_row])
