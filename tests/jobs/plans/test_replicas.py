"""Shard groups smaller than dp*cp (HSDP): which plans hold, and which of them are searched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import enumerate_layouts

PLAN = {"dp": 8, "tp": 2, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
        "recompute": "none", "zero_stage": 1, "etp": 1}  # fmt: skip


def with_framework(job: Job, name: str = "megatron-lm", **search: Any) -> Job:
    training = replace(job.training, framework=load_framework(name))
    return replace(job, training=training, search=replace(job.search, **search))


@pytest.mark.parametrize(
    ("framework", "change", "fault"),
    [
        ("megatron-lm", {"dp_replicate": 2}, ""),
        ("megatron-lm", {"dp_replicate": 4}, ""),
        ("megatron-lm", {"dp_replicate": 3}, "does not divide dp*cp, which is 8"),
        ("megatron-lm", {"dp_replicate": 8}, "leaves nothing to shard"),
        ("megatron-lm", {"dp_replicate": 2, "zero_stage": 0}, "needs zero_stage > 0"),
        ("nanotron", {"dp_replicate": 2}, "nanotron shards over dp*cp"),
    ],
)
def test_replicas_divide_the_ranks_of_a_framework_that_has_them(
    framework: str, change: dict[str, int], fault: str, make_job: Callable[..., Job]
) -> None:
    found = check_plan(with_framework(make_job(4, 4), framework), PLAN | change)
    assert (len(found), fault in " ".join(found)) == (int(bool(fault)), True)


def test_a_replica_holds_whole_groups_of_experts(make_job: Callable[..., Job], moe: Model) -> None:
    # experts over 8 of 16 ranks: two replicas of 8, but not four of 4
    job = with_framework(make_job(4, 4, replace(moe, num_experts=16), global_batch_size=16), "torchtitan")
    plan = PLAN | {"tp": 1, "dp": 16, "ep": 8, "zero_stage": 3}
    assert check_plan(job, plan | {"dp_replicate": 2}) == []
    (sentence,) = check_plan(job, plan | {"dp_replicate": 4})
    assert sentence == "dp_replicate 4 does not divide the ranks that share an expert, dp*cp*tp/(ep*etp)."


def test_experts_of_a_plan_without_etp_are_not_cut(make_job: Callable[..., Job], moe: Model) -> None:
    job = with_framework(make_job(4, 4, moe, global_batch_size=16), "megatron-lm")
    plan = PLAN | {"tp": 1, "dp": 16, "ep": 4}
    assert check_plan(job, plan | {"dp_replicate": 2, "etp": 0}) == []
    assert "share an expert" in " ".join(check_plan(job, plan | {"dp_replicate": 8, "etp": 0}))


def test_replicas_that_are_searched_are_one_scale_up_domain_each(make_job: Callable[..., Job]) -> None:
    space = enumerate_layouts(with_framework(make_job(4, 4))).layouts
    ranks = space["dp"] * space["cp"] * space["tp"]
    cut = space["dp_replicate"] > 1
    assert cut.any()
    assert np.array_equal(ranks[cut] // space["dp_replicate"][cut], np.full(cut.sum(), 4))
    assert (space["zero_stage"][cut] > 0).all()


def test_replicas_that_a_job_lists_are_all_searched(make_job: Callable[..., Job]) -> None:
    job = make_job(4, 4, global_batch_size=16)  # sequences too short for context parallelism: dp 16
    space = enumerate_layouts(with_framework(job, dp_replicate=(1, 2, 8))).layouts
    sharded = (space["zero_stage"] > 0) & (space["dp"] * space["cp"] == 16)
    assert set(space["dp_replicate"][sharded].tolist()) == {1, 2, 8}
