"""Bayesian regression on one parameter, where every matrix is a number (Rasmussen and Williams 2006, section 2.2)."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from jointopt.physics.calibrate.law_fit import Fit, Law, Prior, Readings, fit, predict

PRIOR = Prior(np.array([0.5]), np.array([0.3]))
LAW = Law(lambda theta: np.array([theta[0], 2.0 * theta[0]]), np.zeros((1, 2), np.int64))
FAR, DEPARTURE = 0.05, 0.02  # covariance of the departures, variance of each


def one_reading(value: float) -> Readings:
    """The first row is read with noise 0.1, the second is queried."""
    departure = np.array([[FAR, DEPARTURE], [DEPARTURE, FAR]])
    return Readings(np.array([value, np.nan]), departure, np.array([0.1, 0.2]))


def test_one_reading_moves_the_row_that_shares_its_parameter_and_departure() -> None:
    # variance of the reading 0.09 + 0.05 + 0.01, its covariance with the other row 2·0.09 + 0.02
    found = Fit(np.array([0.5]), np.ones(2))
    predicted = predict(LAW, one_reading(0.8), PRIOR, found)
    assert predicted.mean == pytest.approx([0.5 + 0.14 / 0.15 * 0.3, 1.0 + 0.2 / 0.15 * 0.3])


def test_the_variance_left_is_scaled_by_how_far_off_readings_were() -> None:
    # as if 40 readings before had been off as expected: (40 + 0.3²/0.15) / 41
    predicted = predict(LAW, one_reading(0.8), PRIOR, Fit(np.array([0.5]), np.ones(2)))
    spread = (40 + 0.6) / 41
    left = [0.14 + 0.01 - 0.14**2 / 0.15, 4 * 0.09 + 0.05 + 0.04 - 0.2**2 / 0.15]
    assert predicted.sd == pytest.approx(np.sqrt(spread * np.array(left)))
    assert predicted.factor == pytest.approx(student.ppf(0.95, 41))
    assert predicted.theta_sd == pytest.approx(np.sqrt([0.09 - 0.09**2 / 0.15]))


def test_an_outlier_s_noise_is_wider() -> None:
    found = Fit(np.array([0.5]), np.array([0.25, 1.0]))  # a quarter of the weight: 0.01 becomes 0.04
    predicted = predict(LAW, one_reading(0.8), PRIOR, found)
    assert predicted.mean[1] == pytest.approx(1.0 + 0.2 / 0.18 * 0.3)


def test_the_most_likely_parameter_weighs_prior_and_reading_by_their_variances() -> None:
    readings = Readings(np.array([0.52, np.nan]), np.zeros((2, 2)), np.array([0.1, 0.1]))
    found = fit(LAW, readings, PRIOR)
    assert found.theta == pytest.approx([0.5 + 0.09 / (0.09 + 0.01) * 0.02], rel=1e-4)
    assert found.weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("away", "weight"), [(1.9, 1.0), (3.0, 8 / 13), (6.0, 8 / 40)])
def test_a_reading_has_the_weight_of_students_distribution_of_four_degrees(away: float, weight: float) -> None:
    # (4 + 2²) / (4 + away²) beyond two standard deviations
    sure = Prior(np.array([0.5]), np.array([1e-6]))
    readings = Readings(np.array([0.5 + 0.1 * away, np.nan]), np.zeros((2, 2)), np.array([0.1, 0.1]))
    assert fit(LAW, readings, sure).weight == pytest.approx([weight, 1.0], rel=1e-3)


def test_rows_queried_later_have_usual_noise() -> None:
    own = Fit(np.zeros(1), np.array([0.5, 1.0, 0.25, 1.0]))
    assert own.with_new_rows(2, 3).weight.tolist() == [0.5, 1.0, 1.0, 0.25, 1.0, 1.0]
