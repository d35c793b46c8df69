"""What a cluster's runs of other jobs teach before a job's first run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import Floats
from jointopt.surrogate.correction import Correction
from jointopt.surrogate.kernel import Runs
from jointopt.surrogate.own_cluster import SourceRuns, residual_by_own_runs
from jointopt.surrogate.surrogate import Surrogate
from tests.surrogate.test_own_cluster import KERNEL, noise, runs, steps, timed


def learned(plans: Runs, known: Runs, residual: Floats, log_power: float = np.nan) -> Surrogate | None:
    """What runs teach whose power is off by one factor (NaN: not measured), a fifth of it drawn whatever runs."""
    power, share = np.full(len(known), log_power), np.full(len(known), 0.2)
    shared = Surrogate(KERNEL, None, (), known.take(np.empty(0, np.int64)), np.empty(0))
    return shared.of_other_jobs(str(plans.source[0]), SourceRuns(known, residual, power, share, 60.0))


def predicted(found: Surrogate, plans: Runs) -> Correction:
    """What the surrogate predicts with of the plans' source."""
    return Correction(found, str(plans.source[0]), True)


def test_runs_of_other_jobs_order_the_plans_of_one_left_out_where_the_truth_has_steps() -> None:
    plans, known = runs(60, seed=7), runs(150)
    found = learned(plans, known, steps(known) + noise(150))
    assert found is not None
    errors = found.own[0].errors
    assert errors["order"] < 0.6 * errors["order physics"]
    assert np.std(steps(plans) - predicted(found, plans).log_factor(plans)) < 0.6 * np.std(steps(plans))


def test_power_of_other_jobs_moves_that_of_plans_where_it_was_measured() -> None:
    plans, known = runs(20, seed=7), runs(150)
    found, blank = (learned(plans, known, steps(known), by) for by in (np.log(1.2), np.nan))
    assert found is not None
    assert blank is not None
    both = [predicted(one, plans) for one in (found, blank)]
    watts = np.full((len(both[0].power_clocks), 20), 300.0)
    assert np.median(both[0].power(plans, watts).over(watts[-1])) == pytest.approx(1.2, abs=0.01)
    assert [one.own[0].knows_power for one in (found, blank)] == [True, False]
    assert both[1].power_clocks is None
    np.testing.assert_array_equal(both[0].log_factor(plans), both[1].log_factor(plans))


def test_noise_of_other_jobs_orders_nothing_better() -> None:
    known = runs(80)
    assert learned(runs(1, seed=7), known, 0.3 + noise(80)) is None


def test_few_runs_and_those_that_went_wrong_teach_no_model() -> None:
    known, plans = runs(60), runs(5, seed=7)
    residual = steps(known) + noise(60)
    assert learned(plans, known.take(np.arange(30)), residual[:30]) is None
    assert learned(plans, known, residual + np.log(5.0)) is None


def wide(plans: Runs) -> Runs:
    """The runs as those of a model far wider than any other."""
    features = plans.features | {"log2_hidden": np.full(len(plans), 8.0), "log2_width": np.full(len(plans), 8.0)}
    return replace(plans, features=features, group=np.full(len(plans), "wide|64|8|2048"))


@pytest.mark.parametrize("others", [12, 150], ids=["the process of all sources", "a kernel of its own and trees"])
def test_runs_of_a_job_that_is_off_by_more_than_all_others_teach_the_plans_that_are_left(others: int) -> None:
    plans, known = wide(runs(60, seed=7)), runs(others)
    truth = steps(plans) + 0.3
    index = np.arange(0, 60, 5)
    found = residual_by_own_runs(plans, index, truth[index], timed(known, steps(known) + noise(others)), KERNEL)
    left = np.setdiff1d(np.arange(60), index)
    assert abs(np.median(found[left] - truth[left])) < 0.15  # 0.3 by the other jobs alone


def test_at_a_plan_that_ran_the_answer_is_that_of_all_other_runs() -> None:
    plans, known = runs(30, seed=7), timed(runs(20), steps(runs(20)))
    index, residual = np.arange(8), steps(plans)[:8]
    moved = residual + np.array([0.5, *np.zeros(7)])
    before, after = (residual_by_own_runs(plans, index, seen, known, KERNEL) for seen in (residual, moved))
    assert after[0] == before[0]
    assert (np.abs(after - before)[8:] > 1e-6).all()
    assert len(residual_by_own_runs(plans, index, residual, None, KERNEL)) == 30
