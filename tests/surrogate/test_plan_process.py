"""What a few runs teach of the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t, truncnorm

from jointopt.core.schema import Bools, Floats, Ints
from jointopt.surrogate.plan_process import USUAL, after_runs, leave_one_out, mean_loss, plan_kernel, plan_runs
from jointopt.surrogate.posterior import Joint

PLANS = {
    "dp": np.array([8, 4, 2, 1]), "tp": np.array([1, 2, 4, 8]), "pp": np.ones(4, int), "cp": np.ones(4, int),
    "ep": np.ones(4, int), "vpp": np.ones(4, int), "micro_batch_size": np.array([1, 2, 4, 8]),
    "sequence_parallel": np.zeros(4, bool), "recompute": np.zeros(4, np.int8), "zero_stage": np.ones(4, int),
    "stage_clock_mhz": np.full((4, 1), 1410.0),
}  # fmt: skip
RUNS = plan_runs(PLANS)
FEATURES = RUNS.sensitivity
FLAT = np.zeros(4)
NONE = np.empty(0, np.int64)
FREE = np.zeros(4, bool)


def after(index: Ints, seen: Floats, bounded: Bools | None = None) -> Joint:
    """What runs of the plans ``index`` say of all four, predicted to take 1 s."""
    return after_runs(USUAL, RUNS, index, seen, bounded).joint(RUNS, FLAT)


def test_a_doubling_is_a_step_of_one_and_features_are_centred():
    np.testing.assert_allclose(np.diff(FEATURES[:, 0]), -1.0)
    np.testing.assert_allclose(FEATURES.mean(axis=0), 0.0, atol=1e-12)


def test_without_runs_the_prediction_stands_with_its_prior_spread():
    found = after_runs(USUAL, RUNS, NONE, np.empty(0)).joint(RUNS, np.arange(4.0))
    np.testing.assert_array_equal(found.mean, np.arange(4.0))
    assert (found.deviation >= np.hypot(0.2, 0.06)).all()


def test_a_common_factor_moves_all_plans_and_certainty_grows():
    before, found = after(NONE, np.empty(0)), after(np.array([1, 2]), np.full(2, 0.1))
    assert (found.mean > 0.08).all()
    assert (found.deviation < before.deviation).all()


def test_a_trend_over_degrees_is_carried_on():
    trending, seen = plan_kernel(shared=0.2, trend=0.03, noise=0.07), np.array([0.0, 0.1, 0.2])
    mean = after_runs(trending, RUNS, np.arange(3), seen).joint(RUNS, FLAT).mean
    assert mean[3] > mean[2] > mean[1] > mean[0]


def test_a_run_that_stalled_hardly_moves_the_others():
    mean = after(np.array([0, 1, 2]), np.array([0.0, 0.0, 1.0])).mean
    assert abs(mean[3]) < 0.1


def test_runs_that_scatter_widen_every_interval():
    calm = after(np.arange(3), np.zeros(3)).deviation
    wild = after(np.arange(3), np.array([0.3, -0.4, 0.5])).deviation
    assert (wild > calm).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4), st.permutations(range(4)))
def test_the_order_of_the_runs_does_not_matter(values, order):
    values, order = np.array(values), np.array(order)
    one = after(np.arange(4), values)
    two = after(order, values[order])
    np.testing.assert_allclose(one.mean, two.mean, atol=1e-9)
    np.testing.assert_allclose(one.deviation, two.deviation, atol=1e-9)


def test_draws_have_the_mean_and_deviation_and_err_together():
    found = after_runs(plan_kernel(0.3, 0.0, 0.01), RUNS, NONE, np.empty(0)).joint(RUNS, np.arange(4.0))
    draws = found.draws(4000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.mean(axis=1), found.mean, atol=0.02)
    np.testing.assert_allclose(draws.std(axis=1), found.deviation, rtol=0.05)
    assert np.corrcoef(draws[0], draws[3])[0, 1] > 0.99


def test_a_lower_bound_beyond_what_is_expected_moves_plans_up_and_one_below_does_not():
    index, bounded = np.array([0, 1, 2]), np.array([False, False, True])

    def mean_of_the_fourth(bound: float) -> float:
        seen = np.array([0.0, 0.0, bound])
        return float(after(index, seen, bounded).mean[3])

    exact = float(after(index, np.array([0.0, 0.0, 0.1])).mean[3])
    assert mean_of_the_fourth(0.1) > exact > 0.0
    assert abs(mean_of_the_fourth(-2.0)) < 1e-3
    assert np.isfinite(mean_of_the_fourth(40.0))


def test_what_all_plans_share_is_no_difference_between_them():
    found = after_runs(plan_kernel(9.0, 0.1, 0.0), RUNS, NONE, np.empty(0)).joint(RUNS, FLAT)
    away = 0.1 * np.sqrt((FEATURES**2).sum(axis=1))
    np.testing.assert_allclose(found.reducible_deviation(measured=False), away, atol=1e-4)
    np.testing.assert_allclose(found.reducible_deviation(measured=True), np.hypot(away, 9.0), rtol=1e-4)


def test_what_a_twin_of_a_run_errs_by_alone_is_no_gain_to_look_for():
    twins = RUNS.take(np.array([0, 0, 3]))
    found = after_runs(USUAL, twins, np.array([0]), np.zeros(1)).joint(twins, np.zeros(3))
    assert found.deviation[1] > 0.5 * found.deviation[2]
    assert found.reducible_deviation(measured=True)[1] < 0.3 * found.reducible_deviation(measured=True)[2]


def test_a_run_left_out_is_predicted_from_the_others_alone():
    index, seen = np.array([0, 1, 2]), np.array([0.2, 0.2, 0.2])
    alike = mean_loss(*leave_one_out(USUAL, RUNS, index, seen, FREE[:3]))
    scattered = mean_loss(*leave_one_out(USUAL, RUNS, index, np.array([0.2, -0.2, 0.2]), FREE[:3]))
    assert alike < scattered - 0.3


def test_likelihood_prefers_the_prediction_that_is_sure_and_right():
    index, near = np.arange(4), np.array([0.01, -0.01, 0.01, -0.01])
    sure, unsure = (leave_one_out(plan_kernel(*of), RUNS, index, near, FREE) for of in ((0.01, 0.01, 0.02), (0.3,) * 3))
    assert mean_loss(*sure) < mean_loss(*unsure) - 1.0


def test_errors_count_by_student_s_density_and_an_ended_run_says_nothing():
    off, widths = np.array([0.3, 0.1, -0.1, np.nan]), np.array([0.1, 0.2, 0.2, np.nan])
    expected = np.mean((np.log(widths) - t.logpdf(off / widths, 3))[:3])
    assert mean_loss(off, widths) == pytest.approx(expected)


@pytest.mark.parametrize("least", [0.0, 0.2, 0.5])
def test_a_run_ended_early_counts_as_the_mean_beyond_its_end_by_all_others(least: float) -> None:
    # the mean of a normal cut off below
    index, seen, bounded = np.array([0, 1, 3]), np.array([0.1, 0.0, least]), np.array([False, False, True])
    mean, deviation = (float(v[0]) for v in after_runs(USUAL, RUNS, index[:2], seen[:2]).predict(RUNS.take(index[2:])))
    filled = truncnorm.mean((least - mean) / deviation, np.inf, mean, deviation)
    expected = after(index, np.array([0.1, 0.0, filled]))
    np.testing.assert_allclose(after(index, seen, bounded).mean, expected.mean, rtol=1e-6)


def test_a_run_ended_early_as_soon_as_any_could_have_ended_says_nothing() -> None:
    index, seen = np.array([0, 1, 3]), np.array([0.1, 0.0, -0.9])
    found, without = after(index, seen, np.array([False, False, True])), after(index[:2], seen[:2])
    np.testing.assert_array_equal(found.mean, without.mean)
