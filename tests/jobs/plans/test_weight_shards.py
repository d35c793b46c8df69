"""Ranks that gather weights beside tp (generalised tensor parallelism): which plans hold, under which releases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import JobError
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import enumerate_layouts

PLAN: dict[str, Any] = {
    "dp": 8, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": True,
    "recompute": "none", "zero_stage": 1, "etp": 1,
}  # fmt: skip


def with_framework(job: Job, name: str = "megatron-lm", **training: Any) -> Job:
    return replace(job, training=replace(job.training, framework=load_framework(name), **training))


@pytest.mark.parametrize(
    ("framework", "change", "fault"),
    [
        ("megatron-lm", {"gtp": 8}, ""),
        ("megatron-lm", {"gtp": 2, "egtp": 2, "ep": 4}, ""),
        ("megatron-lm", {"gtp": 2, "dp_replicate": 4}, ""),
        ("megatron-lm", {"gtp": 3}, "gtp 3 does not divide dp 8, among whose ranks it is."),
        ("megatron-lm", {"egtp": 8, "ep": 4}, "egtp 8 does not divide the ranks that share an expert"),
        ("megatron-lm", {"gtp": 4, "dp_replicate": 4}, "gtp 4 (or egtp 1) times dp_replicate 4 does not divide"),
        ("nemo", {"gtp": 2}, "nemo gathers no weights beside tp, as Megatron Core does from 0.19 on"),
    ],
)
def test_ranks_that_gather_weights_are_among_those_that_share_them(
    framework: str, change: dict[str, int], fault: str, make_job: Callable[..., Job], moe: Model
) -> None:
    job = with_framework(make_job(4, 4, replace(moe, num_experts=16), global_batch_size=16), framework)
    found = check_plan(job, PLAN | change)
    assert (len(found), fault in " ".join(found)) == (int(bool(fault)), True)


def test_megatron_fsdp_and_adapters_shard_weights_otherwise(make_job: Callable[..., Job]) -> None:
    job = with_framework(make_job(4, 4, global_batch_size=16))
    (sentence,) = check_plan(job, PLAN | {"gtp": 2, "zero_stage": 3})
    assert sentence.startswith("zero_stage 3 shards weights or gradients itself")
    (sentence,) = check_plan(with_framework(job, lora_dim=16), PLAN | {"gtp": 2})
    assert "not known to train adapters" in sentence


def job_of(release: str, **search: Any) -> Job:
    training = {"seq_length": 4096, "global_batch_size": 64, "framework": "megatron-lm"}
    cluster = {"gpu": "h100-sxm5-80gb", "nodes": 2, "gpus_per_node": 8}
    stated = {"framework_release": release} if release else {}
    mapping = {"model": "llama-3-8b", "training": training | stated, "cluster": cluster, "search": search}
    return parse_job(mapping, "job", Path())


def test_a_release_before_0_19_has_no_such_search() -> None:
    assert job_of("0.20", gtp=[1, 2]).training.framework.dimensions == ("gtp", "egtp")
    with pytest.raises(JobError, match=r"search.gtp 2: megatron-lm has no such gtp"):
        job_of("0.18.2", gtp=[1, 2])


def test_they_are_searched_where_the_job_lists_them_alone() -> None:
    assert set(enumerate_layouts(job_of("")).layouts["gtp"].tolist()) == {1}
    assert set(enumerate_layouts(job_of("", gtp=[1, 2, 16])).layouts["gtp"].tolist()) == {1, 2, 16}


def test_mxfp8_keeps_no_16_bit_weights_to_gather() -> None:
    cluster = {"gpu": "b200-sxm-180gb", "nodes": 2, "gpus_per_node": 8}
    training = {"seq_length": 4096, "global_batch_size": 64, "framework": "megatron-lm", "dtype": "fp8"}
    jobs = [
        parse_job({"model": "llama-3-8b", "cluster": cluster,
                   "training": training | {"fp8_recipe": "mxfp8", "fp8_param_gather": gathers}}, "job", Path())
        for gathers in (True, False)
    ]  # fmt: skip
    plan = PLAN | {"gtp": 2, "etp": 0}
    assert [len(check_plan(job, plan)) for job in jobs] == [0, 1]
