"""Fits of laws to few readings."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import Floats
from jointopt.physics.calibrate.law_fit import Law, Prior, Readings, fit, predict

X = np.linspace(0.5, 1.0, 12)
PRIOR = Prior(np.zeros(2), np.full(2, 10.0))


def line(theta: Floats) -> Floats:
    return np.asarray(theta[0] + theta[1] * X)


LINE = Law(line, np.repeat([[0], [1]], 12, axis=1))


def readings(value: Floats, departure: float = 0.0) -> Readings:
    return Readings(value, departure**2 * np.eye(len(value)), np.full(len(value), 0.01))


@settings(max_examples=25, deadline=None)
@given(st.floats(-3, 3), st.floats(-3, 3))
def test_a_law_without_error_is_found(offset: float, slope: float) -> None:
    found = fit(LINE, readings(line(np.array([offset, slope]))), PRIOR)
    assert np.allclose(found.theta, [offset, slope], atol=0.01)


def test_one_wild_reading_does_not_move_the_law() -> None:
    value = line(np.array([1.0, 2.0]))
    value[4] += 1.0
    found = fit(LINE, readings(value), PRIOR)
    assert np.allclose(found.theta, [1.0, 2.0], atol=0.02)
    assert found.weight[4] < 0.01


def test_queried_rows_are_wider_the_farther_they_are_from_readings() -> None:
    value = line(np.array([1.0, 2.0]))
    value[:8] = np.nan
    predicted = predict(LINE, readings(value), PRIOR, fit(LINE, readings(value), PRIOR))
    assert (np.diff(predicted.sd[:8]) < 0.0).all()
    assert np.allclose(predicted.mean, line(np.array([1.0, 2.0])), atol=0.02)


def test_without_readings_near_it_a_parameter_keeps_its_prior() -> None:
    value = np.full(12, np.nan)
    value[0] = 0.0
    predicted = predict(LINE, readings(value), PRIOR, fit(LINE, readings(value), PRIOR))
    assert predicted.theta_sd.min() > 4.0


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_parameters_that_no_reading_shares_are_estimated_in_one_step_as_alone(seed: int) -> None:
    half, rng = np.repeat([0, 1], 6), np.random.default_rng(seed)
    each = np.repeat([[0], [1], [2]], 12, axis=1)

    def law(theta: Floats) -> Floats:
        return np.asarray(np.exp(theta[0] * X) + theta[1 + half] * X)

    value, prior = readings(rng.normal(size=12)), Prior(np.zeros(3), np.ones(3))
    together, alone = (
        predict(one, value, prior, fit(one, value, prior))
        for one in (Law(law, np.stack([each[0], 1 + half])), Law(law, each))
    )
    assert (together.mean == alone.mean).all()
    assert (together.theta_sd == alone.theta_sd).all()
