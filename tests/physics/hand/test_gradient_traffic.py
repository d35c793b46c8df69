"""Gradients and weights between replicas by hand: bytes per ZeRO stage, how often, what hides, the optimizer step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.schema import OVERLAP
from tests.physics.hand.plain_machine import (
    BATCHES,
    DENSE,
    HBM_BYTES_PER_S,
    LAYER_WEIGHTS,
    MOE,
    MOVING,
    NIC,
    NOTHING_COMPUTES,
    TABLE_WEIGHTS,
    across_s,
    inside_s,
    physics,
    seconds,
    stages,
)

WEIGHTS = 4 * LAYER_WEIGHTS + 2 * TABLE_WEIGHTS
EXPERTS = 4 * 16 * 3 * 1024 * 512  # routed weights of MOE
NOT_EXPERTS = 4 * (1024 * 64 * 24 + 1024 * 1024 + 2 * 1024 + 16 * 1024) + 2 * TABLE_WEIGHTS


def reduced_s(zero: int, members: int = 4, batches: int = BATCHES) -> float:
    """Gradient traffic of one iteration: 4 bytes of gradient, 2 of weight per parameter."""
    if zero == 0:
        return inside_s("all_reduce", 4 * WEIGHTS, members)
    times, gathers = (1, 1) if zero == 1 else (batches, zero == 2)
    scatter = inside_s("reduce_scatter", 4 * WEIGHTS, members)
    return times * scatter + gathers * inside_s("all_gather", 2 * WEIGHTS, members)


def timed(host_s: float, **given: Any) -> dict[str, float]:
    """A plan of which a micro-batch takes ``host_s`` in each layer: a third forward, two thirds backward."""
    floors = {"host_floor_s": host_s, "host_floor_pp_s": host_s} | given.pop("framework", {})
    return seconds(machine=NOTHING_COMPUTES, framework=floors, **given)


def test_without_zero_gradients_are_all_reduced_once() -> None:
    assert seconds(dp=4)["dp_comm"] == pytest.approx(inside_s("all_reduce", 4 * WEIGHTS, 4))


def test_zero_1_scatters_gradients_and_gathers_weights_once() -> None:
    expected = inside_s("reduce_scatter", 4 * WEIGHTS, 4) + inside_s("all_gather", 2 * WEIGHTS, 4)
    assert seconds(dp=4, zero_stage=1)["dp_comm"] == pytest.approx(expected)


def test_a_zero_1_that_reduces_whole_gradients_all_reduces_and_gathers() -> None:
    expected = inside_s("all_reduce", 4 * WEIGHTS, 4) + inside_s("all_gather", 2 * WEIGHTS, 4)
    found = seconds(dp=4, zero_stage=1, framework={"zero1_reduces_whole": True})
    assert found["dp_comm"] == pytest.approx(expected)


def test_zero_2_scatters_after_every_micro_batch_and_gathers_once() -> None:
    scatter = inside_s("reduce_scatter", 4 * WEIGHTS, 4)
    found = seconds(dp=4, zero_stage=2, framework={"zero1_reduces_whole": True})
    assert found["dp_comm"] == pytest.approx(BATCHES * scatter + inside_s("all_gather", 2 * WEIGHTS, 4))


def test_zero_3_scatters_after_every_micro_batch_and_gathers_weights_for_both_passes() -> None:
    parts = seconds(dp=4, zero_stage=3)
    assert parts["dp_comm"] == pytest.approx(BATCHES * inside_s("reduce_scatter", 4 * WEIGHTS, 4))
    assert parts["zero_comm"] == pytest.approx(BATCHES * 2 * inside_s("all_gather", 2 * WEIGHTS, 4))
    whole = parts["compute"] + parts["zero_comm"] + parts["dp_comm"]
    estimator = physics(dp=4, zero_stage=3)
    found = estimator.iteration_time_s(np.array([0]), np.full((1, 1), 1000.0))
    assert float(found[0]) == pytest.approx(whole)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_only_zero_3_gathers_weights_within_the_iteration(zero: int) -> None:
    assert seconds(dp=4, zero_stage=zero)["zero_comm"] == 0.0


def test_gradients_of_two_bytes_halve_what_is_reduced_and_not_what_is_gathered() -> None:
    expected = inside_s("reduce_scatter", 2 * WEIGHTS, 4) + inside_s("all_gather", 2 * WEIGHTS, 4)
    found = seconds(dp=4, zero_stage=1, framework={"gradient_comm_bytes": 2})
    assert found["dp_comm"] == pytest.approx(expected)


def test_weights_in_fp32_are_gathered_in_four_bytes() -> None:
    expected = inside_s("reduce_scatter", 4 * WEIGHTS, 4) + inside_s("all_gather", 4 * WEIGHTS, 4)
    assert seconds(dp=4, zero_stage=1, dtype="fp32")["dp_comm"] == pytest.approx(expected)


def test_context_ranks_reduce_gradients_together_with_replicas() -> None:
    assert seconds(dp=2, cp=4)["dp_comm"] == pytest.approx(inside_s("all_reduce", 4 * WEIGHTS, 8))


def test_tensor_parallelism_cuts_gradients_of_matrices_and_not_of_norms() -> None:
    cut = (4 * (LAYER_WEIGHTS - 2048) + 2 * TABLE_WEIGHTS) / 4 + 4 * 2048
    assert seconds(dp=2, tp=4)["dp_comm"] == pytest.approx(inside_s("all_reduce", 4 * cut, 2))


def test_replicas_on_two_nodes_reduce_through_as_many_nics_as_a_node_has_members() -> None:
    assert seconds(dp=16)["dp_comm"] == pytest.approx(across_s("all_reduce", 4 * WEIGHTS, 16, 8))
    cut = (4 * (LAYER_WEIGHTS - 2048) + 2 * TABLE_WEIGHTS) / 4 + 4 * 2048
    assert seconds(dp=4, tp=4)["dp_comm"] == pytest.approx(across_s("all_reduce", 4 * cut, 4, 2))


def test_network_efficiency_slows_gradients_between_nodes() -> None:
    found = seconds(dp=16, framework={"network_efficiency": 0.6})["dp_comm"]
    assert found == pytest.approx(across_s("all_reduce", 4 * WEIGHTS, 16, 8, 0.6 * NIC / 2))


def test_experts_are_reduced_among_the_replicas_that_hold_the_same_ones() -> None:
    # 8 replicas, experts over 4 of them: a quarter of the experts' gradients between 2
    expected = inside_s("all_reduce", 4 * NOT_EXPERTS, 8) + inside_s("all_reduce", 4 * EXPERTS / 4, 2)
    assert seconds(dp=8, ep=4, model=MOE)["dp_comm"] == pytest.approx(expected)


def test_replicas_of_experts_are_as_far_apart_as_the_experts_are_spread() -> None:
    # every fourth of 16 ranks holds the same experts: two in each node
    expected = across_s("all_reduce", 4 * NOT_EXPERTS, 16, 8)
    expected += across_s("all_reduce", 4 * EXPERTS / 4, 4, 2)
    assert seconds(dp=16, ep=4, model=MOE)["dp_comm"] == pytest.approx(expected)


@pytest.mark.parametrize("cut", [True, False])
def test_gradients_of_experts_are_cut_by_tensor_parallelism_where_experts_are(cut: bool) -> None:
    small = 4 * (2 * 1024 + 16 * 1024)  # norms and routers stay whole
    dense = (NOT_EXPERTS - small) / 2 + small
    expected = inside_s("all_reduce", 4 * dense, 4)
    # uncut experts lie over the tensor ranks as well: 8 ranks over ep 2
    expected += inside_s("all_reduce", 4 * EXPERTS / 2 / (2 if cut else 1), 2 if cut else 4)
    found = seconds(dp=4, tp=2, ep=2, model=MOE, framework={"expert_tensor_parallel": cut})
    assert found["dp_comm"] == pytest.approx(expected)


def test_shared_experts_are_reduced_among_all_replicas() -> None:
    shared = 4 * 2 * 3 * 1024 * 512
    expected = inside_s("all_reduce", 4 * (NOT_EXPERTS + shared), 8)
    expected += inside_s("all_reduce", 4 * EXPERTS / 4, 2)
    found = seconds(dp=8, ep=4, model=replace(MOE, num_shared_experts=2))
    assert found["dp_comm"] == pytest.approx(expected)


def test_a_tied_table_is_reduced_once_without_a_pipeline_and_at_both_its_ends() -> None:
    tied = replace(DENSE, tied_embeddings=True)
    one = inside_s("all_reduce", 4 * (4 * LAYER_WEIGHTS + TABLE_WEIGHTS), 4)
    assert seconds(dp=4, model=tied)["dp_comm"] == pytest.approx(one)
    half = inside_s("all_reduce", 4 * (2 * LAYER_WEIGHTS + TABLE_WEIGHTS), 4)
    assert stages(dp=4, pp=2, model=tied).reduce_s[0] == pytest.approx([half, half])


def test_learned_positions_are_reduced_with_the_first_stage() -> None:
    learned = replace(DENSE, position_embedding="learned", max_position_embeddings=4096)
    ends = [2 * LAYER_WEIGHTS + TABLE_WEIGHTS + extra for extra in (4096 * 1024, 0)]
    expected = [inside_s("all_reduce", 4 * weights, 4) for weights in ends]
    assert stages(dp=4, pp=2, model=learned).reduce_s[0] == pytest.approx(expected)


def test_a_pipeline_without_zero_reduces_once_after_its_last_micro_batch() -> None:
    once = inside_s("all_reduce", 4 * (2 * LAYER_WEIGHTS + TABLE_WEIGHTS), 4)
    assert stages(dp=4, pp=2).reduce_s[0] == pytest.approx([once] * 2)


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_the_share_that_overlaps_hides_under_long_passes(zero: int) -> None:
    found = timed(1.0, dp=4, zero_stage=zero, framework={"dp_overlap": 0.7})["dp_comm"]
    assert found == pytest.approx(0.3 * reduced_s(zero))


@pytest.mark.parametrize(
    ("zero", "layer_passes"),
    [(0, 2 / 3), (1, 1.0), (2, BATCHES * 2 / 3)],  # the last backward; and the next forward; all backwards
)
def test_gradients_hide_under_no_more_than_their_window(zero: int, layer_passes: float) -> None:
    host_s = 0.1e-3  # of each of 4 layers
    found = timed(host_s, dp=4, zero_stage=zero, framework={"dp_overlap": 1.0})["dp_comm"]
    assert found == pytest.approx(reduced_s(zero) - layer_passes * 4 * host_s)


@pytest.mark.parametrize(("plan", "hidden"), [({}, 0.6 * 2 / 3), ({"zero_stage": 1}, 0.0), ({"pp": 2}, 0.0)])
def test_ddp_hides_gradients_whole_under_its_window_of_the_last_backward_pass(
    plan: dict[str, Any], hidden: float
) -> None:
    host_s, plain = 0.1e-3, {"dp_overlap": 1e-9}
    long, short = (timed(s, dp=4, framework=plain | {"ddp_window": 0.6}, **plan)["dp_comm"] for s in (1.0, host_s))
    whole = timed(host_s, dp=4, framework=plain, **plan)["dp_comm"]
    assert short == pytest.approx(whole - hidden * 4 * host_s)
    assert long == pytest.approx(0.0 if hidden else whole, abs=1e-8)


def test_ddp_hides_nothing_where_the_plan_leaves_overlap_off() -> None:
    profile = {"dp_overlap": 0.3, "chosen_dp_overlap": 0.3, "ddp_window": 0.6}
    off = timed(1.0, dp=4, framework=profile, overlap=OVERLAP.code("none"))["dp_comm"]
    assert off == pytest.approx(reduced_s(0))


def test_gathered_weights_hide_under_the_pass_that_needs_them() -> None:
    gather, host_s = inside_s("all_gather", 2 * WEIGHTS, 4), 0.1e-3
    all_of_it = timed(host_s, dp=4, zero_stage=3, framework={"dp_overlap": 1.0})["zero_comm"]
    assert all_of_it == pytest.approx(BATCHES * (2 * gather - 4 * host_s))
    a_share = timed(1.0, dp=4, zero_stage=3, framework={"dp_overlap": 0.7})["zero_comm"]
    assert a_share == pytest.approx(BATCHES * 2 * 0.3 * gather)


@pytest.mark.parametrize("vpp", [1, 2])
def test_gradients_of_a_later_stage_hide_while_the_pipeline_drains(vpp: int) -> None:
    # the last layer's experts, and with them most gradients, lie on the second stage (layers 2, 3 of 0-3, interleaved
    # 1, 3), whose last backward ends one pass (or, where it is interleaved, one chunk) of the first stage earlier
    model = replace(MOE, num_dense_layers=3, num_experts=64, moe_ffn_hidden_size=2048, vocab_size=128)
    later = LAYER_WEIGHTS + (1024 * 64 * 24 + 1024 * 1024 + 2 * 1024 + 64 * 1024) + 128 * 1024
    reduce = inside_s("all_reduce", 4 * later, 4)
    reduce += inside_s("all_reduce", 4 * 64 * 3 * 1024 * 2048, 4)
    found = timed(0.3e-3, dp=4, pp=2, vpp=vpp, model=model, framework={"pp_overlap": 1.0})["dp_comm"]
    # the router makes the last chunk longer than others, so that the way there is a little shorter than the schedule's
    assert found == pytest.approx(reduce - 2 * 0.2e-3 / vpp, abs=5e-6)


def test_an_interleaved_stage_hides_gradients_while_its_chunks_keep_the_pace() -> None:
    # one chunk of a layer runs at the pace of the slowest stage: outside its forward pass it has all of the backward
    reduce = inside_s("all_reduce", 4 * (2 * LAYER_WEIGHTS + TABLE_WEIGHTS), 4)
    profile = {"pp_overlap": 1.0, "dp_overlap": 1.0, "host_floor_pp_tp_s": 0.0}
    found = timed(0.15e-3, dp=4, pp=2, vpp=2, framework=profile)["dp_comm"]
    assert found == pytest.approx(reduce - 2 * 0.1e-3)


def test_a_light_interleaved_stage_hides_gradients_while_the_slowest_one_works() -> None:
    # the first stage, layers 0 and 2, takes 2·0.3 ms, a third of it forward; the second, with the host's time for the
    # last layer's 16 experts, 0.3 + 0.62 ms; learned positions leave most gradients to the first
    model = replace(MOE, num_dense_layers=3, position_embedding="learned", max_position_embeddings=200_000)
    reduce = inside_s("all_reduce", 4 * (2 * LAYER_WEIGHTS + TABLE_WEIGHTS + 200_000 * 1024), 4)
    profile = {"pp_overlap": 1.0, "dp_overlap": 1.0, "expert_host_s": 0.02e-3}
    found = timed(0.3e-3, dp=4, pp=2, vpp=2, model=model, framework=profile)["dp_comm"]
    # before the second stage's work begins lies the shortest way there, a hundredth of a pass below the schedule's
    assert found == pytest.approx(reduce - (0.3e-3 + 0.62e-3 - 0.2e-3), abs=0.01e-3)


def test_an_iteration_is_its_schedule_its_exposed_gradients_and_its_optimizer_step() -> None:
    # two layers per stage at 3 ms, 8 micro-batches and one more of bubble
    weights = 2 * LAYER_WEIGHTS + TABLE_WEIGHTS
    profile = {"host_floor_s": 3e-3, "pp_overlap": 1.0, "zero_slice_s": 1e-3}
    estimator = physics(machine=NOTHING_COMPUTES, framework=profile, dp=4, pp=2, zero_stage=1)
    reduce = inside_s("reduce_scatter", 4 * weights, 4) + inside_s("all_gather", 2 * weights, 4)
    found = estimator.iteration_time_s(np.array([0]), np.full((1, 2), 1000.0))
    assert float(found[0]) == pytest.approx((8 + 1) * 2 * 3e-3 + reduce + 2 * 3 * 1e-3)


def test_the_optimizer_moves_30_bytes_per_parameter_at_four_fifths_of_the_memory_s_rate() -> None:
    # Adam reads and writes three fp32 values (24 B), reads a gradient (4 B), writes a weight (2 B)
    assert seconds(dp=4, machine=MOVING)["optimizer"] == pytest.approx(30 * WEIGHTS / (0.8 * HBM_BYTES_PER_S))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_shares_the_optimizer_step_among_replicas_and_context_ranks(zero: int) -> None:
    found = seconds(dp=2, cp=4, zero_stage=zero, machine=MOVING)["optimizer"]
    assert found == pytest.approx(30 * WEIGHTS / 8 / (0.8 * HBM_BYTES_PER_S))


def test_experts_steps_are_shared_among_the_replicas_that_hold_the_same_ones() -> None:
    # a rank holds a quarter of the experts and shares their step with one other
    found = seconds(dp=8, ep=4, zero_stage=1, model=MOE, machine=MOVING)["optimizer"]
    assert found == pytest.approx(30 * (NOT_EXPERTS / 8 + EXPERTS / 4 / 2) / (0.8 * HBM_BYTES_PER_S))
    whole = seconds(dp=8, ep=4, model=MOE, machine=MOVING)["optimizer"]
    assert whole == pytest.approx(30 * (NOT_EXPERTS + EXPERTS / 4) / (0.8 * HBM_BYTES_PER_S))


def test_the_stage_with_most_parameters_sets_the_optimizer_step() -> None:
    model = replace(DENSE, num_layers=3)
    found = seconds(pp=3, model=model, machine=MOVING)["optimizer"]
    assert found == pytest.approx(30 * (LAYER_WEIGHTS + TABLE_WEIGHTS) / (0.8 * HBM_BYTES_PER_S))


@pytest.mark.parametrize(("zero", "copies"), [(0, 0), (1, 7), (2, 7), (3, 0)])
def test_weights_put_together_slice_by_slice_cost_a_copy_per_layer_and_other_rank(zero: int, copies: int) -> None:
    profile = {"zero_slice_s": 1e-3}
    found = seconds(dp=2, cp=4, zero_stage=zero, machine=NOTHING_COMPUTES, framework=profile)["optimizer"]
    assert found == pytest.approx(4 * copies * 1e-3, abs=1e-12)


def test_what_an_iteration_costs_beyond_its_steps_is_paid_once() -> None:
    profile = {"iteration_overhead_s": 0.25}
    parts = seconds(dp=4, pp=2, framework=profile)
    assert parts["other"] == pytest.approx(0.25)
    assert sum(parts.values()) == pytest.approx(sum(seconds(dp=4, pp=2).values()) + 0.25)


def test_messages_of_each_layer_apart_take_their_latency_each() -> None:
    apart = 4 * 3  # layers, messages of each
    found = seconds(dp=4, framework={"messages_per_layer": 3.0})["dp_comm"]
    assert found == pytest.approx(apart * inside_s("all_reduce", 4 * WEIGHTS / apart, 4))
    assert found > seconds(dp=4)["dp_comm"]
