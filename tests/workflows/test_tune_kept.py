"""What becomes of the runs of a tune: stored, trials of a study, and continued after an interrupt."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from jointopt.core.budget import Budget
from jointopt.core.errors import LauncherError, UsageError
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.measure.base import EndedRun, ReportState
from jointopt.measure.replay import ReplayLauncher
from jointopt.runs.spill import Spill
from jointopt.runs.store import Store
from jointopt.workflows.campaign.candidates import searched_candidates
from jointopt.workflows.campaign.record import Record
from jointopt.workflows.tune import tune
from tests.campaign.injected import TINY

SMALL = {
    "model": "llama-3-8b",
    "training": {"seq_length": 4096, "global_batch_size": 32},
    "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8},
    "search": {"micro_batch_size": [1, 2], "recompute": ["none", "full"], "cp": [1], "zero_stage": [1]},
}


@pytest.fixture
def small() -> Job:
    """Eight GPUs, for time and energy."""
    return parse_job(SMALL, "small", Path())


@pytest.fixture
def timed(job: Job) -> Job:
    return replace(job, objectives=("iteration_time_s",))


class Ending(ReplayLauncher):
    """Raises ``error`` in the run after ``good`` ones, and does ``meanwhile`` in each."""

    def __init__(self, runs: Any, good: int, error: BaseException, meanwhile: Any = lambda: None) -> None:
        super().__init__(runs)
        self.left, self.error, self.meanwhile = good, error, meanwhile

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        self.meanwhile()
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().run(job, plan)


class Slow:
    """Any plan takes the seconds that stand for it."""

    name = "slow"

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self.seconds = seconds

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"status": "ok", "iteration_time_s": self.seconds[str(dict(plan))]}


class Failing(Slow):
    """Every run ends alike, with the plan's number in its last words."""

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"status": "failed", "notes": f"exit code 1: no such module, rank {plan['dp']}"}


class Both:
    """Has all runs on their way at once; the last that began ends first, after a second, the one before after two."""

    name = "both"

    def __init__(self, results: Mapping[str, Any]) -> None:
        self.results = results

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        return next(self.run_all(job, [plan], lambda place, text: None)).row

    def run_all(
        self, job: Job, plans: Iterable[Mapping[str, Any]], report: ReportState
    ) -> Generator[EndedRun, None, None]:
        begun = list(plans)
        for seconds, place in enumerate(reversed(range(len(begun))), 1):
            yield EndedRun(place, {"status": "ok", "iteration_time_s": float(seconds), **self.results}, seconds)


def test_every_run_is_a_trial_with_what_was_expected_of_it(make_runs, timed: Job, url: str) -> None:
    tuned = tune(timed, "replay", 3, table=make_runs(), storage=url)
    trials = optuna.load_study(study_name=tuned.study_name, storage=url).trials
    assert [trial.user_attrs["round"] for trial in trials] == [run.round for run in tuned.runs]
    expected = [run.predicted["iteration_time_s"] for run in tuned.runs]
    assert [trial.user_attrs["predicted_iteration_time_s"] for trial in trials] == expected
    assert [trial.user_attrs["status"] for trial in trials] == [run.status for run in tuned.runs]


def test_after_an_interrupt_the_same_call_spends_what_is_left_of_the_budget(make_runs, timed: Job, url: str) -> None:
    first = tune(timed, Ending(make_runs(), 2, KeyboardInterrupt()), 3, storage=url)
    second = tune(timed, "replay", 3, table=make_runs(), storage=url)
    assert (first.stopped, len(first.runs)) == ("interrupted", 2)
    assert [run.round for run in second.runs] == [0, 0, 1]
    assert "2 of 3 runs are spent" in second.notes[-1]
    trials = optuna.load_study(study_name=second.study_name, storage=url).trials
    lost = [trial for trial in trials if trial.user_attrs["status"] == "interrupted"]
    assert [trial.user_attrs["notes"] for trial in lost] == ["interrupted (Ctrl-C) before it ended"]
    assert len(trials) == 4


def test_a_run_that_was_stored_and_not_recorded_when_the_tool_was_killed_counts_as_spent(
    make_runs, timed: Job, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Record, values: Any) -> None:
        if values["spent"]["runs"]:
            raise SystemExit
        original(self, values)

    original = Record.progress
    monkeypatch.setattr(Record, "progress", killed)
    with pytest.raises(SystemExit):
        tune(timed, "replay", 3, table=make_runs(), storage=url)
    monkeypatch.setattr(Record, "progress", original)
    monkeypatch.setattr("jointopt.search.studies.measured.may_be_alive", lambda process: False)
    again = tune(timed, "replay", 3, table=make_runs(), storage=url)
    assert (len(again.runs), again.spent.runs) == (3, 3)


