"""Energy of a whole plan from what its stages compute, move and wait for; what enters is priced elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.job import Job
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import breakdown, communication_j, memory_traffic_j
from jointopt.physics.site import SITE_COLUMNS, bill, cluster_power_kw, facility_energy_j, with_site

Plan = Callable[..., CostModel]
FIRST = np.array([0])
CELLS = {"dp": 2, "pp": 2, "tp": 2, "zero_stage": 1}
CLOCKS = np.array([[800.0, 500.0]])
X, V2 = np.array([0.8, 0.5]), np.array([0.81, 0.64])


def cold_energy_j(plan: CostModel, time_s: float, x: np.ndarray, v2: np.ndarray) -> np.ndarray:
    """Joules (pp,) of one rank per stage at the reference temperature."""
    costs = plan.groups[0]
    batches = float(costs.num_micro_batches[0])
    sm_s = costs.forward_sm_s[0] + costs.backward_sm_s[0]
    memory_s = costs.forward_memory_s[0] + costs.backward_memory_s[0]
    kernels_s = batches * (sm_s / x + memory_s + 0.25 * costs.comm_parts_s["tp_comm"][0]) + costs.optimizer_s[0]
    hbm = batches * costs.hbm_bytes[0] + costs.iteration_hbm_bytes[0]
    links_j = batches * costs.link_j[0] + costs.iteration_link_j[0]
    compute_j = 1e-12 * batches * costs.flops[0] * v2
    work_j = 100 * x * v2 * kernels_s + compute_j + 50e-12 * hbm + links_j
    return np.asarray(work_j + 50 * time_s + 30 * (time_s - kernels_s))


def test_energy_of_a_plan_with_a_clock_per_stage(plan_of: Plan) -> None:
    # each stage has dp·tp = 4 ranks; air of 25 °C as in a cooler of 0.1 K/W and 0.5 W/K
    plan = plan_of(CELLS)
    out = plan.evaluate(FIRST, CLOCKS)
    time_s = float(out["iteration_time_s"][0])
    cold_w = cold_energy_j(plan, time_s, X, V2) / time_s
    leaked_w = 0.5 * (25 - 22.5) / 0.95
    joules = 4 * time_s * (cold_w + leaked_w).sum()
    assert float(out["energy_j"][0]) == pytest.approx(joules, rel=1e-9)
    assert float(out["avg_power_w"][0]) == pytest.approx(joules / time_s / 8, rel=1e-9)


def test_the_parts_of_the_energy_of_a_stage_are_its_static_power_and_leakage(plan_of: Plan) -> None:
    plan = plan_of(CELLS)
    time_s = float(plan.iteration_time_s(FIRST, CLOCKS)[0])
    parts = breakdown(plan, 0, CLOCKS[0]).stage_energy_parts_j
    # in air of 25 °C a GPU draws 0.5·(25 - 22.5) W more, which heats it and adds 5 % of that, and so on
    assert parts["static"] == pytest.approx(4 * time_s * np.full(2, 50 + 0.5 * (25 - 22.5)))
    assert parts["leakage"] == pytest.approx(4 * time_s * np.full(2, 0.5 * (25 - 22.5) * 0.05 / 0.95))


def test_temperature_of_each_stage_follows_its_mean_power(plan_of: Plan) -> None:
    plan = plan_of(CELLS, exhaust_rise_k=12.0)
    time_s = float(plan.iteration_time_s(FIRST, CLOCKS)[0])
    cold_w = cold_energy_j(plan, time_s, X, V2) / time_s
    hottest = (37 + 0.1 * cold_w - 3) / 0.95
    assert breakdown(plan, 0, CLOCKS[0]).stage_temperature_c == pytest.approx(hottest)
    assert float(plan.heat(FIRST, CLOCKS)["temperature_c"][0]) == pytest.approx(hottest.max())


def test_peak_power_is_that_of_kernels_with_the_leakage_of_the_hottest_gpu(plan_of: Plan) -> None:
    plan = plan_of(CELLS, exhaust_rise_k=12.0)
    costs = plan.groups[0]
    sm_s = costs.forward_sm_s[0] + costs.backward_sm_s[0]
    kernel_s = sm_s / X + costs.forward_memory_s[0] + costs.backward_memory_s[0]
    work_j = 1e-12 * costs.flops[0] * V2 + 50e-12 * costs.hbm_bytes[0]
    burst_w = 50 + 100 * X * V2 + work_j / kernel_s
    peak_w = burst_w + 0.5 * (37 - 22.5) / 0.95
    assert breakdown(plan, 0, CLOCKS[0]).stage_peak_power_w == pytest.approx(peak_w)


def test_corrections_multiply_time_power_and_memory(plan_of: Plan) -> None:
    plan = plan_of(CELLS)
    out = plan.evaluate(FIRST, CLOCKS)
    moved = plan.corrected(np.array([1.2]), 1.3, 1.1).evaluate(FIRST, CLOCKS)
    factors = {"iteration_time_s": 1.2, "energy_j": 1.2 * 1.1, "avg_power_w": 1.1, "peak_memory_gib": 1.3}
    for name, factor in factors.items():
        assert float(moved[name][0]) == pytest.approx(factor * float(out[name][0])), name


def test_a_power_limit_holds_the_clock_at_which_kernels_draw_it(plan_of: Plan) -> None:
    # 200 W in air of 25 °C are 45 °C, and 2.5 K of that air add 1.3 W to what was measured
    plan = plan_of({"dp": 8}, power_limit_w=200.0)
    found = breakdown(plan, 0, np.array([1000.0]))
    x = found.clock_mhz[0] / 1000
    costs, v2 = plan.groups[0], max(1 - 0.5 * (1 - x), 0.8) ** 2
    sm_s = costs.forward_sm_s[0, 0] + costs.backward_sm_s[0, 0]
    kernel_s = sm_s / x + costs.forward_memory_s[0, 0] + costs.backward_memory_s[0, 0]
    work_j = 1e-12 * costs.flops[0, 0] * v2 + 50e-12 * costs.hbm_bytes[0, 0]
    assert 0.2 < x < 1.0
    assert 50 + 100 * x * v2 + work_j / kernel_s == pytest.approx(200.0 - 0.5 * 2.5 / 0.95, rel=1e-4)


def test_the_energy_of_device_memory_is_split_by_what_grows_with_the_micro_batch(plan_of: Plan) -> None:
    one, two = (plan_of({"dp": 8, "micro_batch_size": size}).groups[0] for size in (1, 2))
    plan = plan_of({"dp": 8})
    fixed = 2 * one.hbm_bytes[0, 0] - two.hbm_bytes[0, 0]
    found = {name: float(joules[0]) for name, joules in memory_traffic_j(plan, 0).items()}
    assert found == pytest.approx({
        "weights": 50e-12 * 8 * fixed, "activations": 50e-12 * 8 * (two.hbm_bytes[0, 0] - one.hbm_bytes[0, 0]),
        "tensor_parallel_rereads": 0.0, "optimizer": 50e-12 * one.iteration_hbm_bytes[0, 0],
    })  # fmt: skip


def test_rereads_are_the_activations_beyond_a_half_of_those_without_tensor_parallelism(plan_of: Plan) -> None:
    def growing(tp: int) -> float:
        one, two = (plan_of({"dp": 4, "tp": tp, "micro_batch_size": n}, 4 * tp).groups[0] for n in (1, 2))
        return float(two.hbm_bytes[0, 0] - one.hbm_bytes[0, 0])

    found = memory_traffic_j(plan_of({"dp": 4, "tp": 2}), 0)["tensor_parallel_rereads"]
    assert float(found[0]) == pytest.approx(50e-12 * 16 * (growing(2) - growing(1) / 2))


def test_each_link_costs_its_own_energy_per_bit(plan_of: Plan) -> None:
    cheap, dear = (
        communication_j(plan_of({"dp": 16}, 16, inter_node_pj_per_bit=pj), 0)["dp_comm"] for pj in (10.0, 30.0)
    )
    assert float(dear["inter_node"][0]) == pytest.approx(3 * float(cheap["inter_node"][0]))
    assert float(cheap["inter_node"][0]) > 0
    assert dear["intra_node"].tolist() == pytest.approx(cheap["intra_node"].tolist())


def test_a_ring_of_gradients_in_a_node_pays_for_every_bit(plan_of: Plan) -> None:
    # ZeRO 0 reduces 4-byte gradients: each of 8 ranks sends 2·7/8 of them (Patarasuk and Yuan 2009)
    plan = plan_of({"dp": 8}, intra_node_pj_per_bit=2.0)
    parameters = plan.groups[0].iteration_hbm_bytes[0, 0] / 30
    found = communication_j(plan, 0)["dp_comm"]["intra_node"][0]
    gradients = plan.job.training.framework.gradient_comm_bytes * parameters
    assert float(found) == pytest.approx(2 * 7 / 8 * gradients * 8 * 2e-12)


def test_site_energy_is_gpus_and_hosts_times_pue(round_job: Callable[..., Job]) -> None:
    cluster = round_job(nodes=3, host_power_w=700.0, host_load_share=0.1, pue=1.25).cluster
    assert facility_energy_j(cluster, 10.0, 9000.0) == pytest.approx(1.25 * (1.1 * 9000 + 10 * 3 * 700))
    assert cluster_power_kw(cluster, 300.0) == pytest.approx(1.25 * (24 * 1.1 * 300 + 3 * 700) / 1000)


def test_intervals_of_a_site_take_time_and_energy_at_their_ends(round_job: Callable[..., Job]) -> None:
    job = round_job(
        nodes=1, host_power_w=700.0, host_load_share=0.2, pue=1.25, price_per_kwh=0.3, carbon_kg_per_kwh=0.2, assumed=()
    )
    ends = {"": 1.0, "_low": 0.5, "_high": 2.0}
    plans = {
        f"{name}{end}": np.array([value * factor])
        for name, value in {"iteration_time_s": 10.0, "energy_j": 9e3, "avg_power_w": 112.5}.items()
        for end, factor in ends.items()
    }
    out = with_site(job, plans)
    for end, factor in ends.items():
        joules = factor * 1.25 * (1.2 * 9000 + 7000)
        assert float(out[f"facility_energy_j{end}"][0]) == pytest.approx(joules)
        assert float(out[f"cost{end}"][0]) == pytest.approx(joules / 3.6e6 * 0.3)
        assert float(out[f"carbon_kg{end}"][0]) == pytest.approx(joules / 3.6e6 * 0.2)


def test_a_run_is_billed_for_its_last_iteration_too(round_job: Callable[..., Job]) -> None:
    # 64 sequences of 2,048 tokens an iteration: 1,000,000 tokens are 7.6 of them
    job = round_job(nodes=1, host_power_w=0.0, host_load_share=0.0, pue=1.0)
    job = replace(job, training=replace(job.training, run_tokens=1_000_000))
    found = bill(job, np.array([2.0]), np.array([100.0]))
    hours = 16 / 3600 * job.cluster.num_gpus
    assert {name: float(value[0]) for name, value in found.items()} == pytest.approx(
        {"facility_energy_j": 100, "run_time_s": 16, "run_gpu_hours": hours, "run_facility_energy_j": 800}
    )
    assert set(found) <= set(SITE_COLUMNS)
