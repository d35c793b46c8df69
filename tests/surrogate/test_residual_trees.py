"""The trees as a scikit-learn estimator, and where they are switched off."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from jointopt.surrogate.residual_trees import ResidualBooster

WEIGHTS = "check_sample_weight_equivalence_on_dense_data"


def known_differences(_: ResidualBooster) -> dict[str, str]:
    return {WEIGHTS: "XGBoost sums in single precision; the test below holds the difference to its size"}


@parametrize_with_checks([ResidualBooster()], expected_failed_checks=known_differences)
def test_it_keeps_to_the_rules_of_scikit_learn(estimator, check):
    check(estimator)


def data(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (n, 5))
    return features, 0.3 * (features[:, 0] > 0) + 0.02 * rng.normal(size=n)


def test_a_weight_of_two_is_a_row_given_twice_up_to_single_precision():
    features, residual = data()
    weight = np.random.default_rng(1).integers(0, 4, len(residual))
    weighted = ResidualBooster().fit(features, residual, sample_weight=weight)
    repeated = ResidualBooster().fit(np.repeat(features, weight, axis=0), np.repeat(residual, weight))
    np.testing.assert_allclose(weighted.predict(features), repeated.predict(features), atol=2e-6)


def test_it_learns_a_step_and_ignores_outliers():
    features, residual = data()
    spoiled = residual.copy()
    spoiled[::25] = 5.0
    clean, robust = (ResidualBooster().fit(features, y).predict(features) for y in (residual, spoiled))
    high = features[:, 0] > 0
    assert clean[high].mean() - clean[~high].mean() > 0.2
    assert np.abs(robust - clean).max() < 0.15


def test_the_gate_is_open_inside_and_shut_far_outside():
    features, residual = data()
    booster = ResidualBooster().fit(features, residual)
    np.testing.assert_allclose(booster.gate(np.zeros((3, 5))), 1.0)
    np.testing.assert_array_equal(booster.gate(np.full((3, 5), 100.0)), 0.0)
    np.testing.assert_array_equal(booster.predict(np.full((3, 5), 100.0)), 0.0)
    one_outside = np.zeros((1, 5))
    one_outside[0, 2] = 9.0
    assert booster.gate(one_outside)[0] == pytest.approx(0.0, abs=1e-9)  # a fifth of five features


def test_the_gate_closes_step_by_step():
    rng = np.random.default_rng(0)
    booster = ResidualBooster().fit(rng.uniform(-1, 1, (100, 20)), rng.normal(size=100))
    outside = np.where(np.arange(20)[None, :] < np.arange(7)[:, None], 9.0, 0.0)
    np.testing.assert_allclose(booster.gate(outside), [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0], atol=1e-9)


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_strength_scales_what_the_trees_predict(strength):
    features, residual = data()
    full = ResidualBooster().fit(features, residual).predict(features)
    some = ResidualBooster(strength=strength).fit(features, residual).predict(features)
    np.testing.assert_allclose(some, strength * full, atol=1e-7)


def test_the_same_rows_and_seed_give_the_same_bytes():
    features, residual = data()
    first, second = (ResidualBooster(random_state=1).fit(features, residual) for _ in range(2))
    raw = [bytes(b.booster_.get_booster().save_raw("ubj")) for b in (first, second)]
    assert raw[0] == raw[1]


def test_trees_only_fall_along_a_column_that_must_fall():
    features, residual = data()
    residual = residual + 0.3 * features[:, 1]  # the runs show that it rises
    sweep = np.zeros((50, 5))
    sweep[:, 1] = np.linspace(-0.99, 0.99, 50)
    free = ResidualBooster().fit(features, residual).predict(sweep)
    held = ResidualBooster(monotone=[0, -1, 0, 0, 0]).fit(features, residual).predict(sweep)
    assert free[-1] > free[0] + 0.1
    assert (np.diff(held) <= 1e-9).all()


def test_a_category_has_no_range_that_could_shut_the_gate():
    features, residual = data()
    features[:, 4] = 0.0  # a framework that no run has
    other = np.zeros((1, 5))
    other[0, 4] = 1.0
    assert ResidualBooster().fit(features, residual).gate(other)[0] == pytest.approx(0.0, abs=1e-9)
    assert ResidualBooster(categories=[4]).fit(features, residual).gate(other)[0] == pytest.approx(1.0)
