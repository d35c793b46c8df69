"""Bytes and launches of kernels by hand: operands, elementwise kernels, experts, embedding, logits.

The middle one of three stages is one layer and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jointopt.core.schema import MODULES
from tests.physics.hand.plain_machine import (
    DENSE,
    HBM_BYTES_PER_S,
    IN_TRAINING,
    LATENT,
    LAUNCHING,
    LAYER_SHAPES,
    LAYER_WEIGHTS,
    MOE,
    MOVING,
    SEQ,
    STREAM,
    middle,
    operands_s,
    stages,
    streamed_s,
)

GPT = replace(DENSE, num_query_groups=16, gated_mlp=False, position_embedding="learned")


def test_products_in_fp8_read_one_byte_per_operand_and_write_two() -> None:
    shapes = [(SEQ * n + SEQ * k + n * k, SEQ * n) for n, k in LAYER_SHAPES]
    moved = sum(all_of_it + written for all_of_it, written in shapes)  # one byte each, one more of each output
    narrow, wide = (middle(machine=MOVING, dtype=d)["forward_memory_s"] for d in ("fp8", "bf16"))
    casts = sum(SEQ * k * (2 + 1 + 1) for _, k in LAYER_SHAPES)  # 16 bit read, copies by rows and by columns written
    saved = operands_s(*LAYER_SHAPES) - moved / (0.8 * HBM_BYTES_PER_S) * IN_TRAINING - streamed_s(casts)
    assert wide - narrow == pytest.approx(saved)


def test_backward_products_in_fp8_write_gradients_of_inputs_and_of_weights_in_two_bytes() -> None:
    # of tokens x k from tokens x n, and of n x k from both: one byte each, one more of what is written
    moved = sum(2 * (SEQ * n + SEQ * k + n * k) + SEQ * k + n * k for n, k in LAYER_SHAPES)
    narrow, wide = (middle(machine=MOVING, dtype=d)["backward_memory_s"] for d in ("fp8", "bf16"))
    casts = sum(SEQ * n * (2 + 1 + 1) for n, _ in LAYER_SHAPES)  # of gradients
    saved = 2 * operands_s(*LAYER_SHAPES) - moved / (0.8 * HBM_BYTES_PER_S) * IN_TRAINING - streamed_s(casts)
    assert wide - narrow == pytest.approx(saved)


def test_inputs_of_each_expert_are_cast_to_fp8_and_gradients_of_its_outputs() -> None:
    # on one of eight GPUs two of 16 experts get SEQ tokens each; attention has all of the rank's
    shapes = (*LAYER_SHAPES[:2], *((2 * 512, 1024), (1024, 512)) * 2)
    wide, narrow = (middle(machine=MOVING, model=MOE, dp=8, ep=8, dtype=d) for d in ("bf16", "fp8"))
    forward = sum(2 * SEQ * n + SEQ * k + n * k for n, k in shapes) / (0.8 * HBM_BYTES_PER_S) * IN_TRAINING
    backward = sum(2 * SEQ * n + 3 * SEQ * k + 3 * n * k for n, k in shapes) / (0.8 * HBM_BYTES_PER_S) * IN_TRAINING
    inputs, outputs = (streamed_s(4 * SEQ * sum(widths)) for widths in ([k for _, k in shapes], [n for n, _ in shapes]))
    saved = [wide[name] - narrow[name] for name in ("forward_memory_s", "backward_memory_s")]
    assert saved[0] == pytest.approx(operands_s(*shapes) - forward - inputs)
    assert saved[1] == pytest.approx(2 * operands_s(*shapes) - backward - outputs)


def test_a_layer_s_products_and_elementwise_kernels_move_their_operands() -> None:
    # norms, residuals: 10 times the stream forward, 12 backward; rotary embedding of 20 heads of queries and keys;
    # SwiGLU reads two inner activations and writes one, backward reads three and writes two
    rope, inner = SEQ * 20 * 64 * 2 * 2, SEQ * 4096 * 2
    found = middle(machine=MOVING)
    forward = operands_s(*LAYER_SHAPES) + streamed_s(10 * STREAM + rope + 3 * inner)
    backward = 2 * operands_s(*LAYER_SHAPES) + streamed_s(12 * STREAM + rope + 5 * inner)
    assert found["forward_memory_s"] == pytest.approx(forward)
    assert found["backward_memory_s"] == pytest.approx(backward)


def test_a_plain_mlp_without_rotary_embedding_moves_less() -> None:
    inner = SEQ * 4096 * 2
    shapes = ((3 * 1024, 1024), (1024, 1024), (4096, 1024), (1024, 4096))
    found = middle(machine=MOVING, model=GPT)
    assert found["forward_memory_s"] == pytest.approx(operands_s(*shapes) + streamed_s(10 * STREAM + 2 * inner))
    backward = 2 * operands_s(*shapes) + streamed_s(12 * STREAM + 3 * inner)
    assert found["backward_memory_s"] == pytest.approx(backward)


def test_latent_attention_rotates_the_queries_of_all_its_heads() -> None:
    shapes = ((288, 1024), (16 * 112, 256), (384, 1024), (16 * 96, 384), (1024, 16 * 48))
    rope, inner = SEQ * 16 * 96 * 2 * 2, SEQ * 4096 * 2
    expected = operands_s(*shapes, *LAYER_SHAPES[2:]) + streamed_s(10 * STREAM + rope + 3 * inner)
    assert middle(machine=MOVING, model=LATENT)["forward_memory_s"] == pytest.approx(expected)


@pytest.mark.parametrize(("profile", "fused", "factor"), [({}, False, 1.5), ({"elementwise_factor": 1.6}, True, 1.6)])
def test_unfused_norms_and_frameworks_stretch_elementwise_kernels_alone(
    profile: dict[str, Any], fused: bool, factor: float
) -> None:
    moved = 10 * STREAM + SEQ * 20 * 64 * 2 * 2 + 3 * SEQ * 4096 * 2
    found = middle(machine=MOVING, framework=profile, fused_norm=fused)["forward_memory_s"]
    assert found == pytest.approx(operands_s(*LAYER_SHAPES) + factor * streamed_s(moved))


def test_sequence_parallelism_divides_norms_and_residuals() -> None:
    whole, shard = (middle(machine=MOVING, tp=4, sequence_parallel=sp) for sp in (False, True))
    saved = [whole[f"{side}_memory_s"] - shard[f"{side}_memory_s"] for side in ("forward", "backward")]
    assert saved == pytest.approx([streamed_s(10 * STREAM * 3 / 4), streamed_s(12 * STREAM * 3 / 4)])


def experts_s(tokens: float, width: float, count: float, routed: float, shard: float = 1.0) -> float:
    """MLP of an MoE layer forward: experts' products, router, activation, norm, permutation there and back."""
    products = operands_s((2 * width, 1024), (1024, width), tokens=tokens, count=count)
    products += operands_s((16, 1024), tokens=SEQ / shard)
    streamed = 5 * STREAM / shard + 3 * 2 * tokens * count * width + 4 * 2 * routed * 1024
    return products + streamed_s(streamed)


