"""Cooling of a cluster's GPUs: the same as the thermal formulas, in the limits and at the TDP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job
from jointopt.physics import cooling
from jointopt.physics.cooling import (
    Cooler,
    cooler,
    electrical_limit_w,
    kernel_limit_w,
    kernel_limits_w,
    position_temperatures_c,
    power_limit_w,
    stages_in_exhaust,
)


@pytest.fixture
def a100(make_job: Callable[..., Job]) -> Cooler:
    cluster = make_job().cluster
    assert cluster.gpu.power is not None
    return cooler(cluster, cluster.gpu.power)


def test_the_cooler_holds_the_tdp_at_the_design_inlet_with_the_margin_left(make_job: Callable[..., Job]) -> None:
    cluster = replace(make_job().cluster, inlet_temperature_c=cooling.DESIGN_INLET_C)
    assert cluster.gpu.power is not None
    assert cluster.gpu.tdp_w is not None
    hot = float(cooler(cluster, cluster.gpu.power).temperature_c(np.array(cluster.gpu.tdp_w)))
    throttle = cluster.gpu.throttle_temperature_c or cooling.THROTTLE_C
    assert hot == pytest.approx(throttle - cooling.DESIGN_MARGIN_K, abs=2.0)  # the rest is leakage


def test_warmer_air_lowers_the_throttle_power(make_job: Callable[..., Job]) -> None:
    cluster = make_job().cluster
    assert cluster.gpu.power is not None
    limits = [
        cooler(replace(cluster, inlet_temperature_c=inlet), cluster.gpu.power).throttle_power_w
        for inlet in (20.0, 35.0, 50.0, 60.0)
    ]
    assert limits == sorted(limits, reverse=True)


@pytest.mark.parametrize(("air_c", "sign"), [(cooling.REFERENCE_AIR_C, 0), (35.0, 1), (10.0, -1)])
def test_power_constants_hold_in_the_reference_air_whatever_a_gpu_draws(a100: Cooler, air_c: float, sign: int) -> None:
    assert np.sign(replace(a100, inlet_c=air_c).mean_leakage_w) == sign


def test_a_cooler_in_warm_air_throttles_earlier(a100: Cooler, make_job: Callable[..., Job]) -> None:
    cluster = make_job().cluster
    assert cluster.gpu.power is not None
    warm = cooler(replace(cluster, inlet_temperature_c=45.0), cluster.gpu.power)
    assert warm.throttle_power_w < a100.throttle_power_w


def test_without_a_tdp_there_is_no_thermal_model_and_no_leakage(make_job: Callable[..., Job]) -> None:
    cluster = make_job().cluster
    assert cluster.gpu.power is not None
    unknown = cooler(replace(cluster, gpu=replace(cluster.gpu, tdp_w=None)), cluster.gpu.power)
    assert np.isnan(unknown.temperature_c(np.array(300.0)))
    assert unknown.mean_leakage_w == 0.0
    assert unknown.throttle_power_w == np.inf


def test_at_its_tdp_in_the_design_air_a_gpu_is_the_margin_below_throttling(
    a100: Cooler, make_job: Callable[..., Job]
) -> None:
    # 400 W board power: NVIDIA A100 data sheet; the margin is an assumption of the thermal model
    hot = replace(a100, inlet_c=cooling.DESIGN_INLET_C, leakage_w_per_k=0.0).temperature_c(np.array(400.0))
    throttle_c = make_job().cluster.gpu.throttle_temperature_c or cooling.THROTTLE_C
    assert float(hot) == pytest.approx(throttle_c - cooling.DESIGN_MARGIN_K)


def spread(make_job: Callable[..., Job], rise_k: float, gpus_per_node: int = 8) -> Cooler:
    cluster = replace(make_job().cluster, exhaust_rise_k=rise_k, gpus_per_node=gpus_per_node)
    assert cluster.gpu.power is not None
    return cooler(cluster, cluster.gpu.power)


def test_the_exhaust_row_is_hotter_by_the_rise_and_what_it_leaks_more(make_job: Callable[..., Job]) -> None:
    node = spread(make_job, 12.0)
    hot, cool = (float(node.temperature_c(np.array(300.0), exhaust)) for exhaust in (True, False))
    gain = node.resistance_k_per_w * node.leakage_w_per_k
    assert hot - cool == pytest.approx(12.0 / (1.0 - gain))


def test_the_hottest_position_decides_throttling(make_job: Callable[..., Job]) -> None:
    warm = replace(make_job().cluster, inlet_temperature_c=make_job().cluster.inlet_temperature_c + 12.0)
    assert warm.gpu.power is not None
    assert spread(make_job, 12.0).throttle_power_w == cooler(warm, warm.gpu.power).throttle_power_w


def test_leakage_of_a_node_is_the_mean_of_its_positions(make_job: Callable[..., Job]) -> None:
    node = spread(make_job, 12.0, gpus_per_node=4)
    cool = replace(node, exhaust_rise_k=0.0).mean_leakage_w
    assert node.mean_leakage_w == pytest.approx(float(cool + node.air_leakage_w()) / 2.0)


def test_a_node_with_one_gpu_has_no_exhaust_row(make_job: Callable[..., Job]) -> None:
    node = spread(make_job, 12.0, gpus_per_node=1)
    assert node.exhaust_share == 0.0
    assert node == spread(make_job, 0.0, gpus_per_node=1)


def test_without_leakage_temperature_is_inlet_plus_resistance_times_power():
    assert cooling.temperature_c(400.0, 25.0, 0.1) == pytest.approx(65.0)


@given(st.floats(50.0, 1000.0), st.floats(10.0, 45.0), st.floats(0.03, 0.12), st.floats(0.0, 2.0))
def test_the_steady_state_balances_heat_and_power(power_w, inlet_c, resistance, leakage):
    t = cooling.temperature_c(power_w, inlet_c, resistance, leakage)
    drawn = power_w + leakage * (t - cooling.REFERENCE_C)
    assert t == pytest.approx(inlet_c + resistance * drawn)


@given(st.floats(10.0, 45.0), st.floats(0.03, 0.12), st.floats(0.0, 2.0))
def test_at_the_throttle_power_the_temperature_is_the_throttle_temperature(inlet_c, resistance, leakage):
    limit = cooling.throttle_power_w(87.0, inlet_c, resistance, leakage)
    assert cooling.temperature_c(limit, inlet_c, resistance, leakage) == pytest.approx(87.0)


def test_vectors_give_what_scalars_give():
    powers = np.array([100.0, 250.0, 400.0])
    hot = cooling.temperature_c(powers, 30.0, 0.1, 0.6)
    assert hot == pytest.approx([float(cooling.temperature_c(p, 30.0, 0.1, 0.6)) for p in powers])


def test_leakage_that_outruns_the_cooler_has_no_steady_state():
    assert np.isinf(cooling.temperature_c(np.array([100.0, 200.0]), 25.0, 0.5, 2.0)).all()


def test_no_power_is_allowed_above_a_throttle_temperature_that_the_inlet_exceeds():
    assert cooling.throttle_power_w(85.0, 90.0, 0.1) == pytest.approx(0.0)


ROWS = np.arange(2)


def test_the_lowest_limit_rules_and_a_blank_is_none(make_job: Callable[..., Job]) -> None:
    cluster = replace(make_job().cluster, power_limit_w=350.0)
    assert power_limit_w(cluster, {}, ROWS, 2).tolist() == [[350.0]]
    plans = {"power_limit_w": np.array([300.0, np.nan])}
    assert power_limit_w(cluster, plans, ROWS, 2).tolist() == [[300.0], [350.0]]
    stages = {"stage_power_limit_w": np.array([[320.0, 400.0], [np.nan, 200.0]])}
    assert power_limit_w(cluster, plans | stages, ROWS, 2).tolist() == [[300.0, 300.0], [350.0, 200.0]]


@pytest.mark.parametrize("inlet_c", [20.0, 45.0, 60.0])
def test_kernels_with_what_a_limit_leaves_draw_the_limit(inlet_c: float, make_job: Callable[..., Job]) -> None:
    cluster = replace(make_job().cluster, inlet_temperature_c=inlet_c, exhaust_rise_k=10.0)
    assert cluster.gpu.power is not None
    cooled, limit = cooler(cluster, cluster.gpu.power), np.array([[300.0]])
    assert float(cooled.reached_w(electrical_limit_w(limit, cooled))[0, 0]) == pytest.approx(300.0)


def test_the_cooler_is_a_limit_too(make_job: Callable[..., Job]) -> None:
    cluster = replace(make_job().cluster, inlet_temperature_c=50.0)
    assert cluster.gpu.power is not None
    cooled = cooler(cluster, cluster.gpu.power)
    left = kernel_limit_w(np.array([[400.0]]), cooled, cluster, cluster.gpu.power.static_w)
    assert float(left[0, 0]) == cooled.throttle_power_w < 400.0


def placed(make_job: Callable[..., Job], ranks: tuple[int, ...] | None, gpus_per_node: int = 8) -> Cluster:
    cluster = replace(make_job().cluster, gpus_per_node=gpus_per_node, exhaust_rise_k=30.0, exhaust_ranks=ranks)
    return replace(cluster, inlet_temperature_c=35.0)


@pytest.mark.parametrize(
    ("ranks", "size", "expected"),
    [
        ((4, 5, 6, 7), 4, [False, True, False, True]),
        ((0, 1, 2, 3), 4, [True, False, True, False]),
        ((0, 2, 4, 6), 4, [True] * 4),
        ((7,), 2, [False, False, False, True]),
        ((2,), 6, [True, True, False, True]),  # ranks 0-5, 6-11, 12-17 and 18-23 of nodes of 8
        ((1,), 6, [True, True, True, False]),
        ((3,), 8, [True] * 4),
    ],
)
def test_a_stage_is_hot_where_one_of_its_ranks_is(
    make_job: Callable[..., Job], ranks: Any, size: int, expected: Any
) -> None:
    found = stages_in_exhaust(placed(make_job, ranks), np.array([size, 8]), 4)
    assert found[0].tolist() == expected
    assert found[1].all()


def test_where_the_ranks_of_the_exhaust_row_are_not_stated_any_rank_may_be_hot(make_job: Callable[..., Job]) -> None:
    assert stages_in_exhaust(placed(make_job, None), np.array([2]), 4).tolist() == [[True]]


def test_stages_in_the_inlet_row_keep_its_limit(make_job: Callable[..., Job]) -> None:
    cluster = placed(make_job, (4, 5, 6, 7))
    assert cluster.gpu.power is not None
    limit_w = np.full((1, 1), cluster.power_limit_w)
    found = kernel_limits_w(limit_w, cluster, cluster.gpu.power, np.array([4]), 2)[0]
    even = replace(cluster, exhaust_rise_k=0.0)
    cool = kernel_limit_w(limit_w, cooler(even, cluster.gpu.power), even, cluster.gpu.power.static_w)
    assert found[0] == cool[0, 0] > found[1] + 10.0


def test_ranks_of_the_exhaust_row_count_in_the_mean_of_a_node(make_job: Callable[..., Job]) -> None:
    cluster = placed(make_job, (6, 7))
    assert cluster.gpu.power is not None
    assert cooler(cluster, cluster.gpu.power).exhaust_share == 1.0 / 4


def test_a_stage_has_a_temperature_in_the_rows_where_it_has_ranks(make_job: Callable[..., Job]) -> None:
    cluster = placed(make_job, (4, 5, 6, 7))
    assert cluster.gpu.power is not None
    node = cooler(cluster, cluster.gpu.power)
    found = position_temperatures_c(cluster, node, np.array([300.0, 300.0]), 4)
    assert np.isnan(found["inlet"]).tolist() == [False, True]
    assert np.isnan(found["exhaust"]).tolist() == [True, False]
    assert not np.isnan(position_temperatures_c(cluster, node, np.array([300.0]), 8)["inlet"]).any()
