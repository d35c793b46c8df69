"""What every launcher must keep, whatever runs behind it: a job in, plans that may be run, one row per run."""

from __future__ import annotations

import pandas as pd
import pytest

from jointopt.measure.launcher import RESULTS, Launcher
from jointopt.measure.replay import ReplayLauncher
from jointopt.schema import COLUMNS, STATUSES
from jointopt.spec.job import Job


def replay(runs: pd.DataFrame) -> Launcher:
    return ReplayLauncher(runs)


LAUNCHERS = {"replay": replay}


@pytest.fixture(params=LAUNCHERS.values(), ids=LAUNCHERS)
def launcher(request: pytest.FixtureRequest, make_runs) -> Launcher:
    return request.param(make_runs())


def plans(launcher: Launcher, job: Job) -> list[dict]:
    candidates = launcher.candidates(job)
    return [] if candidates is None else pd.DataFrame(candidates).to_dict("records")


def test_candidates_are_columns_of_a_table_without_results(launcher: Launcher, job: Job) -> None:
    candidates = launcher.candidates(job)
    assert candidates is None or {"dp", "tp", "pp", "micro_batch_size"} <= set(candidates) <= set(COLUMNS)
    assert not set(candidates or ()) & set(RESULTS)
    assert len({len(values) for values in (candidates or {"": []}).values()}) == 1


def test_every_candidate_runs_and_is_a_row_with_a_status(launcher: Launcher, job: Job) -> None:
    for plan in plans(launcher, job):
        row = launcher.run(job, plan)
        assert row["status"] in STATUSES
        assert set(RESULTS) <= set(row)


def test_a_row_is_about_the_plan_that_was_asked_for(launcher: Launcher, job: Job) -> None:
    for plan in plans(launcher, job):
        row = launcher.run(job, plan)
        assert all(row[name] == plan[name] for name in ("dp", "tp", "pp", "micro_batch_size"))


def test_a_run_that_succeeds_has_a_time_and_one_that_fails_has_none(launcher: Launcher, job: Job) -> None:
    for plan in plans(launcher, job):
        row = launcher.run(job, plan)
        assert (row["status"] == "ok") == (pd.notna(row["iteration_time_s"]) and row["iteration_time_s"] > 0)


def test_asking_for_candidates_twice_gives_the_same(launcher: Launcher, job: Job) -> None:
    once = plans(launcher, job)
    for plan in once:
        launcher.run(job, plan)
    assert plans(launcher, job) == once
