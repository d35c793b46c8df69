"""Kernels of a layer, of the embedding and of the head by hand: products, scores, bytes, launches, recomputation.

The middle one of three stages is one layer and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jointopt.catalog.architectures import unaligned_factors
from jointopt.catalog.gpus import load_gpu
from jointopt.spec.model import Model
from tests.physics.hand.plain_machine import (
    DENSE,
    FLASH,
    FLOPS_PER_S,
    HBM_BYTES_PER_S,
    IN_TRAINING,
    LATENT,
    LAUNCHING,
    MOE,
    MOVING,
    SEQ,
    flash_s,
    middle,
    stages,
)

FULL, SELECTIVE = 2, 1
ATTENTION_WEIGHTS = 1024 * 64 * (16 + 2 * 4) + 1024 * 1024
SCORES = SEQ * SEQ * 16  # of one sequence and layer
SQUARE = 4 * SEQ * SEQ * 1024  # flops of the scores and of their product with the values
STREAM = 2 * SEQ * 1024  # bytes
GPT = replace(DENSE, num_query_groups=16, gated_mlp=False, position_embedding="learned")
LATENT_WEIGHTS = {  # queries, keys and values down and up, output
    384: 1024 * 384 + 384 * 16 * 96 + 1024 * (256 + 32) + 256 * 16 * (64 + 48) + 16 * 48 * 1024,
    0: 1024 * 16 * 96 + 1024 * (256 + 32) + 256 * 16 * (64 + 48) + 16 * 48 * 1024,
}


def products_s(weights: float, tokens: float = SEQ) -> float:
    """Forward pass of matrices: two flops per weight and token."""
    return 2 * tokens * weights / FLOPS_PER_S * IN_TRAINING


def streamed_s(size_bytes: float) -> float:
    """Kernels that only move bytes reach 0.85 of the memory's rate."""
    return size_bytes / (0.85 * HBM_BYTES_PER_S)


def operands_s(*shapes: tuple[float, float], tokens: float = SEQ, count: float = 1) -> float:
    """Products forward, bound by memory at 0.8 of its rate: 16-bit inputs, weights and outputs."""
    moved = sum(2 * (tokens * n + tokens * k + n * k) for n, k in shapes)
    return count * moved / (0.8 * HBM_BYTES_PER_S) * IN_TRAINING


LAYER_SHAPES = ((64 * (16 + 2 * 4), 1024), (1024, 1024), (2 * 4096, 1024), (1024, 4096))


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        (GPT, 4 * 1024**2 + 2 * 1024 * 4096),
        (DENSE, ATTENTION_WEIGHTS + 3 * 1024 * 4096),
        (replace(DENSE, gated_mlp=False), ATTENTION_WEIGHTS + 2 * 1024 * 4096),
        (
            MOE,
            ATTENTION_WEIGHTS + 16 * 1024 + 2 * 3 * 1024 * 512,
        ),  # a router and two of sixteen experts per token
        (replace(MOE, num_shared_experts=2), ATTENTION_WEIGHTS + 16 * 1024 + 4 * 3 * 1024 * 512),
    ],
    ids=["gpt", "grouped queries, gated", "grouped queries", "experts", "shared experts"],
)
def test_each_matrix_costs_two_flops_per_weight_forward_and_four_backward(
    model: Model, weights: float
) -> None:
    core, found = flash_s(SQUARE), middle(model=model)
    assert found["forward_sm_s"] == pytest.approx(products_s(weights) + core[0])
    assert found["backward_sm_s"] == pytest.approx(2 * products_s(weights) + core[1])
    assert found["flops"] == pytest.approx(6 * SEQ * weights + 3.5 * SQUARE / 2)


