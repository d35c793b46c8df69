"""A few measured runs move what is like them, as far as they are trusted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import TableError
from jointopt.surrogate.kernel import (
    FEATURES,
    Runs,
    _penalised,
    _tasks,
    covariance_of_rows,
    covariance_terms,
    default_kernel,
    learn,
    variances,
)
from jointopt.surrogate.posterior import LEAST_FACTOR, SCALES, _posterior_of_scales, condition, condition_alone

KERNEL = default_kernel(2)


def runs(n: int, seed: int = 0, source: str = "a", group: str = "g") -> Runs:
    rng = np.random.default_rng(seed)
    features = {name: rng.normal(size=n) for name in FEATURES}
    return Runs(rng.normal(size=(n, 2)), features, np.full(n, source), np.full(n, group))


def test_without_runs_the_posterior_is_the_prior():
    new = runs(5)
    mean, deviation = condition(KERNEL, runs(0), np.zeros(0)).predict(new)
    np.testing.assert_array_equal(mean, 0.0)
    recorded = np.sqrt(variances(KERNEL, new).sum(axis=0))
    assert deviation.mean() > recorded.mean()


def test_one_run_moves_a_comparable_run_towards_it_and_another_source_not_at_all():
    posterior = condition(KERNEL, runs(1), np.array([0.3]))
    assert 0.15 < posterior.predict(runs(1))[0] < 0.3
    unseen = runs(1, source="b")
    assert posterior.predict(unseen)[0] == 0.0
    assert posterior.predict(unseen)[1] > posterior.predict(runs(1))[1]


def test_more_runs_narrow_the_interval():
    new, y = runs(20, seed=9), 0.2 + 0.01 * np.random.default_rng(1).normal(size=64)
    widths = [condition(KERNEL, runs(n), y[:n]).predict(new)[1].mean() for n in (0, 1, 4, 16, 64)]
    assert (np.diff(widths) < 0).all()


@pytest.mark.parametrize("condition_on", [condition, condition_alone])
def test_runs_that_a_kernel_without_noise_cannot_be_conditioned_on_are_an_error_in_a_sentence(condition_on):
    twice = runs(2).take(np.array([0, 0]))
    with np.errstate(all="ignore"), pytest.raises(TableError, match=r"learned of 2 runs .* \(.+\), .* leave this"):
        condition_on(replace(KERNEL, noise=1e-200), twice, np.zeros(2))


def test_one_scale_answers_as_two_that_are_the_same():
    rows, y, new = runs(30), np.random.default_rng(1).normal(0.1, 0.05, 30), runs(8, seed=9)
    y[4] = 1.2  # noise that is reweighted
    one, two = (
        _posterior_of_scales(KERNEL, np.ones((n, 5)), np.full(n, 1.0 / n), rows, y)[1].predict(new) for n in (1, 2)
    )
    np.testing.assert_allclose(one, two, rtol=1e-9)


@pytest.mark.parametrize("other", ["o|nemo|a100|8", "o|nemo|h100|8", "x|nemo|h100|8"])
def test_the_sum_of_scaled_terms_is_that_of_the_terms_one_by_one(other: str):
    kernel, mine, seen = default_kernel(8), runs(7, source="o|nemo|h100|8"), runs(5, seed=1, source=other)
    mine, seen = (replace(r, sensitivity=np.random.default_rng(2).normal(size=(len(r), 8))) for r in (mine, seen))
    factors, rows = np.array([0.5, 2.0, 3.0, 0.7]), np.array([1, 4, 6])
    (summed,) = covariance_of_rows(kernel, mine, seen, factors[None])(rows)
    np.testing.assert_allclose(
        summed, np.tensordot(factors, covariance_terms(kernel, mine.take(rows), seen), 1), rtol=1e-9
    )


def test_an_outlier_moves_the_mean_little():
    rows, y = runs(12), np.full(12, 0.1)
    new = runs(20, seed=5)
    clean = condition(KERNEL, rows, y).predict(new)[0].mean()
    y[3] = 1.2
    spoiled = condition(KERNEL, rows, y).predict(new)[0].mean()
    assert abs(spoiled - clean) < 0.25 * abs(y.mean() - 0.1)


def test_three_runs_that_are_off_alike_move_unlike_plans_though_recorded_sources_hardly_differ_by_a_factor():
    kernel, y = replace(KERNEL, source=0.01, shape=0.05), np.full(3, -0.15)
    assert condition(kernel, runs(3), y).kernel.source == LEAST_FACTOR == 0.09
    assert condition(kernel, runs(3), y).predict(runs(40, seed=3))[0].mean() < -0.08
    assert condition(replace(kernel, source=0.2), runs(3), y).kernel.source == 0.2


def test_runs_to_come_may_be_outliers_where_known_ones_are_but_none_counts_without_end():
    rows, kernel = runs(12), replace(KERNEL, shape=0.01, constants=(0.01, 0.01))
    outliers = [np.where(np.arange(12) == 3, size, 0.01) for size in (0.01, 0.1, 0.4, 1.4)]
    none, some, large, huge = (condition(kernel, rows, y).noise_of_two for y in outliers)
    assert 1.5 * none < some < large
    assert huge == pytest.approx(large, rel=0.01)


def test_a_constant_that_is_off_is_found_and_extrapolated():
    # a source whose links are slower than assumed: residuals grow with their sensitivity
    rows, new = runs(30), runs(10, seed=4)
    kernel = replace(KERNEL, shape=0.01)
    mean, _ = condition(kernel, rows, 0.2 * rows.sensitivity[:, 0]).predict(new)
    np.testing.assert_allclose(mean, 0.2 * new.sensitivity[:, 0], atol=0.06)


def test_the_mean_of_gaussian_noise_is_the_textbooks():
    # one run: k / (k + noise) of its residual, where the noise is as expected (Rasmussen and Williams, eq. 2.23)
    row, kernel = runs(1), replace(KERNEL, noise=1e-4)
    mean, _ = condition(kernel, row, np.array([0.1])).predict(row)
    assert mean[0] == pytest.approx(0.1, rel=0.01)


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 15), m=st.integers(1, 15), seed=st.integers(0, 99), scale=st.floats(0.01, 3.0))
def test_covariance_is_symmetric_and_positive_semidefinite(n, m, seed, scale):
    first, second = runs(n, seed), runs(m, seed + 1, source="b")
    kernel = replace(KERNEL, shape=scale, source=scale / 2)
    both = Runs(
        np.concatenate([first.sensitivity, second.sensitivity]),
        {k: np.concatenate([v, second.features[k]]) for k, v in first.features.items()},
        np.concatenate([first.source, second.source]), np.concatenate([first.group, second.group]),
    )  # fmt: skip
    for prior, variance in zip(covariance_terms(kernel, both, both), variances(kernel, both), strict=True):
        np.testing.assert_allclose(prior, prior.T, atol=1e-12)
        assert np.linalg.eigvalsh(prior).min() >= -1e-9 * np.trace(prior)
        np.testing.assert_allclose(np.diag(prior), variance, rtol=1e-9, atol=1e-15)
        assert (prior[:n, n:] == 0).all()


@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 20), shift=st.floats(-1.5, 1.5), seed=st.integers(0, 99))
def test_runs_never_widen_and_never_overshoot(n, shift, seed):
    rows, new = runs(n, seed), runs(6, seed + 1)
    mean, deviation = condition(KERNEL, rows, np.full(n, shift)).predict(new)
    assert np.isfinite(mean).all()
    widest = np.square(SCALES.max(axis=0)) @ [*variances(KERNEL, new), np.full(6, 12 * KERNEL.noise**2)]
    assert (deviation <= np.sqrt(widest + shift**2)).all()
    assert (np.abs(condition(KERNEL, rows, np.zeros(n)).predict(new)[0]) < 1e-12).all()


def test_kernels_pack_and_unpack_to_themselves():
    again = KERNEL.unpack(KERNEL.pack())
    np.testing.assert_allclose(again.pack(), KERNEL.pack())
    assert again.lengths == pytest.approx(KERNEL.lengths)


def test_learning_is_deterministic_for_a_seed():
    sources = [(runs(30, s, source=str(s)), 0.1 * np.random.default_rng(s).normal(size=30)) for s in (1, 2)]
    assert learn(sources, seed=3) == learn(sources, seed=3)
    assert learn(sources, seed=3) != learn(sources, seed=4)


def test_learning_finds_how_far_sources_are_apart():
    def made(scale: float) -> list[tuple[Runs, np.ndarray]]:
        rng = np.random.default_rng(0)
        shift = scale * rng.normal(size=6)
        return [(runs(15, s, str(s)), shift[s] + 0.01 * rng.normal(size=15)) for s in range(6)]

    assert learn(made(0.4)).source > 2 * learn(made(0.02)).source


def test_the_gradient_of_learning_is_that_of_what_it_minimises():
    rng = np.random.default_rng(0)
    parts = [_tasks(runs(14, s, str(s)), 0.2 * rng.normal(size=14), rng, KERNEL) for s in (1, 2)]
    centre = KERNEL.pack()
    logs = np.concatenate([centre, [-3.0, -2.5]]) + 0.1 * rng.normal(size=len(centre) + 2)
    _, gradient = _penalised(logs, parts, KERNEL)
    for i, slope in enumerate(gradient):
        step = 1e-5 * np.eye(len(logs))[i]
        up, down = (_penalised(logs + side * step, parts, KERNEL)[0] for side in (1, -1))
        assert slope == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-5)


def test_a_feature_that_residuals_follow_gets_a_short_length_and_another_a_long_one():
    rng = np.random.default_rng(0)
    sources = []
    for s in range(4):
        rows = runs(40, s, str(s))
        some = {name: rows.features[name] for name in ("log2_tp", "log2_dp")}
        rows = replace(rows, features=some, sensitivity=np.zeros((40, 2)))
        sources.append((rows, 0.2 * np.sin(2 * some["log2_tp"]) + 0.01 * rng.normal(size=40)))
    lengths = dict(zip(FEATURES, learn(sources).lengths, strict=True))
    assert lengths["log2_tp"] < 2.0 < 10.0 < lengths["log2_dp"]


def test_predictions_in_pieces_are_those_of_each_run_alone(monkeypatch):
    posterior, new = condition(KERNEL, runs(10), np.full(10, 0.1)), runs(7, 3)
    whole = posterior.predict(new), posterior.mean(new)
    np.testing.assert_allclose(whole[0][0], whole[1], rtol=1e-9)
    monkeypatch.setattr("jointopt.surrogate.posterior.CELLS", 3)
    np.testing.assert_allclose(np.array(posterior.predict(new)), np.array(whole[0]), rtol=1e-9)
    np.testing.assert_allclose(posterior.mean(new), whole[1], rtol=1e-9)


def test_runs_beyond_what_a_posterior_is_conditioned_on_are_sampled():
    rows, new = runs(900), runs(3, 1)
    first, second = (condition(KERNEL, rows, np.full(900, 0.1)) for _ in range(2))
    assert first.runs is not None
    assert len(first.runs) == 800
    np.testing.assert_array_equal(first.predict(new)[0], second.predict(new)[0])
    np.testing.assert_allclose(first.predict(new)[0], 0.1, atol=0.03)
