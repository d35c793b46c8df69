"""Runs of a job's kind of cluster stand for it, and their kin for its kin, by whatever names they are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.facts import Source
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.surrogate.evidence import Evidence, source_of_job
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.kernel import Runs, joined_runs
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.sources import (
    evidence_as_source,
    merged_name,
    remembered_runs,
    sources_of_kind,
    surrogate_for_job,
)
from jointopt.surrogate.surrogate import Surrogate
from jointopt.workflows.predict import predict
from tests.surrogate.test_job_model import measured_runs
from tests.surrogate.test_own_cluster import KERNEL, runs

PROFILE = "megatron-deepspeed"
HERE, LAB, HUB, ELSE = (Source(name, PROFILE, "a100-sxm4-40gb", 4) for name in ("this job", "lab", "hub", "else"))
ON_H100 = replace(LAB, gpu="h100-sxm5-80gb")


@pytest.fixture(scope="module")
def job() -> Job:
    return shipped_job("opt-350m-2x4-a100")


def of(source: Source, count: int = 3) -> Runs:
    return replace(runs(count), source=np.full(count, str(source)))


def few(*parts: Runs) -> Surrogate:
    """Remembers these runs, of no source many."""
    every = joined_runs(parts)
    return Surrogate(KERNEL, every, np.zeros(len(every)))


def test_sources_that_are_one_take_their_kin_along_and_leave_others() -> None:
    keys = ["lab|a|g|8", "hub|a|g|8", "lab|a|h|8", "hub|b|g|8", "else|a|g|8"]
    sources = [*map(Source.parse, keys)]
    name = merged_name(sources[:2], Source.parse("this job|a|g|8"))
    assert [str(name(one)) for one in sources] == [*["this job|a|g|8"] * 2, "this job|a|h|8", "this job|b|g|8", keys[4]]


def test_software_without_a_profile_is_that_of_the_job_on_every_gpu() -> None:
    name = merged_name([Source("lab", "mine", "g", 8)], Source("this job", "", "g", 8))
    assert name(Source("lab", "mine", "h", 8)) == Source("this job", "", "h", 8)


def test_a_source_is_known_by_its_name_else_by_software_and_machines_else_by_the_kind_of_the_job(job: Job) -> None:
    lab, hub = str(LAB), str(HUB)
    assert source_of_job(job, "this job") == HERE
    assert sources_of_kind([lab, hub], HUB, job) == [HUB]
    assert sources_of_kind([lab, hub, str(ON_H100)], HERE, job) == [LAB, HUB]
    assert sources_of_kind([lab.replace(PROFILE, "nemo")], HERE, job) == []


def test_many_runs_of_the_kind_stand_for_a_source_of_another_name(job: Job) -> None:
    some = replace(few(of(LAB)), own=(OwnRuns(str(LAB)),))
    assert surrogate_for_job(some, HERE, job, measured=True) == (some, LAB)


def test_few_runs_of_the_kind_and_their_kin_stand_for_the_job_by_its_source(job: Job) -> None:
    lab, kin, hub = of(LAB, 3), of(ON_H100, 2), of(HUB, 1)
    found, source = surrogate_for_job(few(lab, kin, hub), HERE, job, measured=False)
    assert source == HERE
    own, near = remembered_runs(found, source)
    assert (own.tolist(), near.tolist()) == ([0, 1, 2, 5], [3, 4])
    known = found.conditioned(str(source), True).known
    assert len(known) == 6


def test_runs_on_another_gpu_are_kin_to_the_job_by_whatever_name_its_source_has(job: Job) -> None:
    kin = few(of(ON_H100, 2))
    for name in (HERE, LAB, ELSE):
        found, source = surrogate_for_job(kin, name, job, measured=False)
        assert source == name  # the name by which `JobModel` asks for its correction
        assert [part.tolist() for part in remembered_runs(found, source)] == [[], [0, 1]]


@pytest.mark.parametrize("count", [1, 2])
def test_a_cluster_of_another_name_is_a_new_one_to_a_surrogate_of_several(job: Job, count: int) -> None:
    learned = few(*[of(LAB), of(HUB)][:count])
    found, source = surrogate_for_job(learned, ELSE, job, measured=False)
    assert source == ELSE
    assert len(remembered_runs(found, source)[0]) == (3 if count == 1 else 0)


def test_runs_priced_as_another_recipe_class_are_left_out_of_those_that_stand_for_the_job(job: Job) -> None:
    lab, hub = of(LAB, 3), of(HUB, 1)
    some = replace(few(lab, hub), card={"recipe_classes": {str(LAB): "vendor"}})
    found, source = surrogate_for_job(some, HERE, job, measured=False)
    assert [part.tolist() for part in remembered_runs(found, source)] == [[0, 1, 2], []]
    assert found.class_of(str(source)) == "vendor"


def test_measured_runs_displace_few_remembered_ones(job: Job) -> None:
    some = few(of(LAB))
    found, source = surrogate_for_job(some, LAB, job, measured=True)
    assert (found, source) == (some, HERE)
    given = Evidence(joined_runs([of(LAB), of(replace(LAB, gpu="a100-sxm4-80gb"), 2)]), np.zeros(5))
    moved = evidence_as_source(given, LAB, source)
    assert moved.runs is not None
    assert not np.isin(moved.runs.source, some.support.source).any()
    assert len(found.conditioned(str(source), True, moved.known).known) == 5


@pytest.mark.parametrize(
    ("cells", "least", "most"),
    [
        ({}, 1.2, 1.31),
        ({"gpu": "a100-sxm4-80gb"}, 1.05, 1.22),
        ({"framework": "nemo"}, 1.05, 1.22),
        ({"gpu": "a100-sxm4-80gb", "framework": "nemo"}, 1.0, 1.0),
    ],
)
def test_measured_runs_on_another_gpu_or_by_other_software_count_in_part(
    job: Job, cells: dict[str, str], least: float, most: float
) -> None:
    table = measured_runs(job, 1.0, **cells)
    time_s = 1.3 * predict(table, "none")["predicted_iteration_time_s"]
    model = JobModel.of(job, measured=table.assign(iteration_time_s=time_s))
    place = "the measured runs given" + " (on other GPUs or nodes, or of other software: counted in part)" * bool(cells)
    assert model.evidence.counts == ({} if most == 1.0 else {place: 6})
    moved = model.cost_model(parse_plan("dp=4 tp=2", job).layouts).time_factor
    assert least <= float(moved[0]) <= most