def attention_memory_s(tp: int = 1, shard: float = 1.0) -> float:
    shapes = ((64 * 24 / tp, 1024), (1024, 1024 / tp))
    return operands_s(*shapes) + streamed_s(5 * STREAM / shard + SEQ * 20 * 64 * 2 * 2 / tp)


def test_local_experts_share_the_routed_tokens_of_all_ranks() -> None:
    # 4096 routed copies: 1024 for each of the four experts of a rank
    found = middle(machine=MOVING, model=MOE, dp=4, ep=4)["forward_memory_s"]
    assert found == pytest.approx(attention_memory_s() + experts_s(1024, 512, 4, 4096))


def test_experts_cut_by_tensor_parallelism_see_all_tokens_at_half_the_width() -> None:
    found = middle(machine=MOVING, model=MOE, dp=4, ep=4, tp=2)["forward_memory_s"]
    assert found == pytest.approx(attention_memory_s(2) + experts_s(1024, 256, 4, 4096))


def test_whole_experts_see_the_slice_of_the_tokens_that_their_tensor_rank_routes() -> None:
    profile = {"expert_tensor_parallel": False}
    found = middle(machine=MOVING, model=MOE, dp=4, ep=4, tp=2, framework=profile, sequence_parallel=True)
    expected = attention_memory_s(2, 2) + experts_s(512, 512, 4, 2048, 2)
    assert found["forward_memory_s"] == pytest.approx(expected)


