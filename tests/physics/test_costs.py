"""Costs of layouts before any clock: limits in which a kind of traffic vanishes, and totals that must be conserved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest

from jointopt.core.schema import SCHEDULE, STAGE_LAYERS, Columns, Floats
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.model import Model
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import LayoutParts, differing_costs, stage_costs, with_host_of
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.memory import stage_parameters
from jointopt.physics.stage_costs import OF_RANKS, StageCosts
from jointopt.physics.traffic import hardware


@pytest.fixture
def costs_of(make_job: Callable[..., Job], layouts_of: Callable[..., Columns]) -> Callable[..., StageCosts]:
    def costs(job: Job | None = None, **cells: object) -> StageCosts:
        job = job or make_job()
        costs = stage_costs(job, hardware(job, kernel_constants(job.cluster.gpu)), layouts_of(**cells))
        return costs.of_all_ranks()

    return costs


def test_without_tensor_parallelism_there_is_no_tensor_parallel_traffic(costs_of: Callable[..., StageCosts]) -> None:
    traffic = costs_of(dp=[8, 4, 1], tp=[1, 2, 8]).comm_parts_s["tp_comm"][:, 0]
    assert traffic[0] == 0.0
    assert (np.diff(traffic) > 0).all()


def test_one_data_parallel_rank_reduces_no_gradients(costs_of: Callable[..., StageCosts]) -> None:
    costs = costs_of(dp=[1, 8], tp=[8, 1], zero_stage=[0, 1])
    assert costs.reduce_s[0, 0] == costs.iteration_link_j[0, 0] == 0.0
    assert costs.reduce_s[1, 0] > 0.0


def test_without_a_pipeline_nothing_crosses_stages(costs_of: Callable[..., StageCosts]) -> None:
    assert costs_of(dp=8).p2p_s.tolist() == [0.0]
    assert costs_of(dp=4, pp=2).p2p_s.min() > 0.0


def test_without_context_or_expert_parallelism_neither_has_traffic(
    costs_of: Callable[..., StageCosts], make_job: Callable[..., Job], catalogue_model: Callable[[str], Model]
) -> None:
    job = make_job(model=catalogue_model("mixtral-8x7b"))
    parts = costs_of(job, dp=[8, 8, 4], ep=[1, 8, 1], cp=[1, 1, 2]).comm_parts_s
    assert (parts["ep_comm"][:, 0] > 0).tolist() == [False, True, False]
    assert (parts["cp_comm"][:, 0] > 0).tolist() == [False, False, True]


def test_full_recompute_adds_one_forward_pass_of_the_layers(costs_of: Callable[..., StageCosts]) -> None:
    costs = costs_of(dp=8, recompute=[0, 2])
    weights, scores = 4 * 12 * 1024**2, 4 * 2 * 2048 * 1024 / 2  # of 4 layers; causal
    assert costs.flops[1, 0] - costs.flops[0, 0] == pytest.approx(2 * 2048 * (weights + scores), rel=1e-9)


def test_stages_share_the_work_of_the_whole_model(costs_of: Callable[..., StageCosts]) -> None:
    whole, split = costs_of(dp=8), costs_of(dp=2, pp=4)
    assert split.flops.sum() == pytest.approx(whole.flops.sum())
    assert split.layers.sum() == 4


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v2-lite"])
def test_pricing_the_ranks_that_differ_is_pricing_all_of_them(
    make_job: Callable[..., Job],
    layouts_of: Callable[..., Columns],
    catalogue_model: Callable[[str], Model],
    model: str,
) -> None:
    job = make_job(model=catalogue_model(model))
    vpp, schedule = [1, 2, 2], [SCHEDULE.code(name) for name in ("1f1b", "1f1b", "dualpipev")]
    layouts = layouts_of(dp=2, pp=[4] * 3, vpp=vpp, schedule=schedule, tp=[1, 2, 1], zero_stage=[0, 1, 1])
    of_job, some = (job, hardware(job, kernel_constants(job.cluster.gpu)), layouts), LayoutParts.of(job, layouts)
    lay = LayoutArrays(job, layouts)
    held = stage_parameters(job, lay)
    every = replace(some, lay=lay, kind=np.tile(np.arange(4), (3, 1)), parameters=held, trained=held)
    found, all_priced = differing_costs(*of_job, laid=some), differing_costs(*of_job, laid=every)
    assert found.layers.shape[1] < 4 or model != "llama-3-8b"
    for one in OF_RANKS:
        np.testing.assert_allclose(getattr(found.of_all_ranks(), one), getattr(all_priced, one), rtol=1e-12)


def test_tensor_context_and_data_parallelism_conserve_flops(costs_of: Callable[..., StageCosts]) -> None:
    costs = costs_of(dp=[8, 1, 1, 2], tp=[1, 8, 1, 2], cp=[1, 1, 8, 2])
    done = costs.flops[:, 0] * costs.num_micro_batches * costs.replicas
    assert done.tolist() == pytest.approx([done[0]] * 4)


def test_many_layouts_at_once_equal_each_alone(costs_of: Callable[..., StageCosts]) -> None:
    cells = {"dp": [4, 2, 1], "tp": [1, 2, 4], "pp": 2, "recompute": [0, 2, 1], "zero_stage": [1, 0, 0]}
    together = costs_of(**cells)
    for i in range(3):
        alone = costs_of(**{k: v[i] if isinstance(v, list) else v for k, v in cells.items()})
        for f in fields(StageCosts):
            many, one = getattr(together, f.name), getattr(alone, f.name)
            if isinstance(many, np.ndarray):
                np.testing.assert_allclose(many[i], one[0], rtol=1e-12, err_msg=f.name)


@pytest.mark.parametrize("splits_sends", [False, True])
def test_layouts_of_several_depths_cost_beside_each_other_what_each_costs_alone(
    make_job: Callable[..., Job], layouts_of: Callable[..., Columns], splits_sends: bool
) -> None:
    job = make_job(8)
    framework = replace(job.training.framework, splits_sends=splits_sends)
    job = replace(job, training=replace(job.training, framework=framework))
    layouts = layouts_of(dp=[4, 2, 2, 1], tp=2, pp=[1, 2, 2, 4], vpp=[1, 1, 2, 1], micro_batch_size=[1, 1, 1, 2])
    hw = hardware(job, kernel_constants(job.cluster.gpu))
    groups = list(differing_costs(job, hw, layouts).by_depth())
    assert [costs.depth for _, costs in groups] == [1, 2, 4]
    for at, costs in groups:
        found, alone = costs.of_all_ranks(), stage_costs(job, hw, {name: v[at] for name, v in layouts.items()})
        for f in fields(StageCosts):
            if isinstance(one := getattr(alone, f.name), np.ndarray):
                np.testing.assert_array_equal(getattr(found, f.name), one, err_msg=f.name)


def test_sequence_parallelism_moves_the_bytes_of_the_all_reduce(costs_of: Callable[..., StageCosts]) -> None:
    # an all-reduce is a reduce-scatter and an all-gather: arXiv:2205.05198 section 4.2.2
    costs = costs_of(tp=8, sequence_parallel=[False, True])
    assert costs.link_j[0, 0] == pytest.approx(costs.link_j[1, 0])


def test_zero_3_gathers_weights_for_every_micro_batch_and_zero_1_does_not(
    costs_of: Callable[..., StageCosts], make_job: Callable[..., Job]
) -> None:
    costs = costs_of(make_job(framework="fsdp"), dp=8, zero_stage=[0, 1, 2, 3])
    assert (costs.gather_s[:, 0] > 0).tolist() == [False, False, False, True]
    assert costs.reduce_s[2, 0] > costs.reduce_s[1, 0]  # ZeRO-2 scatters after every micro-batch


def test_the_head_makes_the_last_of_uneven_stages_lighter(
    make_job: Callable[..., Job], layouts_of: Callable[..., Columns], gpt_model: Callable[..., Model]
) -> None:
    layers = LayoutArrays(make_job(model=gpt_model(26, vocab=256000)), layouts_of(pp=4)).layers[0]
    assert layers.sum() == 26
    assert layers[-1] < layers[0]


def test_leading_dense_layers_of_an_moe_model_sit_on_the_first_stages(
    catalogue_model: Callable[[str], Model], make_job: Callable[..., Job], layouts_of: Callable[..., Columns]
) -> None:
    job = make_job(model=catalogue_model("deepseek-v3"))  # 3 dense, 58 MoE
    code = STAGE_LAYERS.code_of((2, 29, 30))
    assert LayoutArrays(job, layouts_of(pp=3) | {"stage_layers": np.array([code])}).dense_layers.tolist() == [[2, 1, 0]]


def test_one_gigabyte_over_infiniband_costs_what_the_rack_study_states(make_job: Callable[..., Job]) -> None:
    job = make_job()
    links = hardware(job, kernel_constants(job.cluster.gpu))
    assert links.inter_j_per_byte * 1e9 == pytest.approx(0.16 * job.cluster.inter_node_pj_per_bit / 20.0)


def test_weights_copied_slice_by_slice_cost_each_layer_and_rank_of_zero_1_alone(
    costs_of: Callable[..., StageCosts], make_job: Callable[..., Job]
) -> None:
    job = make_job(64, framework="nanotron")
    whole = replace(job.training.framework, zero_slice_s=0.0)
    sliced, plain = (
        costs_of(replace(job, training=replace(job.training, framework=f)), dp=[1, 64, 64], zero_stage=[1, 1, 0])
        for f in (job.training.framework, whole)
    )
    more_s = (sliced.optimizer_s - plain.optimizer_s)[:, 0]
    assert more_s.tolist() == pytest.approx([0.0, 63 * 4 * job.training.framework.zero_slice_s, 0.0])


def test_a_stage_without_layers_is_no_stage_without_an_answer(
    make_job: Callable[..., Job], gpt_model: Callable[..., Model], price: Callable[..., CostModel],
    one_clock: Callable[..., Floats],
) -> None:  # fmt: skip
    # a head worth more than a layer: nanotron leaves ranks of a deep pipeline empty
    plans = price(make_job(model=gpt_model(8, 1024, vocab=131072), framework="nanotron"), pp=8)
    assert 0.0 in LayoutArrays(plans.job, plans.layouts).layers
    columns = plans.evaluate(np.array([0]), one_clock(plans, 1410.0))
    assert all(np.isfinite(columns[name]).all() for name in ("iteration_time_s", "energy_j", "peak_memory_gib"))


def test_costs_with_another_overhead_of_the_host_are_those_of_a_job_that_has_it() -> None:
    job = shipped_job("llama-3-70b-4x8-h200")
    layouts = parse_plan("dp=4 tp=2 pp=4 vpp=5", job).layouts
    slower = replace(job, training=replace(job.training, framework=replace(
        job.training.framework, micro_batch_overhead_s=job.training.framework.micro_batch_overhead_s + 3e-3
    )))  # fmt: skip
    before, whole = (CostModel(each, layouts).groups[0] for each in (job, slower))
    moved = with_host_of(slower, before, job)
    for name in ("forward_comm_s", "backward_comm_s", "host_s"):
        np.testing.assert_allclose(getattr(moved, name), getattr(whole, name), rtol=1e-12)
    assert moved.forward_comm_s.sum() > before.forward_comm_s.sum()
