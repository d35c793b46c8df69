"""What runs of a job and of other jobs on its cluster teach of the plans that are left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.own_cluster import residual_by_own_runs
from tests.surrogate.test_own_cluster import KERNEL, noise, runs, steps


def wide(plans: Runs) -> Runs:
    """The runs as those of a model far wider than any other."""
    features = plans.features | {"log2_hidden": np.full(len(plans), 8.0), "log2_width": np.full(len(plans), 8.0)}
    return replace(plans, features=features, group=np.full(len(plans), "wide|64|8|2048"))


@pytest.mark.parametrize("others", [12, 150], ids=["the process of all sources", "a kernel of its own and trees"])
def test_runs_of_a_job_that_is_off_by_more_than_all_others_teach_the_plans_that_are_left(others: int) -> None:
    plans, known = wide(runs(60, seed=7)), runs(others)
    truth = steps(plans) + 0.3
    index = np.arange(0, 60, 5)
    found = residual_by_own_runs(plans, index, truth[index], (known, steps(known) + noise(others)), KERNEL)
    left = np.setdiff1d(np.arange(60), index)
    assert abs(np.median(found[left] - truth[left])) < 0.15  # 0.3 by the other jobs alone


def test_at_a_plan_that_ran_the_answer_is_that_of_all_other_runs() -> None:
    plans, known = runs(30, seed=7), (runs(20), steps(runs(20)))
    index, residual = np.arange(8), steps(plans)[:8]
    moved = residual + np.array([0.5, *np.zeros(7)])
    before, after = (residual_by_own_runs(plans, index, seen, known, KERNEL) for seen in (residual, moved))
    assert after[0] == before[0]
    assert (np.abs(after - before)[8:] > 1e-6).all()
    assert len(residual_by_own_runs(plans, index, residual, None, KERNEL)) == 30
