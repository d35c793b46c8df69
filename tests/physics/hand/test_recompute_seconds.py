"""What full and selective recomputation repeat, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.physics.hand.plain_machine import (
    ATTENTION_WEIGHTS,
    DENSE,
    FLOPS_PER_S,
    IN_TRAINING,
    LAUNCHING,
    MOE,
    MOVING,
    SEQ,
    middle,
    products_s,
    stages,
)

FULL, SELECTIVE = 2, 1
SQUARE = 4 * SEQ * SEQ * 1024  # flops of the scores and of their product with the values


def test_full_recompute_repeats_the_layer_s_forward_pass() -> None:
    for machine in ({}, {"machine": MOVING}, {"machine": LAUNCHING}):
        none, full = middle(**machine), middle(recompute=FULL, **machine)
        for kind in ("sm_s", "memory_s"):
            assert full[f"backward_{kind}"] == pytest.approx(none[f"backward_{kind}"] + none[f"forward_{kind}"])
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
    profile = {"selective_share": 0.25}
    none, some = (middle(recompute=r, framework=profile, machine=MOVING) for r in (0, SELECTIVE))
    again = some["backward_memory_s"] - none["backward_memory_s"]
    assert again == pytest.approx(0.25 * none["forward_memory_s"])


def test_a_policy_by_operations_repeats_its_shares_of_products_and_not_the_attention_core() -> None:
    profile = {"recomputed_products": {"selective": (0.5, 0.25)}, "selective_share": 0.5}
    none, some = (middle(recompute=r, framework=profile) for r in (0, SELECTIVE))
    again = some["backward_sm_s"] - none["backward_sm_s"]
    assert again == pytest.approx(products_s(0.5 * ATTENTION_WEIGHTS + 0.25 * 3 * 1024 * 4096))


def test_a_policy_by_operations_repeats_all_norms_and_activations() -> None:
    profile = {"recomputed_products": {"selective": (0.0, 0.0)}}
    none, some = (middle(recompute=r, framework=profile, machine=MOVING) for r in (0, SELECTIVE))
    core = middle(recompute=SELECTIVE, machine=MOVING)["backward_memory_s"] - none["backward_memory_s"]
    again = some["backward_memory_s"] - none["backward_memory_s"]
    assert again == pytest.approx(none["forward_memory_s"] - core)


def test_layers_with_experts_recompute_like_dense_ones() -> None:
    none, full = (middle(recompute=r, model=MOE) for r in (0, FULL))
    assert full["backward_sm_s"] == pytest.approx(none["backward_sm_s"] + none["forward_sm_s"])
