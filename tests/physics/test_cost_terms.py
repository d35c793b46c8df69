"""Terms that a sum over all parts hides: each alone, against times of the pipeline or figures on paper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.schema import MODULES, OFFLOAD, OVERLAP, SCHEDULE, STAGE_LAYERS
from jointopt.jobs.cluster import PowerConstants
from jointopt.physics.bounds import _fewest_layers
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import phases, utilization
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.makespan import StageTimes, dp_exposed_s, iteration_time_s, most_makespan_s
from jointopt.physics.memory import LiveLayers, user_buffer_bytes
from jointopt.physics.throughput import throughput
from tests.physics.hand.plain_machine import DENSE, FLOPS_PER_S, LATENT, MOE, gpu_constants, physics, seconds, stages

GRID = tuple(np.linspace(100.0, 1000.0, 9001))
ROW = np.array([0])


def times(model: CostModel, *clocks: float) -> StageTimes:
    return model.times(0, ROW, np.array([clocks]))


@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 4},
        {"dp": 4, "zero_stage": 3},
        {"dp": 4, "zero_stage": 3, "framework": {"dp_overlap": 0.4}},
        {"dp": 4, "zero_stage": 3, "framework": {"dp_overlap": 0.4, "host_floor_pp_s": 1e-3}},
        {"framework": {"host_floor_pp_s": 1e-3}},
    ],
)
@pytest.mark.parametrize("head", [32000, 256000])
def test_at_the_clocks_that_slack_allows_a_pass_of_each_stage_takes_as_long_as_it_may(
    plan: dict[str, Any], head: int
) -> None:
    # both passes of a stage may take as many times longer as the slowest stage does, which one of them does
    profile = {"pp_overlap": 1.0} | plan.get("framework", {})
    model = physics(pp=2, model=replace(DENSE, vocab_size=head), **plan | {"framework": profile})
    model.job = replace(model.job, search=replace(model.job.search, clock_mhz=GRID))
    clocks = model.stage_clocks(ROW, np.array([9000]), np.array([1.0]))[0]
    top, found, slower = (times(model, *mhz) for mhz in ((1000.0, 1000.0), clocks, 0.99 * clocks))
    own = (top.forward_s + top.backward_s)[0]
    most = own.max() / own
    assert clocks.min() < 1000.0
    assert (grown(found, top) <= most * 1.0001).all()
    assert (grown(slower, top) > most).all()


def grown(t: StageTimes, top: StageTimes) -> Any:
    """How many times longer the pass takes that grew most, of each stage."""
    return np.maximum(t.forward_s / top.forward_s, t.backward_s / top.backward_s)[0]


@pytest.mark.parametrize("faster", [0.1, 1.0, 2.0, 8.0])
def test_copies_of_activations_hide_under_the_kernels_of_the_same_pass(faster: float) -> None:
    # the machine that only computes takes twice as long backward as forward; the link is as fast beside all of them
    cells = {"offload": OFFLOAD.code("activations"), "batches": 3, "attention": "unfused"}
    link_s = seconds(machine=gpu_constants(), **cells)["offload"] / 3 / 2
    machine = gpu_constants(flops_per_s=faster * FLOPS_PER_S)
    costs = stages(machine=machine, **cells)
    passes = (costs.forward_sm_s[0, 0], costs.backward_sm_s[0, 0])
    left = [max(link_s - time_s, 0.0) for time_s in passes]
    assert seconds(machine=machine, **cells)["offload"] == pytest.approx(3 * sum(left))


def test_recomputed_experts_and_mlps_count_as_flops_of_the_hardware() -> None:
    # 16 routed experts of which a token sees two, and their router; an MLP of three matrices
    experts, mlp = 2 * 4 * (2 * 3 * 1024 * 512 + 16 * 1024), 2 * 4 * 3 * 1024 * 4096
    for model, words, flops in ((MOE, "moe", experts), (DENSE, "mlp", mlp), (MOE, "mlp", 0), (DENSE, "moe", 0)):
        one = physics(model=model)
        cells = {"recompute": np.array([1]), "recompute_modules": np.array([MODULES.code(words)])}
        rates = throughput(one.job, one.layouts | cells, [1.0], [1.0])
        tokens = float(rates["tokens_per_s_per_gpu"][0])
        again = (rates["hfu"] - rates["mfu"])[0] * 312e12
        assert again == pytest.approx(tokens * flops, abs=1e6)


def test_links_are_as_busy_as_their_bytes_over_what_they_carry_in_the_time_of_the_plan() -> None:
    model = physics(dp=8, tp=2).corrected(np.array([1.3]))
    found, time_s = utilization(model, 0, np.array([1000.0])), model.iteration_time_s(ROW, np.array([[1000.0]]))
    for link, rate in (("intra_node", 300e9), ("inter_node", 10e9)):
        assert found.link_bytes[link][0] > 0
        assert found.links[link] == pytest.approx(found.link_bytes[link] / rate / time_s)


@pytest.mark.parametrize(
    "plan", [{"tp": 4}, {"pp": 2, "tp": 2}, {"dp": 4, "zero_stage": 3}, {"dp": 4, "zero_stage": 3, "pp": 2, "tp": 2}]
)
def test_communication_of_a_plan_is_its_collectives_sends_gathers_and_gradients(plan: dict[str, int]) -> None:
    model = physics(**plan)
    costs, t = model.groups[0], times(model, *[1000.0] * plan.get("pp", 1))
    found = phases(model, 0, np.full(plan.get("pp", 1), 1000.0))["communication"]
    batch_s = costs.forward_comm_s + costs.backward_comm_s + 2 * costs.p2p_s[0] + t.gather_exposed_s
    assert found.time_s == pytest.approx((8 * batch_s + t.dp_exposed_s)[0])


def test_gradients_of_interleaved_zero_2_hide_under_all_backward_passes() -> None:
    # two ranks of 1 s forward, 1 and 2 s backward; rank 1 begins after 0.5 s, works 4 * 3 s, and 0.5 s are left then
    costs = stages(dp=4, pp=2, vpp=2, zero_stage=2, batches=4, model=replace(DENSE, num_layers=8))
    costs = replace(costs, reduce_s=np.array([[10.0, 10.0]]))
    passes = np.array([[1.0, 1.0]]), np.array([[1.0, 2.0]])
    left = dp_exposed_s(costs, ROW, passes, np.array([13.0]), 1.0)
    # rank 0, which keeps that pace, has 2 s of each micro-batch beside its forward pass: 8 of its 10 s hide
    assert left == pytest.approx([2.0])


def test_latent_attention_gathers_no_heads_however_few_groups_it_states() -> None:
    few, many = (replace(LATENT, num_query_groups=groups) for groups in (4, 16))
    assert seconds(tp=8, model=few)["tp_comm"] == pytest.approx(seconds(tp=8, model=many)["tp_comm"])


def test_the_smallest_chunk_of_a_layout_has_its_share_or_what_is_stated() -> None:
    columns = {
        "pp": [2, 4, 2, 1, 2],
        "vpp": [1, 2, 1, 1, 2],
        "stage_layers": [0, 0, *[STAGE_LAYERS.code_of((3, 5))], 0, 0],
    }
    one = physics(model=replace(DENSE, num_layers=8))
    layouts = {name: np.repeat(values, 5) for name, values in one.layouts.items()}
    arrays = LayoutArrays(one.job, layouts)
    arrays.layouts = arrays.layouts | {name: np.array(values) for name, values in columns.items()}
    assert _fewest_layers(one.job, arrays).tolist() == [4, 1, 3, 8, 2]


@pytest.mark.parametrize(
    ("forward", "backward", "batches", "time_s"),
    [([3.0, 3.0], [5.0, 1.0], 2, 17.0), ([3.0, 1.0], [1.0, 1.0], 2, 9.0), ([2.0, 1.0, 1.0], [5.0, 1.0, 2.0], 3, 22.0)],
)
def test_few_micro_batches_wait_on_the_way_in_or_on_the_way_out(
    forward: list[float], backward: list[float], batches: int, time_s: float
) -> None:
    shape = (np.array([value]) for value in (len(forward), 1, batches))
    assert iteration_time_s(np.array([forward]), np.array([backward]), *shape) == pytest.approx([time_s])


def test_a_gpu_without_a_lowest_clock_is_slowed_to_a_tenth_of_its_highest() -> None:
    model = physics()
    power = PowerConstants(50.0, 50.0, 300.0, 0.0, 0.0, knee_fraction=0.5, voltage_ratio=1.2)
    gpu = replace(model.job.cluster.gpu, power=power, clock_min_mhz=None)
    job = replace(model.job, cluster=replace(model.job.cluster, gpu=gpu, power_limit_w=51.0))
    assert CostModel(job, model.layouts).ceilings[0].tolist() == [[100.0]]


def test_experts_are_sharded_over_their_own_ranks_of_a_replica() -> None:
    one = physics(model=MOE, dp=8, ep=2, zero_stage=1, dp_replicate=2)
    lay = LayoutArrays(one.job, one.layouts)
    assert (lay.shards.tolist(), lay.expert_dp.tolist(), lay.expert_shards.tolist()) == ([4.0], [4.0], [2.0])


def test_each_expert_is_on_one_rank_at_least() -> None:
    one = physics(model=MOE, dp=2)
    lay = LayoutArrays(one.job, one.layouts | {"ep": np.array([8]), "dp_replicate": np.array([2])})
    assert (lay.expert_dp.tolist(), lay.expert_shards.tolist()) == ([1.0], [1.0])


def test_layouts_priced_after_a_few_are_priced_together_with_them() -> None:
    few = physics(dp=2)
    layouts = {name: np.repeat(values, 4) for name, values in few.layouts.items()} | {"micro_batch_size": [1, 2, 4, 8]}
    model = CostModel(few.job, {name: np.asarray(values) for name, values in layouts.items()}, lazily=True)
    for index in ([0], [0, 1, 2, 3]):
        model.lower_bound(np.array(index))
    assert len(set(model.group_of.tolist())) == 1


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv", "dualpipev"])
def test_no_pipeline_with_passes_of_its_own_takes_longer_than_one_rank_at_a_time(schedule: str) -> None:
    vpp = 1 if schedule == "zb-h1" else 2
    model = physics(pp=4, vpp=vpp, schedule=SCHEDULE.code(schedule), model=replace(DENSE, num_layers=8))
    rows, clocks = ROW, np.full((1, 4), 1000.0)
    t, most = model.times(0, rows, clocks), model.times(0, rows, clocks, most_makespan_s)
    assert most.makespan_s == pytest.approx(8 * (t.forward_s + t.backward_s).sum())
    assert (most.makespan_s >= t.makespan_s).all()


def test_a_rank_that_holds_more_at_any_time_may_be_the_heaviest() -> None:
    # dense and moe layers of four ranks at two times; rank 2 holds less than rank 1 at first, and more or less then
    one = physics(pp=4)
    for then, ranks in ((2.0, [0, 1, 2, 3]), (1.0, [0, 1, 3])):
        layers = np.array([[[[3.0, 3.0, 1.0, 1.0], [0.0] * 4], [[1.0, 1.0, then, 1.0], [0.0] * 4]]])
        found = LiveLayers(np.array([0]), layers).heaviest_ranks(LayoutArrays(one.job, one.layouts).split)
        assert sorted(set(found[0].tolist())) == ranks


def test_a_plan_that_turns_overlap_off_has_no_user_buffers() -> None:
    shape = {"tp": 2, "sequence_parallel": True, "framework": {"user_buffers": True, "family": "megatron-core"}}
    found = [physics(**shape, overlap=OVERLAP.code(words)) for words in ("", "none", "dp")]
    has = [bool(user_buffer_bytes(one.job, LayoutArrays(one.job, one.layouts))[0] > 0) for one in found]
    assert has == [True, False, False]
