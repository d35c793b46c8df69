"""Bytes of a checkpoint and copies of the states, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.core.schema import Columns
from jointopt.jobs.jobfile import load_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.checkpoints import checkpoint_bytes, checkpoint_s, state_copies

JOB = load_job("llama-3-8b-1x8-h100")
BYTES = 8.03e9 * 12  # fp32 weights of torchtitan, and two moments


def layouts(plan: str, job: object = JOB) -> Columns:
    return parse_plan(plan, job).layouts  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", ["dp=8 zero_stage=1", "dp=4 tp=2 zero_stage=0", "dp=8 zero_stage=3"])
def test_each_state_is_written_once(plan: str) -> None:
    assert 8 * float(checkpoint_bytes(JOB, layouts(plan))[0][0]) == pytest.approx(BYTES, rel=0.01)


def test_a_node_writes_the_bytes_of_its_ranks_at_the_rate_of_its_storage() -> None:
    assert float(checkpoint_s(JOB, layouts("dp=8 zero_stage=1"), 2.0)[0]) == pytest.approx(BYTES / 2e9, rel=0.01)


def test_the_heaviest_stage_counts() -> None:
    heaviest, _ = checkpoint_bytes(JOB, layouts("pp=2 dp=4 zero_stage=1 stage_layers=14;18"))
    assert 8 * float(heaviest[0]) / BYTES == pytest.approx(1 + 2 * 0.218 / 4.015, rel=0.01)  # two layers above the mean


@pytest.mark.parametrize(
    ("plan", "copies"),
    [("dp=8 zero_stage=0", 8), ("dp=8 zero_stage=1", 1), ("dp=8 zero_stage=3 dp_replicate=2", 2),
     ("dp=2 tp=4 zero_stage=0", 2), ("dp=1 cp=4 tp=2 zero_stage=0", 1)],
)  # fmt: skip
def test_replicas_hold_copies_of_what_zero_does_not_shard(plan: str, copies: int) -> None:
    assert state_copies(JOB, layouts(plan)).tolist() == [copies]


def test_experts_are_held_by_as_many_replicas_as_expert_parallelism_leaves() -> None:
    job = load_job("olmoe-1b-7b-8x4-gh200")
    assert state_copies(job, layouts("dp=32 ep=8 zero_stage=0", job)).tolist() == [4]
    assert np.all(state_copies(job, layouts("dp=32 ep=32 zero_stage=0", job)) == 1)
