"""Temperature in time: the first-order response by hand, its limits, and throttling by the hottest moment."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.schema import Floats
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.bounds import duty_cycle
from jointopt.physics.cooling import REFERENCE_C, TIME_CONSTANT_S, Cooler, burst_limit_w, cooler, peak_share
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import breakdown
from jointopt.physics.explain.timeline import Warming, filtered_w, rise_time_s, warming
from tests.physics.hand import plain_machine

JOB = shipped_job("llama-3-70b-4x8-h200")
TAU = 10.0


def found(plan: str, **cluster: float) -> tuple[Warming, CostModel]:
    job = replace(JOB, cluster=replace(JOB.cluster, **cluster))
    parsed = parse_plan(plan, job)
    physics = CostModel(job, parsed.layouts)
    return warming(physics, 0, parsed.stage_clock_mhz[0]), physics


def test_a_step_up_and_down_by_hand() -> None:
    """500 W for 10 s, 100 W for 5 s: x = 100 + 400·(1 - e^-1)/(1 - e^-1.5) at the end of the burst."""
    high, low = filtered_w(np.array([10.0, 5.0]), np.array([5000.0, 500.0]), TAU)
    assert high == pytest.approx(100.0 + 400.0 * (1.0 - np.exp(-1.0)) / (1.0 - np.exp(-1.5)))
    assert low == pytest.approx(100.0 + (high - 100.0) * np.exp(-0.5))


def test_the_share_of_a_burst_is_what_the_response_feels_of_it() -> None:
    felt = filtered_w(np.array([10.0, 5.0]), np.array([10.0, 0.0]), TAU)
    assert float(peak_share(10.0 / 15.0, 15.0, TAU)) == pytest.approx(felt.max())


@given(st.floats(0.05, 1.0))
def test_short_iterations_feel_the_mean_and_long_ones_all_of_it(busy: float) -> None:
    assert float(peak_share(busy, 1e-3, TAU)) == pytest.approx(busy, rel=1e-3)
    assert float(peak_share(busy, 1e6, TAU)) == pytest.approx(1.0)
    shares = peak_share(busy, np.array([1.0, 10.0, 100.0]), TAU)
    assert (np.diff(shares) >= -1e-12).all()


def test_pauses_leave_kernels_as_much_more_as_keeps_the_hottest_moment_at_the_throttle() -> None:
    power = JOB.cluster.gpu.power
    assert power is not None
    node = cooler(replace(JOB.cluster, inlet_temperature_c=60.0), power)
    always, half = (burst_limit_w(node, share, 1e-6, 100.0) for share in (1.0, 0.5))
    assert float(always) == pytest.approx(node.throttle_power_w)
    assert 0.5 * (float(half) + 100.0) == pytest.approx(node.throttle_power_w)


def test_kernels_of_two_equal_ranks_run_for_three_of_the_four_rounds_of_three_micro_batches() -> None:
    # of 500 layers a rank, beside which embedding, head and sends take no time to speak of
    model = replace(plain_machine.DENSE, num_layers=1000, vocab_size=64)
    plan = plain_machine.physics(pp=2, batches=3, model=model)
    times = plan.times(0, np.array([0]), np.full((1, 2), plain_machine.TOP_MHZ))
    share, _, _ = duty_cycle(plan.groups[0], times, 80.0)
    assert share[0] == pytest.approx([0.75, 0.75], rel=2e-3)


def test_the_time_to_a_rise_is_that_of_an_exponential() -> None:
    half, most = rise_time_s(np.array([20.0, 38.0]), np.array([40.0, 40.0]), TAU)
    assert half == pytest.approx(TAU * np.log(2.0))
    assert most == pytest.approx(TAU * np.log(20.0))
    assert rise_time_s(np.array([41.0]), np.array([40.0]), TAU)[0] == np.inf


def mean_c(plan: str) -> Floats:
    """Mean temperature (pp,) of the hottest GPU of each stage."""
    parsed = parse_plan(plan, JOB)
    return breakdown(CostModel(JOB, parsed.layouts), 0, parsed.stage_clock_mhz[0]).stage_temperature_c


def test_a_plan_swings_around_its_mean_and_more_with_larger_micro_batches() -> None:
    plans = [f"tp=4 pp=4 dp=2 micro_batch_size={size}" for size in (1, 8)]
    small, large = (found(plan)[0] for plan in plans)
    for one, middle_c in zip((small, large), map(mean_c, plans), strict=True):
        assert (one.trough_c < middle_c).all()
        assert (middle_c < one.peak_c).all()
    assert (large.peak_c - large.trough_c > 2.0 * (small.peak_c - small.trough_c)).all()


def test_in_hot_air_a_plan_comes_up_to_the_throttle_temperature_and_not_beyond() -> None:
    hot, physics = found("tp=4 pp=4 dp=2", inlet_temperature_c=55.0)
    throttle = physics.job.cluster.gpu.throttle_temperature_c or 87.0
    assert throttle - 5.0 < hot.peak_c.max() <= throttle + 0.1
    assert np.isfinite(hot.throttles_s).all()
    cool, _ = found("tp=4 pp=4 dp=2")
    assert (cool.throttles_s == np.inf).all()


def test_after_three_time_constants_five_per_cent_of_a_step_are_left() -> None:
    warmed, physics = found("tp=4 pp=4 dp=2")
    assert np.exp(-warmed.settles_s / physics.cooler.time_constant_s) == pytest.approx(0.05)


def test_where_waiting_alone_is_too_hot_pauses_leave_kernels_nothing_more() -> None:
    power = JOB.cluster.gpu.power
    assert power is not None
    node = cooler(replace(JOB.cluster, inlet_temperature_c=80.0), power)
    assert node.throttle_power_w < power.wait_w
    assert float(burst_limit_w(node, 0.5, 1.0, power.wait_w)) == node.throttle_power_w


def test_leakage_makes_a_step_larger_and_slower_as_by_small_steps_of_time() -> None:
    node = Cooler(inlet_c=25.0, resistance_k_per_w=0.08, leakage_w_per_k=2.0, throttle_power_w=1e3)
    capacity, celsius = TIME_CONSTANT_S / 0.08, node.temperature_c(np.array(100.0))
    ends, start = node.temperature_c(np.array(300.0)), celsius
    for _ in range(round(100.0 * node.time_constant_s)):  # 300 W from then on
        drawn_w = 300.0 + 2.0 * (celsius - REFERENCE_C)
        celsius = celsius + 0.01 * (drawn_w - (celsius - 25.0) / 0.08) / capacity
    assert float((celsius - start) / (ends - start)) == pytest.approx(1.0 - np.exp(-1.0), rel=1e-3)
