"""The Gaussian process on one or two runs, where its matrices are numbers (Rasmussen and Williams 2006, 2.2, 5.4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.surrogate.residual_gp import (
    FEATURES,
    Kernel,
    Runs,
    _penalised_likelihood,
    _sampled,
    _unlikelihood,
    condition,
    covariance,
    default_kernel,
    variance,
)

KERNEL = replace(default_kernel(2), constants=(0.1, 0.2), source=0.3, group=0.4, shape=0.5, noise=0.03)
SMOOTH = 0.25 * np.exp(-0.5 * ((1 / 2) ** 2 + (0.3 / 0.3) ** 2))  # lengths 2 of log2_tp and 0.3 of a share


def runs(sensitivity: list[list[float]], tp: list[float], share: list[float], group: str = "gh") -> Runs:
    n = len(tp)
    features = {"log2_tp": np.array(tp), "share_compute": np.array(share)}
    return Runs(np.array(sensitivity), features, np.full(n, "a"), np.array(list(group[:n])))


TWO = runs([[1.0, 2.0], [3.0, -1.0]], [0.0, 1.0], [0.2, 0.5])


@pytest.mark.parametrize(("groups", "shared"), [("gg", 0.16), ("gh", 0.0)])
def test_two_runs_of_a_source_share_constants_scale_and_a_smooth_function(groups: str, shared: float) -> None:
    # 0.01·1·3 - 0.04·2·1 for the constants
    both = replace(TWO, group=np.array(list(groups)))
    found = covariance(KERNEL, both, both)[0, 1]
    assert found == pytest.approx(0.03 - 0.08 + 0.09 + SMOOTH + shared)
    assert variance(KERNEL, both) == pytest.approx([0.01 + 0.16 + 0.5, 0.09 + 0.04 + 0.5])


def test_usual_lengths_of_each_class_of_features() -> None:
    kernel = default_kernel(3)
    lengths = dict(zip(FEATURES, kernel.lengths, strict=True))
    assert kernel.constants == (0.15, 0.15, 0.15)
    assert [kernel.source, kernel.group, kernel.shape, kernel.noise] == [0.1, 0.05, 0.08, 0.03]
    names = ("log2_tp", "recompute", "log2_hidden", "moe", "log2_width", "share_host")
    assert [lengths[name] for name in names] == [2.0, 1.0, 2.0, 1.0, 2.0, 0.3]


def test_kernels_are_packed_as_logarithms_in_the_order_of_their_terms() -> None:
    packed = np.exp(KERNEL.pack())
    assert packed[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert packed[-1] == pytest.approx(0.03)
    assert Kernel.unpack(np.log(packed), 2).shape == pytest.approx(0.5)


def test_without_runs_the_noise_is_that_of_a_heavy_tail() -> None:
    mean, deviation = condition(KERNEL, TWO.take(np.array([], np.int64)), np.zeros(0)).predict(TWO)
    assert mean.tolist() == [0.0, 0.0]
    assert deviation == pytest.approx(np.sqrt(np.array([0.67, 0.63]) + 2 * 0.0009))


def reweighted(prior: float, y: float, noise: float) -> tuple[float, float, float]:
    """(residual over its variance, variance, last weight) after six rounds of Student's noise of three degrees."""
    weight, over, total = 1.0, 0.0, 0.0
    for _ in range(6):
        total = prior + noise * weight
        over = y / total
        left, doubt = noise * weight * over, noise * weight * prior / total
        weight = max((3 + (left**2 + doubt) / noise) / 4, 0.3)
    return over, total, weight


@pytest.mark.parametrize(("y", "used"), [(0.1, 0.1), (-0.9, -0.9), (4.0, 1.5)])
def test_one_run_moves_another_by_their_covariance(y: float, used: float) -> None:
    first, second = TWO.take(np.array([0])), TWO.take(np.array([1]))
    kernel = replace(KERNEL, noise=0.3)
    over, total, weight = reweighted(0.67, used, 0.09)
    cross = 0.03 - 0.08 + 0.09 + SMOOTH
    mean, deviation = condition(kernel, first, np.array([y])).predict(second)
    assert mean[0] == pytest.approx(cross * over)
    assert deviation[0] == pytest.approx(np.sqrt(0.63 - cross**2 / total + 1.5 * 0.09 * weight))


def part_of(y: float = 0.2, n: int = 1):
    row = runs([[1.0, 2.0]] * n, [0.0] * n, [0.2] * n, "g" * n)
    return _sampled(row, np.full(n, y), 400, np.random.default_rng(0))


def test_a_source_of_one_run_is_as_unlikely_as_a_normal_says() -> None:
    # y²/2K + log(K)/2, without the constant
    value, _, _ = _unlikelihood(KERNEL, part_of(), 0.01)
    assert value == pytest.approx(0.5 * 0.04 / 0.68 + 0.5 * np.log(0.68))


@pytest.mark.parametrize(("n", "weight"), [(30, 1.0), (240, 0.25)])
def test_a_source_counts_for_sixty_runs_at_most(n: int, weight: float) -> None:
    assert part_of(n=n).weight == weight


def test_residuals_far_from_a_source_s_median_are_clipped_at_a_half() -> None:
    rows = runs([[0.0, 0.0]] * 3, [0.0] * 3, [0.0] * 3, "ggg")
    part = _sampled(rows, np.array([0.1, 0.2, 3.0]), 10, np.random.default_rng(0))
    assert sorted(part.residual) == pytest.approx([0.1, 0.2, 0.7])


def test_a_large_source_is_sampled_and_counts_for_sixty_runs() -> None:
    rows = runs([[0.0, 0.0]] * 200, [0.0] * 200, [0.0] * 200, "g" * 200)
    part = _sampled(rows, np.linspace(0.0, 0.4, 200), 120, np.random.default_rng(0))
    assert len(part.residual) == len(part.runs) == 120
    assert part.weight == 0.5


def test_learning_weighs_a_prior_on_logarithms_and_on_the_noise_of_each_source() -> None:
    # one logarithm 0.5 away: 0.5²/2; noise 0.06 against a usual 0.03 with a spread of 0.7
    centre = KERNEL.pack()
    logs = np.append(centre, np.log(0.06))
    logs[2] += 0.5
    kernel = replace(KERNEL, source=0.3 * np.exp(0.5))
    own, _, _ = _unlikelihood(kernel, part_of(), 0.06**2)
    value, _ = _penalised_likelihood(logs, [part_of()], centre, 2)
    assert value == pytest.approx(0.125 + 0.5 * (np.log(2) / 0.7) ** 2 + own)
