"""The best proposed plans, run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest

from jointopt.core.errors import LauncherError
from jointopt.core.schema import LAYOUT_COLUMNS, SPLIT_COLUMNS
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.plans.text import parse_stage_clocks
from jointopt.runs.store import Store
from jointopt.workflows.explain import explain
from jointopt.workflows.validate import evenly_spaced, validate


class Simulated:
    """Runs any plan; each takes a second and 4 kJ, or ends as ``ends`` states."""

    name = "simulated"

    def __init__(self, ends: Mapping[int, Any] | None = None) -> None:
        self.ends, self.runs, self.plans = dict(ends or {}), 0, list[Mapping[str, Any]]()

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        self.runs += 1
        self.plans.append(plan)
        end = self.ends.get(self.runs, {"status": "ok", "iteration_time_s": 1.0, "energy_j": 4000.0})
        if isinstance(end, BaseException):
            raise end
        return dict(end)


@pytest.fixture(scope="module")
def small() -> Job:
    """A shipped job with few clocks."""
    job = load_job("opt-350m-2x4-a100")
    clocks = (1005.0, 1110.0, 1215.0, 1305.0, 1410.0)
    return replace(job, search=replace(job.search, clock_mhz=clocks, per_stage_clocks=False))


def test_plans_along_the_front_and_the_default_are_run_stored_and_trials(small: Job, url: str) -> None:
    found = validate(small, Simulated(), 3, surrogate="none", storage=url)
    times = [run.predicted["iteration_time_s"] for run in found.runs if not run.reference]
    assert found.stopped == "done"
    assert times == sorted(times)
    assert sum(run.reference for run in found.runs) == 1
    assert len(Store(url).read()) == len(found.runs) in (3, 4)
    study = optuna.load_study(study_name=found.study_name, storage=url)
    assert [trial.values for trial in study.trials] == [[1.0, 4000.0]] * len(found.runs)


@pytest.mark.parametrize("goals", [("iteration_time_s", "energy_j"), ("iteration_time_s",)])
def test_runs_split_the_gpus_differently_unless_asked_otherwise(small: Job, goals: tuple[str, ...]) -> None:
    job = replace(small, objectives=goals)
    apart, alike = (validate(job, Simulated(), 3, surrogate="none", alike=alike) for alike in (False, True))
    splits = [{tuple(run.plan[name] for name in SPLIT_COLUMNS) for run in found.runs} for found in (apart, alike)]
    assert len(splits[0]) == 3 > len(splits[1])
    assert [any("--alike" in note for note in found.notes) for found in (apart, alike)] == [True, False]


def test_what_is_printed_of_a_run_is_what_ran_and_what_propose_predicts_of_it(small: Job) -> None:
    launcher = Simulated()
    found = validate(small, launcher, 3, surrogate="none").to_dict()["measured"]
    for run, ran in zip(found, launcher.plans, strict=True):
        assert [str(ran[name]) for name in SPLIT_COLUMNS[:5]] == [str(run[name]) for name in SPLIT_COLUMNS[:5]]
        assert parse_stage_clocks(ran["stage_clock_mhz"]) == run["stage_clock_mhz"]
        plan = {name: run[name] for name in (*LAYOUT_COLUMNS, "stage_clock_mhz")}
        assert explain(small, plan, surrogate="none").iteration_time_s == pytest.approx(
            run["predicted_iteration_time_s"]
        )


@pytest.mark.parametrize(("goal", "clock"), [("energy_j", 1305.0), ("iteration_time_s", 1410.0)])
def test_the_best_plan_is_the_reference_at_the_highest_clock_alone(small: Job, goal: str, clock: float) -> None:
    two = replace(small.search, clock_mhz=(1305.0, 1410.0))
    (run,) = validate(replace(small, objectives=(goal,), search=two), Simulated(), 1, surrogate="none").runs
    assert {*run.plan["stage_clock_mhz"]} == {clock}
    assert run.reference == (clock == 1410.0)


def test_errors_are_relative_to_what_was_measured_and_intervals_are_judged(small: Job) -> None:
    found = validate(small, Simulated({2: {"status": "oom", "notes": "too large"}}), 2, surrogate="none")
    first, second = found.runs[:2]
    assert first.error("iteration_time_s") == pytest.approx(first.predicted["iteration_time_s"] - 1.0)
    low, high = (first.predicted[f"iteration_time_s_{end}"] for end in ("low", "high"))
    assert first.inside("iteration_time_s") is bool(low <= 1.0 <= high)
    assert second.inside("iteration_time_s") is None
    assert set(found.median_errors) == {"iteration_time_s", "energy_j"}
    assert "Row 2, oom: too large" in found.text()


@pytest.mark.parametrize(("times", "notes"), [(1000.0, 1), (0.5, 0)])
def test_a_time_in_another_unit_is_noted_once_as_soon_as_it_is_measured(small: Job, times: float, notes: int) -> None:
    """Plans of the front are predicted to take 2 to 4 s."""
    row = {"status": "ok", "iteration_time_s": 3.0 * times, "energy_j": 4000.0}
    found = validate(small, Simulated(dict.fromkeys(range(1, 4), row)), 2, surrogate="none")
    lines = [note for note in found.notes if "is iteration_time_s in seconds, and of one iteration?" in note]
    assert len(lines) == notes
    assert all(line.startswith("Run 1 took ") and " times what was predicted: " in line for line in lines)


@pytest.mark.parametrize(("joules", "notes"), [(500.0, 1), (4000.0, 0)])
def test_energy_of_one_of_the_eight_gpus_is_noted_once(small: Job, joules: float, notes: int) -> None:
    row = {"status": "ok", "iteration_time_s": 3.0, "energy_j": joules}
    found = validate(small, Simulated(dict.fromkeys(range(1, 4), row)), 2, surrogate="none")
    lines = [note for note in found.notes if "is energy_j in J, of all GPUs and of one iteration?" in note]
    assert len(lines) == notes
    assert all(line.startswith("Run 1 drew ") for line in lines)


def test_an_interrupt_keeps_what_was_measured_and_the_next_call_goes_on(small: Job, url: str) -> None:
    first = validate(small, Simulated({2: KeyboardInterrupt()}), 3, surrogate="none", storage=url)
    launcher = Simulated()
    second = validate(small, launcher, 3, surrogate="none", storage=url)
    assert (first.stopped, len(first.runs)) == ("interrupted", 1)
    assert [run.earlier for run in second.runs] == [True] + [False] * (len(second.runs) - 1)
    assert launcher.runs == len(second.runs) - 1
    assert not any(
        run.earlier for run in validate(small, Simulated(), 3, surrogate="none", storage=url, again=True).runs
    )


def test_a_launcher_that_runs_nothing_is_an_error_and_one_that_breaks_down_later_is_noted(small: Job) -> None:
    with pytest.raises(LauncherError, match="gone"):
        validate(small, Simulated({1: LauncherError("gone.")}), 3, surrogate="none")
    found = validate(small, Simulated({2: LauncherError("gone.")}), 3, surrogate="none")
    assert (found.stopped, len(found.runs)) == ("failed", 1)
    assert found.notes[-1] == "No further run could be started: gone."


def test_three_failures_for_one_cause_end_it(small: Job) -> None:
    broken = {"status": "failed", "notes": "a Python module is missing: No module named 'a'"}
    launcher = Simulated(dict.fromkeys(range(1, 9), broken))
    found = validate(small, launcher, 5, surrogate="none")
    assert (found.stopped, launcher.runs) == ("failed", 3)
    assert "with --again" in found.reason
    assert "Stopped before its time: 3 runs in a row failed" in found.text()


def test_of_a_table_the_rows_that_are_predicted_best_are_run(make_runs, job: Job) -> None:
    timed = replace(job, objectives=("iteration_time_s",))
    found = validate(timed, "replay", 3, surrogate="none", table=make_runs())
    predicted = [run.predicted["iteration_time_s"] for run in found.runs]
    assert len(predicted) == 3
    assert predicted == sorted(predicted)
    document = found.to_dict()
    assert document["measured"][0]["error_iteration_time_s"] == pytest.approx(found.runs[0].error("iteration_time_s"))


@pytest.mark.parametrize(("size", "count", "rows"), [(3, 5, [0, 1, 2]), (9, 3, [0, 4, 8]), (9, 1, [0])])
def test_rows_are_spread_with_both_ends(size: int, count: int, rows: list[int]) -> None:
    np.testing.assert_array_equal(evenly_spaced(size, count), rows)
