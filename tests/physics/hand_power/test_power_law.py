"""Power of work at a clock, term by term: V(f), static, active, per operation, per byte; limits and pauses."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.jobs.cluster import PowerConstants
from jointopt.physics import clock_law as power


@pytest.mark.parametrize(("mhz", "volt"), [(300, 0.8), (600, 0.8), (700, 0.85), (800, 0.9), (1000, 1.0)])
def test_voltage_over_that_of_the_top_clock(mhz: float, volt: float) -> None:
    assert power.relative_voltage(mhz, 1000.0, 0.6, 1.25) == pytest.approx(volt)
    assert power.squared_voltage(mhz, 1000.0, 0.6, 1.25) == pytest.approx(volt**2)


def test_time_is_what_follows_the_clock_stretched_and_the_rest() -> None:
    # t = t0 + t1·f_max/f
    assert power.scaled_time_s(3.0, 2.0, 800.0, 1000.0) == pytest.approx(2.0 + 3.0 * 1000 / 800)


@pytest.mark.parametrize(
    ("load", "watts"),
    [
        ((0.0, 0.0), 50 + 100 * 0.8 * 0.81),
        ((4e14, 0.0), 50 + 64.8 + 400 * 0.81 / 2),
        ((0.0, 2e12), 50 + 64.8 + 100 / 2),
    ],
)
def test_power_at_800_mhz_of_work_that_takes_two_seconds(
    load: tuple[float, float], watts: float, constants: PowerConstants
) -> None:
    assert power.busy_power_w(constants, 800.0, 1000.0, 2.0, *load) == pytest.approx(watts)


@pytest.mark.parametrize(
    ("clock", "sm_s", "other_s"), [(800.0, 1.0, 0.5), (650.0, 1.0, 0.0), (500.0, 1.0, 0.5), (300.0, 0.2, 1.0)]
)
def test_a_limit_at_what_a_clock_draws_leaves_that_clock(
    clock: float, sm_s: float, other_s: float, constants: PowerConstants
) -> None:
    # static + active·x·v² + (flops·v² + bytes)/t, with t = sm/x + other
    x = clock / 1000
    v2 = max(1 - 0.5 * (1 - x), 0.8) ** 2
    limit = 50 + 100 * x * v2 + (300 * v2 + 40) / (sm_s / x + other_s)
    work = (sm_s, other_s, 3e14, 40 / 50e-12)
    found = power.capped_clock_mhz(constants, *work, limit, 1000.0, 200.0)
    assert found == pytest.approx(clock, rel=1e-4)


def test_no_limit_goes_below_the_lowest_clock(constants: PowerConstants) -> None:
    found = power.capped_clock_mhz(constants, 1.0, 0.0, 3e14, 0.0, 60.0, 1000.0, 200.0)
    assert float(found) == 200.0


@pytest.mark.parametrize(("limit", "seconds"), [(100.0, 3 * 150 / 50), (200.0, 3.0), (150.0, 3 * 150 / 100)])
def test_work_of_200_watts_pauses_at_static_power(limit: float, seconds: float) -> None:
    assert power.duty_cycled_time_s(3.0, 200.0, limit, 50.0) == pytest.approx(seconds)


def test_energy_of_ten_seconds_of_which_six_are_work(constants: PowerConstants) -> None:
    parts = power.energy_parts_j(constants, 800.0, 1000.0, 10.0, 6.0, 1e15, 2e13, 7.0)
    assert {name: float(joules) for name, joules in parts.items()} == pytest.approx({
        "static": 50 * 10, "active": 100 * 0.8 * 0.81 * 6, "compute": 1000 * 0.81, "memory": 1000,
        "communication": 7, "waiting": (80 - 50) * (10 - 6),
    })  # fmt: skip


def test_below_the_knee_the_energy_of_an_operation_stays(constants: PowerConstants) -> None:
    clocks = np.array([200.0, 400.0, 600.0])
    parts = power.energy_parts_j(constants, clocks, 1000.0, 1.0, 1.0, 1e12, 0.0, 0.0)
    assert parts["compute"].tolist() == pytest.approx([0.64] * 3)
    assert parts["active"].tolist() == pytest.approx([64 * 0.2, 64 * 0.4, 64 * 0.6])
