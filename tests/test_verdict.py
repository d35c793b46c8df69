"""Why no run is a plan to use, in one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jointopt.outlook import broken_bounds
from jointopt.report.results import MeasuredRun
from jointopt.spec.job import Job
from jointopt.verdict import why_none

PLAN = {"dp": 8, "tp": 1, "pp": 1, "micro_batch_size": 1, "recompute": "none", "zero_stage": 1}


def failed(status: str, notes: str) -> MeasuredRun:
    return MeasuredRun(plan=PLAN, row={"status": status, "notes": notes}, predicted={})


def good(job: Job, time_s: float, energy_j: float) -> MeasuredRun:
    row = {"status": "ok", "iteration_time_s": time_s, "energy_j": energy_j, "num_gpus": 8}
    return MeasuredRun(plan=PLAN, row=row, predicted={}, broken=broken_bounds(job, row))


@pytest.fixture
def bound(job: Job) -> Job:
    return replace(job, constraints=replace(job.constraints, iteration_time_s=2.0, energy_j=1000.0))


def test_one_run_that_keeps_the_constraints_is_enough(bound: Job) -> None:
    assert (
        why_none(bound, [failed("oom", "too large"), good(bound, 1.0, 900.0), good(bound, 3.0, 900.0)]) == ""
    )


def test_the_closest_run_is_named_with_every_constraint_that_it_breaks(bound: Job) -> None:
    said = why_none(bound, [good(bound, 3.0, 1100.0), good(bound, 2.2, 1200.0), good(bound, 1.0, 4000.0)])
    assert said.startswith(
        "None of the 3 runs that succeeded keeps the job's constraints; the closest, dp=8 tp=1"
    )
    assert "iteration_time_s by 10 % (2.2 over a limit of 2) and energy_j by 20 % (1,200 over" in said


def test_the_commonest_reason_is_told_whatever_numbers_and_paths_the_runs_name(job: Job) -> None:
    runs = [
        failed("oom", "out of memory on rank 3; Slurm job 7 on n0"),
        failed("failed", "/shared/a/result.json is no JSON; Slurm job 8 on n1"),
        failed("failed", "/shared/b/result.json is no JSON; Slurm job 9 on n1"),
    ]
    assert why_none(job, runs) == (
        "None of the 3 runs succeeded: 2 of them failed (/shared/a/result.json is no JSON)."
    )
    assert why_none(job, runs[:1]) == "The only run did not succeed: oom (out of memory on rank 3)."


def test_where_nothing_ran_that_is_said(job: Job) -> None:
    assert "No plan was run" in why_none(job, [])