@pytest.mark.parametrize("rank", [384, 0])
def test_latent_attention_projects_down_and_up_and_scores_with_its_own_widths(rank: int) -> None:
    # keys of 64 + 32, values of 48: 2·s²·16·(96 + 48) flops
    core = flash_s(2 * SEQ * SEQ * 16 * (96 + 48), widths=96 + 48)
    found = middle(model=replace(LATENT, q_lora_rank=rank))
    weights = LATENT_WEIGHTS[rank] + 3 * 1024 * 4096
    assert found["forward_sm_s"] == pytest.approx(products_s(weights) + core[0])
    assert found["backward_sm_s"] == pytest.approx(2 * products_s(weights) + core[1])


def test_tensor_parallelism_divides_the_up_projections_of_latent_attention_alone() -> None:
    shared = 1024 * 384 + 1024 * (256 + 32)
    cut = (LATENT_WEIGHTS[384] - shared + 3 * 1024 * 4096) / 4
    core = flash_s(2 * SEQ * SEQ * 16 * (96 + 48) / 4, widths=96 + 48)
    assert middle(model=LATENT, tp=4)["forward_sm_s"] == pytest.approx(products_s(shared + cut) + core[0])


def test_tensor_parallelism_divides_products_and_scores() -> None:
    core = flash_s(SQUARE / 4)
    expected = products_s((ATTENTION_WEIGHTS + 3 * 1024 * 4096) / 4) + core[0]
    assert middle(tp=4)["forward_sm_s"] == pytest.approx(expected)


def test_context_parallelism_divides_tokens_and_scores_with_the_whole_sequence() -> None:
    core = flash_s(SQUARE / 4)
    expected = products_s(ATTENTION_WEIGHTS + 3 * 1024 * 4096, SEQ / 4) + core[0]
    assert middle(cp=4)["forward_sm_s"] == pytest.approx(expected)


def test_a_longer_sequence_costs_scores_by_its_square_at_a_better_rate() -> None:
    core = flash_s(4 * SQUARE, 2 * SEQ)
    expected = products_s(ATTENTION_WEIGHTS + 3 * 1024 * 4096, 2 * SEQ) + core[1] / 2
    assert middle(seq_length=2 * SEQ)["backward_sm_s"] == pytest.approx(2 * expected)
    two = flash_s(2 * SQUARE)
    assert middle(micro_batch_size=2)["backward_sm_s"] == pytest.approx(2 * expected - core[1] + two[1])


@pytest.mark.parametrize(("kernel", "forward", "backward"), [("unfused", 30, 36), ("fused", 13, 16)])
def test_kernels_that_store_scores_compute_all_of_them_and_move_each_many_times(
    kernel: str, forward: int, backward: int
) -> None:
    weights, core = ATTENTION_WEIGHTS + 3 * 1024 * 4096, SQUARE / (0.55 * FLOPS_PER_S) * IN_TRAINING
    found = middle(attention=kernel)
    assert found["forward_sm_s"] == pytest.approx(products_s(weights) + core)
    assert found["backward_sm_s"] == pytest.approx(2 * products_s(weights) + 2 * core)
    for habits in ({}, {"elementwise_factor": 2.0}):
        stored, flash = (middle(attention=k, machine=MOVING, framework=habits) for k in (kernel, "flash2"))
        moved = [stored[f"{side}_memory_s"] - flash[f"{side}_memory_s"] for side in ("forward", "backward")]
        assert moved == pytest.approx([streamed_s(forward * SCORES), streamed_s(backward * SCORES)])


def test_heads_whose_width_eight_does_not_divide_slow_unfused_scores() -> None:
    # 16 heads of 20: four divides them; the projections are 480 and 320 wide and aligned
    slower = unaligned_factors(load_gpu("a100-sxm4-80gb"))[2] * 3.0
    weights = 1024 * 20 * 24 + 1024 * 320 + 3 * 1024 * 4096
    core = 4 * SEQ * SEQ * 320 / (0.55 * FLOPS_PER_S) * IN_TRAINING
    habits = {"unaligned_head_factor": 3.0}
    found = middle(model=replace(DENSE, head_dim=20), attention="fused", framework=habits)
    assert found["forward_sm_s"] == pytest.approx(products_s(weights) + slower * core)
    aligned = [middle(attention="fused", framework=h)["forward_sm_s"] for h in (habits, {})]
    assert aligned[0] == pytest.approx(aligned[1])


