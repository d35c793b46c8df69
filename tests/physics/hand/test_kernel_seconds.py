"""Products and attention scores of a layer and the head by hand: flops over the rate that each reaches.

The middle one of three stages is one layer and nothing else.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import unaligned_factors
from jointopt.jobs.model import Model
from jointopt.physics.layers import by_clock_shares
from tests.physics.hand.plain_machine import (
    ATTENTION_WEIGHTS,
    DENSE,
    FLASH,
    FLOPS_PER_S,
    IN_TRAINING,
    LATENT,
    MOE,
    MOVING,
    SEQ,
    flash_s,
    middle,
    products_s,
    stages,
    streamed_s,
)

SCORES = SEQ * SEQ * 16  # of one sequence and layer
SQUARE = 4 * SEQ * SEQ * 1024  # flops of the scores and of their product with the values
GPT = replace(DENSE, num_query_groups=16, gated_mlp=False, position_embedding="learned")
LATENT_WEIGHTS = {  # queries, keys and values down and up, output
    384: 1024 * 384 + 384 * 16 * 96 + 1024 * (256 + 32) + 256 * 16 * (64 + 48) + 16 * 48 * 1024,
    0: 1024 * 16 * 96 + 1024 * (256 + 32) + 256 * 16 * (64 + 48) + 16 * 48 * 1024,
}


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        (GPT, 4 * 1024**2 + 2 * 1024 * 4096),
        (DENSE, ATTENTION_WEIGHTS + 3 * 1024 * 4096),
        (replace(DENSE, gated_mlp=False), ATTENTION_WEIGHTS + 2 * 1024 * 4096),
        (MOE, ATTENTION_WEIGHTS + 16 * 1024 + 2 * 3 * 1024 * 512),  # a router and two of sixteen experts per token
        (replace(MOE, num_shared_experts=2), ATTENTION_WEIGHTS + 16 * 1024 + 4 * 3 * 1024 * 512),
    ],
    ids=["gpt", "grouped queries, gated", "grouped queries", "experts", "shared experts"],
)
def test_each_matrix_costs_two_flops_per_weight_forward_and_four_backward(model: Model, weights: float) -> None:
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
    for profile in ({}, {"elementwise_factor": 2.0}):
        stored, flash = (middle(attention=k, machine=MOVING, framework=profile) for k in (kernel, "flash2"))
        moved = [stored[f"{side}_memory_s"] - flash[f"{side}_memory_s"] for side in ("forward", "backward")]
        assert moved == pytest.approx([streamed_s(forward * SCORES), streamed_s(backward * SCORES)])


def test_a_framework_s_own_attention_kernels_take_its_share_of_the_architecture_s_time() -> None:
    usual, own = (middle(attention="flash2", framework={"attention_factor": f}) for f in (1.0, 0.75))
    saved = [usual[f"{side}_sm_s"] - own[f"{side}_sm_s"] for side in ("forward", "backward")]
    assert saved == pytest.approx([0.25 * core_s for core_s in flash_s(SQUARE)])


@pytest.mark.parametrize(("kernel", "slower"), [("flash2", 0.35), ("fused", 0.0)])
def test_the_bias_of_alibi_costs_flash_a_third_and_is_part_of_the_mask_elsewhere(kernel: str, slower: float) -> None:
    alibi, learned = (
        middle(model=replace(DENSE, position_embedding=p), attention=kernel) for p in ("alibi", "learned")
    )
    more = [alibi[f"{side}_sm_s"] - learned[f"{side}_sm_s"] for side in ("forward", "backward")]
    assert more == pytest.approx([slower * core_s for core_s in flash_s(SQUARE)])


def test_heads_whose_width_eight_does_not_divide_slow_unfused_scores() -> None:
    # 16 heads of 20: four divides them; the projections are 480 and 320 wide and aligned
    slower = unaligned_factors(load_gpu("a100-sxm4-80gb"))[2] * 3.0
    weights = 1024 * 20 * 24 + 1024 * 320 + 3 * 1024 * 4096
    core = 4 * SEQ * SEQ * 320 / (0.55 * FLOPS_PER_S) * IN_TRAINING
    profile = {"unaligned_head_factor": 3.0}
    found = middle(model=replace(DENSE, head_dim=20), attention="fused", framework=profile)
    assert found["forward_sm_s"] == pytest.approx(products_s(weights) + slower * core)
    aligned = [middle(attention="fused", framework=h)["forward_sm_s"] for h in (profile, {})]
    assert aligned[0] == pytest.approx(aligned[1])


@pytest.mark.parametrize(("width", "index"), [(4104, 3), (4100, 2), (4098, 1), (4097, 0)])
def test_the_least_aligned_width_slows_a_product(width: int, index: int) -> None:
    # gate and up are 2·width wide, one power of two better than the down projection
    factors = unaligned_factors(load_gpu("a100-sxm4-80gb"))
    mlp = 2 * 1024 * width * factors[index + 1] + 1024 * width * factors[index]
    found = middle(model=replace(DENSE, ffn_hidden_size=width))["forward_sm_s"]
    assert found == pytest.approx(products_s(ATTENTION_WEIGHTS + mlp) + flash_s(SQUARE)[0])


def test_a_vocabulary_is_padded_and_never_unaligned() -> None:
    found = [stages(pp=3, model=replace(DENSE, num_layers=3, vocab_size=v)).forward_sm_s[0] for v in (32000, 31999)]
    assert found[1][2] - found[1][1] == pytest.approx(products_s(31999 * 1024))
    assert found[0][2] - found[0][1] == pytest.approx(products_s(32000 * 1024))


@pytest.mark.parametrize(("dtype", "factor"), [("fp8", 0.5), ("fp4", 0.25), ("fp16", 1.0)])
def test_narrow_products_take_their_share_and_the_scores_and_the_head_do_not(dtype: str, factor: float) -> None:
    core = flash_s(SQUARE)
    costs = stages(pp=3, model=replace(DENSE, num_layers=3), dtype=dtype)
    layer = factor * products_s(ATTENTION_WEIGHTS + 3 * 1024 * 4096)
    assert costs.forward_sm_s[0, 1] == pytest.approx(layer + core[0])
    assert costs.backward_sm_s[0, 1] == pytest.approx(2 * layer + core[1])
    assert costs.forward_sm_s[0, 2] == pytest.approx(layer + core[0] + products_s(32000 * 1024))


@pytest.mark.parametrize("dtype", ["fp8", "fp4"])
def test_the_router_stays_in_16_bit(dtype: str) -> None:
    narrow, wide = ({"fp8": 0.5, "fp4": 0.25}[dtype] * (ATTENTION_WEIGHTS + 2 * 3 * 1024 * 512), 16 * 1024)
    found, core = middle(model=MOE, dtype=dtype), flash_s(SQUARE)
    assert found["forward_sm_s"] == pytest.approx(products_s(narrow + wide) + core[0])
    assert found["backward_sm_s"] == pytest.approx(2 * products_s(narrow + wide) + core[1])


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


def test_a_framework_is_slower_on_an_architecture_by_what_is_stated_of_it_alone() -> None:
    usual = {"compute_factor": 1.1, "elementwise_factor": 1.5}
    stated = {"ampere": {"compute": 1.3, "elementwise": 2.0}, "volta": {"compute": 7.0}}
    once, found = (middle(attention="flash2", framework=f) for f in (usual, usual | {"slower_on": stated}))
    for way in ("forward", "backward"):
        assert found[f"{way}_sm_s"] == pytest.approx(1.3 * once[f"{way}_sm_s"])
        assert found[f"{way}_memory_s"] > 1.5 * once[f"{way}_memory_s"]


def test_an_attention_kernel_is_slower_on_an_architecture_by_what_is_stated_of_that_kernel() -> None:
    stated = {}, {"flash1": 0.7}, {"flash2": 0.7}
    usual, flash1, flash2 = (middle(attention="flash2", framework={"slower_on": {"ampere": by}}) for by in stated)
    saved = [usual[f"{side}_sm_s"] - flash2[f"{side}_sm_s"] for side in ("forward", "backward")]
    assert saved == pytest.approx([0.3 * core_s for core_s in flash_s(SQUARE)])
    assert flash1 == usual


def test_a_framework_s_shares_of_time_follow_the_clock_and_leave_the_time_at_its_top() -> None:
    usual = middle(attention="flash2", framework={})
    found = middle(attention="flash2", framework={"compute_clock_share": 0.8, "memory_clock_share": 0.3})
    for way in ("forward", "backward"):
        compute_s, memory_s = usual[f"{way}_sm_s"], usual[f"{way}_memory_s"]
        assert found[f"{way}_sm_s"] == pytest.approx(0.8 * compute_s + 0.3 * memory_s)
        assert found[f"{way}_memory_s"] == pytest.approx(0.2 * compute_s + 0.7 * memory_s)


def test_kernels_bound_by_memory_follow_the_clock_by_their_own_share() -> None:
    # 3 s bound by compute and 2 s by memory: 0.8·3 + 0.3·2 follow, 0.2·3 + 0.7·2 do not
    assert by_clock_shares(np.array(3.0), np.array(2.0), 0.8, 0.3) == pytest.approx((3.0, 2.0))


def test_the_head_s_product_costs_two_flops_per_weight_forward_and_four_backward() -> None:
    costs = stages(pp=3, tp=2, model=replace(DENSE, num_layers=3))
    head = products_s(32000 * 1024 / 2)
    for pass_s, times in ((costs.forward_sm_s[0], 1), (costs.backward_sm_s[0], 2)):
        assert pass_s[2] - pass_s[1] == pytest.approx(times * head)


def test_leading_dense_layers_are_as_wide_as_the_dense_mlp() -> None:
    # 4 layers on two stages, three of them dense: two on the first, one on the second
    costs = stages(pp=2, model=replace(MOE, num_dense_layers=3))
    dense, routed = 3 * 1024 * 4096, 16 * 1024 + 2 * 3 * 1024 * 512
    first = products_s(2 * (ATTENTION_WEIGHTS + dense)) + 2 * flash_s(SQUARE)[0]
    second = products_s(2 * ATTENTION_WEIGHTS + dense + routed + 32000 * 1024) + 2 * flash_s(SQUARE)[0]
    assert costs.forward_sm_s[0] == pytest.approx([first, second])


def test_flash_kernels_reach_less_with_narrow_heads_and_as_much_with_wide_ones() -> None:
    narrow, wide = (replace(DENSE, num_attention_heads=heads, head_dim=1024 // heads) for heads in (16, 4))
    weights = [1024 * d * (a + 8) + 1024**2 + 3 * 1024 * 4096 for a, d in ((16, 64), (4, 256))]
    cores = [middle(model=m)["forward_sm_s"] - products_s(w) for m, w in ((narrow, weights[0]), (wide, weights[1]))]
    assert cores == pytest.approx([flash_s(SQUARE, widths=128)[0], flash_s(SQUARE, widths=512)[0]])
    assert cores[0] / cores[1] == pytest.approx(2**0.3)
    assert FLASH.forward != FLASH.backward