@pytest.mark.parametrize(("status", "rounds"), [("failed", [1]), ("timeout", [1]), ("oom", [0])])
def test_plans_that_failed_may_run_again_where_requested_and_those_without_memory_never(
    make_runs, timed: Job, url: str, status: str, rounds: list[int]
) -> None:
    runs = make_runs().head(1)
    Store(url).add(runs.assign(status=status, iteration_time_s=None, notes="no room on the disk"), "by hand")
    assert [run.round for run in tune(timed, "replay", 3, table=runs, storage=url).runs] == [0]
    again = tune(timed, "replay", 3, table=runs, storage=url, retry_failed=True)
    assert [run.round for run in again.runs] == rounds
    assert any("may be run again" in note for note in again.notes) == (rounds == [1])


def test_the_trial_of_a_run_in_flight_is_found_after_its_study_was_made_again(url: str, small: Job) -> None:
    tuned = tune(small, Both({"energy_j": None}), 2, storage=url, batch=2)
    trials = optuna.load_study(study_name=tuned.study_name, storage=url).trials
    assert [trial.values for trial in trials] == [[2.0], [1.0]]


def test_another_budget_is_a_new_one(make_runs, timed: Job, url: str) -> None:
    tune(timed, Ending(make_runs(), 2, KeyboardInterrupt()), 3, storage=url)
    again = tune(timed, "replay", 2, table=make_runs(), storage=url)
    assert [run.round for run in again.runs] == [0, 0, 1, 2]


def test_runs_stored_without_a_study_are_trials_of_the_next_one(make_runs, timed: Job, url: str) -> None:
    runs = make_runs()
    Store(url).add(runs.head(2), "by hand")
    tuned = tune(timed, "replay", 1, table=runs, storage=url)
    trials = optuna.load_study(study_name=tuned.study_name, storage=url).trials
    assert [trial.user_attrs["round"] for trial in trials] == [0, 0, 1]


def test_runs_stand_in_the_order_in_which_they_began_and_a_gpu_hour_is_held_by_all_gpus(small: Job) -> None:
    tuned = tune(small, Both({}), 2, batch=2)
    assert [run.result("iteration_time_s") for run in tuned.runs] == [2.0, 1.0]
    assert tuned.spent.gpu_hours == pytest.approx(3 * small.cluster.num_gpus / 3600)


def test_a_budget_counts_the_runs_on_their_way(small: Job) -> None:
    assert len(tune(small, Both({}), 3, batch=8).runs) == 3
    rounds = [run.round for run in tune(small, Both({}), Budget(gpu_hours=0.01), batch=8).runs]
    assert rounds[:2] == [1, 2]  # what a run costs is not known before one has ended
    assert len(rounds) < 9


def test_minutes_and_gpu_hours_end_a_tune_too(make_runs, timed: Job) -> None:
    assert len(tune(timed, "replay", Budget(minutes=1e-9), table=make_runs()).runs) == 1
    tuned = tune(timed, "replay", Budget(gpu_hours=1e-12), table=make_runs())
    assert (tuned.stopped, tuned.spent.runs) == ("budget", 1)