@pytest.mark.parametrize(("width", "index"), [(4104, 3), (4100, 2), (4098, 1), (4097, 0)])
def test_the_least_aligned_width_slows_a_product(width: int, index: int) -> None:
    # gate and up are 2·width wide, one power of two better than the down projection
    factors = unaligned_factors(load_gpu("a100-sxm4-80gb"))
    mlp = 2 * 1024 * width * factors[index + 1] + 1024 * width * factors[index]
    found = middle(model=replace(DENSE, ffn_hidden_size=width))["forward_sm_s"]
    assert found == pytest.approx(products_s(ATTENTION_WEIGHTS + mlp) + flash_s(SQUARE)[0])


def test_a_vocabulary_is_padded_and_never_unaligned() -> None:
    found = [
        stages(pp=3, model=replace(DENSE, num_layers=3, vocab_size=v)).forward_sm_s[0] for v in (32000, 31999)
    ]
    assert found[1][2] - found[1][1] == pytest.approx(products_s(31999 * 1024))
    assert found[0][2] - found[0][1] == pytest.approx(products_s(32000 * 1024))


@pytest.mark.parametrize(("dtype", "factor"), [("fp8", 0.5), ("fp4", 0.25), ("fp16", 1.0)])
def test_narrow_products_take_their_share_and_the_scores_and_the_head_do_not(
    dtype: str, factor: float
) -> None:
    core = flash_s(SQUARE)
    costs = stages(pp=3, model=replace(DENSE, num_layers=3), dtype=dtype)
    layer = factor * products_s(ATTENTION_WEIGHTS + 3 * 1024 * 4096)
    assert costs.forward_sm_s[0, 1] == pytest.approx(layer + core[0])
    assert costs.backward_sm_s[0, 1] == pytest.approx(2 * layer + core[1])
    assert costs.forward_sm_s[0, 2] == pytest.approx(layer + core[0] + products_s(32000 * 1024))


def test_products_in_fp8_read_one_byte_per_operand_and_write_two() -> None:
    shapes = [(SEQ * n + SEQ * k + n * k, SEQ * n) for n, k in LAYER_SHAPES]
    moved = sum(
        all_of_it + written for all_of_it, written in shapes
    )  # one byte each, one more of each output
    narrow, wide = (middle(machine=MOVING, dtype=d)["forward_memory_s"] for d in ("fp8", "bf16"))
    saved = operands_s(*LAYER_SHAPES) - moved / (0.8 * HBM_BYTES_PER_S) * IN_TRAINING
    assert wide - narrow == pytest.approx(saved)


def test_fp32_on_tensor_cores_takes_the_ratio_of_the_peaks() -> None:
    core = 8 * SQUARE / (0.8 * FLOPS_PER_S) * IN_TRAINING
    layer = 8 * products_s(ATTENTION_WEIGHTS + 3 * 1024 * 4096)
    found = middle(dtype="fp32", framework={"tf32": True}, attention="unfused")
    assert found["forward_sm_s"] == pytest.approx(layer + core)


def test_fp32_without_tensor_cores_reaches_nine_tenths_of_the_cores_peak() -> None:
    # 64 lanes in each of 108 SMs, two flops per cycle at 1 GHz, of a GPU with 312 TFLOP/s in bf16; no slower in
    # training than alone
    factor = 312e12 / (2 * 64 * 108 * 1e9) / 0.9
    found = middle(dtype="fp32", attention="unfused")
    layer = 2 * SEQ * (ATTENTION_WEIGHTS + 3 * 1024 * 4096)
    assert found["forward_sm_s"] == pytest.approx(factor * (layer + SQUARE / 0.8) / FLOPS_PER_S)


