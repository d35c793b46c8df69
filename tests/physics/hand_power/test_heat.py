"""Heat: T = air + R·P with P = P_ref + leakage·(T - 60 °C); power counts what air beyond 22.5 °C adds to it.

A cooler that holds 400 W at 35 °C with 10 K left to 85 °C has R = (85 - 10 - 35)/400 = 0.1 K/W. Leakage is 1 % of
50 W per kelvin, 0.5 W/K, so R·leakage = 0.05.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.job import Job
from jointopt.physics import cooling as thermal
from jointopt.physics.cooling import Cooler, cooler, electrical_limit_w, kernel_limit_w

Cool = Callable[..., Cooler]


@pytest.fixture
def cool(round_job: Callable[..., Job], constants: PowerConstants) -> Cool:
    return lambda **fields: cooler(round_job(**fields).cluster, constants)


def temperature(watts: float, air_c: float) -> float:
    """T = (air + R·P - R·leakage·60) / (1 - R·leakage), solved by hand."""
    return (air_c + 0.1 * watts - 0.05 * 60) / 0.95


def test_resistance_and_leakage_of_a_cooler_made_for_the_tdp(cool: Cool) -> None:
    assert cool().resistance_k_per_w == pytest.approx(0.1)
    assert cool().leakage_w_per_k == pytest.approx(0.5)
    assert thermal.thermal_resistance_k_per_w(700.0, 87.0) == pytest.approx(42 / 700)


def test_300_watts_in_air_of_25_degrees(cool: Cool) -> None:
    assert float(cool().temperature_c(np.array(300.0))) == pytest.approx(temperature(300, 25))
    assert cool().mean_leakage_w == pytest.approx(0.5 * (25 - 22.5) / 0.95)


def test_a_gpu_throttles_where_its_power_heats_the_air_to_85_degrees(cool: Cool) -> None:
    # (85 - 45)/0.1 = 400 W drawn, of which 0.5·25 W leak beyond the reference
    assert cool(inlet_temperature_c=45.0).throttle_power_w == pytest.approx(400 - 12.5)


def test_the_exhaust_row_throttles_first_and_leaks_most(cool: Cool) -> None:
    # 8 GPUs, 4 of them in air that is 12 K warmer: the mean air is 31 °C
    node = cool(exhaust_rise_k=12.0)
    assert float(node.temperature_c(np.array(300.0), False)) == pytest.approx(temperature(300, 25))
    assert float(node.temperature_c(np.array(300.0))) == pytest.approx(temperature(300, 37))
    assert node.mean_leakage_w == pytest.approx(0.5 * (temperature(300, 31) - temperature(300, 22.5)))
    assert float(node.air_leakage_w()) == pytest.approx(0.5 * (temperature(300, 37) - temperature(300, 22.5)))
    assert float(node.air_leakage_w(False)) == pytest.approx(0.5 * (temperature(300, 25) - temperature(300, 22.5)))
    assert node.throttle_power_w == pytest.approx((85 - 37) / 0.1 - 12.5)


def test_of_three_gpus_in_a_node_one_breathes_exhaust(cool: Cool) -> None:
    assert cool(exhaust_rise_k=12.0, gpus_per_node=3).exhaust_share == pytest.approx(1 / 3)


def test_limits_count_on_leakage_that_is_a_line_in_power(cool: Cool) -> None:
    gain = 0.5 * 0.1 / 0.95
    at_zero, at_one = cool(exhaust_rise_k=12.0).leakage_w(np.array([0.0, 1.0]))
    assert (at_zero, at_one - at_zero) == pytest.approx((0.5 * (temperature(0, 37) - 60), gain))


@pytest.mark.parametrize(
    ("watts", "exhaust", "leaks"),
    [(400, True, 0.5 * (temperature(400, 37) - 60)), (300, True, 0.5 * (37 - 22.5) / 0.95), (400, False, 0.0)],
)
def test_kernels_at_a_limit_draw_what_gpus_leak_beside_it(watts: int, exhaust: bool, leaks: float, cool: Cool) -> None:
    # 400 W in air of 37 °C heat a GPU to 78 °C, 300 W to 67 °C; in air of 10 °C to 49 °C, which no limit counts on
    node = cool(exhaust_rise_k=27.0, inlet_temperature_c=10.0)
    assert float(node.reached_w(np.array(float(watts)), exhaust)) == pytest.approx(watts + leaks)


@pytest.mark.parametrize(("air_c", "left"), [(50.0, 400 - 0.5 * 30), (25.0, 400 - 0.5 * 5), (15.0, 400.0)])
def test_a_limit_leaves_to_kernels_what_the_hottest_gpu_does_not_leak(air_c: float, left: float, cool: Cool) -> None:
    # 400 W drawn heat a GPU 40 K above its air; below 60 °C it leaks less, which a limit does not count on
    found = electrical_limit_w(np.array([[400.0]]), cool(inlet_temperature_c=air_c))
    assert float(found[0, 0]) == pytest.approx(left)


def test_kernels_may_draw_the_lower_of_limit_and_throttle_power(
    round_job: Callable[..., Job], constants: PowerConstants
) -> None:
    # air of 60 °C adds 0.5·(60 - 22.5)/0.95 W, more than the 5 W that a GPU of 70 °C leaks beyond 60
    cluster = round_job(inlet_temperature_c=60.0).cluster
    own = kernel_limit_w(np.array([[400.0, 100.0]]), cooler(cluster, constants), cluster, 50.0)
    assert own[0].tolist() == pytest.approx([(85 - 60) / 0.1 - 12.5, 100 - 18.75 / 0.95])


def test_without_a_known_throttle_temperature_87_degrees_stand_in(
    round_job: Callable[..., Job], constants: PowerConstants
) -> None:
    cluster = round_job().cluster
    unknown = replace(cluster, gpu=replace(cluster.gpu, throttle_temperature_c=None))
    assert cooler(unknown, constants).resistance_k_per_w == pytest.approx((87 - 10 - 35) / 400)
