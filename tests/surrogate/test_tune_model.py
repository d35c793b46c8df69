"""What a few runs teach of the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t, truncnorm

from jointopt.surrogate.tune_model import (
    Spread,
    _with_expected_bounds,
    estimate_plans,
    fixed_prediction_error,
    leave_one_out,
    mean_loss,
    plan_features,
)

PLANS = {
    "dp": np.array([8, 4, 2, 1]), "tp": np.array([1, 2, 4, 8]), "pp": np.ones(4, int), "cp": np.ones(4, int),
    "ep": np.ones(4, int), "vpp": np.ones(4, int), "micro_batch_size": np.array([1, 2, 4, 8]),
    "sequence_parallel": np.zeros(4, bool), "recompute": np.zeros(4, np.int8), "zero_stage": np.ones(4, int),
    "stage_clock_mhz": np.full((4, 1), 1410.0),
}  # fmt: skip
FEATURES = plan_features(PLANS)
FLAT = np.zeros(4)
NONE = np.empty(0, np.int64)


def test_a_doubling_is_a_step_of_one_and_features_are_centred():
    np.testing.assert_allclose(np.diff(FEATURES[:, 0]), -1.0)
    np.testing.assert_allclose(FEATURES.mean(axis=0), 0.0, atol=1e-12)


def test_without_runs_the_prediction_stands_with_its_prior_spread():
    found = estimate_plans(FEATURES, np.arange(4.0), NONE, np.empty(0))
    np.testing.assert_array_equal(found.mean, np.arange(4.0))
    assert (found.deviation >= np.hypot(Spread().shared, Spread().noise)).all()


def test_a_common_factor_moves_all_plans_and_certainty_grows():
    before = estimate_plans(FEATURES, FLAT, NONE, np.empty(0))
    after = estimate_plans(FEATURES, FLAT, np.array([1, 2]), np.full(2, 0.1))
    assert (after.mean > 0.08).all()
    assert (after.deviation < before.deviation).all()


def test_a_trend_over_degrees_is_carried_on():
    mean = estimate_plans(FEATURES, FLAT, np.array([0, 1, 2]), np.array([0.0, 0.1, 0.2])).mean
    assert mean[3] > mean[2] > mean[1] > mean[0]


def test_a_run_that_stalled_hardly_moves_the_others():
    mean = estimate_plans(FEATURES, FLAT, np.array([0, 1, 2]), np.array([0.0, 0.0, 1.0])).mean
    assert abs(mean[3]) < 0.1


def test_runs_that_scatter_widen_every_interval():
    calm = estimate_plans(FEATURES, FLAT, np.arange(3), np.zeros(3)).deviation
    wild = estimate_plans(FEATURES, FLAT, np.arange(3), np.array([0.3, -0.4, 0.5])).deviation
    assert (wild > calm).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4), st.permutations(range(4)))
def test_the_order_of_the_runs_does_not_matter(values, order):
    values, order = np.array(values), np.array(order)
    one = estimate_plans(FEATURES, FLAT, np.arange(4), values)
    two = estimate_plans(FEATURES, FLAT, order, values[order])
    np.testing.assert_allclose(one.mean, two.mean, atol=1e-9)
    np.testing.assert_allclose(one.deviation, two.deviation, atol=1e-9)


def test_draws_have_the_mean_and_deviation_and_err_together():
    found = estimate_plans(FEATURES, np.arange(4.0), NONE, np.empty(0), Spread(0.3, 1e-9, 0.01))
    draws = found.draws(4000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.mean(axis=1), found.mean, atol=0.02)
    np.testing.assert_allclose(draws.std(axis=1), found.deviation, rtol=0.05)
    assert np.corrcoef(draws[0], draws[3])[0, 1] > 0.99


def test_a_lower_bound_beyond_what_is_expected_moves_plans_up_and_one_below_does_not():
    index, bounded = np.array([0, 1, 2]), np.array([False, False, True])

    def mean_of_the_fourth(bound: float) -> float:
        seen = np.array([0.0, 0.0, bound])
        return float(estimate_plans(FEATURES, FLAT, index, seen, Spread(), bounded).mean[3])

    exact = float(estimate_plans(FEATURES, FLAT, index, np.array([0.0, 0.0, 0.1]), Spread()).mean[3])
    assert mean_of_the_fourth(0.1) > exact > 0.0
    assert abs(mean_of_the_fourth(-2.0)) < 1e-3
    assert np.isfinite(mean_of_the_fourth(40.0))


def test_what_all_plans_share_is_no_difference_between_them():
    found = estimate_plans(FEATURES, FLAT, NONE, np.empty(0), Spread(shared=9.0, trend=0.1, noise=0.2))
    np.testing.assert_allclose(found.own_deviation, np.sqrt(0.01 * (FEATURES**2).sum(axis=1) + 0.04))


def test_a_run_left_out_is_predicted_from_the_others_alone():
    index, seen = np.array([0, 1, 2]), np.array([0.2, 0.2, 0.2])
    alike = mean_loss(*leave_one_out(FEATURES, FLAT, index, seen, Spread()))
    scattered = mean_loss(*leave_one_out(FEATURES, FLAT, index, np.array([0.2, -0.2, 0.2]), Spread()))
    assert alike < scattered - 0.3


def test_likelihood_prefers_the_prediction_that_is_sure_and_right_and_punishes_one_that_is_sure_and_wrong():
    index, near, far = np.arange(4), np.array([0.01, -0.01, 0.01, -0.01]), np.array([0.4, -0.4, 0.4, -0.4])
    sure, unsure = Spread(0.01, 0.01, 0.02), Spread(0.3, 0.01, 0.3)
    assert mean_loss(*leave_one_out(FEATURES, FLAT, index, near, sure)) < mean_loss(
        *leave_one_out(FEATURES, FLAT, index, near, unsure)
    )
    assert mean_loss(*leave_one_out(FEATURES, FLAT, index, far, sure)) > mean_loss(
        *leave_one_out(FEATURES, FLAT, index, far, unsure)
    )


def test_a_prediction_that_runs_do_not_move_is_judged_by_the_scatter_of_the_other_runs():
    off = np.array([0.3, 0.1, -0.1])
    widths = np.sqrt([0.01, 0.05, 0.05])
    expected = np.mean(np.log(widths) - t.logpdf(off / widths, 3))
    assert mean_loss(off, fixed_prediction_error(off, 0.07)) == pytest.approx(expected)
    sure = mean_loss(np.zeros(2), fixed_prediction_error(np.zeros(2), 0.07))
    assert sure == pytest.approx(np.log(0.07) - t.logpdf(0.0, 3))
    assert fixed_prediction_error(np.append(off, np.nan), 0.07)[:3] == pytest.approx(
        widths
    )  # an ended run says nothing


@pytest.mark.parametrize("least", [-0.3, 0.0, 0.2, 0.5])
def test_a_run_ended_early_counts_as_the_mean_beyond_its_end(least: float) -> None:
    # the mean of a normal cut off below, of the posterior of the run and all others together
    index, seen, bounded = np.array([0, 1, 3]), np.array([0.1, 0.0, least]), np.array([False, False, True])
    expected = _with_expected_bounds(FEATURES, FLAT, index, seen, None, bounded)
    found = estimate_plans(FEATURES, FLAT, index, expected)
    mean, deviation = found.mean[3], found.deviation[3]
    assert expected[:2].tolist() == [0.1, 0.0]
    assert expected[2] == pytest.approx(truncnorm.mean((least - mean) / deviation, np.inf, mean, deviation), abs=2e-3)
