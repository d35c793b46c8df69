"""Pipelines by hand: sends between stages, bubbles, unequal stages, host floors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.physics.instructions import beyond_schedule_s, instruction_costs
from jointopt.physics.makespan import regular_makespan_s
from jointopt.physics.schedule import warmup_slots
from tests.physics.hand.plain_machine import (
    BATCHES,
    DENSE,
    FAR_HOP_S,
    IN_TRAINING,
    LAYER_WEIGHTS,
    MOE,
    NIC,
    NOTHING_COMPUTES,
    SEQ,
    START_S,
    STREAM,
    TABLE_WEIGHTS,
    WIRE_S,
    gpu_constants,
    inside_s,
    physics,
    seconds,
    stages,
)

NEAR_S = 40e-6 + STREAM / 80e9  # the latency and the bus of a pair's all-to-all
FAR_S = START_S + FAR_HOP_S + WIRE_S
DEEP = replace(DENSE, num_layers=8)


def idle(**given: Any) -> dict[str, float]:
    """A plan in which a layer takes 3 ms of host time, 1 forward and 2 backward, and its sends hide."""
    profile = {"host_floor_pp_s": 3e-3, "host_floor_s": 3e-3, "pp_overlap": 1.0} | given.pop("framework", {})
    return seconds(machine=NOTHING_COMPUTES, framework=profile, **{"model": DEEP} | given)


def makespan_s(forward: list[float], backward: list[float], vpp: int, batches: int) -> float:
    times = (np.array([forward]), np.array([backward]))
    shape = (np.array([value]) for value in (len(forward), vpp, batches))
    return float(regular_makespan_s(*times, *shape)[0])


def test_each_micro_batch_waits_for_one_activation_and_one_gradient_per_stage() -> None:
    assert seconds(pp=4)["pp_comm"] == pytest.approx(2 * BATCHES * NEAR_S)
    assert stages(pp=4).p2p_s[0] == pytest.approx(NEAR_S)


def test_each_chunk_of_an_interleaved_stage_receives_its_own_activation() -> None:
    assert seconds(pp=4, vpp=2, model=DEEP)["pp_comm"] == pytest.approx(2 * BATCHES * 2 * NEAR_S)


def test_sequence_parallelism_sends_its_shard_alone() -> None:
    found = [seconds(pp=2, tp=4, sequence_parallel=sp)["pp_comm"] for sp in (False, True)]
    assert found == pytest.approx([2 * BATCHES * NEAR_S, 2 * BATCHES * (40e-6 + STREAM / 4 / 80e9)])


def test_context_parallelism_and_micro_batch_size_scale_what_is_sent() -> None:
    found = seconds(pp=2, cp=4, micro_batch_size=2)["pp_comm"]
    assert found == pytest.approx(2 * BATCHES * (40e-6 + 2 * STREAM / 4 / 80e9))


def test_what_a_pipeline_overlaps_leaves_the_rest_exposed() -> None:
    found = seconds(pp=4, framework={"pp_overlap": 0.75})["pp_comm"]
    assert found == pytest.approx(2 * BATCHES * 0.25 * NEAR_S)


def test_tensor_ranks_that_send_their_share_of_an_activation_gather_what_arrives() -> None:
    found = stages(pp=2, tp=4, framework={"splits_sends": True}).p2p_s[0]
    assert found == pytest.approx(40e-6 + STREAM / 4 / 80e9 + inside_s("all_gather", STREAM, 4))
    with_shards = stages(pp=2, tp=4, sequence_parallel=True, framework={"splits_sends": True}).p2p_s[0]
    assert with_shards == pytest.approx(40e-6 + STREAM / 4 / 80e9)


@pytest.mark.parametrize(("vpp", "left"), [(1, 1.0), (2, 0.25)])
def test_interleaved_stages_hide_their_share_of_the_sends(vpp: int, left: float) -> None:
    costs = stages(pp=2, vpp=vpp, framework={"interleaved_pp_overlap": 0.75})
    assert costs.p2p_s[0] == pytest.approx(vpp * left * NEAR_S)


@pytest.mark.parametrize("plan", [{"pp": 2, "tp": 8}, {"pp": 4, "dp": 4}], ids=["every boundary", "some boundaries"])
def test_stages_on_different_nodes_send_through_one_nic(plan: dict[str, int]) -> None:
    # one boundary between nodes sets the pace of all
    found = seconds(**plan)["pp_comm"]
    assert found == pytest.approx(2 * BATCHES * (FAR_S + STREAM / (NIC / 2)))


def test_network_efficiency_slows_sends_between_nodes() -> None:
    found = seconds(pp=2, tp=8, framework={"network_efficiency": 0.6})["pp_comm"]
    assert found == pytest.approx(2 * BATCHES * (FAR_S + STREAM / (0.6 * NIC / 2)))


@pytest.mark.parametrize(("pp", "vpp"), [(2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (2, 4)])
def test_equal_stages_idle_for_p_minus_1_of_their_chunks(pp: int, vpp: int) -> None:
    # arXiv:2104.04473, section 2.2: (p - 1)/v of a micro-batch's forward and backward
    step_s = 8 / pp * 3e-3
    parts = idle(pp=pp, vpp=vpp)
    assert parts["bubble"] == pytest.approx((pp - 1) / vpp * step_s)
    assert sum(parts.values()) == pytest.approx((BATCHES + (pp - 1) / vpp) * step_s)


def test_sends_lengthen_the_bubble_as_well() -> None:
    parts = idle(pp=4, framework={"pp_overlap": 0.0})
    assert parts["bubble"] == pytest.approx(3 * (2 * 3e-3 + 2 * NEAR_S))


def test_a_last_group_that_is_not_full_leaves_out_the_rounds_it_lacks() -> None:
    parts = idle(pp=2, vpp=2, batches=3)
    assert sum(parts.values()) == pytest.approx((3 + 1 / 2) * 4 * 3e-3)


def test_without_a_pipeline_nothing_idles() -> None:
    parts = idle(vpp=1, pp=1)
    assert parts["bubble"] == pytest.approx(0.0, abs=1e-12)
    assert parts["host"] == pytest.approx(BATCHES * 8 * 3e-3)


def test_two_micro_batches_through_a_slow_last_rank() -> None:
    # rank 1: F 1-4, B 4-8, F 8-11, B 11-15; rank 0 ends with B 15-17
    assert makespan_s([1.0, 3.0], [2.0, 4.0], 1, 2) == pytest.approx(17.0)
    assert makespan_s([1.0, 3.0], [2.0, 4.0], 1, 4) == pytest.approx(31.0)


def test_two_micro_batches_through_a_slow_first_rank() -> None:
    # rank 0: F 0-3, F 3-6, B 6-10, B 10-14, and never waits
    assert makespan_s([3.0, 1.0], [4.0, 2.0], 1, 2) == pytest.approx(14.0)


def test_a_slow_middle_rank_fills_drains_and_sets_the_pace() -> None:
    # rank 1 starts at 1 and never waits: the last rank's 2 pass under its second forward; 1 more when it ends
    assert makespan_s([1.0, 2.0, 1.0], [1.0, 3.0, 1.0], 1, 10) == pytest.approx(1 + 10 * 5 + 1)


def test_two_interleaved_ranks_of_which_the_last_is_slow() -> None:
    # chunks of 1 on rank 0 and of 2 on rank 1, forward and backward; rank 1 is busy from 1 to 17, then rank 0 ends
    assert makespan_s([2.0, 4.0], [2.0, 4.0], 2, 2) == pytest.approx(18.0)


@pytest.mark.parametrize(("rank", "vpp", "slots"), [(0, 1, 3), (2, 1, 1), (0, 2, 10), (3, 2, 4)])
def test_ranks_warm_up_with_as_many_forwards_as_megatron(rank: int, vpp: int, slots: int) -> None:
    # p - 1 - i; interleaved 2·(p - 1 - i) + (v - 1)·p
    assert warmup_slots(4, vpp, 16, rank) == slots


def test_the_head_and_the_embedding_make_the_slowest_stage() -> None:
    # products alone; the last of two stages has half of the layers and the head
    parts = seconds(pp=2, framework={"pp_overlap": 1.0})
    costs = stages(pp=2)
    steps = (costs.forward_sm_s + costs.backward_sm_s)[0]
    head_s = 3 * 2 * SEQ * TABLE_WEIGHTS / 1e15 * IN_TRAINING
    assert steps[1] - steps[0] == pytest.approx(head_s)
    assert parts["compute"] == pytest.approx(BATCHES * steps[1])
    assert parts["bubble"] == pytest.approx(steps[0])


def test_layers_that_do_not_divide_go_where_the_head_is_not() -> None:
    assert stages(pp=4, model=replace(DENSE, num_layers=7)).layers.tolist() == [[2, 2, 2, 1]]


@pytest.mark.parametrize(
    ("plan", "layer_s"),
    [
        ({}, 5e-3),
        ({"tp": 2}, 5e-3),
        ({"dp": 2, "tp": 8}, 5e-3),
        ({"pp": 2, "tp": 4}, 5e-3),  # inside one node a pipeline needs what one stage does
        ({"dp": 8, "pp": 2}, 2e-3 + 1e-3),
        ({"pp": 2, "tp": 8}, 2e-3 + 8e-3),
        ({"pp": 2, "tp": 16}, 2e-3 + 16 * 1.5e-3),  # whose tensor ranks lie on two nodes
        ({"tp": 16}, 5e-3),
    ],
)
def test_the_host_needs_its_time_per_layer_with_and_without_a_pipeline(plan: dict[str, int], layer_s: float) -> None:
    profile = {"host_floor_s": 5e-3, "host_floor_pp_s": 2e-3, "host_floor_pp_tp_s": 1e-3}
    profile |= {"host_floor_network_tp_s": 0.5e-3}
    found = stages(framework=profile, **plan).host_s[0]
    assert found == pytest.approx(4 / plan.get("pp", 1) * layer_s)


def test_local_experts_add_to_the_host_s_time_in_layers_that_have_them() -> None:
    profile = {"host_floor_s": 5e-3, "expert_host_s": 1e-3}
    found = stages(dp=4, ep=4, model=replace(MOE, num_dense_layers=1), framework=profile).host_s[0]
    assert found == pytest.approx(4 * 5e-3 + 3 * 16 / 4 * 1e-3)


def test_layers_of_experts_take_the_host_longer_and_most_where_tokens_are_permuted_by_kernels_of_their_own() -> None:
    profile = {"host_floor_s": 5e-3, "moe_host_s": 2e-3, "dispatcher_host": {"alltoall": 2.5}}
    plan: dict[str, Any] = {"dp": 4, "ep": 4, "model": replace(MOE, num_dense_layers=1), "framework": profile}
    for dispatcher, each_s in (("hybridep", 2e-3), ("alltoall", 5e-3), ("", 5e-3)):
        assert stages(token_dispatcher=dispatcher, **plan).host_s[0] == pytest.approx(4 * 5e-3 + 3 * each_s)


def test_a_host_that_waits_for_counts_of_tokens_and_kernels_hold_each_other_up() -> None:
    plan: dict[str, Any] = {"model": MOE, "micro_batch_size": 4}
    top, row = np.full((1, 1), 1000.0), np.array([0])
    work_s = float(physics(**plan).times(0, row, top).forward_s[0, 0])
    for waits, longer in ((False, 1.0), (True, 2 ** (1 / 3))):
        profile = {"host_floor_s": work_s * 3 / 4, "host_waits": waits}  # of four layers as long as their kernels
        found = physics(framework=profile, **plan).times(0, row, top)
        assert float(found.forward_s[0, 0]) == pytest.approx(longer * work_s)


def test_a_slower_host_takes_its_factor_longer() -> None:
    found = stages(framework={"host_floor_s": 5e-3}, gpu={"host_time_factor": 1.5}).host_s[0]
    assert found == pytest.approx(4 * 1.5 * 5e-3)


def test_a_pass_takes_what_the_host_needs_or_its_work_and_never_both() -> None:
    # with all-reduces of more than 2 ms a pass, a third of 3 ms of host time hides under them
    profile = {"host_floor_s": 0.75e-3}
    once = 4 * 2 * inside_s("all_reduce", STREAM * 40, 4)
    plan: dict[str, Any] = {"machine": NOTHING_COMPUTES, "tp": 4, "micro_batch_size": 40}
    found = physics(framework=profile, **plan).times(0, np.array([0]), np.full((1, 1), 1000.0))
    assert float(found.forward_s[0, 0]) == pytest.approx(max(once, 1e-3))
    assert once > 2e-3
    assert float(found.backward_s[0, 0]) == pytest.approx(max(once, 2e-3))


def test_at_half_the_clock_products_take_twice_as_long_and_memory_does_not() -> None:
    half, whole = (seconds(clock_mhz=clock)["compute"] for clock in (500.0, 1000.0))
    assert half == pytest.approx(2 * whole)
    moved = gpu_constants(hbm_bytes_per_s=1e12)
    half, whole = (seconds(machine=moved, clock_mhz=clock)["compute"] for clock in (500.0, 1000.0))
    assert half == pytest.approx(whole)


def test_the_lighter_stage_s_clock_falls_until_it_keeps_up_with_the_head_s() -> None:
    estimator = physics(pp=2, framework={"pp_overlap": 1.0})
    grid = np.linspace(100.0, 1000.0, 901)
    job = replace(estimator.job, search=replace(estimator.job.search, clock_mhz=tuple(grid)))
    estimator.job = job
    costs = estimator.groups[0]
    forward, backward = costs.forward_sm_s[0], costs.backward_sm_s[0]
    share = (forward[0] + backward[0]) / (forward[1] + backward[1])
    found = estimator.stage_clocks(np.array([0]), np.array([900]), np.array([1.0]))
    assert found[0] == pytest.approx([1000 * share, 1000.0], abs=1.01)


def test_no_clock_makes_collectives_faster_so_products_get_the_slack_alone() -> None:
    estimator = physics(pp=2, tp=4)
    grid = tuple(np.linspace(100.0, 1000.0, 901))
    estimator.job = replace(estimator.job, search=replace(estimator.job.search, clock_mhz=grid))
    c, wanted = estimator.groups[0], []
    passes = ((c.forward_sm_s[0], c.forward_comm_s[0]), (c.backward_sm_s[0], c.backward_comm_s[0]))
    own = sum(products + waits for products, waits in passes)
    for products, waits in passes:  # each pass of the first stage may take own[1] / own[0] times as long
        wanted.append(1000 * products[0] / ((products + waits)[0] * own[1] / own[0] - waits[0]))
    found = estimator.stage_clocks(np.array([0]), np.array([900]), np.array([1.0]))
    assert found[0] == pytest.approx([max(wanted), 1000.0], abs=1.01)


def test_passes_at_other_clocks_take_what_the_plan_s_passes_take() -> None:
    estimator = physics(pp=2, tp=2)
    costs, found = estimator.groups[0], instruction_costs(estimator, 0, np.array([500.0, 1000.0]), 1.0)
    waits = costs.forward_comm_s[0] + costs.p2p_s[0]
    assert found.forward_s[:, 1] == pytest.approx(costs.forward_sm_s[0] + waits)
    assert found.forward_s[:, 0] == pytest.approx(2 * costs.forward_sm_s[0] + waits)
    assert found.backward_s[:, 0] == pytest.approx(2 * costs.backward_sm_s[0] + waits)


def test_beyond_its_schedule_a_plan_takes_exposed_gradients_its_step_and_the_overhead() -> None:
    profile = {"dp_overlap": 1.0, "iteration_overhead_s": 0.5, "zero_slice_s": 0.01}
    estimator = physics(dp=4, zero_stage=1, framework=profile, machine=NOTHING_COMPUTES)
    weights = 4 * LAYER_WEIGHTS + 2 * TABLE_WEIGHTS
    reduce = inside_s("reduce_scatter", 4 * weights, 4) + inside_s("all_gather", 2 * weights, 4)
    found = beyond_schedule_s(estimator, 0, 1.0)(np.array([1e-3]), np.array([2e-3]))
    assert found == pytest.approx(reduce - 3e-3 + 4 * 3 * 0.01 + 0.5)