def test_a_tune_that_goes_on_counts_the_minutes_before(
    make_runs, timed: Job, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    minute = iter(range(0, 10**9, 60))
    with monkeypatch.context() as slow:
        slow.setattr(time, "monotonic", lambda: float(next(minute)))
        tune(timed, Ending(make_runs(), 2, KeyboardInterrupt()), Budget(runs=3, minutes=1e6), storage=url)
    tuned = tune(timed, "replay", Budget(runs=3, minutes=1e6), table=make_runs(), storage=url)
    assert tuned.spent.minutes >= 2.0


def test_a_launcher_that_breaks_down_keeps_what_was_measured(make_runs, timed: Job, url: str) -> None:
    timed = replace(timed, training=replace(timed.training, run_tokens=10**13))  # worth every run of the budget
    tuned = tune(timed, Ending(make_runs(), 2, LauncherError("sbatch is gone.")), 5, storage=url)
    assert (tuned.stopped, len(tuned.runs), len(Store(url).read())) == ("failed", 2, 2)
    assert "sbatch is gone" in tuned.notes[-1]
    with pytest.raises(LauncherError, match="sbatch is gone"):
        tune(timed, Ending(make_runs(), 0, LauncherError("sbatch is gone.")), 5)
    again = tune(timed, "replay", 5, table=make_runs(), storage=url)
    assert (again.stopped, again.spent.runs, len(again.runs)) == ("budget", 5, 5)


def test_failures_for_one_cause_end_a_tune_and_the_next_one_notes_how_to_repeat_them(small: Job, url: str) -> None:
    tuned = tune(small, Failing({}), 12, storage=url)
    assert (tuned.stopped, len(tuned.runs)) == ("failed", 3)
    assert "with --retry-failed" in tuned.reason
    assert f"Stopped before its time: {tuned.reason[:20]}" in tuned.text()
    assert "no other run is better" not in tuned.text()
    again = tune(small, Failing({}), 12, storage=url)
    assert "3 of them failed; --retry-failed lets such plans run again" in again.notes[0]
    assert [line.split()[0] for line in again.text().splitlines() if " failed" in line][:6] == [*"---456"]


def test_a_run_that_cannot_be_stored_ends_the_tune_and_is_reported(
    make_runs, timed: Job, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, rows: Any, origin: str) -> None:
        raise UsageError("database or disk is full.")

    monkeypatch.setattr(Store, "add", full)
    tuned = tune(timed, "replay", 5, table=make_runs(), storage=url)
    assert (tuned.stopped, len(tuned.runs)) == ("failed", 1)
    assert "Run 1 is not stored: database or disk is full" in tuned.notes[-1]
    assert "its time: Run 1 is not stored" in tuned.text()
    assert "Measurements:" not in tuned.text()


def test_runs_on_their_way_are_reported_even_where_one_could_not_be_stored(
    small: Job, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Store, rows: Any, origin: str) -> None:
        raise UsageError("database or disk is full.")

    monkeypatch.setattr(Store, "add", full)
    tuned = tune(small, Both({}), 4, batch=2, storage=url)
    assert (tuned.stopped, len(tuned.runs)) == ("failed", 2)
    assert [note.partition(" is not stored")[0] for note in tuned.notes[-2:]] == ["Run 2", "Run 1"]


def test_a_study_that_cannot_be_written_ends_no_tune(make_runs, timed: Job, url: str) -> None:
    def spoil() -> None:
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.execute("DROP TABLE IF EXISTS trial_user_attributes")

    tuned = tune(timed, Ending(make_runs(), 3, KeyboardInterrupt(), spoil), 2, storage=url)
    assert (tuned.stopped, len(Store(url).read())) == ("budget", 2)
    assert "The study shows no further runs" in tuned.notes[0]


def test_what_the_plans_left_may_bring_is_reported_and_is_nothing_when_all_have_run(
    make_runs, timed: Job, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jointopt")
    runs = make_runs().query("status == 'ok'").head(2)
    tuned = tune(timed, "replay", 5, table=runs)
    assert (tuned.stopped, tuned.gain_left) == ("exhausted", 0.0)
    lines = [line for line in caplog.messages if "best so far" in line]
    assert ["plan left" in lines[0], "no plan is left" in lines[-1]] == [True, True]


def test_on_cpu_cores_runs_that_are_all_slower_make_the_plans_left_slower() -> None:
    job = parse_job(TINY, "tiny", Path())
    plans = searched_candidates(job)
    slow = {str(plans.question(i)): 8.0 * plans.predicted["iteration_time_s"][i] for i in range(plans.size)}
    tuned = tune(job, Slow(slow), 3)
    assert tuned.runs[-1].predicted["iteration_time_s"] > 3 / 8 * tuned.runs[-1].result("iteration_time_s")


def test_the_best_so_far_has_the_unit_of_the_job_s_first_objective(
    make_runs, timed: Job, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jointopt")
    runs = make_runs().query("status == 'ok'").head(2).assign(energy_j=1200.0)
    tune(replace(timed, objectives=("energy_j", "iteration_time_s")), "replay", 1, table=runs)
    assert any("best so far 1.200 kJ" in line for line in caplog.messages)


def test_a_run_whose_keeping_a_signal_interrupts_is_not_called_kept_nowhere(
    make_runs, timed: Job, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, keep, signals = Record(timed, url, "tune", print), Spill.keep, [SystemExit()]

    def kept(self: Spill, row: Mapping[str, Any]) -> Path | None:
        if signals:
            raise signals.pop()
        return keep(self, row)

    def full(*_: Any) -> None:
        raise UsageError("The disk is full.")

    monkeypatch.setattr(Spill, "keep", kept)
    with pytest.raises(SystemExit):
        record._store_row({"status": "ok", "iteration_time_s": 1.5})
    monkeypatch.setattr(Store, "add", full)
    assert record.settle(0.0).startswith("The disk is full. 1 run is kept in ")
    assert "nowhere" not in record.settle(0.0)
