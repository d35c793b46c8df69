import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.physics import cooling as thermal


def test_without_leakage_temperature_is_inlet_plus_resistance_times_power():
    assert thermal.temperature_c(400.0, 25.0, 0.1) == pytest.approx(65.0)


@given(st.floats(50.0, 1000.0), st.floats(10.0, 45.0), st.floats(0.03, 0.12), st.floats(0.0, 2.0))
def test_the_steady_state_balances_heat_and_power(power_w, inlet_c, resistance, leakage):
    t = thermal.temperature_c(power_w, inlet_c, resistance, leakage)
    drawn = power_w + leakage * (t - thermal.REFERENCE_C)
    assert t == pytest.approx(inlet_c + resistance * drawn)


@given(st.floats(10.0, 45.0), st.floats(0.03, 0.12), st.floats(0.0, 2.0))
def test_at_the_throttle_power_the_temperature_is_the_throttle_temperature(inlet_c, resistance, leakage):
    limit = thermal.throttle_power_w(87.0, inlet_c, resistance, leakage)
    assert thermal.temperature_c(limit, inlet_c, resistance, leakage) == pytest.approx(87.0)


def test_vectors_give_what_scalars_give():
    powers = np.array([100.0, 250.0, 400.0])
    hot = thermal.temperature_c(powers, 30.0, 0.1, 0.6)
    assert hot == pytest.approx([float(thermal.temperature_c(p, 30.0, 0.1, 0.6)) for p in powers])


def test_leakage_that_outruns_the_cooler_has_no_steady_state():
    assert np.isinf(thermal.temperature_c(np.array([100.0, 200.0]), 25.0, 0.5, 2.0)).all()


def test_no_power_is_allowed_above_a_throttle_temperature_that_the_inlet_exceeds():
    assert thermal.throttle_power_w(85.0, 90.0, 0.1) == pytest.approx(0.0)
