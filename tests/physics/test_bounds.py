from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.schema import Floats
from jointopt.jobs.catalog.frameworks import framework_names, load_framework
from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job, shipped_jobs, with_changes
from jointopt.jobs.model import Model
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.physics.cost_model import CostModel
from tests.physics.hand.plain_machine import COMPUTING, DENSE, MOE, MOVING, physics

SOME = 400


def lazy(job: Job) -> CostModel:
    """Some layouts of the job, none of them priced."""
    layouts = enumerate_layouts(job).layouts
    some = np.random.default_rng(0).choice(len(layouts["pp"]), min(SOME, len(layouts["pp"])), replace=False)
    return CostModel(job, {name: values[some] for name, values in layouts.items()}, lazily=True)


def assert_below(physics: CostModel) -> None:
    index = np.arange(len(physics.layouts["pp"]))
    quick = physics.quick_bound(index)
    assert (physics.group_of < 0).all()
    for below, bound in zip(quick, physics.lower_bound(index), strict=True):
        assert (below <= bound * (1.0 + 1e-9)).all()
        assert np.median(below / bound) > 0.5


@pytest.mark.parametrize("name", shipped_jobs())
def test_the_quick_bound_of_a_shipped_job_is_near_the_bound_of_priced_layouts_and_never_above(name: str) -> None:
    assert_below(lazy(shipped_job(name)))


@pytest.mark.parametrize("framework", framework_names())
def test_no_framework_s_splits_and_schedules_fall_below_the_quick_bound(framework: str) -> None:
    job = shipped_job("llama-3-8b-1x8-h100")
    training = replace(job.training, framework=load_framework(framework), global_batch_size=48)
    assert_below(lazy(replace(job, model=replace(job.model, num_layers=30), training=training)))


@pytest.mark.parametrize("stated", [{"moe_load_imbalance": 3.0}, {"moe_routing": "forced"}, {"ep_overlap": True}])
def test_no_plan_of_uneven_or_hidden_experts_is_below_the_bounds(
    stated: dict[str, Any], one_clock: Callable[..., Floats]
) -> None:
    job = shipped_job("mixtral-8x22b-8x8-h100")
    physics = lazy(with_changes(job, {f"training.{key}": value for key, value in stated.items()}))
    assert_below(physics)
    index = np.arange(len(physics.layouts["pp"]))
    time_s, energy_j = physics.lower_bound(index)
    found = physics.evaluate(index, one_clock(physics, 0.7 * physics.top_mhz))
    assert (time_s <= found["iteration_time_s"] * (1 + 1e-9)).all()
    assert (energy_j <= found["energy_j"] * (1 + 1e-9)).all()


@pytest.mark.parametrize("freq", [0, 2, (0,) * 20 + (1,) * 12])
def test_layers_with_windows_do_not_fall_below_the_quick_bound(freq: Any) -> None:
    job = shipped_job("llama-3-8b-1x8-h100")
    assert_below(lazy(replace(job, model=replace(job.model, window_size=256, window_attn_skip_freq=freq))))


def test_the_quick_bound_moves_with_the_corrections() -> None:
    physics = lazy(shipped_job("mixtral-8x22b-8x8-h100"))
    index, factor = np.arange(SOME), np.linspace(0.5, 2.0, SOME)
    time_s, energy_j = physics.quick_bound(index)
    moved = physics.corrected(factor, power_factor=3.0)
    assert moved.quick_bound(index)[0] == pytest.approx(time_s * factor)
    assert moved.quick_bound(index)[1] == pytest.approx(energy_j * factor * 3.0)


@pytest.mark.parametrize("offset_w", [-30.0, 150.0])
def test_no_plan_is_below_the_bound_of_its_corrections(offset_w: float, one_clock: Callable[..., Floats]) -> None:
    physics = lazy(shipped_job("opt-350m-2x4-a100"))
    index = np.arange(len(physics.layouts["pp"]))
    moved = physics.corrected(np.linspace(0.4, 2.0, len(index)), power_offset_w=offset_w)
    time_s, energy_j = moved.lower_bound(index)
    for share in (0.6, 0.8, 1.0):
        found = moved.evaluate(index, one_clock(physics, share * physics.top_mhz))
        assert (time_s <= found["iteration_time_s"] * (1 + 1e-9)).all()
        assert (energy_j <= found["energy_j"] * (1 + 1e-9)).all()


