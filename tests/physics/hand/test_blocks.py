"""Blocks by hand: what of a layer's flops, bytes and collectives attention or the MLP alone has, and no ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jointopt.jobs.model import block_of
from jointopt.physics.throughput import model_flops_per_token
from tests.physics.hand.plain_machine import (
    ATTENTION_WEIGHTS,
    BATCHES,
    DENSE,
    LAYER_WEIGHTS,
    MOE,
    NOTHING_COMPUTES,
    SEQ,
    STREAM,
    inside_s,
    layer_comm_s,
    physics,
    seconds,
    stages,
)

ATTENTION, MLP, LAYER = (block_of(DENSE, name, 4) for name in ("attention", "feed_forward", "layer"))
EXPERTS = block_of(replace(MOE, num_dense_layers=1), "feed_forward", 4)
MLP_WEIGHTS = 3 * 1024 * 4096
SCORES = 2 * SEQ * 16 * (64 + 64)  # flops forward per token and layer, the whole square
WEIGHTS = {"attention": ATTENTION_WEIGHTS, "feed_forward": MLP_WEIGHTS, "layer": ATTENTION_WEIGHTS + MLP_WEIGHTS}


@pytest.mark.parametrize("block", WEIGHTS)
def test_a_block_multiplies_its_own_weights_and_scores_alone(block: str) -> None:
    found = stages(model=block_of(DENSE, block, 4), attention="unfused").flops[0, 0]
    scores = 0 if block == "feed_forward" else SCORES
    assert found == pytest.approx(4 * 3 * SEQ * (2 * WEIGHTS[block] + scores))


def test_attention_and_mlp_add_up_to_the_layers_and_the_model_adds_its_ends() -> None:
    cells = {"attention": "unfused", "recompute": 2}
    one, two, both, whole = (stages(model=m, **cells).hbm_bytes[0, 0] for m in (ATTENTION, MLP, LAYER, DENSE))
    assert one + two == pytest.approx(both)
    assert whole - both > 2 * 4 * SEQ * 32000  # of logits alone


@pytest.mark.parametrize(("model", "weights"), [(ATTENTION, ATTENTION_WEIGHTS), (MLP, MLP_WEIGHTS)])
def test_replicas_reduce_the_gradients_of_the_block_alone(model: Any, weights: float) -> None:
    found = seconds(model=model, dp=4, machine=NOTHING_COMPUTES)["dp_comm"]
    assert found == pytest.approx(inside_s("all_reduce", 4 * 4 * (weights + 1024), 4))


@pytest.mark.parametrize("model", [ATTENTION, MLP], ids=lambda model: model.block)
def test_a_part_of_a_layer_sums_over_tensor_ranks_once_and_once_more_where_it_is_recomputed(model: Any) -> None:
    once = inside_s("all_reduce", STREAM, 4)
    assert layer_comm_s(model=model, tp=4) == pytest.approx((once, once))
    assert layer_comm_s(model=model, tp=4, recompute=2) == pytest.approx((once, 2 * once))


def test_only_attention_gathers_keys_and_values() -> None:
    gathered = inside_s("all_gather", 2 * SEQ * 2 * 4 * 64, 2)
    assert layer_comm_s(model=ATTENTION, cp=2)[0] == pytest.approx(gathered)
    assert layer_comm_s(model=MLP, cp=2) == (0.0, 0.0)


def test_experts_alone_have_their_all_to_alls_and_under_sequence_parallelism_no_collective_over_tp() -> None:
    assert EXPERTS.num_moe_layers == 4
    costs = stages(model=EXPERTS, tp=2, dp=2, ep=2, sequence_parallel=True, machine=NOTHING_COMPUTES)
    assert costs.comm_parts_s["tp_comm"][0, 0] == 0.0
    assert costs.comm_parts_s["ep_comm"][0, 0] > 0.0


def test_the_host_launches_half_a_layer_for_each_of_its_parts() -> None:
    floor = {"host_floor_s": 4e-3}
    halves = [stages(model=model, framework=floor).host_s[0, 0] for model in (ATTENTION, MLP, LAYER)]
    assert halves == pytest.approx([4 * 2e-3, 4 * 2e-3, 4 * 4e-3])


def test_layers_that_are_recomputed_whole_are_launched_again() -> None:
    floor = {"host_floor_s": 4e-3}
    whole, kept = (stages(model=LAYER, framework=floor, recompute=code).host_s[0, 0] for code in (2, 0))
    assert (whole, kept) == pytest.approx((4 * 4e-3 * 1.83, 4 * 4e-3))


@pytest.mark.parametrize("block", WEIGHTS)
def test_model_flops_of_a_block_count_its_weights_six_times(block: str) -> None:
    scores = 0 if block == "feed_forward" else SCORES
    assert model_flops_per_token(block_of(DENSE, block, 4), SEQ) == 4 * (6 * WEIGHTS[block] + 3 * scores)


def test_a_block_takes_less_time_than_its_model_and_stages_send_the_same() -> None:
    sends = [physics(model, pp=2).groups[0].p2p_s[0] for model in (DENSE, ATTENTION, MLP)]
    assert sends[0] == sends[1] == sends[2] > 0.0
    part, layers, whole = (seconds(model=model)["compute"] for model in (MLP, LAYER, DENSE))
    assert part < layers - BATCHES * 1e-4 < whole - BATCHES * 1e-4
    assert LAYER.parameters == 4 * LAYER_WEIGHTS
