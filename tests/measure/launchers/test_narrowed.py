"""What a launcher's program does not run is left out of the search, and refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import jointopt
from jointopt.core.errors import LauncherError
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_from_options
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import parse_plan, plan_records
from jointopt.measure.base import narrow_search
from jointopt.measure.local import LocalLauncher
from jointopt.measure.torchrun import TorchrunProgram


@pytest.fixture
def job() -> Job:
    found = jointopt.load_job("opt-350m-2x4-a100")
    return replace(found, training=replace(found.training, framework=load_framework("torchtitan")))


def test_the_trainer_is_offered_plans_of_1f1b_that_it_can_run_alone(job: Job) -> None:
    layouts = enumerate_layouts(TorchrunProgram().narrow_search(job)).layouts
    assert len(layouts["pp"]) < len(enumerate_layouts(job).layouts["pp"])
    assert not layouts["schedule"].any()
    assert set(layouts["dp_replicate"].tolist()) == {1}


def test_a_search_that_lists_only_what_the_trainer_lacks_is_refused(job: Job) -> None:
    wanted = replace(job, search=replace(job.search, schedule=("zbv",)))
    with pytest.raises(LauncherError, match=r"does not run plans with schedule zbv; expected 1f1b"):
        TorchrunProgram().narrow_search(wanted)


@pytest.mark.parametrize(("name", "value"), [("schedule", "zb-h1"), ("dp_replicate", 2), ("offload", "optimizer")])
def test_a_plan_that_the_trainer_does_not_build_is_refused_by_name(job: Job, name: str, value: Any) -> None:
    parsed = parse_plan("dp=4 pp=2 mbs=1", job)
    record = plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0]
    assert TorchrunProgram().spec(job, record).pp == 2
    with pytest.raises(LauncherError, match=f"with {name} {value}"):
        TorchrunProgram().spec(job, record | {name: value})


@pytest.mark.parametrize(("default_clocks", "clocks"), [(True, [1980.0]), (False, [1200.0, 1500.0])])
def test_a_launcher_that_leaves_clocks_to_the_driver_is_given_plans_at_the_top_clock_alone(
    default_clocks: bool, clocks: list[float]
) -> None:
    """Others would be measured at the top clock, and be compared with what was predicted of another."""
    job = job_from_options("llama-3-8b", "h100-sxm5-80gb", 8, 64, 2048, dtype="bf16")
    job = replace(job, search=replace(job.search, clock_mhz=(1200.0, 1500.0)))
    search = narrow_search(LocalLauncher(TorchrunProgram(), 60.0, None, default_clocks), job).search
    assert (list(search.clock_mhz), search.per_stage_clocks) == (clocks, not default_clocks)