def test_a_framework_s_compute_factor_slows_products_and_scores() -> None:
    for kernel in ("flash2", "fused"):
        once, slower = (middle(attention=kernel, framework=h) for h in ({}, {"compute_factor": 1.3}))
        for name in ("forward_sm_s", "backward_sm_s"):
            assert slower[name] == pytest.approx(1.3 * once[name])


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
    assert found["forward_memory_s"] == pytest.approx(
        operands_s(*shapes) + streamed_s(10 * STREAM + 2 * inner)
    )
    backward = 2 * operands_s(*shapes) + streamed_s(12 * STREAM + 3 * inner)
    assert found["backward_memory_s"] == pytest.approx(backward)


def test_latent_attention_rotates_the_queries_of_all_its_heads() -> None:
    shapes = ((288, 1024), (16 * 112, 256), (384, 1024), (16 * 96, 384), (1024, 16 * 48))
    rope, inner = SEQ * 16 * 96 * 2 * 2, SEQ * 4096 * 2
    expected = operands_s(*shapes, *LAYER_SHAPES[2:]) + streamed_s(10 * STREAM + rope + 3 * inner)
    assert middle(machine=MOVING, model=LATENT)["forward_memory_s"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("habits", "fused", "factor"), [({}, False, 1.5), ({"elementwise_factor": 1.6}, True, 1.6)]
)
def test_unfused_norms_and_frameworks_stretch_elementwise_kernels_alone(
    habits: dict[str, Any], fused: bool, factor: float
) -> None:
    moved = 10 * STREAM + SEQ * 20 * 64 * 2 * 2 + 3 * SEQ * 4096 * 2
    found = middle(machine=MOVING, framework=habits, fused_norm=fused)["forward_memory_s"]
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
    habits = {"expert_tensor_parallel": False}
    found = middle(machine=MOVING, model=MOE, dp=4, ep=4, tp=2, framework=habits, sequence_parallel=True)
    expected = attention_memory_s(2, 2) + experts_s(512, 512, 4, 2048, 2)
    assert found["forward_memory_s"] == pytest.approx(expected)


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
    costs = stages(
        pp=3, machine=MOVING, tp=2, model=replace(DENSE, num_layers=3), framework={"loss_passes": passes}
    )
    forward, backward = costs.forward_memory_s[0], costs.backward_memory_s[0]
    product, logits = operands_s((16000, 1024)), 4 * SEQ * 16000
    assert forward[2] - forward[1] == pytest.approx(product + streamed_s(passes * 2 / 3 * logits))
    assert backward[2] - backward[1] == pytest.approx(2 * product + streamed_s(passes / 3 * logits))


def test_the_head_s_product_costs_two_flops_per_weight_forward_and_four_backward() -> None:
    costs = stages(pp=3, tp=2, model=replace(DENSE, num_layers=3))
    head = products_s(32000 * 1024 / 2)
    for pass_s, times in ((costs.forward_sm_s[0], 1), (costs.backward_sm_s[0], 2)):
        assert pass_s[2] - pass_s[1] == pytest.approx(times * head)


def test_embedding_and_head_launch_their_kernels() -> None:
    costs = stages(pp=3, machine=LAUNCHING, model=replace(DENSE, num_layers=3))
    forward, backward = costs.forward_memory_s[0] / 1e-6, costs.backward_memory_s[0] / 1e-6
    assert (forward[0] - forward[1], backward[0] - backward[1]) == pytest.approx((3, 3))
    assert (forward[2] - forward[1], backward[2] - backward[1]) == pytest.approx((6, 3))


