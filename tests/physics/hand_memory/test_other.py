"""The rest of a rank's memory: logits, what a process holds beside the training, gathered weights; and their sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from jointopt.core.schema import Columns
from jointopt.physics.cost_model import memory_limit_gib, peak_memory_bytes
from jointopt.physics.memory import memory_parts
from jointopt.spec.job import Constraints, Job

Held = Callable[..., list[float]]
Jobs = Callable[..., Job]
LAYER, TABLE, GIB = 10_240 + 36_864 + 128, 64_000, 2**30


@pytest.mark.parametrize(("split", "share"), [(True, 2), (False, 1)])
def test_the_last_stage_holds_logits_of_every_token_and_word(split: bool, share: int, held: Held) -> None:
    # 6 sequences of 128 tokens over cp 2, 1,000 words, 5 bytes each
    framework = {"logits_bytes": 5.0, "logits_tensor_parallel": split}
    cells = {"pp": 2, "tp": 2, "cp": 2, "micro_batch_size": 6}
    found = held("logits", cells, framework=framework, global_batch_size=6)
    assert found == [0, 5 * 6 * 128 / 2 * 1000 / share]


def test_every_rank_holds_what_its_process_takes(held: Held) -> None:
    framework = {"memory_overhead_gib": 1.5, "communicator_gib": 0.25}
    cells = {"pp": 2, "tp": 2}  # two kinds of groups
    assert held("communication", cells, framework=framework) == [0.5 * GIB] * 2
    assert held("other", cells, framework=framework) == [1.0 * GIB] * 2


def test_what_a_process_was_seen_to_hold_stands_in_for_the_overhead(
    hand_job: Jobs, layouts_of: Callable[..., Columns]
) -> None:
    job = hand_job(framework={"memory_overhead_gib": 1.5, "logits_bytes": 0.0})
    seen = replace(job.cluster, gpu=replace(job.cluster.gpu, process_memory_gib=0.75))
    assert memory_parts(replace(job, cluster=seen), layouts_of())["other"].tolist() == [[0.75 * GIB]]


@pytest.mark.parametrize(("stage", "gathered"), [(2, 0), (3, 2)])
def test_zero_3_holds_two_gathered_layers_in_16_bit(stage: int, gathered: int, held: Held) -> None:
    # a stage's weights over its layers: the vocabulary counts with them
    layer = (4 * LAYER + 2 * TABLE) / 4
    found = held("gathered_weights", {"dp": 8, "zero_stage": stage})
    assert found == [gathered * 2 * layer]


def test_the_peak_is_the_sum_of_parts_on_the_heaviest_stage(hand_job: Jobs, layouts_of: Callable[..., Columns]) -> None:
    # weights, gradients and Adam: bytes per parameter, one layer and the vocabulary on either end
    job = hand_job(framework={"activation_factor": 0.0, "logits_bytes": 2.0})
    plans = layouts_of(pp=4)
    logits = 2 * 128 * 1000
    assert peak_memory_bytes(job, plans).tolist() == [18 * (LAYER + TABLE) + logits]


@pytest.mark.parametrize(("own", "share"), [(None, 0.9), (0.5, 0.5)])
def test_the_limit_is_a_share_of_the_gpu_that_the_job_may_set(own: float | None, share: float, hand_job: Jobs) -> None:
    job = hand_job(framework={"memory_fraction": 0.9})
    gpu = replace(job.cluster.gpu, memory_gib=40.0)
    bounds = Constraints(memory_fraction=own)
    job = replace(job, constraints=bounds, cluster=replace(job.cluster, gpu=gpu))
    assert memory_limit_gib(job) == pytest.approx(40.0 * share)
