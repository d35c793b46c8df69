"""What a few runs say of the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.surrogate.local import Spread, adapted, fit_probability, plan_features

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
    mean, deviation = adapted(FEATURES, np.arange(4.0), NONE, np.empty(0))
    np.testing.assert_array_equal(mean, np.arange(4.0))
    assert (deviation >= np.hypot(Spread().shared, Spread().noise)).all()


def test_a_common_factor_moves_all_plans_and_certainty_grows():
    before = adapted(FEATURES, FLAT, NONE, np.empty(0))[1]
    mean, after = adapted(FEATURES, FLAT, np.array([1, 2]), np.full(2, 0.1))
    assert (mean > 0.08).all()
    assert (after < before).all()


def test_a_trend_over_degrees_is_carried_on():
    mean, _ = adapted(FEATURES, FLAT, np.array([0, 1, 2]), np.array([0.0, 0.1, 0.2]))
    assert mean[3] > mean[2] > mean[1] > mean[0]


def test_a_run_that_stalled_hardly_moves_the_others():
    mean, _ = adapted(FEATURES, FLAT, np.array([0, 1, 2]), np.array([0.0, 0.0, 1.0]))
    assert abs(mean[3]) < 0.1


def test_runs_that_scatter_widen_every_interval():
    calm = adapted(FEATURES, FLAT, np.arange(3), np.zeros(3))[1]
    wild = adapted(FEATURES, FLAT, np.arange(3), np.array([0.3, -0.4, 0.5]))[1]
    assert (wild > calm).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1.0, 1.0), min_size=4, max_size=4), st.permutations(range(4)))
def test_the_order_of_the_runs_does_not_matter(values, order):
    values, order = np.array(values), np.array(order)
    one = adapted(FEATURES, FLAT, np.arange(4), values)
    two = adapted(FEATURES, FLAT, order, values[order])
    np.testing.assert_allclose(one, two, atol=1e-9)


LOADS = np.log([0.5, 0.9, 1.0, 1.1, 2.0])


def test_without_runs_half_of_the_plans_at_the_limit_fit():
    probability = fit_probability(LOADS, NONE, np.empty(0))
    assert probability[2] == pytest.approx(0.5, abs=0.01)
    assert probability[0] > 0.99
    assert probability[-1] < 0.01


def test_an_oom_makes_plans_that_need_as_much_unlikely_and_spares_the_small():
    probability = fit_probability(LOADS, np.array([1]), np.array([0.0]))
    assert (probability[1:] < fit_probability(LOADS, NONE, np.empty(0))[1:]).all()
    assert probability[1] < 0.5
    assert (probability[2:] < 0.1).all()
    assert probability[0] > 0.95


def test_a_run_beyond_the_limit_moves_the_limit_up():
    probability = fit_probability(LOADS, np.array([3]), np.array([1.0]))
    assert (probability[:4] > 0.5).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=6))
def test_a_plan_that_needs_more_never_fits_more_probably(runs):
    index = np.array([i for i, _ in runs], np.int64)
    probability = fit_probability(LOADS, index, np.array([float(ok) for _, ok in runs]))
    assert (np.diff(probability) <= 1e-9).all()
    assert ((probability >= 0) & (probability <= 1 + 1e-9)).all()
