"""Why no run is a plan to use, in one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jointopt.jobs.job import Job
from jointopt.measure.local import CommandLauncher
from jointopt.report.results import MeasuredRun
from jointopt.workflows.campaign.campaign import repeated_failure, why_no_usable_plan
from jointopt.workflows.campaign.expectation import broken_constraints

PLAN = {"dp": 8, "tp": 1, "pp": 1, "micro_batch_size": 1, "recompute": "none", "zero_stage": 1}


def failed(status: str, notes: str) -> MeasuredRun:
    return MeasuredRun(plan=PLAN, row={"status": status, "notes": notes}, predicted={})


def good(job: Job, time_s: float, energy_j: float) -> MeasuredRun:
    row = {"status": "ok", "iteration_time_s": time_s, "energy_j": energy_j, "num_gpus": 8}
    return MeasuredRun(plan=PLAN, row=row, predicted={}, broken=broken_constraints(job, row))


@pytest.fixture
def bound(job: Job) -> Job:
    return replace(job, constraints=replace(job.constraints, iteration_time_s=2.0, energy_j=1000.0))


def test_one_run_that_keeps_the_constraints_is_enough(bound: Job) -> None:
    assert (
        why_no_usable_plan(bound, [failed("oom", "too large"), good(bound, 1.0, 900.0), good(bound, 3.0, 900.0)]) == ""
    )


def test_the_closest_run_is_named_with_every_constraint_that_it_breaks(bound: Job) -> None:
    reason = why_no_usable_plan(bound, [good(bound, 3.0, 1100.0), good(bound, 2.2, 1200.0), good(bound, 1.0, 4000.0)])
    assert reason.startswith("None of the 3 runs that succeeded keeps the job's constraints; the closest, dp=8 tp=1")
    assert "iteration_time_s by 10 % (2.2 s over a limit of 2 s) and energy_j by 20 % (1,200 J" in reason


def test_the_commonest_reason_is_reported_whatever_numbers_and_paths_the_runs_name(job: Job) -> None:
    runs = [
        failed("oom", "out of memory on rank 3; Slurm job 7 on n0"),
        failed("failed", "/shared/a/result.json is no JSON; Slurm job 8 on n1"),
        failed("failed", "/shared/b/result.json is no JSON; Slurm job 9 on n1"),
    ]
    assert why_no_usable_plan(job, runs) == (
        "None of the 3 runs succeeded: 2 of them failed (/shared/a/result.json is no JSON)."
    )
    assert why_no_usable_plan(job, runs[:1]) == "The only run did not succeed: oom (out of memory on rank 3)."


MISSING = {"status": "failed", "notes": "exit code 2: can't open file '/home/a.py'; Slurm job 7 on n0"}
AGAIN = MISSING | {"notes": "exit code 2: can't open file '/home/b.py'; Slurm job 8 on n1"}
OOM, OK = {"status": "oom", "notes": "out of memory"}, {"status": "ok", "notes": ""}


def test_three_failures_for_one_cause_are_reported_with_the_logs_and_what_to_do() -> None:
    reason = repeated_failure(
        [OOM, MISSING, AGAIN, OOM, MISSING], CommandLauncher("a {result}", logs=Path("logs")), "--again"
    )
    assert "failed (exit code 2: can't open file '/home/a.py')" in reason
    assert "The logs are in logs." in reason
    assert reason.endswith("run the same command with --again.")
    assert "--logs FOLDER keeps them" in repeated_failure([MISSING] * 3, CommandLauncher("a {result}"), "")


BEHIND = {"status": "timeout", "notes": "ended early", "iteration_time_s": 9.0}


@pytest.mark.parametrize(
    "rows",
    [[MISSING] * 2, [OK, *[MISSING] * 3], [OOM] * 3, [MISSING, MISSING, {"status": "timeout", "notes": "slow"}],
     [{"status": "failed", "notes": None}] * 3, [BEHIND] * 3],
    ids=["two", "success", "oom", "other", "unknown", "behind"],
)  # fmt: skip
def test_fewer_failures_others_and_those_beside_a_success_are_no_pattern(rows: list[dict[str, object]]) -> None:
    assert repeated_failure(rows, None, "--again") == ""
