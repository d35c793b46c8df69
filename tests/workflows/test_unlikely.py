"""A job of which no plan is likely to fit in memory: proposals refuse it, and runs decide."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.measure.replay import ReplayLauncher
from jointopt.report.real_runs import MeasuredResult
from jointopt.surrogate.memory import FEASIBLE
from jointopt.workflows.campaign.candidates import searched_candidates
from jointopt.workflows.propose import propose
from jointopt.workflows.tune import tune
from jointopt.workflows.validate import validate

TIGHT = {
    "model": "bloom-176b",
    "training": {"seq_length": 2048, "global_batch_size": 64},
    "cluster": {"gpu": "gh200-96gb", "nodes": 8, "gpus_per_node": 4},
    "search": {"tp": [16], "pp": [1, 2], "vpp": [1], "micro_batch_size": [1], "cp": [1, 2], "clock_mhz": [1500, 1980]},
}
ROOMY = {
    "model": "llama-3-8b",
    "training": {"seq_length": 8192, "global_batch_size": 32, "run_tokens": 15e12},
    "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8},
    "search": {"vpp": [1], "micro_batch_size": [1], "cp": [1], "clock_mhz": [1980]},
    "objectives": ["iteration_time_s"],
}
Verb = Callable[..., MeasuredResult]


@functools.cache
def tight() -> Job:
    return parse_job(TIGHT, "tight", Path())


class Leanest:
    """Runs what recomputes everything, and nothing else."""

    name = "leanest"

    def candidates(self, job: Job) -> None:
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        full = plan["recompute"] == "full" and plan["recompute_num_layers"] == 0
        return {"status": "ok", "iteration_time_s": 30.0, "energy_j": 3e5} if full else {"status": "oom"}


def test_no_plan_of_the_job_is_proposed() -> None:
    with pytest.raises(InfeasibleError):
        propose(tight(), trials=0)


@pytest.mark.parametrize("verb", [tune, validate])
def test_plans_that_are_not_likely_to_fit_are_named_so_and_run_all_the_same(verb: Verb) -> None:
    found = verb(tight(), Leanest(), 4)
    assert {run.status for run in found.runs} <= {"ok", "oom"}
    assert "likelier to run out of memory" in " ".join(found.text().split())
    assert len({tuple(run.plan[name] for name in LAYOUT_COLUMNS) for run in found.runs}) == len(found.runs)


def test_of_plans_that_hardly_fit_a_slower_one_that_needs_less_memory_is_run_first() -> None:
    timed = replace(tight(), objectives=("iteration_time_s",))
    first, second = (run.predicted for run in validate(timed, Leanest(), 2, surrogate="none").runs)
    assert first["iteration_time_s"] > second["iteration_time_s"]
    assert first["peak_memory_gib"] < second["peak_memory_gib"]


def test_plans_that_are_likely_to_fit_are_run_first() -> None:
    job = parse_job(ROOMY, "roomy", Path())
    found = searched_candidates(job)
    off = np.random.default_rng(0).lognormal(sigma=0.3, size=found.size)  # else no other run would be worth it
    rows = found.rows.assign(iteration_time_s=off * found.predicted["iteration_time_s"]).drop_duplicates(["tp", "pp"])
    heavy = rows.assign(micro_batch_size=4, recompute="none", status="oom")
    runs = tune(job, ReplayLauncher(pd.concat([heavy, rows.assign(status="ok")])), 20, surrogate="none").runs
    likely = np.array([run.probability_fits for run in runs]) >= FEASIBLE
    assert set(likely.tolist()) == {True, False}
    assert likely.tolist() == sorted(likely.tolist(), reverse=True)
