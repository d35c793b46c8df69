"""A run that was ended early says that its plan takes longer than that, to whatever reads measured runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jointopt.core.schema import Floats
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.surrogate.dataset import price, with_results
from jointopt.surrogate.evidence import Evidence, expected_above, is_lower_bound
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.kernel import CLOCK, FEATURES, Runs, default_kernel
from jointopt.surrogate.surrogate import Conditioned, Surrogate
from jointopt.surrogate.training import with_lower_bounds
from jointopt.workflows.explain import explain
from jointopt.workflows.predict import predict
from tests.surrogate.test_job_model import measured_runs

LAB = "lab|megatron-lm|a100-sxm4-80gb|8"
PLAN = "dp=4 tp=2"


def some(count: int, seed: int = 0) -> Runs:
    features = dict(zip(FEATURES, np.random.default_rng(seed).uniform(0.0, 1.0, (len(FEATURES), count)), strict=True))
    features[CLOCK] = np.ones(count)
    return Runs(np.full((count, 3), 0.25), features, np.full(count, LAB), np.full(count, "one"))


def after(residual: list[float], bounded: list[bool]) -> Conditioned:
    """The shipped kinds of scales after runs of those residuals."""
    nothing = Surrogate(default_kernel(3), some(0), np.empty(0))
    runs = some(4).take(np.arange(len(residual)))
    return nothing.conditioned(LAB, True, (runs, np.array(residual)), np.array(bounded))


def test_what_is_expected_beyond_a_bound_is_the_mean_of_a_normal_cut_there() -> None:
    # above its mean a normal is sqrt(2 / pi) deviations above it; one deviation above, phi(1) / (1 - Phi(1)) = 1.52514;
    # 40 below the bound, 1/40 of a deviation beyond it
    bound = np.array([1.0, 3.0, -99.0, 81.0])
    kept, found = expected_above(bound, np.ones(4), np.full(4, 2.0))
    assert kept.tolist() == [0, 1, 3]
    assert found == pytest.approx([1.0 + 2.0 * np.sqrt(2.0 / np.pi), 1.0 + 2.0 * 1.52514, 81.05], rel=1e-4)


def test_a_bound_says_something_where_the_time_may_lie_below_it() -> None:
    kept, _ = expected_above(np.array([0.0, -1.64, -1.65, 5.0]), np.zeros(4), np.ones(4))  # 5 % below -1.645 deviations
    assert kept.tolist() == [0, 1, 3]


def test_runs_that_timed_out_with_a_time_are_lower_bounds() -> None:
    table = pd.DataFrame({"status": ["ok", "timeout", "timeout", "oom"], "iteration_time_s": [1.0, 2.0, np.nan, 3.0]})
    assert is_lower_bound(with_results(table)).tolist() == [False, True, False, False]


def test_a_bound_above_what_is_expected_moves_all_plans_up_and_one_below_changes_no_digit() -> None:
    new = some(5, seed=7)
    alone = after([0.1, 0.1, 0.12], [False] * 3).mean(new)
    above, below = (after([0.1, 0.1, 0.12, bound], [False] * 3 + [True]) for bound in (0.6, -1.2))
    assert (above.mean(new) > alone + 0.001).all()
    np.testing.assert_array_equal(below.mean(new), alone)


@pytest.mark.parametrize("bound", [0.2, 0.9])
def test_a_layout_is_never_predicted_below_its_bound_at_any_clock(bound: float) -> None:
    known = after([0.0, 0.01, -0.01, bound], [False] * 3 + [True])
    plan = some(4).take(np.array([3]))
    slower = replace(plan, features=dict(plan.features) | {CLOCK: np.array([0.7])})
    for one in (plan, slower):
        assert known.mean(one)[0] >= bound
        assert known.predict(one)[0][0] == pytest.approx(known.mean(one)[0])
    first = some(4).take(np.zeros(1, np.int64))
    assert known.difference(plan, first)[0] == pytest.approx(known.mean(plan) - known.mean(first))


@pytest.fixture(scope="module")
def job() -> Job:
    return shipped_job("opt-350m-2x4-a100")


def early(job: Job, slower: float) -> pd.DataFrame:
    """Two runs as the physics predicts, and four that were ended ``slower`` times as late."""
    runs = measured_runs(job, 1.0).reset_index(drop=True)
    behind = np.arange(len(runs)) >= 2
    time_s = np.where(behind, slower, 1.0) * runs["iteration_time_s"]
    return runs.assign(status=np.where(behind, "timeout", "ok"), iteration_time_s=time_s)


def test_measured_runs_that_were_ended_early_move_every_verb_and_blank_ones_none(job: Job) -> None:
    runs = early(job, 1.4)
    ended, blank = runs[runs["status"] == "ok"], runs.assign(iteration_time_s=runs["iteration_time_s"].iloc[:2])
    bare, without, with_bounds = (explain(job, PLAN, measured=one).iteration_time_s for one in (ended, blank, runs))
    assert without == pytest.approx(bare)
    assert with_bounds > 1.05 * bare
    assert JobModel.of(job, measured=runs).evidence.counts == {"the measured runs given": 6}
    rows = runs.drop(columns=["status", "iteration_time_s"])
    found = predict(rows, measured=runs)["predicted_iteration_time_s"]
    assert (found >= runs["iteration_time_s"] * (1.0 - 1e-9))[2:].all()


def test_evidence_drawn_for_comparing_classes_is_of_runs_that_ended(job: Job) -> None:
    table = with_results(early(job, 1.4))
    found = Evidence.of(table, price(table), "runs")
    assert found.bounds.tolist() == [False, False, True, True, True, True]
    assert found.sample(40).residual == pytest.approx(found.residual[:2])
    assert len(found.sample(1).residual) == 1
    assert Evidence.joined([found, found]).bounds.sum() == 8


def residuals(surrogate: Surrogate) -> Floats:
    return np.sort(surrogate.residual)


def test_a_surrogate_remembers_bounds_that_say_something_as_what_is_expected_beyond(job: Job) -> None:
    ended = early(job, 1.4).assign(source="lab")
    priced = price(with_results(ended.iloc[:2]))
    bare = Surrogate(default_kernel(priced.runs.sensitivity.shape[1]), priced.runs, np.zeros(2))
    found, counts = with_lower_bounds(bare, ended)
    assert counts == (4, 4)
    assert len(found.residual) == len(found.support) == 6
    assert (residuals(found)[2:] > np.log(1.4) - 0.15).all()  # of the physics that leave out what is not measured
    assert with_lower_bounds(bare, early(job, 0.1).assign(source="lab"))[1] == (4, 0)
    assert with_lower_bounds(bare, ended.iloc[:2]) == (bare, (0, 0))


def test_bounds_in_milliseconds_are_named_and_not_remembered(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    ended = early(job, 1400.0).assign(source="lab")
    priced = price(with_results(ended.iloc[:2]))
    bare = Surrogate(default_kernel(priced.runs.sensitivity.shape[1]), priced.runs, np.zeros(2))
    found, counts = with_lower_bounds(bare, ended)
    assert counts == (4, 0)
    assert len(found.support) == 2
    assert "4 of 4 runs that were ended early state an iteration_time_s over 5 times" in caplog.text
    assert "(row 3 is the first): is iteration_time_s in seconds" in caplog.text


def test_predictions_do_not_move_by_bounds_in_milliseconds(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    runs = early(job, 1400.0)
    rows = runs.drop(columns=["status", "iteration_time_s"])
    with_bounds, alone = (predict(rows, measured=some)["predicted_iteration_time_s"] for some in (runs, runs.head(2)))
    assert with_bounds.tolist() == pytest.approx(alone.tolist())
    assert "4 of 4 runs that were ended early state an iteration_time_s over 50 times" in caplog.text


def test_retrain_says_how_many_bounds_count(tmp_path: Path, synthetic_runs) -> None:  # type: ignore[no-untyped-def]
    from jointopt.workflows.retrain import retrain

    runs = synthetic_runs("lab", 1.0, rows=4, groups=(32, 64, 128, 256, 512), seed=8)
    behind = runs.iloc[:3].assign(status="timeout", iteration_time_s=1.5 * runs["iteration_time_s"].iloc[:3])
    pd.concat([runs, behind]).to_csv(tmp_path / "runs.csv", index=False)
    found = retrain(tables=[tmp_path / "runs.csv"], out=tmp_path / "mine")
    assert "lower bounds: 3 of 3 runs that were ended early count" in found.text()
