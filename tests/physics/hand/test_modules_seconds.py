"""Kernels and collectives that recomputed modules repeat, and what offloading costs, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jointopt.core.schema import MODULES, OFFLOAD
from tests.physics.hand.plain_machine import (
    ATTENTION_WEIGHTS,
    DENSE,
    LATENT,
    LAYER_WEIGHTS,
    MOE,
    SEQ,
    TABLE_WEIGHTS,
    gpu_constants,
    middle,
    physics,
    products_s,
    seconds,
    stages,
)

FULL, SELECTIVE = 2, 1
HOST_BYTES_PER_S, HOST_MEMORY_BYTES_PER_S = 25e9, 50e9  # PCIe 4 x16 of an A100; a GPU's share


def modules(words: str) -> dict[str, int]:
    return {"recompute": SELECTIVE, "recompute_modules": MODULES.code(words)}


@pytest.mark.parametrize(
    ("words", "model", "weights"),
    [
        ("mlp", DENSE, 3 * 1024 * 4096),
        ("mla_up_proj", LATENT, 16 * (64 + 48) * 256 + 16 * (64 + 32) * 384),
        ("moe", MOE, 16 * 1024 + 2 * 3 * 1024 * 512),
        ("shared_experts", replace(MOE, num_shared_experts=1), 3 * 1024 * 512),
        ("moe_act", MOE, 0), ("layernorm", DENSE, 0), ("moe", DENSE, 0),
    ],
)  # fmt: skip
def test_a_module_repeats_its_own_products(words: str, model: object, weights: int) -> None:
    none, some = (middle(model=model, **cells) for cells in ({}, modules(words)))
    assert some["backward_sm_s"] - none["backward_sm_s"] == pytest.approx(products_s(weights), abs=1e-12)
    assert some["forward_sm_s"] == none["forward_sm_s"]


def test_full_recompute_of_some_layers_repeats_their_share_of_the_forward_pass() -> None:
    model = replace(DENSE, num_layers=8)
    none, half = (stages(model=model, pp=2, **cells) for cells in
                  ({}, {"recompute": FULL, "recompute_num_layers": 2}))  # fmt: skip
    again = half.backward_sm_s[0, 0] - none.backward_sm_s[0, 0]
    assert again == pytest.approx(none.forward_sm_s[0, 0] / 2)


def test_a_recomputed_mlp_gathers_and_scatters_once_more() -> None:
    none, mlp = (seconds(tp=2, **cells)["tp_comm"] for cells in ({}, modules("mlp")))
    assert mlp == pytest.approx(none * 5 / 4)  # two pairs forward and two backward


def test_recomputed_experts_dispatch_and_combine_once_more() -> None:
    none, moe = (seconds(model=MOE, dp=2, ep=2, **cells)["ep_comm"] for cells in ({}, modules("moe")))
    assert moe == pytest.approx(none * 6 / 4)


def test_offloaded_activations_wait_for_the_link_to_the_host() -> None:
    kept = SEQ * (4 * 2 * 2 * 1024 / 2 + 2 * (2 * 16 + 2 * 4) * 64 + 4 * 16 + 2 * 3 * 4096)
    found = seconds(machine=gpu_constants(), batches=3, offload=OFFLOAD.code("activations"))
    assert found["offload"] == pytest.approx(3 * 2 * 4 * kept / HOST_BYTES_PER_S)


def test_a_byte_that_is_offloaded_pays_for_the_link_out_and_in_again() -> None:
    machine = gpu_constants()
    none, some = (stages(machine=machine, **cells) for cells in ({}, {"offload": OFFLOAD.code("activations")}))
    moved = 4 * SEQ * (4 * 2 * 2 * 1024 / 2 + 2 * (2 * 16 + 2 * 4) * 64 + 4 * 16 + 2 * 3 * 4096)
    j_per_byte = physics().hardware.intra_j_per_byte
    assert j_per_byte > 0
    assert (some.link_j - none.link_j)[0, 0] == pytest.approx(2 * j_per_byte * moved)


def test_an_offloaded_optimizer_steps_in_host_memory() -> None:
    weights = 4 * LAYER_WEIGHTS + 2 * TABLE_WEIGHTS
    found = stages(offload=OFFLOAD.code("optimizer"))
    one = (4 + 2) / HOST_BYTES_PER_S + (2 * 12 + 4) / HOST_MEMORY_BYTES_PER_S
    assert found.optimizer_s[0, 0] == pytest.approx(weights * one)


@pytest.mark.parametrize(("zero", "shards", "expert_shards"), [(0, 1, 1), (1, 8, 4)])
def test_an_offloaded_optimizer_steps_over_its_shard_of_experts_and_of_the_rest(
    zero: int, shards: int, expert_shards: int
) -> None:
    rest, experts = 4 * (ATTENTION_WEIGHTS + (16 + 2) * 1024) + 2 * TABLE_WEIGHTS, 4 * 8 * 3 * 1024 * 512
    found = stages(model=MOE, dp=8, ep=2, zero_stage=zero, offload=OFFLOAD.code("optimizer"))
    one = (4 + 2) / HOST_BYTES_PER_S + (2 * 12 + 4) / HOST_MEMORY_BYTES_PER_S
    assert found.optimizer_s[0, 0] == pytest.approx((rest / shards + experts / expert_shards) * one)