def test_layouts_priced_when_read_cost_what_layouts_priced_at_once_do(one_clock: Callable[..., Floats]) -> None:
    late = lazy(shipped_job("mixtral-8x22b-8x8-h100"))
    at_once = CostModel(late.job, late.layouts)
    clocks, order = one_clock(late, late.top_mhz), np.random.default_rng(1).permutation(SOME)
    expected = at_once.evaluate(np.arange(SOME), clocks)
    for some in np.split(order, [20, 60, 350]):  # more than before are priced with those before, fewer apart
        found = late.evaluate(some, clocks[some])
        for name, values in found.items():
            np.testing.assert_allclose(values, expected[name][some], rtol=1e-12)


@pytest.mark.parametrize("machine", [COMPUTING, MOVING], ids=["flops alone", "bytes alone"])
@pytest.mark.parametrize(
    "plan", [{}, {"dtype": "fp8"}, {"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"recompute": 2}], ids=str
)
@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "experts"])
def test_where_one_stage_does_all_the_work_the_bound_is_the_quick_one_and_the_step(
    model: Model, plan: Any, machine: Any
) -> None:
    overheads = {"iteration_overhead_s": 0.02, "micro_batch_overhead_s": 0.003}
    cold = physics(model=model, framework=overheads, **plan)
    gpu = replace(cold.job.cluster.gpu, power=PowerConstants(60.0, 90.0, 80.0, 0.1, 30.0, 0.5, 1.4))
    job = replace(cold.job, cluster=replace(cold.job.cluster, gpu=gpu))
    unpriced, row = CostModel(job, cold.layouts, machine, lazily=True), np.array([0])
    (time_s, energy_j), bound = np.ravel(unpriced.quick_bound(row)), np.ravel(unpriced.lower_bound(row))
    costs = unpriced.groups[0]
    step_s, step_bytes = float(costs.optimizer_s[0, 0]), float(costs.iteration_hbm_bytes[0, 0])
    step_j = plan.get("tp", 1) * ((60.0 + unpriced.cooler.mean_leakage_w) * step_s + 30e-12 * step_bytes)
    assert bound == pytest.approx([time_s + step_s, energy_j + step_j], rel=1e-9)


@pytest.mark.parametrize("plan", [{"pp": 2}, {"pp": 4}, {"pp": 2, "vpp": 2}, {"pp": 2, "tp": 2}], ids=str)
def test_the_quick_bound_of_a_pipeline_is_the_bound_less_sends_and_step(plan: dict[str, int]) -> None:
    cold = physics(framework={"pp_overlap": 1.0, "iteration_overhead_s": 0.02}, **plan)
    gpu = replace(cold.job.cluster.gpu, power=PowerConstants(60.0, 90.0, 80.0, 0.1, 30.0, 0.5, 1.4))
    job = replace(cold.job, cluster=replace(cold.job.cluster, gpu=gpu))
    unpriced, row = CostModel(job, cold.layouts, COMPUTING, lazily=True), np.array([0])
    (time_s, energy_j), bound = np.ravel(unpriced.quick_bound(row)), np.ravel(unpriced.lower_bound(row))
    costs = unpriced.groups[0]
    step_s, step_j = float(costs.slowest_step_s[0]), 30e-12 * costs.iteration_hbm_bytes.sum()
    more_j = step_j + 8 * costs.link_parts_j["pp_comm"].sum()
    more_j += (60.0 + unpriced.cooler.mean_leakage_w) * step_s * plan["pp"]
    expected = [time_s + step_s, energy_j + plan.get("tp", 1) * more_j]
    assert bound == pytest.approx(expected, rel=1e-9)
