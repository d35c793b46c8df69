"""Which kinds of stored rows matter to a job or a table, and how much."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.runs.relevance import (
    Kind,
    distance_from,
    kind_of,
    related_to,
    wanted_by,
    wanted_by_table,
    wanted_elsewhere,
)

H100 = Kind("NVIDIA H100 80GB HBM3", 8, "Megatron-LM", "llama-3-8b", 8, 8192, 128)


@pytest.fixture
def job() -> Job:
    return shipped_job("llama-3-8b-1x8-h100")


@pytest.mark.parametrize(
    ("change", "related"),
    [
        ({}, True), ({"gpus_per_node": 0}, True), ({"gpus_per_node": 4}, False), ({"gpu": "a100-sxm4-80gb"}, False),
        ({"framework": "megatron"}, True), ({"framework": "torchtitan"}, False), ({"framework": "unheard of"}, False),
    ],
)  # fmt: skip
def test_rows_of_the_same_gpus_nodes_and_profile_are_related(change: dict[str, object], related: bool) -> None:
    of = related_to({"h100-sxm5-80gb"}, 8, load_framework("megatron-lm"))
    assert of(H100._replace(**change)) == related  # type: ignore[arg-type]
    if set(change) <= {"framework"}:
        assert related_to({"h100-sxm5-80gb"}, 8)(H100._replace(**change))  # type: ignore[arg-type]


def test_without_a_profile_rows_of_no_known_framework_are_related() -> None:
    of = related_to({"h100-sxm5-80gb"}, None, load_framework("generic"))
    assert (of(H100), of(H100._replace(framework="unheard of")), of(H100._replace(framework=""))) == (False, True, True)


@pytest.mark.parametrize(
    ("change", "distance"),
    [
        ({}, 0), ({"model": "LLAMA-3-8B"}, 0), ({"model": "gpt3"}, 4), ({"num_gpus": 16}, 1), ({"num_gpus": 0}, 0),
        ({"seq_length": 4096, "global_batch_size": 1}, 2), ({"model": "", "num_gpus": 16, "seq_length": 1}, 6),
    ],
)  # fmt: skip
def test_another_model_is_further_than_any_other_difference(change: dict[str, object], distance: int, job: Job) -> None:
    training = replace(job.training, seq_length=8192, global_batch_size=128)
    near = replace(job, training=training, model=replace(job.model, name="Llama-3-8B"))
    kind = H100._replace(**change)  # type: ignore[arg-type]
    assert distance_from([near])(kind) == distance
    assert distance_from([replace(near, model=replace(near.model, name="far")), near])(kind) <= distance
    assert distance_from([])(kind) == 0


def test_a_job_wants_rows_of_its_own_gpus_nodes_and_framework(job: Job) -> None:
    job = replace(job, training=replace(job.training, framework=load_framework("megatron-lm")))
    wanted = wanted_by(job, 50, 5, 2, ("plan",))
    assert (wanted.all_up_to, wanted.most_rows, wanted.most_kinds, wanted.plans) == (50, 5, 2, ("plan",))
    assert wanted.related(H100)
    assert not wanted.related(H100._replace(gpus_per_node=4))
    assert not wanted.related(H100._replace(framework="torchtitan"))


@pytest.mark.parametrize(
    ("change", "kin"),
    [
        ({}, False), ({"gpus_per_node": 4}, True), ({"framework": "torchtitan"}, True), ({"framework": ""}, True),
        ({"gpu": "a100-sxm4-80gb"}, True), ({"gpu": "a100-sxm4-80gb", "framework": "torchtitan"}, False),
    ],
)  # fmt: skip
def test_kin_share_the_gpu_or_the_framework_and_are_not_of_the_jobs_own_kind(
    change: dict[str, object], kin: bool, job: Job
) -> None:
    job = replace(job, training=replace(job.training, framework=load_framework("megatron-lm")))
    wanted = wanted_elsewhere(job, 30, 2)
    assert (wanted.all_up_to, wanted.most_rows, wanted.most_kinds) == (30, 30, 2)
    assert wanted.related(H100._replace(**change)) == kin  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpu", "framework", "model", "distance"),
    [
        ("h100-sxm5-80gb", "megatron-lm", "a", 0), ("h100-sxm5-80gb", "megatron-lm", "c", 1),
        ("h100-sxm5-80gb", "nemo", "A", 2), ("a100-sxm4-80gb", "megatron-lm", "b", 4),
        ("a100-sxm4-80gb", "nemo", "b", 6), ("a100-sxm4-80gb", "nemo", "c", 7),
    ],
)  # fmt: skip
def test_a_table_wants_rows_of_its_gpus_or_its_frameworks(gpu: str, framework: str, model: str, distance: int) -> None:
    table = pd.DataFrame({"gpu": "H100 SXM5 80GB", "framework": "Megatron-LM", "model": ["A", "b", None]})
    wanted, kind = wanted_by_table(table, 7), Kind(gpu, 8, framework, model)
    assert (wanted.distance(kind), wanted.related(kind), wanted.all_up_to) == (distance, distance < 6, 7)


def test_fields_that_a_row_does_not_state_are_blank_in_its_kind() -> None:
    assert kind_of({}) == Kind("", 0, "", "")
    stated = {"gpu": "x" * 300, "num_gpus": 8, "seq_length": True, "global_batch_size": -1, "gpus_per_node": 2.0}
    assert kind_of(stated) == Kind("x" * 200, 0, "", "", 8, 0, 0)
    assert kind_of({"num_gpus": 2**31 - 1, "seq_length": 2**31})[4:6] == (2**31 - 1, 0)


def test_a_plain_kind_is_spelled_in_one_way() -> None:
    assert H100._replace(model="Llama").canonical == Kind("h100-sxm5-80gb", 8, "megatron-lm", "llama", 8, 8192, 128)
    assert Kind("abacus", 1, "unheard of", "").canonical == Kind("abacus", 1, "", "")
