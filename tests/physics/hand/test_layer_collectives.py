"""Collectives of the layers by hand: how many of which kind, of how many bytes, in which pass, and what hides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.physics.hand.plain_machine import (
    BATCHES,
    DENSE,
    FLOPS_PER_S,
    LATENT,
    MOE,
    NIC,
    NOTHING_COMPUTES,
    PEER_S,
    SEQ,
    START_S,
    STREAM,
    WIRE_S,
    across_s,
    flash_s,
    gpu_constants,
    inside_s,
    passes_s,
    physics,
    seconds,
    stages,
)

FULL = 2
LAYERS = 4
PASSES = LAYERS * BATCHES
EIGHT = replace(DENSE, num_query_groups=8)  # a KV head for each of eight ranks


def test_tensor_parallelism_all_reduces_twice_forward_and_twice_backward() -> None:
    once = inside_s("all_reduce", STREAM, 4)
    assert passes_s(tp=4) == pytest.approx((LAYERS * 2 * once, LAYERS * 2 * once))
    assert seconds(tp=4)["tp_comm"] == pytest.approx(PASSES * 4 * once)


def test_sequence_parallelism_gathers_and_scatters_instead_of_each_all_reduce() -> None:
    pair = inside_s("all_gather", STREAM, 4) + inside_s("reduce_scatter", STREAM, 4)
    assert passes_s(tp=4, sequence_parallel=True) == pytest.approx((LAYERS * 2 * pair, LAYERS * 2 * pair))


def test_full_recompute_repeats_the_forward_all_reduces_in_the_backward_pass() -> None:
    once = inside_s("all_reduce", STREAM, 4)
    assert passes_s(tp=4, recompute=FULL) == pytest.approx((LAYERS * 2 * once, LAYERS * 4 * once))
    assert seconds(tp=4, recompute=FULL)["tp_comm"] == pytest.approx(PASSES * 6 * once)


def test_full_recompute_repeats_the_gathers_and_scatters_of_sequence_parallelism() -> None:
    pair = inside_s("all_gather", STREAM, 8) + inside_s("reduce_scatter", STREAM, 8)
    found = passes_s(tp=8, model=EIGHT, sequence_parallel=True, recompute=FULL)
    assert found == pytest.approx((LAYERS * 2 * pair, LAYERS * 4 * pair))


def test_ranks_that_share_a_kv_head_gather_queries_keys_and_values() -> None:
    # 16 query heads and 2 KV heads of 64; Megatron gathers them forward and scatters their gradients
    plan = {"tp": 8, "sequence_parallel": True, "model": replace(DENSE, num_query_groups=2)}
    pair = inside_s("all_gather", STREAM, 8) + inside_s("reduce_scatter", STREAM, 8)
    moved = 2 * SEQ * (16 + 2 * 2) * 64
    gathered, scattered = (inside_s(kind, moved, 8) for kind in ("all_gather", "reduce_scatter"))
    forward, backward = LAYERS * (2 * pair + gathered), LAYERS * (2 * pair + scattered)
    assert passes_s(**plan) == pytest.approx((forward, backward))
    found = passes_s(**plan, recompute=FULL)
    assert found == pytest.approx((forward, backward + LAYERS * (2 * pair + gathered)))


def test_selective_recompute_repeats_no_collective() -> None:
    for plan in ({"tp": 4}, {"cp": 4}, {"ep": 4, "dp": 4, "model": MOE}):
        assert passes_s(recompute=1, **plan) == pytest.approx(passes_s(**plan))


@pytest.mark.parametrize(("dtype", "size"), [("bf16", 2), ("fp8", 2), ("fp32", 4)])
def test_activations_travel_in_16_bit_or_in_fp32(dtype: str, size: int) -> None:
    once = inside_s("all_reduce", size * 3 * SEQ * 1024, 2)
    assert passes_s(tp=2, dtype=dtype, micro_batch_size=3)[0] == pytest.approx(LAYERS * 2 * once)


def test_keys_values_and_routed_tokens_travel_in_fp32_where_the_training_does() -> None:
    gather = inside_s("all_gather", 4 * SEQ * 2 * 4 * 64, 4)
    assert passes_s(cp=4, dtype="fp32")[0] == pytest.approx(LAYERS * gather)
    dispatch = inside_s("all_to_all", 4 * SEQ * 2 * 1024, 4)
    assert passes_s(dp=4, ep=4, model=MOE, dtype="fp32")[0] == pytest.approx(LAYERS * 2 * dispatch)
    sent = seconds(pp=4, dtype="fp32")["pp_comm"]
    assert sent == pytest.approx(2 * BATCHES * (40e-6 + 2 * STREAM / 80e9))


def test_context_parallelism_divides_what_tensor_parallelism_reduces() -> None:
    once = inside_s("all_reduce", STREAM / 4, 2)
    assert seconds(tp=2, cp=4)["tp_comm"] == pytest.approx(PASSES * 4 * once)


def test_tensor_parallelism_over_two_nodes_runs_a_ring_through_eight_nics() -> None:
    once = across_s("all_reduce", STREAM, 16, 8)
    assert seconds(tp=16, model=replace(DENSE, num_query_groups=16))["tp_comm"] == pytest.approx(PASSES * 4 * once)


def test_network_efficiency_slows_the_bytes_between_nodes() -> None:
    once = across_s("all_reduce", STREAM, 16, 8, 0.6 * NIC / 2)
    model = replace(DENSE, num_query_groups=16)  # fewer KV heads than ranks would be gathered too
    found = seconds(tp=16, model=model, framework={"network_efficiency": 0.6})["tp_comm"]
    assert found == pytest.approx(PASSES * 4 * once)


def test_tensor_parallelism_may_use_the_network_better_than_gradients() -> None:
    once = across_s("all_reduce", STREAM, 16, 8, 0.8 * NIC / 2)
    model = replace(DENSE, num_query_groups=16)
    profile = {"network_efficiency": 0.6, "tp_network_efficiency": 0.8}
    assert seconds(tp=16, model=model, framework=profile)["tp_comm"] == pytest.approx(PASSES * 4 * once)


def test_each_step_of_a_ring_over_nodes_takes_the_hop_of_the_framework_longer() -> None:
    # an all-reduce over 16 ranks has 2 * 15 steps, of 20 us each: 0.6 ms
    model = replace(DENSE, num_query_groups=16)
    found = [seconds(tp=16, model=model, framework={"tp_hop_s": hop})["tp_comm"] for hop in (0.0, 20e-6)]
    assert found[1] - found[0] == pytest.approx(PASSES * 4 * 0.6e-3)
    inside = [seconds(tp=8, model=EIGHT, framework={"tp_hop_s": hop})["tp_comm"] for hop in (0.0, 20e-6)]
    assert inside[0] == inside[1]


def test_network_efficiency_leaves_links_inside_a_node_alone() -> None:
    once = inside_s("all_reduce", STREAM, 8)
    found = seconds(tp=8, model=EIGHT, framework={"network_efficiency": 0.6})["tp_comm"]
    assert found == pytest.approx(PASSES * 4 * once)


def test_what_tensor_parallelism_overlaps_leaves_the_rest_exposed() -> None:
    slow = gpu_constants(FLOPS_PER_S / 100)  # compute enough to hide all of it under
    once = inside_s("all_reduce", STREAM, 4)
    found = passes_s(machine=slow, tp=4, recompute=FULL, framework={"tp_overlap": 0.3})
    assert found == pytest.approx((0.7 * LAYERS * 2 * once, 0.7 * LAYERS * 4 * once))


def test_no_collective_hides_where_nothing_computes() -> None:
    for plan in ({"tp": 4}, {"cp": 4}, {"ep": 4, "dp": 4, "model": MOE}):
        hiding = {"tp_overlap": 1.0, "cp_overlap": 1.0, "ep_overlap": 1.0}
        found = passes_s(machine=NOTHING_COMPUTES, framework=hiding, **plan)
        assert found == pytest.approx(passes_s(machine=NOTHING_COMPUTES, **plan))
        assert found[0] > 0


def test_tensor_parallel_traffic_hides_under_the_layer_s_own_kernels() -> None:
    # a middle stage is one layer: what it computes, forward and backward, is the room there is
    plan: dict[str, Any] = {"pp": 3, "tp": 4, "model": replace(DENSE, num_layers=3)}
    costs = stages(framework={"tp_overlap": 1.0}, **plan)
    once = inside_s("all_reduce", STREAM, 4)
    assert costs.forward_comm_s[0, 1] == pytest.approx(2 * once - costs.forward_sm_s[0, 1])
    assert costs.backward_comm_s[0, 1] == pytest.approx(max(2 * once - costs.backward_sm_s[0, 1], 0))
    assert costs.forward_comm_s[0, 1] > 0


def test_context_parallelism_gathers_keys_and_values_once_forward_and_twice_backward() -> None:
    # K and V of 4 groups of 64, of the whole sequence; backward: the gather again and the gradients' scatter
    once = inside_s("all_gather", 2 * SEQ * 2 * 4 * 64, 4)
    assert passes_s(cp=4) == pytest.approx((LAYERS * once, LAYERS * 2 * once))
    assert seconds(cp=4)["cp_comm"] == pytest.approx(PASSES * 3 * once)


def test_full_recompute_gathers_keys_and_values_once_more() -> None:
    once = inside_s("all_gather", 2 * SEQ * 2 * 4 * 64, 4)
    assert passes_s(cp=4, recompute=FULL) == pytest.approx((LAYERS * once, LAYERS * 3 * once))


def test_tensor_parallelism_divides_the_keys_and_values_that_context_parallelism_gathers() -> None:
    once = inside_s("all_gather", 2 * SEQ * 2 * 4 * 64 / 4, 2)
    assert seconds(cp=2, tp=4)["cp_comm"] == pytest.approx(PASSES * 3 * once)


def test_latent_attention_gathers_keys_and_values_of_all_its_heads() -> None:
    # 16 heads with keys of 64 + 32 and values of 48
    once = inside_s("all_gather", 2 * SEQ * 16 * (64 + 32 + 48), 4)
    assert seconds(cp=4, model=LATENT)["cp_comm"] == pytest.approx(PASSES * 3 * once)


def test_context_groups_that_leave_their_node_go_through_the_nics() -> None:
    # tp 4, cp 4: members are 4 ranks apart, two in each node
    once = across_s("all_gather", 2 * SEQ * 2 * 4 * 64 / 4, 4, 2)
    assert seconds(cp=4, tp=4)["cp_comm"] == pytest.approx(PASSES * 3 * once)


def test_what_context_parallelism_overlaps_leaves_the_rest_exposed() -> None:
    slow = gpu_constants(FLOPS_PER_S / 1000)
    once = inside_s("all_gather", 2 * SEQ * 2 * 4 * 64, 4)
    found = passes_s(machine=slow, cp=4, framework={"cp_overlap": 0.8})
    assert found == pytest.approx((0.2 * LAYERS * once, 0.2 * LAYERS * 2 * once))


def test_context_traffic_hides_under_the_attention_core_alone() -> None:
    core = flash_s(4 * SEQ / 4 * SEQ * 1024)
    once = inside_s("all_gather", 2 * SEQ * 2 * 4 * 64, 4)
    found = passes_s(cp=4, framework={"cp_overlap": 1.0})
    assert found[0] == pytest.approx(LAYERS * (once - core[0]))
    assert found[1] == pytest.approx(LAYERS * (2 * once - core[1]))


def test_tokens_go_to_their_experts_and_back_in_both_passes() -> None:
    # dispatch and combine of two copies of every token
    once = inside_s("all_to_all", 2 * SEQ * 2 * 1024, 4)
    assert passes_s(dp=4, ep=4, model=MOE) == pytest.approx((LAYERS * 2 * once, LAYERS * 2 * once))
    assert seconds(dp=4, ep=4, model=MOE)["ep_comm"] == pytest.approx(PASSES * 4 * once)


def test_full_recompute_sends_tokens_to_their_experts_again() -> None:
    once = inside_s("all_to_all", 2 * SEQ * 2 * 1024, 4)
    found = passes_s(dp=4, ep=4, model=MOE, recompute=FULL)
    assert found == pytest.approx((LAYERS * 2 * once, LAYERS * 4 * once))


def test_leading_dense_layers_send_nothing_to_experts() -> None:
    once = inside_s("all_to_all", 2 * SEQ * 2 * 1024, 4)
    found = seconds(dp=4, ep=4, model=replace(MOE, num_dense_layers=3))["ep_comm"]
    assert found == pytest.approx(BATCHES * 4 * once)


def test_experts_on_two_nodes_are_reached_through_one_nic_each() -> None:
    # 16 ranks: 8 remote peers, and 8/16 of the bytes leave the node
    sent = 2 * SEQ * 2 * 1024
    once = WIRE_S + 8 * PEER_S + START_S + 5e-6 + sent * 8 / 16 / (NIC / 2)
    found = seconds(dp=16, ep=16, model=MOE)["ep_comm"]
    assert found == pytest.approx(PASSES * 4 * once)


def test_a_micro_batch_s_own_overhead_is_a_third_forward_and_two_thirds_backward() -> None:
    assert passes_s(framework={"micro_batch_overhead_s": 0.3}) == pytest.approx((0.1, 0.2))
    parts = seconds(framework={"micro_batch_overhead_s": 0.3})
    assert parts["host"] == pytest.approx(BATCHES * 0.3)


def test_collectives_occupy_the_stage_at_any_clock() -> None:
    once = inside_s("all_reduce", STREAM, 4)
    estimator = physics(tp=4)
    slow, fast = (estimator.evaluate(np.array([0]), np.array([[c]])) for c in (500.0, 1000.0))
    compute = float(fast["iteration_time_s"][0]) - PASSES * 4 * once
    assert float(slow["iteration_time_s"][0]) == pytest.approx(2 * compute + PASSES * 4 * once)
