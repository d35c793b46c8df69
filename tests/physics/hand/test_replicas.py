"""Replicas of sharded states (HSDP) by hand: bytes inside a shard group, between replicas, in memory, in the step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.physics.cost_model import CostModel
from jointopt.physics.memory import memory_parts
from tests.physics.hand.plain_machine import (
    BATCHES,
    HBM_BYTES_PER_S,
    LAYER_WEIGHTS,
    MOE,
    MOVING,
    TABLE_WEIGHTS,
    across_s,
    inside_s,
    physics,
    seconds,
    stages,
)

WEIGHTS = 4 * LAYER_WEIGHTS + 2 * TABLE_WEIGHTS
EXPERTS = 4 * 16 * 3 * 1024 * 512
NOT_EXPERTS = 4 * (1024 * 64 * 24 + 1024 * 1024 + 2 * 1024 + 16 * 1024) + 2 * TABLE_WEIGHTS
KEPT = {"gathers_once_with_pipeline": True}


def memory(model: CostModel) -> dict[str, float]:
    return {name: float(part[0, 0]) for name, part in memory_parts(model.job, model.layouts).items()}


def between_s(size: float) -> float:
    """Gradients of a shard of a node's eight, all-reduced between two nodes: one rank of a group in each."""
    return across_s("all_reduce", 4 * size / 8, 2, 1)


def test_replicas_scatter_inside_a_node_and_reduce_their_shards_between_nodes() -> None:
    expected = inside_s("reduce_scatter", 4 * WEIGHTS, 8) + between_s(WEIGHTS) + inside_s("all_gather", 2 * WEIGHTS, 8)
    assert seconds(dp=16, zero_stage=1, dp_replicate=2)["dp_comm"] == pytest.approx(expected)


def test_zero_3_gathers_weights_inside_a_replica_alone() -> None:
    found = seconds(dp=16, zero_stage=3, dp_replicate=2)
    assert found["zero_comm"] == pytest.approx(2 * BATCHES * inside_s("all_gather", 2 * WEIGHTS, 8))
    scattered = inside_s("reduce_scatter", 4 * WEIGHTS, 8) + between_s(WEIGHTS)
    assert found["dp_comm"] == pytest.approx(BATCHES * scattered)


def test_experts_have_shards_and_replicas_among_their_own_ranks() -> None:
    # ep 4: every fourth rank has the same experts, two of them in each node and replica
    expected = inside_s("reduce_scatter", 4 * NOT_EXPERTS, 8) + between_s(NOT_EXPERTS)
    expected += inside_s("all_gather", 2 * NOT_EXPERTS, 8) + inside_s("all_gather", 2 * EXPERTS / 4, 2)
    expected += inside_s("reduce_scatter", 4 * EXPERTS / 4, 2) + across_s("all_reduce", 4 * EXPERTS / 4 / 2, 2, 1)
    found = seconds(dp=16, ep=4, zero_stage=1, dp_replicate=2, model=MOE)["dp_comm"]
    assert found == pytest.approx(expected)


def test_a_replica_holds_whole_states_over_its_own_ranks() -> None:
    found = memory(physics(dp=16, zero_stage=3, dp_replicate=2))
    states = [found[name] for name in ("weights", "gradients", "optimizer")]
    assert states == pytest.approx([n * WEIGHTS / 8 for n in (2, 4, 12)])


def test_the_optimizer_steps_over_a_replica_s_shard() -> None:
    found = stages(machine=MOVING, dp=16, zero_stage=1, dp_replicate=4).optimizer_s[0, 0]
    assert found == pytest.approx(30 * WEIGHTS / 4 / (0.8 * HBM_BYTES_PER_S))


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
@given(replicas=st.sampled_from([1, 2, 4, 8]))
def test_more_replicas_never_need_less_memory(zero_stage: int, replicas: int) -> None:
    plan: dict[str, Any] = {"dp": 16, "ep": 2, "zero_stage": zero_stage, "model": MOE}
    fewer, more = (memory(physics(dp_replicate=n, **plan)) for n in (replicas, 2 * replicas))
    assert sum(more.values()) >= sum(fewer.values())


def test_whole_experts_share_their_states_with_more_ranks_than_cut_ones() -> None:
    # tp 2, dp 4, ep 2: etp 1 leaves four ranks with the same experts, etp 2 two ranks with halves of them
    plan: dict[str, Any] = {"tp": 2, "dp": 4, "ep": 2, "zero_stage": 1, "sequence_parallel": True}
    model = replace(MOE, num_shared_experts=1, num_dense_layers=1)
    small = 4 * 2 * 1024 + 3 * 16 * 1024  # norms and routers stay whole
    cut = (4 * (1024 * 64 * 24 + 1024 * 1024) + 3 * 1024 * 4096 + 3 * 3 * 1024 * 512 + 2 * TABLE_WEIGHTS) / 2
    experts = 3 * 16 * 3 * 1024 * 512 / 2
    for etp in (1, 2):
        found = memory(physics(etp=etp, model=model, **plan))
        assert found["gradients"] == pytest.approx(4 * (small + cut + experts / etp))
        assert found["optimizer"] == pytest.approx(12 * ((small + cut) / 4 + experts / etp / (4 / etp)))


def test_pipelines_that_keep_gathered_weights_communicate_as_zero_1_does() -> None:
    for stage in (2, 3):
        plan: dict[str, Any] = {"dp": 4, "pp": 2, "framework": KEPT}
        assert seconds(zero_stage=stage, **plan) == pytest.approx(seconds(zero_stage=1, **plan))
        assert memory(physics(zero_stage=stage, **plan)) == memory(physics(zero_stage=1, **plan))


def test_without_a_pipeline_weights_are_gathered_for_every_micro_batch() -> None:
    assert seconds(dp=4, zero_stage=3, framework=KEPT) == pytest.approx(seconds(dp=4, zero_stage=3))
    assert seconds(dp=4, pp=2, zero_stage=3)["zero_comm"] > 0


@pytest.mark.parametrize(("dtype", "size"), [("fp8", 1), ("bf16", 2)])
def test_fp8_parameter_gathers_move_half_of_the_bytes_where_training_is_in_fp8(dtype: str, size: int) -> None:
    found = seconds(dp=4, zero_stage=3, dtype=dtype, fp8_param_gather=True)["zero_comm"]
    assert found == pytest.approx(2 * BATCHES * inside_s("all_gather", size * WEIGHTS, 4))
