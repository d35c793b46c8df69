"""What every launcher must keep, whatever runs behind it: a job in, plans that may be run, one row per run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from jointopt.measure.command import CommandLauncher
from jointopt.measure.launcher import RESULTS, Launcher
from jointopt.measure.replay import ReplayLauncher
from jointopt.measure.slurm import SlurmLauncher
from jointopt.schema import COLUMNS, STATUSES
from jointopt.spec.job import Job

# what a user's program may look like: larger micro-batches run out of memory
PROGRAM = """
import json, sys
dp, size, result = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if size > 1:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory.")
json.dump(dict(iteration_time_s=8 / dp), open(result, "w"))
"""
COMMAND = [sys.executable, "-c", PROGRAM, "{dp}", "{micro_batch_size}", "{result}"]
REST = {
    "cp": 1, "ep": 1, "vpp": 1, "sequence_parallel": False, "recompute": "none", "zero_stage": 1,
    "stage_clock_mhz": "1410",
}  # fmt: skip
ANY = [
    {"dp": 8, "tp": 1, "pp": 1, "micro_batch_size": 1, **REST},
    {"dp": 4, "tp": 2, "pp": 1, "micro_batch_size": 64, **REST},
]  # run where a launcher takes any plan


def replay(request: pytest.FixtureRequest, runs: pd.DataFrame, folder: Path) -> Launcher:
    return ReplayLauncher(runs)


def command(request: pytest.FixtureRequest, runs: pd.DataFrame, folder: Path) -> Launcher:
    return CommandLauncher(COMMAND, limit_s=60)


def slurm(request: pytest.FixtureRequest, runs: pd.DataFrame, folder: Path) -> Launcher:
    request.getfixturevalue("cluster")
    return SlurmLauncher(folder, command=COMMAND, poll_s=0.5)


LAUNCHERS = {"replay": replay, "command": command, "slurm": slurm}


@pytest.fixture(params=LAUNCHERS.values(), ids=LAUNCHERS)
def launcher(request: pytest.FixtureRequest, make_runs, tmp_path: Path) -> Launcher:
    return request.param(request, make_runs(), tmp_path)


def plans(launcher: Launcher, job: Job) -> list[dict[str, Any]]:
    candidates = launcher.candidates(job)
    return ANY if candidates is None else pd.DataFrame(candidates).to_dict("records")


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
