"""Runs of a job's kind of cluster stand for it, and their kin for its kin, by whatever names they are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.surrogate.evidence import Evidence
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.kernel import Runs, together
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.sources import answering, as_one, at_hand, of_kind, remembered, source_here
from jointopt.surrogate.surrogate import Surrogate
from jointopt.workflows.predict import predict
from tests.surrogate.test_job_model import measured_runs
from tests.surrogate.test_own_cluster import KERNEL, runs

HERE, LAB = "this job|{}|a100-sxm4-40gb|4", "lab|{}|a100-sxm4-40gb|4"
PROFILE = "megatron-deepspeed"


@pytest.fixture(scope="module")
def job() -> Job:
    return shipped_job("opt-350m-2x4-a100")


def of(source: str, count: int = 3) -> Runs:
    return replace(runs(count), source=np.full(count, source.format(PROFILE)))


def few(*parts: Runs) -> Surrogate:
    """Remembers these runs, of no source many."""
    every = together(parts)
    return Surrogate(KERNEL, None, (), every, np.zeros(len(every)))


def test_sources_that_are_one_take_their_kin_along_and_leave_others() -> None:
    keys = ["lab|a|g|8", "hub|a|g|8", "lab|a|h|8", "hub|b|g|8", "else|a|g|8"]
    names = as_one(keys, keys[:2], "this job|a|g|8")
    assert names == dict(zip(keys, [*["this job|a|g|8"] * 2, "this job|a|h|8", "this job|b|g|8", keys[4]], strict=True))


def test_software_without_a_profile_is_that_of_the_job_on_every_gpu() -> None:
    assert as_one(["lab|mine|h|8"], ["lab|mine|g|8"], "this job||g|8") == {"lab|mine|h|8": "this job||h|8"}


def test_a_source_is_known_by_its_name_else_by_software_and_machines_else_by_the_kind_of_the_job(job: Job) -> None:
    here, lab, hub = (key.format(PROFILE) for key in (HERE, LAB, LAB.replace("lab", "hub")))
    assert source_here(job) == here
    assert of_kind([lab, hub], hub, job) == [hub]
    assert of_kind([lab, hub, lab.replace("a100", "h100")], here, job) == [lab, hub]
    assert of_kind([lab.replace(PROFILE, "nemo")], here, job) == []


def test_many_runs_of_the_kind_stand_for_a_source_of_another_name(job: Job) -> None:
    lab = LAB.format(PROFILE)
    some = replace(few(of(LAB)), own=(OwnRuns(lab),))
    assert answering(some, HERE.format(PROFILE), job, measured=True) == (some, lab)


def test_few_runs_of_the_kind_and_their_kin_stand_for_the_job_by_its_source(job: Job) -> None:
    lab, kin, hub = of(LAB, 3), of(LAB.replace("a100-sxm4-40gb", "h100-sxm5-80gb"), 2), of(LAB.replace("lab", "hub"), 1)
    found, source = answering(few(lab, kin, hub), HERE.format(PROFILE), job, measured=False)
    assert source == HERE.format(PROFILE)
    own, near = remembered(found, source)
    assert (own.tolist(), near.tolist()) == ([0, 1, 2, 5], [3, 4])
    known = found.conditioned(source, True).known
    assert len(known) == 6


def test_runs_on_another_gpu_are_kin_to_the_job_by_whatever_name_its_source_has(job: Job) -> None:
    kin = few(of(LAB.replace("a100-sxm4-40gb", "h100-sxm5-80gb"), 2))
    for name in (HERE, LAB, LAB.replace("lab", "else")):
        found, source = answering(kin, name.format(PROFILE), job, measured=False)
        assert source == name.format(PROFILE)  # the name by which `JobModel` asks for its correction
        assert [part.tolist() for part in remembered(found, source)] == [[], [0, 1]]


@pytest.mark.parametrize("count", [1, 2])
def test_a_cluster_of_another_name_is_a_new_one_to_a_surrogate_of_several(job: Job, count: int) -> None:
    learned = few(*[of(LAB), of(LAB.replace("lab", "hub"))][:count])
    other = LAB.replace("lab", "else").format(PROFILE)
    found, source = answering(learned, other, job, measured=False)
    assert source == other
    assert len(remembered(found, source)[0]) == (3 if count == 1 else 0)


def test_runs_priced_as_another_recipe_class_are_left_out_of_those_that_stand_for_the_job(job: Job) -> None:
    lab, hub = of(LAB, 3), of(LAB.replace("lab", "hub"), 1)
    some = replace(few(lab, hub), card={"recipe_classes": {LAB.format(PROFILE): "vendor"}})
    found, source = answering(some, HERE.format(PROFILE), job, measured=False)
    assert [part.tolist() for part in remembered(found, source)] == [[0, 1, 2], []]
    assert found.class_of(source) == "vendor"


def test_measured_runs_displace_few_remembered_ones(job: Job) -> None:
    some = few(of(LAB))
    found, source = answering(some, LAB.format(PROFILE), job, measured=True)
    assert (found, source) == (some, HERE.format(PROFILE))
    given = Evidence(together([of(LAB), of(LAB.replace("40gb", "80gb"), 2)]), np.zeros(5))
    moved = at_hand(given, LAB.format(PROFILE), source)
    assert moved.runs is not None
    assert not np.isin(moved.runs.source, some.support.source).any()
    assert len(found.conditioned(source, True, moved.known).known) == 5


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
