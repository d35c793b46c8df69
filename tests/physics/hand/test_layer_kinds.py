"""Layers of several kinds: their kernels and bytes by hand, where they lie, and what tensor parallelism divides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.jobs.job import Training
from jointopt.jobs.model import Layer
from jointopt.physics.memory import mixer_activations
from jointopt.physics.throughput import model_flops_per_token
from tests.jobs.test_pattern import model
from tests.physics.hand.plain_machine import (
    COMPUTING,
    DENSE,
    FLASH,
    FLOPS_PER_S,
    IN_TRAINING,
    SEQ,
    flash_s,
    inside_s,
    products_s,
    stages,
)

STATE_SPACE, MLP, ATTENTION = Layer("mamba2", "none"), Layer("none", "dense"), Layer("full", "none")
HYBRID = replace(
    DENSE, mamba_num_heads=64, mamba_head_dim=16, mamba_state_dim=32, mamba_num_groups=2, mamba_conv_kernel_dim=4,
    layers=(STATE_SPACE, MLP, ATTENTION, STATE_SPACE),
)  # fmt: skip
# x and gate 1,024 wide, 2 x 2 x 32 of the groups, 64 steps; back from 1,024
MAMBA_WEIGHTS = 1024 * (2048 + 128 + 64) + 1024 * 1024
# per token: scores of chunks of 128 within each of 2 groups, then of each head their product, and two with its state
MIXING = 2 * (2 * 128 * 32 + 64 * 16 * (128 + 2 * 32))
MIXING_S = SEQ * MIXING / (0.12 * FLOPS_PER_S) * IN_TRAINING
SQUARE = 4 * SEQ * SEQ * 1024
ATTENTION_S = products_s(1024 * 64 * 24 + 1024 * 1024)


def test_each_stage_takes_what_the_kind_of_its_layer_takes() -> None:
    costs = stages(pp=4, model=HYBRID, machine=COMPUTING)
    expected = [products_s(MAMBA_WEIGHTS) + MIXING_S, products_s(3 * 1024 * 4096), ATTENTION_S + flash_s(SQUARE)[0]]
    assert costs.forward_sm_s[0, :3] == pytest.approx(expected)
    backward = [2 * products_s(MAMBA_WEIGHTS) + 2.5 * MIXING_S, 2 * products_s(3 * 1024 * 4096)]
    assert costs.backward_sm_s[0, :2] == pytest.approx(backward)


def test_tensor_ranks_share_the_heads_of_a_state_space() -> None:
    whole, half = (stages(pp=4, tp=tp, model=HYBRID, machine=COMPUTING).forward_sm_s[0, 0] for tp in (1, 2))
    assert half == pytest.approx(whole / 2)


def test_each_kind_is_counted_per_stage() -> None:
    model = replace(HYBRID, num_layers=8, layers=(STATE_SPACE, STATE_SPACE, MLP, STATE_SPACE, *HYBRID.layers))
    split = stages(pp=2, model=model).split
    assert [chunks[0].sum(axis=1).tolist() for chunks in split.kinds] == [[3, 2], [1, 1], [0, 1]]


def test_half_a_layer_sums_once_over_tensor_ranks_and_a_whole_one_twice() -> None:
    one, none = inside_s("all_reduce", 2 * SEQ * 1024, 2), {"tp_overlap": 0.0}
    found = stages(pp=4, tp=2, model=HYBRID, framework=none).comm_parts_s["tp_comm"][0, :3]
    assert found == pytest.approx([2 * one] * 3)


def test_a_chunk_of_tokens_costs_a_sequence_as_long_as_it() -> None:
    chunked = replace(DENSE, layers=(Layer("chunked", "dense", 512),) * 4)
    ramp = flash_s(4 * 512 * 512 * 1024, 512)[0] * SEQ / 512
    assert middle_core_s(chunked) == pytest.approx(ramp)


def middle_core_s(model: Any) -> float:
    """Seconds of the attention core of a layer, forward."""
    rest = ATTENTION_S + products_s(3 * 1024 * 4096)
    return float(stages(pp=4, model=model, machine=COMPUTING).forward_sm_s[0, 1]) - rest


def test_sparse_attention_grows_with_the_tokens_that_are_left_and_its_indexer_with_all() -> None:
    sizes = {"kv_lora_rank": 256, "q_lora_rank": 384, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 64}
    base = replace(DENSE, **sizes, index_n_heads=16, index_head_dim=64, layers=(Layer("sparse", "dense"),) * 4)
    few, many, more = (
        float(stages(pp=4, model=replace(base, index_topk=top, index_n_heads=heads)).forward_sm_s[0, 1])
        for top, heads in ((256, 16), (1024, 16), (256, 32))
    )
    assert few < many < float(stages(pp=4, model=replace(base, index_topk=2048)).forward_sm_s[0, 1])
    # 16 heads more, each of 64, of half of the tokens, and their projections from the latent and the hidden state
    scores_s = SEQ * SEQ * 16 * 64 / FLOPS_PER_S * IN_TRAINING / FLASH.forward
    assert more - few == pytest.approx(scores_s + products_s(384 * 16 * 64 + 1024 * 16))


def test_context_ranks_turn_the_tokens_of_a_state_space_into_heads_and_back() -> None:
    found = stages(pp=4, cp=2, model=HYBRID, framework={"cp_overlap": 0.0}).comm_parts_s["cp_comm"][0]
    turned = 2 * inside_s("all_to_all", 2 * SEQ / 2 * (3 * 1024 + 2 * 2 * 32), 2)
    assert found[:2] == pytest.approx([turned, 0.0])
    assert found[2] > 0.0


def test_a_state_space_keeps_the_elements_that_it_states_and_its_input() -> None:
    hybrid = model("jamba-v0.1")
    training, one, plain = Training(4096, 64, dtype="bf16"), np.array(1.0), np.array(False)
    found = [
        float(mixer_activations(hybrid, training, one, np.array(tp), plain, 2.0, Layer("mamba"))) for tp in (1.0, 2.0)
    ]
    # five times 8,192 channels over tp; 256 of the step's rank and 2 x 16 of the state on each rank
    assert found[0] - found[1] == pytest.approx(2 * 5 * 8192 / 2)
    assert found[0] == pytest.approx(2 * (5 * 8192 + 288) + 2 * 2 * 4096)


def test_model_flops_count_weights_six_times_and_the_mixing_of_chunks_thrice() -> None:
    weights = 2 * MAMBA_WEIGHTS + 3 * 1024 * 4096 + 1024 * 64 * 24 + 1024 * 1024 + 1024 * 32000
    expected = 6 * weights + 3 * (2 * MIXING + 4 * SEQ * 1024)
    assert model_flops_per_token(HYBRID, SEQ) == pytest.approx(expected)