@pytest.mark.parametrize(("tp", "etp"), [(1, 0), (2, 1), (2, 2), (4, 2)])
def test_a_repeated_activation_of_experts_moves_the_rank_s_share_of_the_routed_copies(tp: int, etp: int) -> None:
    # of 4096 copies as wide as an expert: a slice of them whole, or more of them cut as often
    plan = {"machine": MOVING, "model": MOE, "dp": 4, "ep": 4, "tp": tp, "etp": etp, "sequence_parallel": tp > 1}
    words = {"recompute": 1, "recompute_modules": MODULES.code("moe_act")}
    none, some = (middle(**plan, **cells)["backward_memory_s"] for cells in ({}, words))
    assert some - none == pytest.approx(streamed_s(3 * 2 * 4096 / tp * 512))


def test_permutation_moves_routed_tokens_as_often_backward_as_forward() -> None:
    found = middle(machine=MOVING, model=MOE, dp=4, ep=4)
    elementwise = 5 * 2 * 1024 * 4 * 512 + 4 * 2 * 4096 * 1024 + 12 * STREAM + SEQ * 20 * 64 * 2 * 2
    products = operands_s((64 * 24, 1024), (1024, 1024), (16, 1024))
    products += operands_s((1024, 1024), (1024, 512), tokens=1024, count=4)
    assert found["backward_memory_s"] == pytest.approx(2 * products + streamed_s(elementwise))


def test_shared_experts_are_one_mlp_of_all_tokens_cut_by_tensor_parallelism() -> None:
    plan: dict[str, Any] = {"machine": MOVING, "dp": 4, "ep": 4, "tp": 2}
    two = middle(model=replace(MOE, num_shared_experts=2), **plan)["forward_memory_s"]
    width = 2 * 512 / 2
    expected = operands_s((2 * width, 1024), (1024, width)) + streamed_s(5 * STREAM + 3 * 2 * SEQ * width)
    assert two - middle(model=MOE, **plan)["forward_memory_s"] == pytest.approx(expected)


def launched(**given: Any) -> dict[str, float]:
    """Products and other kernels of one layer, counted; products of a training step take `IN_TRAINING` launches."""
    found = middle(machine=LAUNCHING, **given)
    return {
        name: seconds / 1e-6 / (IN_TRAINING if name.endswith("sm_s") else 1)
        for name, seconds in found.items()
        if name.endswith("_s")
    }


def test_a_layer_launches_four_products_six_elementwise_kernels_and_one_core() -> None:
    # backward: two products for each, eight elementwise kernels, two of the core
    assert launched() == pytest.approx(
        {"forward_sm_s": 4, "forward_memory_s": 3 + 3 + 1, "backward_sm_s": 8, "backward_memory_s": 4 + 4 + 2}
    )


def test_unfused_scores_launch_four_kernels_forward_and_six_backward() -> None:
    found = launched(attention="unfused")
    assert (found["forward_memory_s"], found["backward_memory_s"]) == pytest.approx((3 + 3 + 4, 4 + 4 + 6))


