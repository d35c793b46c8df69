"""Splits of the layers that are searched: no worse than all that there are, and only where a framework takes any."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.schema import STAGE_LAYERS
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job, shipped_job
from jointopt.jobs.plans.stages import can_be_built, offered_splits, shifted_splits
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.feasible_layouts import feasible_layouts
from jointopt.workflows.propose import propose
from jointopt.workflows.search_steps import Stopwatch

LAYERS, PP, VPP = 8, 4, 2


def small_job(**search: Any) -> Job:
    """Eight layers of Llama 3 8B in four interleaved stages, whose head weighs 2.4 layers."""
    job = shipped_job("llama-3-8b-1x8-h100")
    model, training = replace(job.model, num_layers=LAYERS), replace(job.training, global_batch_size=16)
    search = {"pp": (PP,), "vpp": (VPP,), "schedule": ("1f1b",)} | search
    return replace(job, model=model, training=training, search=replace(job.search, **search))


def all_splits(job: Job) -> list[tuple[int, ...]]:
    every = itertools.product(range(LAYERS + 1), repeat=PP * VPP)
    framework = job.training.framework
    return [s for s in every if sum(s) == LAYERS and can_be_built(framework, s) and len(set(s)) > 1]


def splits_in_space(job: Job) -> set[tuple[int, ...]]:
    _, layouts, _, _ = feasible_layouts(JobModel(job), Stopwatch(quiet=True))
    return {STAGE_LAYERS.numbers(code) for code in layouts["stage_layers"].tolist()}


def fastest_s(job: Job) -> float:
    return float(propose(job, surrogate="none").front["iteration_time_s"].min())


def test_no_split_of_all_is_faster_than_the_searched_ones() -> None:
    job = small_job()
    listed = tuple(";".join(map(str, split)) for split in all_splits(job))
    best = fastest_s(small_job(stage_layers=listed))
    assert fastest_s(job) == pytest.approx(best, rel=2e-3)
    assert fastest_s(small_job(stage_layers=("1*8",))) > 1.2 * best


def test_a_job_that_lists_splits_gets_no_others() -> None:
    assert splits_in_space(small_job(stage_layers=("1;1;1;1;1;1;2;0",))) == {(1, 1, 1, 1, 1, 1, 2, 0)}


def test_frameworks_that_take_no_split_of_ones_own_get_none() -> None:
    job = small_job()
    profile = replace(job.training.framework, stage_splits=("ends",))
    bound = replace(job, training=replace(job.training, framework=profile))
    assert splits_in_space(job) - set(offered_splits(job, PP, VPP))
    assert splits_in_space(bound) <= set(offered_splits(bound, PP, VPP))


def test_splits_suit_the_fastest_micro_batch_of_a_pipeline_though_its_bound_is_not_the_least() -> None:
    mapping = {
        "model": "qwen3-30b-a3b", "cluster": {"gpu": "b200-sxm-180gb", "nodes": 8, "gpus_per_node": 8},
        "training": {"seq_length": 4096, "global_batch_size": 512, "dtype": "fp8", "framework": "megatron-bridge"},
        "search": {"tp": 1, "pp": 2, "vpp": 6, "recompute": ["none", "selective"]},
    }  # fmt: skip
    every = parse_job(mapping, "job", Path())
    best = replace(every, search=replace(every.search, micro_batch_size=(8,)))
    searched = splits_in_space(best) - set(offered_splits(best, 2, 6))
    assert searched
    assert searched <= splits_in_space(every)


def test_the_proposal_counts_its_plans_with_a_searched_split() -> None:
    found = propose(small_job(), surrogate="none")
    listed = offered_splits(found.job, PP, VPP)
    count = sum(STAGE_LAYERS.numbers(code) not in listed for code in found.front["stage_layers"].tolist())
    assert count > 0
    assert f"{count} of them have a split of the layers" in " ".join(found.text().split())


@pytest.mark.parametrize(("layers", "pp", "vpp"), [(64, 8, 8), (80, 4, 7), (61, 16, 1), (126, 16, 8), (7, 2, 1)])
def test_shifted_splits_hold_all_layers_once_each(layers: int, pp: int, vpp: int) -> None:
    found = shifted_splits(layers, pp, vpp, 3)
    assert len(found) == len(set(found)) > 0
    assert {(len(split), sum(split)) for split in found} == {(pp * vpp, layers)}
    assert all(min(split[1:-1], default=1) >= 1 and min(split) >= (vpp == 1) for split in found)
    assert all(len(set(split[1:-1])) <= 2 for split in found)


def test_qwen3s_head_moves_two_layers_into_the_last_round() -> None:
    assert (0, *(1,) * 57, 2, 2, *(1,) * 3, 0) in shifted_splits(64, 8, 8, 3)
