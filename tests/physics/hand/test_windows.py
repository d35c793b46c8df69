"""Layers that look back a window: pairs counted one by one, seconds by hand, and which stage pays for which layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.jobs.model import Model
from jointopt.physics.layouts import seen_share, windowed_span
from tests.each import each
from tests.physics.hand.plain_machine import (
    DENSE,
    FLASH,
    FLOPS_PER_S,
    IN_TRAINING,
    MOE,
    SEQ,
    flash_s,
    inside_s,
    middle,
    passes_s,
    physics,
    seconds,
    stages,
)

WINDOW = 512
SQUARE = 4 * SEQ * SEQ * 1024  # flops of all scores of a layer and of their product with the values
FULL_S, FULL_BACK_S = flash_s(SQUARE)


def narrow(freq: Any = 0, model: Model = DENSE, window: int = WINDOW) -> Model:
    return replace(model, window_size=window, window_attn_skip_freq=freq)


def windowed_s(keys: float, cut: float) -> tuple[float, float]:
    """The core's seconds where a query meets so many keys: 64 more where its block is cut on the left as well."""
    ramp = keys / (keys + FLASH.half_length / 2 + cut * 64) * 0.5**0.3
    once = SQUARE * keys / SEQ / (FLOPS_PER_S * ramp) * IN_TRAINING
    return once / FLASH.forward, 2.5 * once / FLASH.backward


# of 2,048 tokens the first 512 see 256 on average, the others 512
NARROW_S, NARROW_BACK_S = windowed_s((512 * 256 + 1536 * 512) / 2048, 0.75)


def pairs(first: int, last: int, window: int) -> float:
    """Pairs of queries and keys, counted query by query, each standing in the middle of its token."""
    return float(np.minimum(np.arange(first, last) + 0.5, window).sum())


@each("cp", [1, 2, 4, 8])
@each("window", [1, 100, 128, 640, 1000, 2047])
def test_a_span_has_the_pairs_of_the_rank_that_has_most(cp: int, window: int) -> None:
    slice_ = SEQ // (2 * cp)
    places = [(r * slice_, SEQ - (r + 1) * slice_) for r in range(cp)]
    of_ranks = [sum(pairs(at, at + slice_, window) for at in both) for both in places]
    keys, cut = windowed_span(SEQ, window, np.array([float(cp)]))
    assert np.asarray(keys) * SEQ / cp == pytest.approx(max(of_ranks), rel=1e-3)
    late = [sum(np.sum(np.arange(at, at + slice_) >= window) for at in both) for both in places]
    assert np.asarray(cut) * SEQ / cp == pytest.approx(late[-1])


@pytest.mark.parametrize(("window", "share"), [(64, 1.0), (100, 1.0), (32, 0.75), (16, 0.4375)])
def test_a_window_leaves_its_share_of_the_mask(window: int, share: float) -> None:
    assert seen_share(window, 64) == share == pytest.approx(pairs(0, 64, window) / pairs(0, 64, 64))


def test_mistral_s_window_doubles_the_speed_of_attention() -> None:
    """Jiang et al. 2023, arXiv:2310.06825, section 2: twice as fast at 16K tokens with a window of 4,096."""
    full, window = (middle(model=m, seq_length=16384) for m in (DENSE, narrow(window=4096)))
    once = flash_s(4 * 16384 * 16384 * 1024, 16384)[0]
    assert once / (once + window["forward_sm_s"] - full["forward_sm_s"]) == pytest.approx(2.0, rel=0.12)


def test_a_layer_with_a_window_spares_the_core_s_masked_blocks_and_nothing_else() -> None:
    full, window = middle(), middle(model=narrow())
    assert full["forward_sm_s"] - window["forward_sm_s"] == pytest.approx(FULL_S - NARROW_S)
    assert full["backward_sm_s"] - window["backward_sm_s"] == pytest.approx(FULL_BACK_S - NARROW_BACK_S)
    assert full["flops"] - window["flops"] == pytest.approx(3.5 * SQUARE * (1024 - 448) / 2048)
    for name in ("forward_memory_s", "backward_memory_s", "hbm_bytes"):
        assert full[name] == window[name]


@pytest.mark.parametrize("attention", ["unfused", "fused", "flash1"])
def test_kernels_without_windows_work_all_scores_out(attention: str) -> None:
    assert middle(model=narrow(), attention=attention) == middle(attention=attention)