@pytest.mark.parametrize(("grouped", "products"), [(True, 2), (False, 2 * 8)])
def test_experts_run_as_one_grouped_product_or_one_after_the_other(grouped: bool, products: int) -> None:
    # eight experts on a rank; a router; four kernels that permute
    found = launched(model=MOE, dp=2, ep=2, framework={"grouped_experts": grouped})
    assert found["forward_sm_s"] == pytest.approx(2 + products + 1)
    assert found["backward_sm_s"] == pytest.approx(2 * (2 + products + 1))
    assert found["forward_memory_s"] == pytest.approx(3 + 3 + 4 + 1)
    assert found["backward_memory_s"] == pytest.approx(4 + 4 + 4 + 2)


def test_the_embedding_moves_its_rows_three_times_forward_and_six_backward() -> None:
    costs = stages(pp=3, machine=MOVING, tp=2, model=replace(DENSE, num_layers=3))
    forward, backward = costs.forward_memory_s[0], costs.backward_memory_s[0]
    assert forward[0] - forward[1] == pytest.approx(streamed_s(3 * STREAM / 2))
    assert backward[0] - backward[1] == pytest.approx(streamed_s(6 * STREAM / 2))


@pytest.mark.parametrize("passes", [6.0, 9.0])
def test_the_head_moves_its_logits_as_often_as_the_framework_s_loss(passes: float) -> None:
    # two thirds of the passes over 4-byte logits forward, one backward
    costs = stages(pp=3, machine=MOVING, tp=2, model=replace(DENSE, num_layers=3), framework={"loss_passes": passes})
    forward, backward = costs.forward_memory_s[0], costs.backward_memory_s[0]
    product, logits = operands_s((16000, 1024)), 4 * SEQ * 16000
    assert forward[2] - forward[1] == pytest.approx(product + streamed_s(passes * 2 / 3 * logits))
    assert backward[2] - backward[1] == pytest.approx(2 * product + streamed_s(passes / 3 * logits))


def test_adding_gradients_of_a_micro_batch_moves_the_framework_s_bytes_per_parameter_backward() -> None:
    without, added = (middle(machine=MOVING, framework={"accumulated_bytes": b}) for b in (0.0, 18.0))
    moved = {name: added[name] - without[name] for name in added}
    assert moved["backward_memory_s"] == pytest.approx(streamed_s(18 * LAYER_WEIGHTS))
    assert moved["hbm_bytes"] == pytest.approx(18 * LAYER_WEIGHTS)
    assert moved["forward_memory_s"] == moved["backward_sm_s"] == 0.0


@pytest.mark.parametrize(("stage", "kept"), [(1, 1.0), (2, 0.25)])
def test_zero_2_adds_to_the_gradients_that_a_rank_keeps(stage: int, kept: float) -> None:
    plan = {"dp": 4, "zero_stage": stage, "machine": MOVING}
    without, added = (middle(**plan, framework={"accumulated_bytes": b}) for b in (0.0, 10.0))
    assert added["hbm_bytes"] - without["hbm_bytes"] == pytest.approx(10 * kept * LAYER_WEIGHTS)


def test_embedding_and_head_launch_their_kernels() -> None:
    costs = stages(pp=3, machine=LAUNCHING, model=replace(DENSE, num_layers=3))
    forward, backward = costs.forward_memory_s[0] / 1e-6, costs.backward_memory_s[0] / 1e-6
    assert (forward[0] - forward[1], backward[0] - backward[1]) == pytest.approx((3, 3))
    assert (forward[2] - forward[1], backward[2] - backward[1]) == pytest.approx((6, 3))


def test_a_layer_s_traffic_is_its_operands_its_elementwise_kernels_and_its_core() -> None:
    # the core reads queries, keys, values and writes its result: 4 arrays forward, 8 backward
    operands = sum(2 * (SEQ * n + SEQ * k + n * k) for n, k in LAYER_SHAPES)
    elementwise = 22 * STREAM + 2 * SEQ * 20 * 64 * 2 * 2 + 8 * SEQ * 4096 * 2
    assert middle()["hbm_bytes"] == pytest.approx(3 * operands + elementwise + 12 * STREAM)
