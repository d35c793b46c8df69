"""Blocks: bytes of weights, states and activations of attention or an MLP alone, counted on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jointopt.jobs.model import Model, block_of

Held = Callable[..., list[float]]
Make = Callable[..., Model]
TOKENS = 128
WEIGHTS = {"attention": 10_240 + 64, "feed_forward": 36_864 + 64, "layer": 10_240 + 36_864 + 128}
# per token: the norm's input and output, then q, k, v, the core's output and a statistic per head; gate, up, product
KEPT = {"attention": 2 * 128 + 2 * (2 * 8 + 2 * 2) * 8 + 4 * 8, "feed_forward": 2 * 128 + 2 * 3 * 192}


@pytest.mark.parametrize("block", WEIGHTS)
def test_a_block_holds_the_states_of_its_own_weights(block: str, held: Held, llama: Make) -> None:
    model = block_of(llama(), block, 3)
    found = [held(part, {}, model)[0] for part in ("weights", "gradients", "optimizer", "logits")]
    assert found == [3 * each * WEIGHTS[block] for each in (2, 4, 12, 0)]


@pytest.mark.parametrize("block", KEPT)
def test_a_block_keeps_the_activations_of_its_own_kernels(block: str, held: Held, llama: Make) -> None:
    found = held("activations", {}, block_of(llama(), block, 3), global_batch_size=1)
    assert found == [3 * TOKENS * KEPT[block]]


def test_both_parts_keep_what_a_layer_keeps(held: Held, llama: Make) -> None:
    found = held("activations", {}, block_of(llama(), "layer", 3), global_batch_size=1)
    assert found == [3 * TOKENS * sum(KEPT.values())]


def test_an_mlp_has_no_scores_to_store(held: Held, llama: Make) -> None:
    model = block_of(llama(), "feed_forward", 3)
    kernels: list[dict[str, Any]] = [{"attention": name, "global_batch_size": 1} for name in ("flash2", "unfused")]
    flash, unfused = (held("activations", {}, model, **kernel) for kernel in kernels)
    assert flash == unfused


def test_experts_alone_hold_their_router_and_their_share(held: Held, moe: Make) -> None:
    model = block_of(moe(), "feed_forward", 3)
    assert held("weights", {"dp": 2, "ep": 2}, model) == [2 * 3 * (64 + 4 * 64 + 2 * 6_144)]
