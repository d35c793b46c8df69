"""Cooling of a cluster's GPUs: the same as the thermal formulas, in the limits and at the TDP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.physics import cooling as thermal
from jointopt.physics.cooling import Cooler, cooler
from jointopt.spec.job import Job


@pytest.fixture
def a100(make_job: Callable[..., Job]) -> Cooler:
    cluster = make_job().cluster
    assert cluster.gpu.power is not None
    return cooler(cluster, cluster.gpu.power)


def test_the_cooler_holds_the_tdp_at_the_design_inlet_with_the_margin_left(
    make_job: Callable[..., Job],
) -> None:
    cluster = replace(make_job().cluster, inlet_temperature_c=thermal.DESIGN_INLET_C)
    assert cluster.gpu.power is not None
    assert cluster.gpu.tdp_w is not None
    hot = float(cooler(cluster, cluster.gpu.power).temperature_c(np.array(cluster.gpu.tdp_w)))
    throttle = cluster.gpu.throttle_temperature_c or thermal.THROTTLE_C
    assert hot == pytest.approx(throttle - thermal.DESIGN_MARGIN_K, abs=2.0)  # the rest is leakage


def test_warmer_air_lowers_the_throttle_power(make_job: Callable[..., Job]) -> None:
    cluster = make_job().cluster
    assert cluster.gpu.power is not None
    limits = [
        cooler(replace(cluster, inlet_temperature_c=inlet), cluster.gpu.power).throttle_power_w
        for inlet in (20.0, 35.0, 50.0, 60.0)
    ]
    assert limits == sorted(limits, reverse=True)


def test_many_powers_at_once_equal_each_alone(a100: Cooler) -> None:
    watts = np.array([80.0, 200.0, 390.0])
    assert a100.leakage_w(watts).tolist() == [float(a100.leakage_w(np.array(w))) for w in watts]


def test_leakage_is_none_at_the_reference_temperature_and_negative_below(a100: Cooler) -> None:
    gain = a100.resistance_k_per_w
    at_reference = (thermal.REFERENCE_C - a100.inlet_c) / gain
    assert float(a100.leakage_w(np.array(at_reference))) == pytest.approx(0.0, abs=1e-9)
    assert float(a100.leakage_w(np.array(0.5 * at_reference))) < 0.0


def test_the_leakage_line_is_the_leakage(a100: Cooler) -> None:
    at_zero, gain = a100.leakage_line
    assert at_zero + gain * 300.0 == pytest.approx(float(a100.leakage_w(np.array(300.0))))


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
    assert float(unknown.leakage_w(np.array(300.0))) == 0.0
    assert unknown.throttle_power_w == np.inf


def test_at_its_tdp_in_the_design_air_a_gpu_is_the_margin_below_throttling(
    a100: Cooler, make_job: Callable[..., Job]
) -> None:
    # 400 W board power: NVIDIA A100 data sheet; the margin is an assumption of the thermal model
    hot = replace(a100, inlet_c=thermal.DESIGN_INLET_C, leakage_w_per_k=0.0).temperature_c(np.array(400.0))
    throttle_c = make_job().cluster.gpu.throttle_temperature_c or thermal.THROTTLE_C
    assert float(hot) == pytest.approx(throttle_c - thermal.DESIGN_MARGIN_K)


def spread(make_job: Callable[..., Job], rise_k: float, gpus_per_node: int = 8) -> Cooler:
    cluster = replace(make_job().cluster, exhaust_rise_k=rise_k, gpus_per_node=gpus_per_node)
    assert cluster.gpu.power is not None
    return cooler(cluster, cluster.gpu.power)


def test_the_exhaust_row_is_hotter_by_the_rise_and_what_it_leaks_more(make_job: Callable[..., Job]) -> None:
    node = spread(make_job, 12.0)
    positions = node.temperature_by_position_c(np.array(300.0))
    gain = node.resistance_k_per_w * node.leakage_w_per_k
    assert float(positions["exhaust"] - positions["inlet"]) == pytest.approx(12.0 / (1.0 - gain))
    assert positions["exhaust"] == node.temperature_c(np.array(300.0))


def test_the_hottest_position_decides_throttling(make_job: Callable[..., Job]) -> None:
    warm = replace(make_job().cluster, inlet_temperature_c=make_job().cluster.inlet_temperature_c + 12.0)
    assert warm.gpu.power is not None
    assert spread(make_job, 12.0).throttle_power_w == cooler(warm, warm.gpu.power).throttle_power_w


def test_leakage_of_a_node_is_the_mean_of_its_positions(make_job: Callable[..., Job]) -> None:
    node, power = spread(make_job, 12.0, gpus_per_node=4), np.array(300.0)
    cool = replace(node, exhaust_rise_k=0.0).leakage_w(power)
    assert float(node.leakage_w(power)) == pytest.approx(float(cool + node.peak_leakage_w(power)) / 2.0)
    at_air, heated = node.leakage_parts_w(power)
    assert at_air + float(heated) == pytest.approx(float(node.leakage_w(power)))
    assert float(heated) > 0.0


def test_a_node_with_one_gpu_has_no_exhaust_row(make_job: Callable[..., Job]) -> None:
    node = spread(make_job, 12.0, gpus_per_node=1)
    assert set(node.temperature_by_position_c(np.array(300.0))) == {"inlet"}
    assert node == spread(make_job, 0.0, gpus_per_node=1)