def test_full_recompute_repeats_the_layer_s_forward_pass() -> None:
    for machine in ({}, {"machine": MOVING}, {"machine": LAUNCHING}):
        none, full = middle(**machine), middle(recompute=FULL, **machine)
        for kind in ("sm_s", "memory_s"):
            assert full[f"backward_{kind}"] == pytest.approx(
                none[f"backward_{kind}"] + none[f"forward_{kind}"]
            )
            assert full[f"forward_{kind}"] == pytest.approx(none[f"forward_{kind}"])


def test_full_recompute_repeats_neither_the_embedding_nor_the_head() -> None:
    costs = stages(pp=3, recompute=FULL, model=replace(DENSE, num_layers=3))
    backward = costs.backward_sm_s[0]
    assert backward[0] == pytest.approx(backward[1])
    assert backward[2] - backward[1] == pytest.approx(2 * products_s(32000 * 1024))


def test_selective_recompute_repeats_the_attention_core_alone() -> None:
    weights = ATTENTION_WEIGHTS + 3 * 1024 * 4096
    core = SQUARE / (0.55 * FLOPS_PER_S) * IN_TRAINING
    found = middle(recompute=SELECTIVE, attention="fused")
    assert found["backward_sm_s"] == pytest.approx(2 * products_s(weights) + 3 * core)


def test_selective_recompute_of_some_layers_repeats_their_share_of_the_forward_pass() -> None:
    habits = {"selective_share": 0.25}
    none, some = (middle(recompute=r, framework=habits, machine=MOVING) for r in (0, SELECTIVE))
    again = some["backward_memory_s"] - none["backward_memory_s"]
    assert again == pytest.approx(0.25 * none["forward_memory_s"])


def test_layers_with_experts_recompute_like_dense_ones() -> None:
    none, full = (middle(recompute=r, model=MOE) for r in (0, FULL))
    assert full["backward_sm_s"] == pytest.approx(none["backward_sm_s"] + none["forward_sm_s"])


def test_leading_dense_layers_are_as_wide_as_the_dense_mlp() -> None:
    # 4 layers on two stages, three of them dense: two on the first, one on the second
    costs = stages(pp=2, model=replace(MOE, num_dense_layers=3))
    dense, routed = 3 * 1024 * 4096, 16 * 1024 + 2 * 3 * 1024 * 512
    first = products_s(2 * (ATTENTION_WEIGHTS + dense)) + 2 * flash_s(SQUARE)[0]
    second = products_s(2 * ATTENTION_WEIGHTS + dense + routed + 32000 * 1024) + 2 * flash_s(SQUARE)[0]
    assert costs.forward_sm_s[0] == pytest.approx([first, second])


def test_a_layer_s_traffic_is_its_operands_its_elementwise_kernels_and_its_core() -> None:
    # the core reads queries, keys, values and writes its result: 4 arrays forward, 8 backward
    operands = sum(2 * (SEQ * n + SEQ * k + n * k) for n, k in LAYER_SHAPES)
    elementwise = 22 * STREAM + 2 * SEQ * 20 * 64 * 2 * 2 + 8 * SEQ * 4096 * 2
    assert middle()["hbm_bytes"] == pytest.approx(3 * operands + elementwise + 12 * STREAM)


def test_flash_kernels_reach_less_with_narrow_heads_and_as_much_with_wide_ones() -> None:
    narrow, wide = (replace(DENSE, num_attention_heads=heads, head_dim=1024 // heads) for heads in (16, 4))
    weights = [1024 * d * (a + 8) + 1024**2 + 3 * 1024 * 4096 for a, d in ((16, 64), (4, 256))]
    cores = [
        middle(model=m)["forward_sm_s"] - products_s(w) for m, w in ((narrow, weights[0]), (wide, weights[1]))
    ]
    assert cores == pytest.approx([flash_s(SQUARE, widths=128)[0], flash_s(SQUARE, widths=512)[0]])
    assert cores[0] / cores[1] == pytest.approx(2**0.3)
    assert FLASH.forward != FLASH.backward
