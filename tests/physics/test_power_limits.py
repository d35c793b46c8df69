"""What GPUs may draw: the lowest of cluster, plan and cooler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jointopt.physics.cooling import cooler, electrical_limit_w, kernel_limit_w, power_limit_w
from jointopt.spec.job import Job

ROWS = np.arange(2)


def test_the_lowest_limit_rules_and_a_blank_is_none(make_job: Callable[..., Job]) -> None:
    cluster = replace(make_job().cluster, power_limit_w=350.0)
    assert power_limit_w(cluster, {}, ROWS, 2).tolist() == [[350.0]]
    plans = {"power_limit_w": np.array([300.0, np.nan])}
    assert power_limit_w(cluster, plans, ROWS, 2).tolist() == [[300.0], [350.0]]
    stages = {"stage_power_limit_w": np.array([[320.0, 400.0], [np.nan, 200.0]])}
    assert power_limit_w(cluster, plans | stages, ROWS, 2).tolist() == [[300.0, 300.0], [350.0, 200.0]]


@pytest.mark.parametrize("inlet_c", [20.0, 45.0, 60.0])
def test_what_is_left_to_kernels_and_their_leakage_meet_the_limit(
    inlet_c: float, make_job: Callable[..., Job]
) -> None:
    cluster = replace(make_job().cluster, inlet_temperature_c=inlet_c, exhaust_rise_k=10.0)
    assert cluster.gpu.power is not None
    cooled, limit = cooler(cluster, cluster.gpu.power), np.array([[300.0]])
    left = electrical_limit_w(limit, cooled)
    drawn = left + cooled.peak_leakage_w(left)
    assert float(drawn[0, 0]) <= 300.0 * (1 + 1e-12)
    assert float(left[0, 0]) == pytest.approx(300.0) or float(drawn[0, 0]) == pytest.approx(300.0)


def test_the_cooler_is_a_limit_too(make_job: Callable[..., Job]) -> None:
    cluster = replace(make_job().cluster, inlet_temperature_c=50.0)
    assert cluster.gpu.power is not None
    cooled = cooler(cluster, cluster.gpu.power)
    left = kernel_limit_w(np.array([[400.0]]), cooled, cluster, cluster.gpu.power.static_w)
    assert float(left[0, 0]) == cooled.throttle_power_w < 400.0