@given(st.integers(SEQ, 10 * SEQ), st.sampled_from([0, 2, (0, 1, 1, 0)]), st.sampled_from([1, 2, 3]), st.booleans())
def test_a_window_that_holds_the_sequence_changes_no_digit(window: int, freq: Any, cp: int, moe: bool) -> None:
    plan: dict[str, Any] = {"pp": 2, "cp": cp, "vpp": 2, "dp": 2, "ep": 2 if moe else 1}
    model = MOE if moe else DENSE
    assert seconds(model=narrow(freq, model, window), **plan) == seconds(model=model, **plan)


@pytest.mark.parametrize("freq", [1, (0, 0, 0, 0)])
def test_a_model_none_of_whose_layers_has_the_window_costs_what_it_does_without(freq: Any) -> None:
    assert seconds(model=narrow(freq), pp=2) == seconds(pp=2)


@pytest.mark.parametrize(
    ("freq", "counts"),
    [(0, (2, 2)), (2, (1, 1)), (4, (2, 1)), (3, (2, 1)), ((0, 0, 1, 1), (0, 2)), ((0, 1) * 2, (1, 1))],
)
def test_a_stage_pays_for_the_windows_of_its_own_layers(freq: Any, counts: tuple[int, int]) -> None:
    full, window = stages(pp=2), stages(pp=2, model=narrow(freq))
    spared = (full.forward_sm_s - window.forward_sm_s)[0], (full.backward_sm_s - window.backward_sm_s)[0]
    assert spared[0] == pytest.approx(np.array(counts) * (FULL_S - NARROW_S), abs=1e-12)
    assert spared[1] == pytest.approx(np.array(counts) * (FULL_BACK_S - NARROW_BACK_S), abs=1e-12)


def test_layers_with_experts_have_windows_of_their_own_beside_the_dense_ones_that_lead() -> None:
    model = narrow((1, 0, 1, 0), replace(MOE, num_dense_layers=1))
    full, window = (stages(pp=2, model=m) for m in (replace(model, window_size=0), model))
    assert (full.forward_sm_s - window.forward_sm_s)[0] == pytest.approx([FULL_S - NARROW_S] * 2)
    assert [kind[0].sum(axis=1).tolist() for kind in window.split.kinds] == [[1, 1], [1, 0], [0, 1]]


def test_chunks_of_a_rank_take_what_their_own_layers_do() -> None:
    costs = stages(pp=2, vpp=2, model=narrow((0, 0, 1, 1)), batches=8)
    assert [kind[0].tolist() for kind in costs.split.kinds] == [[[1, 0], [1, 0]], [[0, 1], [0, 1]]]
    shares = costs.pipelines.chunk_shares(np.array([0]))[0, 0, 0]
    layer_s = stages(pp=4).forward_sm_s[0, 1]  # the embedding takes no time on this machine
    assert shares[1] / shares[0] == pytest.approx((layer_s - FULL_S + NARROW_S) / layer_s)


def test_equal_shares_of_layers_stay_equal_where_all_have_the_window() -> None:
    plan: dict[str, Any] = {"pp": 3, "vpp": 2, "batches": 6}
    made = physics(model=replace(narrow(), num_layers=32), **plan).groups[0]
    assert not made.split.irregular.any()
    assert len(made.split.kinds) == 1


def test_further_predicted_tokens_see_all() -> None:
    one = narrow(model=replace(DENSE, mtp_num_layers=1))
    full, window = stages(model=replace(one, window_size=0)), stages(model=one)
    assert (full.forward_sm_s - window.forward_sm_s)[0, 0] == pytest.approx(4 * (FULL_S - NARROW_S))


@pytest.mark.parametrize(("columns", "times"), [({"recompute": 2}, 1), ({"recompute": 1}, 1), ({}, 0)])
def test_what_is_recomputed_of_a_layer_with_a_window_is_its_own_core(columns: dict[str, int], times: int) -> None:
    full, window = (middle(model=m, **columns)["backward_sm_s"] for m in (DENSE, narrow()))
    assert full - window == pytest.approx(FULL_BACK_S - NARROW_BACK_S + times * (FULL_S - NARROW_S))


def test_context_parallel_ranks_gather_whole_sequences_and_hide_them_under_the_shorter_core() -> None:
    once = inside_s("all_gather", 2 * SEQ * 2 * 4 * 64, 4)
    forward_s, backward_s = windowed_s(512.0, 1.0)  # on the slowest rank every query meets the whole window
    found = passes_s(cp=4, model=narrow(), framework={"cp_overlap": 1.0})
    assert found[0] == pytest.approx(4 * (once - forward_s / 4))
    assert found[1] == pytest.approx(4 * (2 * once - backward_s / 4))
    mixed = passes_s(cp=4, model=narrow(2), framework={"cp_overlap": 1.0})[0]
    assert mixed == pytest.approx(2 * (2 * once - (forward_s + FULL_S) / 4))
