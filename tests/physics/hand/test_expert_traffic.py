"""All-to-alls of experts by hand: slices, cut experts, copies per node, what hides in the steady state."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.framework import Framework
from jointopt.physics.cost_model import CostModel
from jointopt.physics.traffic import dispatch_bytes, places_per_token
from tests.physics.hand.plain_machine import (
    BATCHES,
    DENSE,
    FLOPS_PER_S,
    MOE,
    NIC,
    PEER_S,
    SEQ,
    START_S,
    STREAM,
    WIRE_S,
    across_s,
    gpu_constants,
    inside_s,
    passes_s,
    physics,
    seconds,
    stages,
)

LAYERS, PASSES = 4, 4 * BATCHES
COPIES = 2 * STREAM  # bytes of two copies of a sequence's tokens
TOP = np.array([[1000.0]])
SLOW = gpu_constants(FLOPS_PER_S / 1000)
DEEPEP = {"token_dispatcher": "deepep"}
FREE: dict[str, Any] = {"dispatcher_sms": {}}  # what hides keeps no SM from kernels
WIDE = replace(SLOW, gemm=replace(SLOW.gemm, sm_count=100))


def test_whole_experts_get_each_tensor_rank_s_slice_and_no_more() -> None:
    # tp 2, sequence parallel: a gather and a scatter around attention alone
    found = seconds(dp=4, ep=4, tp=2, etp=1, sequence_parallel=True, model=MOE)
    pair = inside_s("all_gather", STREAM, 2) + inside_s("reduce_scatter", STREAM, 2)
    assert found["ep_comm"] == pytest.approx(PASSES * 4 * inside_s("all_to_all", COPIES / 2, 4))
    assert found["tp_comm"] == pytest.approx(PASSES * 2 * pair)


def test_cut_experts_gather_the_routed_copies_of_their_ranks() -> None:
    # of a slice of half the tokens, twice; then an all-gather and a reduce-scatter of both slices' copies
    found = seconds(dp=4, ep=4, tp=2, etp=2, sequence_parallel=True, model=MOE)
    once = 2 * inside_s("all_to_all", COPIES / 2, 4)
    once += inside_s("all_gather", COPIES, 2) + inside_s("reduce_scatter", COPIES, 2)
    assert found["ep_comm"] == pytest.approx(PASSES * 2 * once)


def test_without_sequence_parallelism_cut_experts_have_all_tokens_already() -> None:
    found = seconds(dp=4, ep=4, tp=2, etp=2, model=MOE)
    assert found["ep_comm"] == pytest.approx(PASSES * 4 * inside_s("all_to_all", COPIES / 2, 4))
    assert found["tp_comm"] == pytest.approx(PASSES * 4 * inside_s("all_reduce", STREAM, 2))


def test_shared_experts_take_part_in_sequence_parallelism() -> None:
    found = seconds(dp=4, ep=4, tp=2, etp=1, sequence_parallel=True, model=replace(MOE, num_shared_experts=1))
    pair = inside_s("all_gather", STREAM, 2) + inside_s("reduce_scatter", STREAM, 2)
    assert found["tp_comm"] == pytest.approx(PASSES * 4 * pair)


def test_leading_dense_layers_keep_both_reductions_of_tensor_parallelism() -> None:
    model = replace(MOE, num_dense_layers=1)
    found = seconds(dp=4, ep=4, tp=2, etp=1, sequence_parallel=True, model=model)
    pair = inside_s("all_gather", STREAM, 2) + inside_s("reduce_scatter", STREAM, 2)
    assert found["tp_comm"] == pytest.approx(BATCHES * (4 + 3 * 2) * pair)
    assert found["ep_comm"] == pytest.approx(BATCHES * 3 * 4 * inside_s("all_to_all", COPIES / 2, 4))


@pytest.mark.parametrize(
    "layout", [{"dp": 2, "tp": 8, "ep": 16}, {"dp": 1, "tp": 8, "ep": 8}, {"dp": 2, "tp": 8, "ep": 4}]
)
def test_more_expert_ranks_than_replicas_have_an_energy_and_warn_of_nothing(layout: dict[str, int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = physics(etp=1, sequence_parallel=True, zero_stage=1, model=replace(MOE, num_query_groups=8), **layout)
        found = model.evaluate(np.array([0]), np.array([[1000.0]]))
    assert all(np.isfinite(values).all() for values in found.values())
    assert found["energy_j"][0] > 0


@given(st.sampled_from([(8, 1, 1), (8, 4, 2), (8, 2, 1), (12, 4, 3), (12, 3, 2)]), st.integers(1, 3), st.data())
def test_places_per_token_are_the_mean_over_all_choices(groups: tuple[int, int, int], topk: int, data: Any) -> None:
    experts, count, chosen = groups
    places = data.draw(
        st.sampled_from([n for n in (1, 2, 4) if experts % n == 0 and (count % n == 0 or n % count == 0)])
    )
    model = replace(
        MOE, num_experts=experts, moe_router_topk=topk, moe_router_num_groups=count, moe_router_group_topk=chosen
    )
    reached = [
        len({expert * places // experts for expert in picked})
        for groups_ in itertools.combinations(range(count), chosen)
        for picked in itertools.combinations([e for e in range(experts) if e * count // experts in groups_], topk)
    ]
    assert places_per_token(model, places) == pytest.approx(np.mean(reached))


def test_deepseek_v3_s_tokens_cross_to_at_most_four_of_eight_nodes() -> None:
    # arXiv:2412.19437, section 3.2.2: 8 experts on at most 4 nodes; without groups on 8·(1 - C(224,8)/C(256,8)) = 5.3
    model = load_model("deepseek-v3")
    free = replace(model, moe_router_num_groups=0, moe_router_group_topk=0)
    assert places_per_token(model, 8) == pytest.approx(4 * (1 - 0.0936), rel=1e-3)
    assert places_per_token(free, 8) == pytest.approx(5.29, rel=1e-2)
    assert places_per_token(free, 256) == pytest.approx(8)


def test_nodes_forward_one_copy_of_a_token_that_came_over_the_network() -> None:
    # 2 of 16 experts on 2 nodes: 1 + 8/15 nodes; half of these copies leave; each of 2 copies crosses 7/8 of a node
    nodes = 1 + 8 / 15
    far = STREAM * nodes / 2 / (NIC / 2)
    once = WIRE_S + PEER_S + max(START_S + 5e-6 + far, COPIES * 7 / 8 / 80e9)
    found = seconds(dp=16, ep=16, model=MOE, framework=DEEPEP)["ep_comm"]
    assert found == pytest.approx(PASSES * 4 * once)


def test_a_gpu_keeps_its_own_copy_of_those_on_its_node_alone_however_many_nodes_there_are() -> None:
    inside, outside = dispatch_bytes([80.0, 80.0], [40.0, 40.0], [16, 64], 8)
    assert inside.tolist() == [70.0, 70.0]  # 7 of 8 of the copies on a node
    assert outside.tolist() == [20.0, 35.0]  # one for each node, 1 of 2 and 7 of 8 of them elsewhere


def test_inside_a_node_a_token_goes_once_to_a_rank_with_two_of_its_experts() -> None:
    # 16 experts on 4 ranks: the second lies elsewhere with 12/15
    once = inside_s("all_to_all", STREAM * (1 + 12 / 15), 4)
    assert seconds(dp=4, ep=4, model=MOE, framework=DEEPEP)["ep_comm"] == pytest.approx(PASSES * 4 * once)


def test_tokens_go_to_experts_in_fp8_and_come_back_in_16_bit() -> None:
    # one byte and an fp32 scale per 128 elements
    there, back = (inside_s("all_to_all", size * 2 * SEQ * 1024, 4) for size in (1 + 4 / 128, 2))
    framework = {"fp8_dispatch": True}
    assert passes_s(dp=4, ep=4, model=MOE, dtype="fp8", framework=framework)[0] == pytest.approx(
        LAYERS * (there + back)
    )
    assert passes_s(dp=4, ep=4, model=MOE, framework=framework)[0] == pytest.approx(LAYERS * 2 * back)


def test_all_to_alls_hide_but_for_the_first_and_the_last_micro_batch() -> None:
    once = 2 * inside_s("all_to_all", COPIES, 4)
    found = passes_s(machine=SLOW, dp=4, ep=4, model=MOE, framework={"ep_overlap": 0.6} | FREE)
    assert sum(found) == pytest.approx(LAYERS * 2 * once * (1 - 0.6 * (BATCHES - 1) / BATCHES))


def test_a_pipeline_fills_and_drains_with_its_all_to_alls_exposed() -> None:
    once = 2 * inside_s("all_to_all", COPIES, 4)
    model = replace(MOE, num_layers=3)
    found = stages(machine=SLOW, pp=3, dp=4, ep=4, model=model, framework={"ep_overlap": 1.0} | FREE, batches=8)
    assert found.comm_parts_s["ep_comm"][0, 1] == pytest.approx(2 * once * 2 / 8)


def test_all_to_alls_of_both_passes_hide_under_the_kernels_of_both() -> None:
    # a dense layer would compute more; the middle stage is one layer with experts
    model = replace(MOE, num_layers=3, ffn_hidden_size=8192)
    found = stages(pp=3, dp=4, ep=4, model=model, framework={"ep_overlap": 1.0} | FREE, batches=8)
    whole, window = 4 * inside_s("all_to_all", COPIES, 4), found.forward_sm_s[0, 1] + found.backward_sm_s[0, 1]
    assert found.comm_parts_s["ep_comm"][0, 1] == pytest.approx(whole - min(whole, window) * 6 / 8)


@pytest.mark.parametrize(("dispatcher", "sms"), [("alltoall", 32), ("deepep", 20), ("hybridep", 16)])
def test_kernels_beside_a_hidden_all_to_all_run_on_the_sms_that_it_leaves(dispatcher: str, sms: int) -> None:
    # 32, 20 or 16 of 100 SMs copy; of 8 micro-batches 7 hide nine tenths, in which kernels do so much less
    plan: dict[str, Any] = {"machine": WIDE, "dp": 4, "ep": 4, "model": MOE, "token_dispatcher": dispatcher}
    whole = sum(passes_s(**plan))
    hidden = 0.9 * whole * (BATCHES - 1) / BATCHES
    assert sum(passes_s(framework={"ep_overlap": 0.9}, **plan)) == pytest.approx(whole - hidden * (1 - sms / 100))


@pytest.mark.parametrize(("ep", "share"), [(8, 0.5), (16, 0.5 * 0.6)])
def test_less_of_an_all_to_all_hides_between_nodes_than_within_one(ep: int, share: float) -> None:
    plan: dict[str, Any] = {"machine": SLOW, "dp": ep, "ep": ep, "model": MOE}
    hidden = share * (BATCHES - 1) / BATCHES
    found = passes_s(framework={"ep_overlap": 0.5, "network_ep_share": 0.6} | FREE, **plan)
    assert sum(found) == pytest.approx((1 - hidden) * sum(passes_s(**plan)))


def test_kernels_that_are_slower_last_longer_and_hide_more() -> None:
    model = replace(MOE, num_layers=3, ffn_hidden_size=8192)
    machine = gpu_constants(FLOPS_PER_S)
    machine = replace(machine, gemm=replace(machine.gemm, sm_count=128))  # all-to-alls keep a quarter of them
    found = stages(machine=machine, pp=3, dp=4, ep=4, model=model, framework={"ep_overlap": 1.0}, batches=8)
    whole, window = 4 * inside_s("all_to_all", COPIES, 4), found.forward_sm_s[0, 1] + found.backward_sm_s[0, 1]
    assert window / 0.75 < whole
    assert found.comm_parts_s["ep_comm"][0, 1] == pytest.approx(whole - window / 0.75 * 0.75 * 6 / 8)


def test_slower_kernels_fill_the_gpu_and_exposed_all_to_alls_a_quarter_of_it() -> None:
    found = stages(machine=WIDE, dp=4, ep=4, model=MOE, framework={"ep_overlap": 0.9})
    whole = LAYERS * 4 * inside_s("all_to_all", COPIES, 4)
    hidden = 0.9 * whole * (BATCHES - 1) / BATCHES
    assert found.collective_sm_s[0, 0] == pytest.approx(0.25 * (whole - hidden) + 0.32 * hidden)


def test_no_more_than_half_of_a_small_gpu_goes_to_a_hidden_all_to_all() -> None:
    plan: dict[str, Any] = {"dp": 4, "ep": 4, "model": MOE}
    small = replace(SLOW, gemm=replace(SLOW.gemm, sm_count=40))
    whole = sum(passes_s(machine=small, **plan))
    hidden = 0.9 * whole * (BATCHES - 1) / BATCHES
    found = sum(passes_s(machine=small, framework={"ep_overlap": 0.9}, **plan))
    assert found == pytest.approx(whole - hidden * 0.5)


def test_a_job_s_own_overlap_and_dispatcher_go_before_the_framework_s() -> None:
    plan: dict[str, Any] = {"machine": SLOW, "dp": 16, "ep": 16, "model": MOE}
    chosen = passes_s(ep_overlap=True, framework={"chosen_ep_overlap": 0.4}, **plan)
    assert chosen == pytest.approx(passes_s(framework={"ep_overlap": 0.4}, **plan))
    both = {"ep_overlap": 1.0, "chosen_ep_overlap": 0.4}  # what hides by itself goes on to hide
    assert passes_s(ep_overlap=True, framework=both, **plan) == passes_s(framework={"ep_overlap": 1.0}, **plan)
    assert passes_s(token_dispatcher="hybridep", **plan) == pytest.approx(passes_s(framework=DEEPEP, **plan))
    assert passes_s(token_dispatcher="alltoall", framework=DEEPEP, **plan) == pytest.approx(passes_s(**plan))


def test_a_dense_model_has_no_dispatcher() -> None:
    assert seconds(dp=16, model=DENSE, framework=DEEPEP) == seconds(dp=16, model=DENSE)
    assert Framework().token_dispatcher == "alltoall"


def test_cut_experts_on_two_nodes_gather_through_the_network() -> None:
    # tp 16: a ring over two nodes of eight
    model = replace(MOE, num_query_groups=16)
    found = seconds(tp=16, etp=16, sequence_parallel=True, model=model)["ep_comm"]
    once = across_s("all_gather", COPIES, 16, 8) + across_s("reduce_scatter", COPIES, 16, 8)
    assert found == pytest.approx(PASSES * 2 * once)


def test_plans_that_differ_in_the_cut_of_experts_alone_are_priced_as_each_alone() -> None:
    # etp 1 sends a rank an eighth of the tokens for whole experts, etp 8 all of them for an eighth of each
    model, plan = replace(MOE, num_query_groups=8), {"tp": 8, "dp": 1, "sequence_parallel": True}
    job = physics(model=model, etp=1, **plan).job
    both = {name: np.repeat(values, 2) for name, values in physics(model=model, etp=1, **plan).layouts.items()}
    together = CostModel(job, both | {"etp": np.array([1, 8])}, SLOW)
    alone = [
        physics(machine=SLOW, model=model, etp=etp, **plan).iteration_time_s(np.array([0]), TOP)[0] for etp in (1, 8)
    ]
    assert together.iteration_time_s(np.arange(2), np.repeat(TOP, 2, axis=0)) == pytest.approx(alone)
    assert together.groups[0].hbm_bytes[0] != together.groups[0].hbm_bytes[1]
