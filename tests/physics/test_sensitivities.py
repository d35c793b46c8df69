"""Features of plans, and how their time would move with the physics' own constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import CONSTANTS
from jointopt.jobs.framework import Framework
from jointopt.physics import sensitivities as moving
from jointopt.physics.cost_model import CostModel
from jointopt.physics.makespan import least_makespan_s
from jointopt.physics.sensitivities import sensitivities, shape_columns, share_columns

# constants whose step is a slower machine or a costlier framework; overlaps hide time, or cost it
COSTS = ("compute", "elementwise", "intra_node", "inter_node", "host", "micro_batch", "iteration", "loss")


def moved(physics: CostModel, rows: int | None = None) -> dict[str, np.ndarray]:
    index = np.arange(len(physics.layouts["pp"]) if rows is None else rows)
    top = physics.job.cluster.gpu.clock_max_mhz or 1.0
    beyond = np.arange(int(physics.layouts["pp"][index].max())) >= physics.layouts["pp"][index, None]
    clocks = np.where(beyond, np.nan, top)
    return dict(zip(CONSTANTS, sensitivities(physics, index, clocks).T, strict=True))


FIGURES = {  # each constant's field of the framework or cluster, and what a step of 0.1 makes of it
    "compute": ("compute_factor", 1.2, 1.2 * np.exp(0.1)),
    "elementwise": ("elementwise_factor", 1.5, 1.5 * np.exp(0.1)),
    "loss": ("loss_passes", 3.0, 3.0 * np.exp(0.1)),
    "attention": ("attention_factor", 1.1, 1.1 * np.exp(0.1)),
    "micro_batch": ("micro_batch_overhead_s", 0.004, 0.005),
    "iteration": ("iteration_overhead_s", 0.03, 0.05),
    "dp_overlap": ("dp_overlap", 0.7, 0.6),
    "tp_overlap": ("tp_overlap", 0.3, 0.4),
    "intra_node": ("intra_node_gbytes_per_s", 300.0, 300.0 * np.exp(-0.1)),
    "inter_node": ("inter_node_gbytes_per_s", 25.0, 25.0 * np.exp(-0.1)),
}


@pytest.mark.parametrize("name", [name for name in CONSTANTS if name != "host"])
def test_a_constant_that_is_moved_moves_its_own_figure_alone(make_job, name):
    own = {field: value for field, value, _ in FIGURES.values() if hasattr(Framework(), field)}
    links = {field: value for field, value, _ in FIGURES.values() if field not in own}
    job = make_job()
    job = replace(job, training=replace(job.training, framework=replace(job.training.framework, **own)),
                  cluster=replace(job.cluster, **links))  # fmt: skip
    found = moving.with_constants(job, np.where(np.array(CONSTANTS) == name, 0.1, 0.0))
    now = {field: getattr(found.training.framework if field in own else found.cluster, field) for field in own | links}
    field, _, expected = FIGURES[name]
    assert now == pytest.approx(own | links | {field: expected})


def test_a_slower_host_has_longer_launches_and_half_a_millisecond_where_none_is_known(make_job):
    job, by = make_job(), np.where(np.array(CONSTANTS) == "host", 0.1, 0.0)
    for floor, expected in ((0.02, 0.02 * np.exp(0.1)), (0.0, 5e-4 * np.expm1(0.1))):
        framework = replace(job.training.framework, host_floor_s=floor, host_floor_pp_s=floor, host_floor_pp_tp_s=0.01)
        found = moving.with_constants(
            replace(job, training=replace(job.training, framework=framework)), by
        ).training.framework
        assert (found.host_floor_s, found.host_floor_pp_s) == pytest.approx((expected, expected))
        assert found.host_floor_pp_tp_s == pytest.approx(0.01 * np.exp(0.1))


@pytest.mark.parametrize("name", ["micro_batch", "iteration"])
def test_no_time_that_is_added_falls_below_zero(make_job, name):
    found = moving.with_constants(make_job(), np.where(np.array(CONSTANTS) == name, -1e3, 0.0))
    assert getattr(found.training.framework, FIGURES[name][0]) == 0.0


@pytest.mark.parametrize("job", range(7))
def test_a_slower_machine_never_makes_a_plan_faster(job, shipped_physics):
    # but for what a longer step elsewhere hides of a gradient's traffic
    found = moved(shipped_physics(job))
    for name in COSTS:
        assert (found[name] >= -0.005).all(), name


def test_links_count_where_groups_span_them_and_nowhere_else(make_job, price):
    plans = {"dp": [8, 1], "tp": [1, 8], "micro_batch_size": 8}  # whose kernels take longer than their launches
    found = moved(price(make_job(8), **plans))
    assert (found["inter_node"] == 0).all()
    assert found["intra_node"][1] > 0.01
    assert moved(price(make_job(16), dp=16, tp=1))["inter_node"][0] > 0


def test_time_of_a_compute_bound_plan_moves_with_compute_alone(make_job, price):
    job = make_job(1, framework="megatron-lm", global_batch_size=64)
    found = moved(price(job, dp=1, micro_batch_size=8))
    assert found["compute"] + found["elementwise"] == pytest.approx(1.0, abs=0.15)
    assert found["compute"] > 0.6
    assert found["intra_node"] == found["inter_node"] == 0


def test_sensitivities_of_time_to_speeds_add_up_to_at_most_one(shipped_physics):
    # time is homogeneous of degree one in the seconds of its parts, apart from the steps' curvature
    found = moved(shipped_physics(0))
    together = sum(found[name] for name in ("compute", "elementwise", "intra_node", "inter_node"))
    assert (together <= 1.15).all()


def test_one_millisecond_per_micro_batch_costs_the_micro_batches_of_a_plan(make_job, price):
    physics = price(make_job(1, global_batch_size=64), dp=1, micro_batch_size=[1, 8])
    time_s = physics.evaluate(np.arange(2), np.full((2, 1), 1410.0))["iteration_time_s"]
    relative = np.expm1(moved(physics)["micro_batch"] * 0.1)
    np.testing.assert_allclose(relative * time_s, np.array([64, 8]) * 1e-3, rtol=1e-6)


def test_shares_are_parts_of_one(shipped_physics, one_clock):
    physics = shipped_physics(0)
    index = np.arange(len(physics.layouts["pp"]))
    shares = share_columns(physics, index, one_clock(physics, 1410.0))
    together = sum(values for name, values in shares.items() if name.startswith("share_"))
    assert all((values >= -1e-9).all() for values in shares.values())
    assert (together <= 1 + 1e-9).all()
    assert (together > 0.5).all()


def test_communication_is_told_over_compute(shipped_physics, one_clock):
    physics = shipped_physics(0)
    found = share_columns(physics, np.arange(len(physics.layouts["pp"])), one_clock(physics, 1410.0))
    parts = sum(found[f"share_{name}"] for name in ("tp_comm", "pp_comm", "dp_comm", "zero_comm", "cp_comm", "ep_comm"))
    np.testing.assert_allclose(found["communication"] * found["share_compute"], parts)
    assert np.ptp(found["communication"]) > 0.05


def test_occupancy_is_the_time_of_kernels_and_efficiency_what_they_reach_of_the_peak(shipped_physics, one_clock):
    physics = shipped_physics(0)
    index, clocks = np.arange(len(physics.layouts["pp"])), one_clock(physics, 1410.0)
    found = share_columns(physics, index, clocks)
    for at in (0, len(index) - 1):
        g, row, pp = int(physics.group_of[at]), physics.row_of[[at]], int(physics.layouts["pp"][at])
        costs, t = physics.groups[g], physics.times(g, row, clocks[[at], :pp], least_makespan_s)
        running_s = float(costs.num_micro_batches[row[0]]) * t.kernel_s[0]
        reached = float(costs.num_micro_batches[row[0]]) * np.broadcast_to(costs.flops[row[0]], pp) / running_s
        assert found["occupancy"][at] == pytest.approx(running_s.mean() / t.total_s[0])
        assert found["efficiency"][at] == pytest.approx(reached.mean() / 312e12)  # an A100's bf16


def test_shape_features_describe_the_plan_and_depend_on_no_name(shipped_physics, one_clock):
    physics = shipped_physics(0)
    features = shape_columns(physics.job, physics.layouts, one_clock(physics, 705.0))
    np.testing.assert_array_equal(2 ** features["log2_tp"], physics.layouts["tp"])
    np.testing.assert_allclose(features["clock"], 0.5)
    job = replace(physics.job, name="other", model=replace(physics.job.model, name="other"))
    other = shape_columns(job, physics.layouts, one_clock(physics, 705.0))
    assert all((other[name] == values).all() for name, values in features.items())


def test_a_hidden_size_of_640_per_rank_is_aligned_to_128_and_heads_that_share_keys_are_counted(
    shipped_physics, one_clock
):
    physics = shipped_physics(0)
    model = replace(physics.job.model, hidden_size=5120, num_attention_heads=40, num_query_groups=10)
    layouts = {name: values[:3] for name, values in physics.layouts.items()} | {"tp": np.array([1, 4, 8])}
    found = shape_columns(replace(physics.job, model=model), layouts, one_clock(physics, 705.0)[:3])
    assert (2 ** found["log2_aligned_width"]).tolist() == [1024, 256, 128]  # of 5120, 1280 and 640
    assert found["log2_queries_per_key"].tolist() == [2.0] * 3
    without = replace(model, num_attention_heads=0, num_query_groups=0)  # of state spaces
    other = shape_columns(replace(physics.job, model=without), layouts, one_clock(physics, 705.0)[:3])
    assert other["log2_queries_per_key"].tolist() == [0.0] * 3


def test_framework_and_kernel_are_categories_and_may_be_unknown(shipped_physics, one_clock):
    physics = shipped_physics(0)
    job, clocks = physics.job, one_clock(physics, 705.0)
    unfitted = replace(job.training, framework=Framework(), attention_assumed=True)
    known = shape_columns(job, physics.layouts, clocks)
    unknown = shape_columns(replace(job, training=unfitted), physics.layouts, clocks)
    assert known[f"framework={job.training.framework.name}"].all()
    assert known[f"attention={job.training.attention}"].all()
    assert unknown["framework=unknown"].all()
    assert unknown["attention=unknown"].all()


@pytest.mark.parametrize("job", [0, 1, 3, 5])  # dense, walked schedules, ZeRO-3, experts
def test_steps_after_pricing_move_time_as_much_as_layouts_priced_anew(job, shipped_physics, one_clock):
    physics = shipped_physics(job)
    index = np.arange(len(physics.layouts["pp"]))
    clocks = one_clock(physics, 0.8 * physics.top_mhz)
    found = sensitivities(physics, index, clocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving, "_AFTER_PRICING", frozenset())
        patch.setattr(moving, "_CELLS", 1)  # each job in a model of its own
        anew = sensitivities(physics, index, clocks)
    np.testing.assert_allclose(found, anew, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("job", [0, 3, 5])  # dense, ZeRO-3, experts
def test_jobs_that_share_parts_of_their_costs_have_those_that_they_have_alone(job, shipped_physics, one_clock):
    physics = shipped_physics(job)
    index, clocks = np.arange(len(physics.layouts["pp"])), one_clock(physics, physics.top_mhz)
    time_s = physics.least_time_s(index, clocks)
    found = sensitivities(physics, index, clocks)
    for name in sorted({*CONSTANTS} - {*moving._AFTER_PRICING}):
        alone = CostModel(moving._with_constant(physics.job, name, moving.STEP), physics.layouts)
        anew = np.log(alone.least_time_s(index, clocks) / time_s) / moving.STEP
        np.testing.assert_allclose(found[:, CONSTANTS.index(name)], anew, rtol=1e-12, atol=1e-12)
