"""Predictions: published iteration times, invariants over plans of shipped jobs, promises made to the search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import STAGE_LAYERS, Floats
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.job import Constraints, Job
from jointopt.jobs.model import Model
from jointopt.physics.cost_model import HEAT, PREDICTIONS, CostModel
from jointopt.physics.explain.parts import breakdown
from jointopt.physics.makespan import Makespan, least_makespan_s, makespan_s, most_makespan_s

JOBS = range(7)  # of tests/physics/conftest.py
Physics = Callable[[int], CostModel]
OneClock = Callable[..., Floats]

# arXiv:2205.05198 table 5: layers, hidden size, heads, GPUs, micro-batch, pp, vpp, global batch, seconds
TABLE_5 = {
    "22B": (48, 6144, 64, 8, 4, 1, 1, 4, {"full": 1.42, "selective": 1.10}),
    "175B": (96, 12288, 96, 64, 1, 8, 3, 64, {"full": 18.13, "selective": 13.75}),
    "530B": (105, 20480, 128, 280, 1, 35, 3, 280, {"full": 49.05, "selective": 37.83}),
    "1T": (128, 25600, 160, 512, 1, 64, 1, 512, {"full": 94.42, "selective": 71.49}),
}


@pytest.mark.parametrize("recompute", ["full", "selective"])
@pytest.mark.parametrize("name", TABLE_5)
def test_megatron_takes_the_time_of_korthikanti_table_5(
    name: str, recompute: str, make_job: Callable[..., Job], price: Callable[..., CostModel],
    gpt_model: Callable[..., Model],
) -> None:  # fmt: skip
    layers, hidden, heads, gpus, micro, pp, vpp, batch, seconds = TABLE_5[name]
    model = gpt_model(layers, hidden, heads)
    job = make_job(gpus, model, attention="fused", dtype="fp16", global_batch_size=batch)
    plan: dict[str, Any] = {"tp": 8, "pp": pp, "vpp": vpp, "micro_batch_size": micro}
    selective = recompute == "selective"  # together with sequence parallelism, as in the paper
    physics = price(job, **plan, sequence_parallel=selective, recompute=1 if selective else 2)
    found = physics.evaluate(np.zeros(1, np.int64), np.full((1, pp), physics.top_mhz))
    assert float(found["iteration_time_s"][0]) == pytest.approx(seconds[recompute], rel=0.15)


def random_clocks(physics: CostModel, seed: int) -> Floats:
    grid, pp = np.asarray(physics.job.search.clock_mhz), physics.layouts["pp"]
    drawn = np.random.default_rng(seed).choice(grid, (len(pp), int(pp.max())))
    return np.where(np.arange(int(pp.max())) >= pp[:, None], np.nan, drawn)


@pytest.mark.parametrize("job", JOBS)
def test_no_plan_draws_less_than_the_least_power_of_its_clocks_and_few_much_more(
    job: int, shipped_physics: Physics
) -> None:
    physics = shipped_physics(job)
    clocks, index = random_clocks(physics, 2), np.arange(len(physics.layouts["pp"]))
    drawn = physics.evaluate(index, clocks)["avg_power_w"] / physics.least_power_w(index, clocks)
    assert (drawn >= 1.0 - 1e-9).all()
    assert np.median(drawn) < 1.5


@pytest.mark.parametrize("job", JOBS)
def test_a_batch_of_plans_equals_each_plan_alone(job: int, shipped_physics: Physics) -> None:
    physics = shipped_physics(job)
    clocks = random_clocks(physics, 1)
    together = physics.evaluate(np.arange(len(clocks)), clocks)
    for i in range(0, len(clocks), 9):
        alone = physics.evaluate(np.array([i]), clocks[[i]])
        for name in PREDICTIONS:
            assert alone[name][0] == pytest.approx(together[name][i], rel=1e-12)


@pytest.mark.parametrize("job", JOBS)
def test_the_order_of_plans_does_not_matter(job: int, shipped_physics: Physics) -> None:
    physics = shipped_physics(job)
    clocks = random_clocks(physics, 2)
    order = np.random.default_rng(3).permutation(len(clocks))
    straight, shuffled = (physics.evaluate(np.arange(len(clocks)), clocks), physics.evaluate(order, clocks[order]))
    for name in PREDICTIONS:
        np.testing.assert_allclose(shuffled[name], straight[name][order], rtol=1e-12)


def test_no_plans_give_empty_columns(shipped_physics: Physics) -> None:
    found = shipped_physics(0).evaluate(np.zeros(0, np.int64), np.zeros((0, 8)))
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(PREDICTIONS, 0)


@pytest.mark.parametrize("job", JOBS)
def test_no_plan_goes_below_the_bounds_of_its_layout(job: int, shipped_physics: Physics) -> None:
    physics = shipped_physics(job)
    index = np.arange(len(physics.layouts["pp"]))
    time, energy = physics.lower_bound(index)
    for seed in range(5):
        found = physics.evaluate(index, random_clocks(physics, seed))
        assert (
            found["iteration_time_s"] >= time * (1 - 2e-3)
        ).all()  # interleaved ZeRO-3 overstates what the drain hides
        assert (found["energy_j"] >= energy).all()


@pytest.mark.parametrize("offset_w", [-30.0, 30.0])
def test_watts_that_a_gpu_draws_more_or_less_at_rest_are_in_power_energy_and_their_bounds(
    offset_w: float, shipped_physics: Physics
) -> None:
    plain = shipped_physics(1)
    index, clocks = np.arange(len(plain.layouts["pp"])), random_clocks(plain, 3)
    moved, before = plain.corrected(np.full(len(index), 1.2), 1.0, 0.9, offset_w), plain.evaluate(index, clocks)
    found = moved.evaluate(index, clocks)
    assert found["avg_power_w"] == pytest.approx(0.9 * before["avg_power_w"] + offset_w)
    gpu_s = found["iteration_time_s"] * plain.job.cluster.num_gpus
    assert found["energy_j"] == pytest.approx(gpu_s * found["avg_power_w"])
    assert (found["energy_j"] >= moved.lower_bound(index)[1] * (1 - 2e-3)).all()


@pytest.mark.parametrize("job", JOBS)
def test_the_top_clock_takes_the_least_time(job: int, shipped_physics: Physics, one_clock: OneClock) -> None:
    physics = shipped_physics(job)
    index = np.arange(len(physics.layouts["pp"]))
    found_s = physics.evaluate(index, one_clock(physics, physics.top_mhz))["iteration_time_s"]
    bound_s, layouts = physics.lower_bound(index)[0], physics.layouts
    assert np.all(bound_s <= found_s * (1.0 + 1e-9))
    walked = (layouts["vpp"] > 1) & (layouts["stage_layers"] > 0) | (layouts["schedule"] > 0)  # chunk by chunk
    assert found_s[~walked].tolist() == pytest.approx(bound_s[~walked].tolist())


@pytest.mark.parametrize("job", JOBS)
def test_a_higher_clock_is_never_slower_and_work_never_cheaper(
    job: int, shipped_physics: Physics, one_clock: OneClock
) -> None:
    """The promise of `jointopt.search.problem`; 1e-5 for stages whose ceilings differ by a clock step."""
    physics = shipped_physics(job)
    index, grid = np.arange(len(physics.layouts["pp"])), np.asarray(physics.job.search.clock_mhz)
    found = [physics.evaluate(index, one_clock(physics, clock)) for clock in grid[:: max(len(grid) // 20, 1)]]
    time, energy = (np.array([f[name] for f in found]) for name in ("iteration_time_s", "energy_j"))
    assert (np.diff(time, axis=0) <= 1e-5 * time[1:]).all()
    work = energy - physics.energy_slope_w * time
    assert (np.diff(work, axis=0) >= -1e-9 * energy[1:]).all()


@pytest.mark.parametrize("job", JOBS)
def test_power_stays_within_the_limit(job: int, shipped_physics: Physics, one_clock: OneClock) -> None:
    physics = shipped_physics(job)
    index, limit = np.arange(len(physics.layouts["pp"])), physics.job.cluster.power_limit_w
    clocks = one_clock(physics, physics.top_mhz)
    assert (physics.evaluate(index, clocks)["avg_power_w"] <= limit).all()
    assert (physics.heat(index, clocks)["peak_power_w"] <= limit * (1 + 1e-12)).all()


@pytest.mark.parametrize("limit_w", [110.0, 150.0, 250.0])
def test_a_lower_power_limit_is_kept_and_costs_time(
    limit_w: float, make_job: Callable[..., Job], price: Callable[..., CostModel], one_clock: OneClock
) -> None:
    job = make_job()
    capped = replace(job, cluster=replace(job.cluster, power_limit_w=limit_w))
    free, held = (price(j, dp=[8, 4, 2], pp=[1, 2, 4]) for j in (job, capped))
    clocks, index = one_clock(free, free.top_mhz), np.arange(3)
    before, after = free.evaluate(index, clocks), held.evaluate(index, clocks)
    assert (after["iteration_time_s"] > before["iteration_time_s"]).all()
    assert (held.heat(index, clocks)["peak_power_w"] <= limit_w * (1 + 1e-9)).all()
    # at 110 and 150 W optimizer steps, which no limit holds, draw more
    assert (after["avg_power_w"] <= limit_w * (1.005 if limit_w < 250.0 else 1 + 1e-6)).all()


def test_a_limit_below_the_static_power_is_refused_in_one_sentence(
    make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    job = make_job()
    with pytest.raises(InfeasibleError, match=r"raise it .cluster\.power_limit_w, search"):
        price(replace(job, cluster=replace(job.cluster, power_limit_w=56.0)), dp=8)


def test_air_too_hot_to_compute_in_is_refused_in_one_sentence(
    make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    job = make_job()
    with pytest.raises(InfeasibleError, match=r"Air of 90 °C .* lower cluster\.inlet_temperature_c"):
        price(replace(job, cluster=replace(job.cluster, inlet_temperature_c=55.0, exhaust_rise_k=35.0)), dp=8)


@pytest.mark.parametrize("job", JOBS)
def test_energy_is_mean_power_times_time_times_gpus(job: int, shipped_physics: Physics) -> None:
    physics = shipped_physics(job)
    clocks = random_clocks(physics, 5)
    found = physics.evaluate(np.arange(len(clocks)), clocks)
    total = found["avg_power_w"] * found["iteration_time_s"] * physics.job.cluster.num_gpus
    np.testing.assert_allclose(total, found["energy_j"], rtol=1e-12)


@pytest.mark.parametrize("job", JOBS)
def test_temperatures_are_between_the_inlet_and_throttling(
    job: int, shipped_physics: Physics, one_clock: OneClock
) -> None:
    physics = shipped_physics(job)
    found = physics.heat(np.arange(len(physics.layouts["pp"])), one_clock(physics, physics.top_mhz))
    assert set(found) == set(HEAT)
    throttle_c = physics.job.cluster.gpu.throttle_temperature_c or 87.0
    assert (found["temperature_c"] > physics.job.cluster.inlet_temperature_c).all()
    assert (found["temperature_c"] <= throttle_c + 1e-6).all()


@settings(max_examples=40, deadline=None)
@example(job=1, seed=126, share=1.0)  # 14 and 10 layers in 7 chunks each: 8 % slower
@given(job=st.sampled_from(JOBS), seed=st.integers(0, 10**6), share=st.floats(0, 1))
def test_spending_slack_costs_no_more_than_fill_and_drain(
    job: int, seed: int, share: float, shipped_physics: Physics
) -> None:
    """The slowest stage stays the slowest, so the steady state takes as long as without slack.

    Not so where a rank's chunks differ: its short chunks then wait for the long ones of ranks that had time to spare.
    """
    physics = shipped_physics(job)
    n, grid = len(physics.layouts["pp"]), np.asarray(physics.job.search.clock_mhz)
    at = np.random.default_rng(seed).integers(0, n, 5)
    clock = np.random.default_rng(seed).integers(0, len(grid), 5)
    spent = physics.stage_clocks(at, clock, np.full(5, share))
    for i in range(5):
        g, row, pp = int(physics.group_of[at[i]]), physics.row_of[at[[i]]], int(physics.layouts["pp"][at[i]])
        even, uneven = (physics.times(g, row, c) for c in (np.full((1, pp), grid[clock[i]]), spent[[i], :pp]))
        pipes = physics.groups[g].pipelines
        slowest = [float((t.forward_s + t.backward_s).max()) for t in (even, uneven)]
        assert slowest[1] <= slowest[0] * (1 + 1e-9)
        lead = float(uneven.makespan_s[0] - even.makespan_s[0])
        assert lead >= -1e-9
        if not pipes.split.walked[pipes.split.which[row]].any():
            assert lead <= float((uneven.forward_s + uneven.backward_s).sum())


def test_without_slack_all_stages_run_at_one_clock(shipped_physics: Physics) -> None:
    physics = shipped_physics(6)
    n, grid = len(physics.layouts["pp"]), np.asarray(physics.job.search.clock_mhz)
    spent = physics.stage_clocks(np.arange(n), np.full(n, 3), np.zeros(n))
    assert np.nanmin(spent) == np.nanmax(spent) == grid[3]


def test_violation_is_the_largest_relative_excess(
    make_job: Callable[..., Job], price: Callable[..., CostModel], one_clock: OneClock
) -> None:
    plain = price(make_job(), dp=8)
    clocks = one_clock(plain, plain.top_mhz)
    free = plain.evaluate(np.zeros(1, np.int64), clocks)
    tight = Constraints(
        iteration_time_s=float(free["iteration_time_s"][0]) / 2, energy_j=float(free["energy_j"][0]) / 3
    )
    bound = price(replace(make_job(), constraints=tight), dp=8)
    found = bound.evaluate(np.zeros(1, np.int64), clocks)
    assert float(found["violation"][0]) == pytest.approx(2.0)
    assert [sentence.split()[0] for sentence in bound.broken_limits(found)] == ["iteration_time_s", "energy_j"]
    assert float(free["violation"][0]) < 0


def test_cluster_power_counts_hosts_and_pue(
    make_job: Callable[..., Job], price: Callable[..., CostModel], one_clock: OneClock
) -> None:
    job = replace(make_job(), constraints=Constraints(cluster_power_kw=1.0))
    physics = price(job, dp=8)
    found = physics.evaluate(np.zeros(1, np.int64), one_clock(physics, physics.top_mhz))
    nodes_w = 8 * found["avg_power_w"][0] * (1 + job.cluster.host_load_share) + job.cluster.host_power_w
    watts = nodes_w * job.cluster.pue
    assert physics.limits(found)["cluster_power_kw"][0][0] == pytest.approx(watts / 1e3)


def test_a_gpu_without_power_constants_has_a_time_and_no_energy(
    make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    job = make_job()
    blind = replace(job, cluster=replace(job.cluster, gpu=replace(job.cluster.gpu, power=None)))
    found = price(blind, dp=8).evaluate(np.zeros(1, np.int64), np.full((1, 1), 1410.0))
    assert np.isfinite(found["iteration_time_s"][0])
    assert np.isnan(found["energy_j"][0])


def test_one_stage_has_no_bubble_and_more_stages_fill_longer(
    make_job: Callable[..., Job], price: Callable[..., CostModel], gpt_model: Callable[..., Model]
) -> None:
    # arXiv:2104.04473 section 2.2: the bubble is (p - 1)/m of the ideal time, 1/v of that when interleaved
    job = make_job(64, gpt_model(64, vocab=64), global_batch_size=8)
    times = []
    for pp, vpp in ((1, 1), (8, 1), (8, 4)):
        physics = price(job, pp=pp, vpp=vpp, tp=8, sequence_parallel=True)
        t = physics.times(0, np.zeros(1, np.int64), np.full((1, pp), physics.top_mhz))
        step = (t.forward_s + t.backward_s).max() * 8
        times.append(float(t.makespan_s[0]) / step - 1)
    assert times == pytest.approx([0.0, 7 / 8, 7 / 32], rel=0.01)


def test_only_the_last_node_may_be_half_empty(make_job: Callable[..., Job], price: Callable[..., CostModel]) -> None:
    """Recorded runs of 12 GPUs on nodes of 8: power is per GPU of the plan."""
    physics = price(make_job(12, global_batch_size=48), dp=12)
    found = physics.evaluate(np.zeros(1, np.int64), np.full((1, 1), physics.top_mhz))
    assert float(found["avg_power_w"][0]) == pytest.approx(
        float(found["energy_j"][0] / found["iteration_time_s"][0]) / 12
    )


def test_kernel_constants_of_every_shipped_gpu_price_a_job(
    make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    from jointopt.jobs.catalog.gpus import gpu_ids

    for gpu in gpu_ids():
        job = make_job(gpu=gpu, dtype="fp16")
        assert kernel_constants(job.cluster.gpu)
        found = price(job, dp=8).evaluate(np.zeros(1, np.int64), np.full((1, 1), 1e5))
        known = PREDICTIONS if job.cluster.gpu.power else ("iteration_time_s", "peak_memory_gib")
        assert all(np.isfinite(found[name][0]) for name in known), gpu


@pytest.mark.parametrize("inlet_c", [20.0, 40.0, 60.0])
def test_a_hot_gpu_meets_its_power_limit_with_leakage(
    make_job: Callable[..., Job], price: Callable[..., CostModel], inlet_c: float
) -> None:
    job = make_job()
    cluster = replace(job.cluster, inlet_temperature_c=inlet_c, power_limit_w=250.0)
    physics = price(replace(job, cluster=cluster), dp=8)
    clocks = np.full((1, 1), physics.top_mhz)
    plan = physics.evaluate(np.zeros(1, np.int64), clocks) | physics.heat(np.zeros(1, np.int64), clocks)
    assert plan["avg_power_w"][0] <= plan["peak_power_w"][0] <= 250.0 * (1 + 1e-5)


def test_traffic_hides_under_no_more_compute_than_there_is(
    make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    job = make_job()
    slow = replace(job, cluster=replace(job.cluster, intra_node_gbytes_per_s=0.01))
    hiding = replace(slow, training=replace(slow.training, framework=replace(slow.training.framework, cp_overlap=1.0)))
    for name, profile in (("shown", slow), ("hidden", hiding)):
        physics = price(profile, cp=8)
        costs = physics.groups[0]
        kernels = costs.forward_sm_s + costs.forward_memory_s + costs.backward_sm_s + costs.backward_memory_s
        exposed = costs.comm_parts_s["cp_comm"]
        assert (exposed > 10.0 * kernels).all(), name


def limited(physics: CostModel, **limits: Any) -> CostModel:
    """The same layouts under power limits of their own."""
    return CostModel(physics.job, physics.layouts | limits, physics.hardware.constants)


def test_a_plan_s_power_limit_is_that_of_a_cluster_with_this_limit(
    make_job: Callable[..., Job], price: Callable[..., CostModel], one_clock: OneClock
) -> None:
    job = make_job()
    capped = replace(job, cluster=replace(job.cluster, power_limit_w=200.0))
    plans = {"dp": [8, 4, 2], "pp": [1, 2, 4]}
    own, clusters = limited(price(job, **plans), power_limit_w=np.full(3, 200.0)), price(capped, **plans)
    for clock in (600.0, 1410.0):
        first, second = (p.evaluate(np.arange(3), one_clock(p, clock)) for p in (own, clusters))
        assert {name: first[name].tolist() for name in PREDICTIONS} == {
            name: second[name].tolist() for name in PREDICTIONS
        }


def test_a_limit_of_one_stage_holds_that_stage_alone(
    make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    limits = np.array([[400.0, 400.0, 200.0, np.nan]])
    physics = limited(price(make_job(), dp=2, pp=4), stage_power_limit_w=limits)
    parts = breakdown(physics, 0, np.full(4, physics.top_mhz))
    assert parts.held_by == ("", "", "power_limit", "")
    assert parts.stage_peak_power_w[2] <= 200.0 < parts.stage_peak_power_w.max()
    assert parts.stage_power_limit_w.tolist() == [400.0, 400.0, 200.0, 400.0]


def test_a_plan_s_limit_above_the_cluster_s_changes_nothing(
    make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    free = price(make_job(), dp=8)
    loose = limited(free, power_limit_w=np.array([1000.0]))
    plan = np.zeros(1, np.int64), np.full((1, 1), free.top_mhz)
    assert loose.evaluate(*plan)["iteration_time_s"] == free.evaluate(*plan)["iteration_time_s"]


@settings(max_examples=40, deadline=None)
@given(
    job=st.sampled_from(JOBS), seed=st.integers(0, 10**6), share=st.floats(0.3, 1.0), inlet_c=st.floats(10, 45),
    rise_k=st.floats(0, 15),
)  # fmt: skip
def test_power_never_exceeds_the_cap_with_unequal_stage_clocks_in_any_air(
    job: int, seed: int, share: float, inlet_c: float, rise_k: float, shipped_physics: Physics
) -> None:
    known, some = shipped_physics(job), np.random.default_rng(seed).integers(0, 10**6, 4)
    cluster = known.job.cluster
    limit_w = known.power.static_w + share * (cluster.power_limit_w - known.power.static_w)
    warm = replace(cluster, power_limit_w=limit_w, inlet_temperature_c=inlet_c, exhaust_rise_k=rise_k)
    rows = {name: values[some % len(values)] for name, values in known.layouts.items()}
    physics = CostModel(replace(known.job, cluster=warm), rows, known.hardware.constants)
    clocks, index = random_clocks(physics, seed), np.arange(4)
    assert (physics.evaluate(index, clocks)["avg_power_w"] <= limit_w * (1 + 1e-5)).all()
    hot = physics.heat(index, clocks)
    assert (hot["peak_power_w"] <= limit_w * (1 + 1e-5)).all()
    assert (hot["temperature_c"] <= (cluster.gpu.throttle_temperature_c or 87.0) + 1e-6).all()


@settings(max_examples=40, deadline=None)
@given(job=st.sampled_from(JOBS), seed=st.integers(0, 10**6))
def test_no_plan_beats_the_static_energy_of_its_own_time(job: int, seed: int, shipped_physics: Physics) -> None:
    physics = shipped_physics(job)
    some = np.random.default_rng(seed).integers(0, len(physics.layouts["pp"]), 20)
    found = physics.evaluate(some, random_clocks(physics, seed)[some])
    coldest_w = physics.power.static_w + physics.cooler.mean_leakage_w
    floor = coldest_w * found["iteration_time_s"] * physics.job.cluster.num_gpus
    assert (found["energy_j"] > floor).all()
    assert (found["energy_j"] >= physics.lower_bound(some)[1]).all()


def test_a_warm_exhaust_row_costs_leakage_and_then_time(
    make_job: Callable[..., Job], price: Callable[..., CostModel]
) -> None:
    job, found = make_job(), []
    for rise_k in (0.0, 10.0, 40.0):
        cluster = replace(job.cluster, inlet_temperature_c=30.0, exhaust_rise_k=rise_k)
        physics = price(replace(job, cluster=cluster), dp=8)
        found.append(physics.evaluate(np.zeros(1, np.int64), np.full((1, 1), physics.top_mhz)))
    times, powers = ([float(f[name][0]) for f in found] for name in ("iteration_time_s", "avg_power_w"))
    assert times[0] == times[1] < times[2]
    assert powers[1] > powers[0]


@pytest.mark.parametrize("makespan", [least_makespan_s, most_makespan_s, makespan_s])
@pytest.mark.parametrize("job", JOBS)
def test_one_clock_takes_as_long_as_the_same_clock_stated_for_each_stage(
    job: int, makespan: Makespan, shipped_physics: Physics, one_clock: OneClock
) -> None:
    physics = shipped_physics(job)
    at = np.arange(len(physics.layouts["pp"]))
    shared = np.full((len(at), 1), 0.8 * physics.top_mhz)
    each = one_clock(physics, 0.8 * physics.top_mhz)
    found, stated = (physics.least_time_s(at, clocks, makespan) for clocks in (shared, each))
    np.testing.assert_allclose(found, stated, rtol=1e-12)


@pytest.mark.parametrize("makespan", [least_makespan_s, makespan_s])
def test_one_clock_does_so_where_chunks_differ_and_a_group_is_not_full(
    makespan: Makespan, make_job: Callable[..., Job], price: Callable[..., CostModel], gpt_model: Callable[..., Model]
) -> None:
    alike = (1, 3, 3, 3, 3, 3, 3, 1, 1, 2, 2, 2, 2, 2, 2, 1)  # ranks 1 to 6 do most, and are the same
    splits = alike, (3, 3, 1, 2, 2, 2, 2, 1, 2, 3, 3, 1, 4, 1, 1, 3), (0, 6, 6, 4, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2)
    codes = np.array([STAGE_LAYERS.code_of(layers) for layers in splits])
    job = make_job(64, gpt_model(34, vocab=512), global_batch_size=96)
    physics = price(job, dp=8, pp=8, vpp=2, stage_layers=codes, zero_stage=[1, 0, 1], micro_batch_size=[1, 1, 3])
    at, clock = np.arange(3), physics.top_mhz
    found, stated = (physics.least_time_s(at, np.full((3, width), clock), makespan) for width in (1, 8))
    np.testing.assert_allclose(found, stated, rtol=1e-12)
