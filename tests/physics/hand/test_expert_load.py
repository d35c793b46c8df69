"""Unevenly loaded experts by hand: spreads of experts, ranks and nodes, tiles, waiting, energy, memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.schema import Floats
from jointopt.jobs.defaults import NATURAL_SPREAD
from jointopt.jobs.job import Training
from jointopt.physics.layers import expected_tiles
from jointopt.physics.layouts import expected_largest, expert_spread, most_loaded
from jointopt.physics.memory import memory_parts
from tests.physics.hand.plain_machine import BATCHES, MOE, MOVING, SEQ, STREAM, inside_s, physics, seconds, stages

PLAN: dict[str, Any] = {"dp": 4, "ep": 4, "model": MOE}
# of 16 experts the most loaded one has 1.5 times the mean: a spread of 0.5 / 1.766; 4 ranks have 4 each
OF_4 = 1 + 1.02938 * 0.5 / 1.76599 * math.sqrt(12 / (15 * 4))
DRAWN = {"moe_routing": "forced"}


def spread_of(tokens: float, **stated: Any) -> Floats:
    return expert_spread(MOE, Training(SEQ, 8, **stated), np.array([tokens]))


@pytest.mark.parametrize(("count", "exact"), [(1, 0.0), (2, 0.5642), (8, 1.4236), (64, 2.3437), (100, 2.5076)])
def test_the_largest_of_many_draws_is_that_of_tables_of_order_statistics(count: int, exact: float) -> None:
    assert expected_largest(count) == pytest.approx(exact, abs=1e-4)


def test_where_each_rank_has_one_expert_the_stated_imbalance_is_that_of_ranks() -> None:
    spread = spread_of(256.0, moe_load_imbalance=1.5)
    assert most_loaded(MOE, np.array([16.0]), spread) == pytest.approx([1.5])


def test_a_rank_of_all_experts_has_the_mean_and_one_of_many_evens_them_out() -> None:
    spread = spread_of(256.0, moe_load_imbalance=1.5)
    assert most_loaded(MOE, np.array([1.0, 4.0]), np.repeat(spread, 2)) == pytest.approx([1.0, OF_4], rel=1e-5)


def test_no_place_has_more_than_all_tokens() -> None:
    assert most_loaded(MOE, np.array([2.0]), np.array([9.0])) == pytest.approx([2.0])


def test_forced_balance_leaves_the_scatter_of_random_draws() -> None:
    # each of 4,096 tokens meets an expert with 2/16: 512 +- sqrt(4096·1/8·7/8)
    assert spread_of(512.0, **DRAWN) == pytest.approx([math.sqrt(4096 / 8 * 7 / 8) / 512])


def test_counts_of_random_top_k_draws_scatter_as_predicted() -> None:
    draws = np.random.default_rng(0)
    counts = np.array([
        np.bincount(draws.random((1024, 16)).argpartition(2, axis=1)[:, :2].ravel(), minlength=16) for _ in range(300)
    ])  # fmt: skip
    ranks = counts.reshape(-1, 4, 4).sum(axis=2)
    expected = most_loaded(MOE, np.array([16.0, 4.0]), np.repeat(spread_of(128.0, **DRAWN), 2))
    assert (counts.max(axis=1) / 128).mean() == pytest.approx(expected[0], rel=0.02)
    assert (ranks.max(axis=1) / 512).mean() == pytest.approx(expected[1], rel=0.01)


def test_a_router_that_chooses_spreads_tokens_by_a_quarter_unless_its_imbalance_is_stated() -> None:
    assert spread_of(512.0, moe_routing="natural") == pytest.approx([NATURAL_SPREAD])
    assert spread_of(64.0, moe_routing="natural") == pytest.approx([NATURAL_SPREAD])
    stated = spread_of(512.0, moe_routing="natural", moe_load_imbalance=1.5)
    assert stated == pytest.approx(spread_of(512.0, moe_load_imbalance=1.5))
    # 64 experts under an auxiliary loss: MaxVio of 0.52 and 0.72 (arXiv:2408.15664, table 2)
    assert 0.52 < NATURAL_SPREAD * expected_largest(64) < 0.72


def test_a_job_that_states_nothing_is_balanced() -> None:
    assert seconds(**PLAN) == seconds(moe_load_imbalance=1.0, **PLAN)


def test_products_of_experts_take_the_most_loaded_rank_s_time_and_a_mean_rank_s_work() -> None:
    # 2·2048 copies a rank in the mean, three matrices of 512 x 1024
    even, uneven = (stages(moe_load_imbalance=stated, **PLAN) for stated in (1.0, 1.5))
    of_experts = 3 * 2 * 2 * SEQ * 512 * 1024 / 1e15 * 4
    more_s = uneven.forward_sm_s[0, 0] - even.forward_sm_s[0, 0]
    slower = physics(**PLAN).hardware.kernels.compute_factor
    assert more_s == pytest.approx((OF_4 - 1) * of_experts * slower, rel=5e-3)  # and half a row more of each
    assert uneven.flops == pytest.approx(even.flops)
    assert uneven.waiting_sm_s[0, 0] == pytest.approx(3 * more_s, rel=5e-3)


def test_all_to_alls_end_when_the_most_loaded_rank_has_its_tokens() -> None:
    found, balanced = (physics(moe_load_imbalance=stated, **PLAN).groups[0] for stated in (1.5, 1.0))
    once = inside_s("all_to_all", 2 * STREAM * OF_4, 4)
    assert found.comm_parts_s["ep_comm"][0, 0] == pytest.approx(4 * 4 * once, rel=1e-6)
    assert found.link_parts_j["ep_comm"] == pytest.approx(balanced.link_parts_j["ep_comm"])


def test_bytes_that_nodes_forward_once_are_those_of_the_most_loaded_node() -> None:
    # 2 nodes of 8 experts: between them the spread of 16 experts evens out to that of halves
    plan = PLAN | {"dp": 16, "ep": 16, "token_dispatcher": "deepep"}
    even, uneven = (stages(moe_load_imbalance=stated, **plan).comm_parts_s["ep_comm"] for stated in (1.0, 1.5))
    nodes = 1 + 0.56419 * 0.5 / 1.76599 * math.sqrt(8 / (15 * 8))
    far = STREAM * (1 + 8 / 15) / 2 / (10e9 / 2)
    assert (uneven - even)[0, 0] == pytest.approx(4 * 4 * (nodes - 1) * far, rel=1e-4)


def test_permuted_copies_are_sent_evenly_and_received_unevenly() -> None:
    # read and written on either side: of four passes over the copies two are the most loaded rank's
    even, uneven = (stages(machine=MOVING, moe_load_imbalance=stated, **PLAN) for stated in (1.0, 1.5))
    whole = replace(MOE, moe_ffn_hidden_size=1, gated_mlp=False)
    thin = [
        stages(machine=MOVING, moe_load_imbalance=s, **PLAN | {"model": whole}).forward_memory_s for s in (1.0, 1.5)
    ]
    assert (uneven.forward_memory_s > even.forward_memory_s).all()
    copies_s = 2 * 2 * STREAM / (0.85 * 1e12) * 4
    assert (thin[1] - thin[0])[0, 0] > (OF_4 - 1) * copies_s


def test_ranks_that_wait_draw_the_power_of_waiting() -> None:
    model = physics(moe_load_imbalance=1.5, **PLAN)
    costs, terms = model.groups[0], model.energy_terms(0)
    whole = costs.forward_sm_s + costs.backward_sm_s
    assert terms["sm_s"] == pytest.approx(BATCHES * (whole - costs.waiting_sm_s))


def test_full_recompute_waits_once_more() -> None:
    once, again = (stages(moe_load_imbalance=1.5, recompute=code, **PLAN).waiting_sm_s for code in (0, 2))
    assert again == pytest.approx(once * 4 / 3, rel=1e-3)


def test_the_most_loaded_rank_keeps_its_own_copies_and_random_draws_even_out() -> None:
    held = {}
    for name, stated in {"even": {}, "stated": {"moe_load_imbalance": 1.5}, "drawn": DRAWN}.items():
        model = physics(**stated, **PLAN)
        held[name] = float(memory_parts(model.job, model.layouts)["activations"][0, 0])
    # two copies per token: the input, output, both halves and the product of experts 512 wide, 16 bit
    assert held["stated"] - held["even"] == pytest.approx((OF_4 - 1) * 4 * 2 * SEQ * 2 * (2 * 1024 + 3 * 512), rel=1e-5)
    assert held["drawn"] == held["even"]


@given(st.floats(1.0, 5000.0), st.floats(0.01, 800.0), st.sampled_from([64, 128, 256]))
def test_tiles_of_a_spread_are_the_mean_over_it(rows: float, spread: float, tile: int) -> None:
    half = min(math.sqrt(3) * spread, rows)
    drawn = np.ceil((rows + half * np.linspace(-1, 1, 20_001)) / tile).mean()
    found = expected_tiles(np.array([rows]), np.array([spread]), tile)
    assert found == pytest.approx([drawn], abs=2e-3 * (1 + half / tile))


def test_tiles_of_equal_experts_are_whole_and_of_unequal_ones_half_a_tile_more() -> None:
    assert expected_tiles(np.array([1024.0]), np.array([0.0]), 128) == pytest.approx([8.0])
    assert expected_tiles(np.array([1024.0]), np.array([128 / math.sqrt(3)]), 128) == pytest.approx([8.5])
