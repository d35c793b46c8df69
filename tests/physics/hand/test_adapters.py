"""LoRA by hand: products, bytes and collectives of frozen layers and of the adapters beside them."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.core.schema import RECOMPUTE_CODES
from tests.physics.hand.plain_machine import (
    BATCHES,
    FLOPS_PER_S,
    IN_TRAINING,
    LAYER_WEIGHTS,
    MOE,
    MOVING,
    NOTHING_COMPUTES,
    SEQ,
    STREAM,
    TABLE_WEIGHTS,
    flash_s,
    inside_s,
    layer_comm_s,
    middle,
    physics,
    seconds,
    stages,
    streamed_s,
)

DIM = 16
LOW = 2 * SEQ * DIM  # bytes of what a first product makes
QKV, PROJ, FC1, FC2 = 1024 + 64 * 24, 2 * 1024, 1024 + 2 * 4096, 4096 + 1024  # inputs and outputs of each layer
ADAPTER_WEIGHTS = DIM * (QKV + PROJ + FC1 + FC2)
MATRICES = LAYER_WEIGHTS - 2 * 1024
ALL = {"linear_qkv": QKV, "linear_proj": PROJ, "linear_fc1": FC1, "linear_fc2": FC2}


def core_s() -> tuple[float, float]:
    return flash_s(2.0 * SEQ * SEQ * 16 * 128)


def test_frozen_products_have_gradients_of_inputs_alone_and_adapters_both() -> None:
    found = middle(lora_dim=DIM)
    forward, backward = core_s()
    slower = 1.0 / FLOPS_PER_S * IN_TRAINING * 2 * SEQ
    own = found["forward_sm_s"] - forward - MATRICES * slower  # narrow products are slower by their alignment
    assert own >= ADAPTER_WEIGHTS * slower * (1 - 1e-9)
    assert found["backward_sm_s"] == pytest.approx(backward + MATRICES * slower + 2 * own)


def test_a_model_trained_whole_has_a_third_more_products_than_a_frozen_one() -> None:
    frozen, whole = (middle(lora_dim=dim)["backward_sm_s"] for dim in (1, None))
    saved = 2 * SEQ * MATRICES / FLOPS_PER_S * IN_TRAINING
    assert whole - frozen == pytest.approx(saved, rel=0.02)


@pytest.mark.parametrize("target", list(ALL))
def test_an_adapter_adds_the_weights_of_two_matrices(target: str) -> None:
    plan = physics(lora_dim=DIM, lora_target_modules=(target,)).groups[0]
    bare = physics(lora_dim=1, lora_target_modules=(target,)).groups[0]
    more = (plan.flops - bare.flops)[0, 0]
    assert more == pytest.approx(4 * (DIM - 1) * ALL[target] * 6 * SEQ)


def test_an_adapter_scales_and_adds_what_it_makes_in_kernels_of_their_own() -> None:
    names = ("linear_fc1", "linear_fc2")
    found = [middle(machine=MOVING, lora_dim=DIM, lora_target_modules=(name,)) for name in names]
    wide, narrow = (each["forward_memory_s"] for each in found)
    products = 2 * ((SEQ * DIM + SEQ * 1024 + DIM * 1024) + (SEQ * 8192 + SEQ * DIM + 8192 * DIM))
    products -= 2 * ((SEQ * DIM + SEQ * 4096 + DIM * 4096) + (SEQ * 1024 + SEQ * DIM + 1024 * DIM))
    added = 5 * 2 * SEQ * (8192 - 1024)
    assert wide - narrow == pytest.approx(products / 0.8e12 * IN_TRAINING + streamed_s(added))


def test_replicas_reduce_the_gradients_of_adapters_alone() -> None:
    found = seconds(dp=4, lora_dim=DIM, machine=NOTHING_COMPUTES)["dp_comm"]
    assert found == pytest.approx(inside_s("all_reduce", 4 * 4 * ADAPTER_WEIGHTS, 4))


def test_zero_3_gathers_frozen_weights_too_and_scatters_what_is_trained() -> None:
    held = 4 * (LAYER_WEIGHTS + ADAPTER_WEIGHTS) + 2 * TABLE_WEIGHTS
    costs = stages(dp=4, zero_stage=3, lora_dim=DIM, machine=NOTHING_COMPUTES)
    assert costs.gather_s[0, 0] == pytest.approx(inside_s("all_gather", 2 * held, 4))
    assert costs.reduce_s[0, 0] == pytest.approx(BATCHES * inside_s("reduce_scatter", 4 * 4 * ADAPTER_WEIGHTS, 4))


def test_the_optimizer_steps_over_adapters_alone() -> None:
    frozen, whole = (stages(lora_dim=dim, machine=MOVING).optimizer_s[0, 0] for dim in (DIM, None))
    weights = 4 * LAYER_WEIGHTS + 2 * TABLE_WEIGHTS
    assert frozen / whole == pytest.approx(4 * ADAPTER_WEIGHTS / weights)


def test_beside_a_column_parallel_layer_the_rank_is_gathered_and_the_input_gradient_reduced() -> None:
    bare, low = 2 * inside_s("all_reduce", STREAM, 4), 2 * SEQ * DIM
    forward, backward = layer_comm_s(tp=4, lora_dim=DIM, lora_target_modules=("linear_qkv",))
    assert forward - bare == pytest.approx(inside_s("all_gather", low, 4))
    assert backward - bare == pytest.approx(inside_s("all_reduce", STREAM, 4))


def test_beside_a_row_parallel_layer_the_rank_is_reduced_and_the_output_gathered() -> None:
    bare, low = 2 * inside_s("all_reduce", STREAM, 4), 2 * SEQ * DIM
    forward, backward = layer_comm_s(tp=4, lora_dim=DIM, lora_target_modules=("linear_fc2",))
    assert forward - bare == pytest.approx(inside_s("all_reduce", low, 4) + inside_s("all_gather", STREAM, 4))
    assert backward - bare == pytest.approx(inside_s("all_reduce", low, 4))


def test_under_sequence_parallelism_gradients_of_adapters_are_scattered_and_gathered() -> None:
    plan = {"tp": 4, "sequence_parallel": True, "lora_dim": DIM}
    pair = 2 * (inside_s("all_gather", STREAM, 4) + inside_s("reduce_scatter", STREAM, 4))
    column = layer_comm_s(**plan, lora_target_modules=("linear_fc1",))[1]
    row = layer_comm_s(**plan, lora_target_modules=("linear_proj",))[1]
    assert column - pair == pytest.approx(inside_s("reduce_scatter", STREAM, 4))
    assert row - pair == pytest.approx(inside_s("all_reduce", 2 * SEQ * DIM, 4) + inside_s("all_gather", STREAM, 4))


def test_one_adapter_serves_all_experts_of_a_rank() -> None:
    few, many = (
        physics(MOE, lora_dim=dim, lora_target_modules=("linear_fc1",), dp=4, ep=4, zero_stage=0) for dim in (1, 9)
    )
    more = many.memory_bytes - few.memory_bytes
    weights = 8 * (1024 + 2 * 512) * 4
    assert np.all(more >= (2 + 4 + 12) * weights)
    assert np.all(more <= (2 + 4 + 12) * weights * 1.6)


@pytest.mark.parametrize(
    ("target", "forward", "backward"),
    [
        ("linear_qkv", 0.75 * 2 * SEQ * DIM, 1.5 * STREAM),
        ("linear_fc2", 1.5 * 2 * SEQ * DIM + 0.75 * STREAM, 1.5 * 2 * SEQ * DIM),
    ],
)
def test_collectives_of_adapters_take_the_energy_of_their_bytes_and_forward_ones_again_in_recompute(
    target: str, forward: float, backward: float
) -> None:
    # rings of four send 3/4 of a buffer, twice in an all-reduce; of four layers
    lora, full = {"lora_dim": DIM, "lora_target_modules": (target,)}, {"recompute": 2}
    j_per_byte = 8e-12 * physics().job.cluster.intra_node_pj_per_bit
    for again, plan in ((0, {}), (1, full)):
        bare, some = (stages(tp=4, **plan, **cells).link_j[0, 0] for cells in ({}, lora))
        assert (some - bare) / 4 == pytest.approx(((1 + again) * forward + backward) * j_per_byte)


def test_full_recompute_moves_what_adapters_move_forward_again_in_the_backward_pass() -> None:
    cells = {"tp": 4, "lora_dim": DIM, "lora_target_modules": ("linear_qkv",)}
    forward, kept = layer_comm_s(**cells)
    same, again = layer_comm_s(**cells, recompute=RECOMPUTE_CODES["full"])
    assert same == pytest.approx(forward)
    assert again - kept == pytest.approx(forward)
