"""The process of one cluster: its covariance by hand, and how its hyperparameters are learned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import Floats
from jointopt.surrogate import kernel as residual_gp
from jointopt.surrogate.kernel import (
    CLOCK,
    FEATURES,
    OF_MODELS,
    SHAPES,
    Kernel,
    Runs,
    _penalised,
    _task,
    covariance_terms,
    default_kernel,
    learn_alone,
    negative_log_likelihood,
    variances,
)
from jointopt.surrogate.posterior import condition_alone

SHARED = default_kernel(2)
KERNEL = replace(Kernel.of_one_source(SHARED), constants=(0.1, 0.2), varying=(0.3, 0.4), shape=0.5, source=0.6)


def drawn(count: int, seed: int = 0) -> Runs:
    """Runs of one source that differ in everything."""
    rng = np.random.default_rng(seed)
    features = {name: rng.integers(0, 4, count).astype(float) for name in FEATURES}
    features |= {name: rng.uniform(0.0, 0.3, count) for name in FEATURES if name.startswith("share")}
    return Runs(rng.uniform(0.0, 0.5, (count, 2)), features, np.full(count, "a"), np.full(count, "g"))


def two(tp: tuple[float, float], share: tuple[float, float], sensitivity: list[list[float]]) -> Runs:
    features = {"log2_tp": np.array(tp), "share_compute": np.array(share)}
    return Runs(np.array(sensitivity), features, np.full(2, "a"), np.full(2, "g"))


def test_constants_vary_with_the_shape_and_the_smooth_function_follows_shares_and_sensitivities() -> None:
    some = two((0.0, 1.0), (0.02, 0.06), [[1.0, 2.0], [1.0, 2.3]])  # shares of an octave more, by 0.02 each
    away = 0.5 * (1 / 2) ** 2
    varying = (0.09 * 1.0 + 0.16 * 2.0 * 2.3) * np.exp(-away)
    smooth = 0.25 * np.exp(-away - 0.5 * (0.3 / 0.3) ** 2 - 0.5 * (0.3 / 0.3) ** 2)
    assert covariance_terms(KERNEL, some, some)[3, 0, 1] == pytest.approx(varying + smooth)


@pytest.mark.parametrize("name", OF_MODELS)
def test_what_only_distinguishes_models_is_no_input(name: str) -> None:
    some = drawn(5)
    other = replace(some, features=dict(some.features) | {name: some.features[name] + 1.0})
    for one, same in zip(KERNEL.points(some), KERNEL.points(other), strict=True):
        np.testing.assert_array_equal(one, same)


def test_variances_are_the_diagonal_and_differences_what_two_runs_do_not_share() -> None:
    a, b = drawn(6), drawn(6, 1)
    for prior, variance in zip(covariance_terms(KERNEL, a, a), variances(KERNEL, a), strict=True):
        np.testing.assert_allclose(np.diagonal(prior), variance)
    shared = np.diagonal(covariance_terms(KERNEL, a, b), axis1=1, axis2=2)
    expected = variances(KERNEL, a) + variances(KERNEL, b) - 2.0 * shared
    np.testing.assert_allclose(variances(KERNEL, a, b), expected, atol=1e-12)
    one = variances(KERNEL, a, b.take(np.zeros(1, np.int64)))
    assert one[:, 0] == pytest.approx(expected[:, 0])


def test_logarithms_are_those_of_every_hyperparameter() -> None:
    logs = np.linspace(-3.0, 1.0, len(KERNEL.pack()))
    again = KERNEL.unpack(logs)
    np.testing.assert_allclose(again.pack(), logs)
    assert [len(one) for one in (again.lengths, again.varying)] == [len(KERNEL.lengths), len(KERNEL.varying)]


def test_the_gradient_of_learning_is_that_of_what_it_minimises() -> None:
    rng, some = np.random.default_rng(0), drawn(14)
    centre = Kernel.of_one_source(SHARED)
    given = [[_task(some, 0.2 * rng.standard_normal(14), 1.0, centre)]], centre
    middle = np.append(centre.pack(), np.log(0.03))
    logs = middle + 0.1 * rng.standard_normal(len(middle))
    _, gradient = _penalised(logs, *given)
    for i, slope in enumerate(gradient):
        step = 1e-5 * np.eye(len(logs))[i]
        up, down = (_penalised(logs + side * step, *given)[0] for side in (1, -1))
        assert slope == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kernel", [KERNEL, default_kernel(2)], ids=["own", "shared"])
@pytest.mark.parametrize("cells", [10, 250_000])
def test_sums_over_runs_are_those_of_their_covariance(
    monkeypatch: pytest.MonkeyPatch, kernel: Kernel, cells: int
) -> None:
    monkeypatch.setattr(residual_gp, "CACHED_CELLS", cells)
    new, seen, weights = drawn(7).take(np.array([0, 1, 2, 3, 3, 0])), drawn(5, 1), np.array([1.0, -2.0, 0.5, 3.0, -1.0])
    new = replace(new, sensitivity=drawn(6, 2).sensitivity)  # of the same shapes, other constants
    x, y = kernel.points(new), kernel.points(seen)
    np.testing.assert_allclose(kernel.smooth_sums(x, y, weights), kernel.smooth(x, y) @ weights, rtol=1e-10)


def test_residuals_have_the_likelihood_of_their_covariance() -> None:
    some, y = drawn(3), np.array([0.1, -0.2, 0.3])
    covariance = covariance_terms(KERNEL, some, some).sum(axis=0) + KERNEL.noise**2 * np.eye(3)
    expected = 0.5 * y @ np.linalg.solve(covariance, y) + 0.5 * np.linalg.slogdet(covariance)[1]
    assert negative_log_likelihood(KERNEL, _task(some, y, 1.0, KERNEL))[0] == pytest.approx(expected)


@pytest.mark.parametrize("far", [-4.0, 4.0])
def test_residuals_far_from_the_median_count_as_a_half_away(far: float) -> None:
    near = [0.0, 0.1, 0.2, 0.1]
    kernels = [learn_alone(drawn(5), np.array([*near, 0.1 + at]), SHARED).pack() for at in (far, np.sign(far) * 0.5)]
    assert kernels[0] == pytest.approx(kernels[1])


def slow_where_narrow(some: Runs) -> Floats:
    """A constant that is off by as much as a rank is narrow."""
    return 0.2 * some.sensitivity[:, 0] * some.features["log2_width"]


def test_a_constant_that_varies_with_the_shape_is_found_and_known_of_new_runs() -> None:
    known, new = drawn(150), drawn(150, 1)
    y = slow_where_narrow(known) + 0.01 * np.random.default_rng(2).standard_normal(150)
    kernel = learn_alone(known, y, SHARED)
    lengths = dict(zip(SHAPES, kernel.varying_lengths, strict=True))
    assert kernel.varying[0] > 2.0 * kernel.varying[1]
    assert lengths["log2_width"] == min(value for name, value in lengths.items() if name != CLOCK)
    off = condition_alone(kernel, known, y).mean(new) - slow_where_narrow(new)
    assert np.abs(off).mean() < 0.2 * np.abs(slow_where_narrow(new)).mean()
