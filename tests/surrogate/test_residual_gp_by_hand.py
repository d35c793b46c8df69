"""The Gaussian process on one or two runs, where its matrices are numbers (Rasmussen and Williams 2006, 2.2, 5.4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.surrogate.kernel import (
    FEATURES,
    Runs,
    _penalised,
    _tasks,
    covariance_terms,
    default_kernel,
    kinship,
    negative_log_likelihood,
    variances,
)
from jointopt.surrogate.posterior import (
    LARGE,
    SCALES,
    SHARES,
    Posterior,
    _pieces,
    _posterior_of_scales,
    _quadratic_forms,
    condition,
    root_of,
)

KERNEL = replace(default_kernel(2), constants=(0.1, 0.2), source=0.3, shape=0.5, noise=0.03)
SMOOTH = 0.25 * np.exp(-0.5 * ((1 / 2) ** 2 + (0.3 / 0.3) ** 2))  # lengths 2 of log2_tp and 0.3 of a share


def runs(sensitivity: list[list[float]], tp: list[float], share: list[float], group: str = "gh") -> Runs:
    n = len(tp)
    features = {"log2_tp": np.array(tp), "share_compute": np.array(share)}
    return Runs(np.array(sensitivity), features, np.full(n, "a"), np.array(list(group[:n])))


TWO = runs([[1.0, 2.0], [3.0, -1.0]], [0.0, 1.0], [0.2, 0.5])


def test_two_runs_of_a_source_share_constants_scale_and_a_smooth_function() -> None:
    # 0.01·1·3 - 0.04·2·1 for the constants, none of which is the network's
    assert covariance_terms(KERNEL, TWO, TWO)[:, 0, 1] == pytest.approx([0.09, 0.0, 0.03 - 0.08, SMOOTH])
    assert variances(KERNEL, TWO)[:, 0] == pytest.approx([0.09, 0.0, 0.01 + 0.16, 0.25])
    assert variances(KERNEL, TWO)[:, 1] == pytest.approx([0.09, 0.0, 0.09 + 0.04, 0.25])


@pytest.mark.parametrize(("other", "shared"), [
    ("mine|megatron|a100|8", 1.0), ("mine|megatron|h100|8", 0.7), ("mine|other|a100|8", 0.5),
    ("mine|other|h100|8", 0.0), ("yours|megatron|h100|8", 0.0), ("yours|megatron|a100|8", 0.0), ("plain", 0.0),
])  # fmt: skip
def test_sources_of_one_origin_share_by_software_or_gpu(other: str, shared: float) -> None:
    assert kinship(np.array(["mine|megatron|a100|8"]), np.array([other])).tolist() == [[shared]]


def test_usual_lengths_of_each_class_of_features() -> None:
    kernel = default_kernel(3)
    lengths = dict(zip(FEATURES, kernel.lengths, strict=True))
    assert kernel.constants == (0.15, 0.15, 0.15)
    assert [kernel.source, kernel.shape, kernel.noise] == [0.1, 0.08, 0.03]
    names = ("log2_tp", "recompute", "log2_hidden", "moe", "log2_width", "share_host")
    assert [lengths[name] for name in names] == [2.0, 1.0, 2.0, 1.0, 2.0, 0.3]


def test_kernels_are_packed_as_logarithms_in_the_order_of_their_terms() -> None:
    packed = np.exp(KERNEL.pack())
    assert packed[:4] == pytest.approx([0.1, 0.2, 0.3, 0.5])
    assert packed[-1] == pytest.approx(0.03)
    assert KERNEL.unpack(np.log(packed)).shape == pytest.approx(0.5)


def test_without_runs_the_prior_is_that_of_all_scales_with_the_noise_of_a_heavy_tail() -> None:
    mean, deviation = condition(KERNEL, TWO.take(np.array([], np.int64)), np.zeros(0)).predict(TWO)
    assert mean.tolist() == [0.0, 0.0]
    factor, constants, noise = 0.75 + 0.25 * 3.0**2, 0.6**2, 0.6 * 0.8**2 + 0.4 * 4.0**2
    smooth = 0.45 * 0.8**2 + 0.28 * 2.5**2 + 0.27 * 1.2**2
    rest = 0.09 * factor + 0.25 * smooth + 2 * 0.0009 * noise
    assert deviation == pytest.approx(np.sqrt(np.array([0.17, 0.13]) * constants + rest))
    assert SHARES.sum() == pytest.approx(1.0)


def reweighted(prior: float, y: float, noise: float) -> tuple[float, float, float]:
    """(residual over its variance, variance, last weight) after eight rounds of Cauchy's noise."""
    weight, over, total = 1.0, 0.0, 0.0
    for turn in range(9):
        total = prior + noise * weight
        over = y / total
        left, doubt = noise * weight * over, noise * weight * prior / total
        if turn < 8:
            weight = max((1.0 + (left**2 + doubt) / noise) / 2.0, 0.3)
    return over, total, weight


@pytest.mark.parametrize(("y", "used"), [(0.1, 0.1), (-0.9, -0.9), (4.0, 1.5)])
def test_one_run_moves_another_by_their_covariance(y: float, used: float) -> None:
    first, second = TWO.take(np.array([0])), TWO.take(np.array([1]))
    scale = np.flatnonzero((SCALES == [1.0, 0.6, 0.6, 0.8, 0.8]).all(axis=1))
    # times 0.6, 0.8 and 0.8: 0.1, 0.2, 0.5 and 0.3
    kernel = replace(KERNEL, constants=(0.1 / 0.6, 0.2 / 0.6), shape=0.5 / 0.8, noise=0.3 / 0.8)
    over, total, weight = reweighted(0.09 + 0.17 + 0.25, used, 0.09)
    cross = 0.03 - 0.08 + 0.09 + SMOOTH
    mean, deviation = _posterior_of_scales(kernel, SCALES[scale], SHARES[scale], first, np.array([y]))[1].predict(
        second
    )
    assert mean[0] == pytest.approx(cross * over)
    assert deviation[0] == pytest.approx(
        np.sqrt(0.09 + 0.13 + 0.25 - cross**2 / total + 2.5 * 0.09 * min(weight, 20.0))
    )


def test_many_scales_have_a_smooth_function_that_varies_over_longer_lengths() -> None:
    lengths = condition(KERNEL, TWO, np.array([0.1, 0.1])).kernel.lengths
    assert lengths == pytest.approx([1.5 * length for length in KERNEL.lengths])


def test_runs_weigh_scales_by_how_likely_they_make_them() -> None:
    # nine runs that are off by one factor, and by three times what recorded sources are
    rows = runs([[0.0, 0.0]] * 9, [0.0] * 9, [0.0] * 9, "g" * 9)
    kernel = replace(KERNEL, source=0.1, shape=0.01)
    share = [condition(kernel, rows, np.full(9, off)) for off in (0.02, 0.7)]
    wide = [float(found.share[found.squares[:, 0] > 6.0].sum()) for found in share]
    assert wide[0] < 0.6 < 0.9 < wide[1]


def tasks_of(y: float = 0.2, n: int = 1):
    row = runs([[1.0, 2.0]] * n, [0.0] * n, [0.2] * n, "g" * n)
    return _tasks(row, np.full(n, y), np.random.default_rng(0), KERNEL)


def test_a_source_of_one_run_has_the_likelihood_of_a_normal() -> None:
    # y²/2K + log(K)/2, without the constant
    value, _ = negative_log_likelihood(replace(KERNEL, noise=0.1), tasks_of()[0])
    assert value == pytest.approx(0.5 * 0.04 / 0.52 + 0.5 * np.log(0.52))


@pytest.mark.parametrize(("n", "count", "size"), [(5, 2, 5), (30, 5, 12), (240, 8, 12)])
def test_a_source_counts_for_one_sample_of_twelve_runs_at_most(n: int, count: int, size: int) -> None:
    tasks = tasks_of(n=n)
    assert len(tasks) == count
    assert [len(task.residual) for task in tasks] == [len(task.inputs) for task in tasks] == [size] * count
    assert sum(task.weight for task in tasks) == pytest.approx(1.0)


def test_residuals_far_from_a_source_s_median_are_clipped_at_a_half() -> None:
    rows = runs([[0.0, 0.0]] * 3, [0.0] * 3, [0.0] * 3, "ggg")
    for task in _tasks(rows, np.array([0.1, 0.2, 3.0]), np.random.default_rng(0), KERNEL):
        assert sorted(task.residual) == pytest.approx([0.1, 0.2, 0.7])


def test_learning_weighs_a_prior_on_logarithms_and_on_the_noise_of_each_source() -> None:
    # one logarithm 0.5 away: 0.5²/2; noise 0.06 against a usual 0.03 with a spread of 0.7
    centre = KERNEL.pack()
    logs = np.append(centre, np.log(0.06))
    logs[2] += 0.5
    kernel = replace(KERNEL, source=0.3 * np.exp(0.5), noise=0.06)
    tasks = tasks_of()
    own = sum(task.weight * negative_log_likelihood(kernel, task)[0] for task in tasks)
    value, _ = _penalised(logs, [tasks], KERNEL)
    assert value == pytest.approx(0.125 + 0.5 * (np.log(2) / 0.7) ** 2 + own)


@pytest.mark.parametrize(("count", "width", "sizes"), [(10, 2, [4, 4, 2]), (3, 9, [1, 1, 1]), (4, 1, [4]), (0, 3, [])])
def test_runs_are_answered_in_pieces_of_at_most_so_many_cells_and_at_least_one_run(
    count: int, width: int, sizes: list[int]
) -> None:
    pieces = [*_pieces(count, width, cells=8)]
    assert [len(piece) for piece in pieces] == sizes
    assert [row for piece in pieces for row in piece] == list(range(count))


@pytest.fixture(scope="module")
def known() -> Posterior:
    """After eight runs that leave several scales open."""
    return condition(default_kernel(2), drawn(8, 0), 0.2 * np.random.default_rng(5).standard_normal(8))


def drawn(count: int, seed: int) -> Runs:
    rng = np.random.default_rng(seed)
    features = {"log2_tp": rng.integers(0, 4, count).astype(float), "log2_pp": rng.integers(0, 3, count).astype(float)}
    return Runs(rng.uniform(0.0, 0.5, (count, 2)), features, np.full(count, "a"), np.full(count, "g"))


def test_a_difference_is_as_unsure_as_both_runs_are_less_what_they_share_at_every_scale(known: Posterior) -> None:
    new, other = drawn(5, 1), drawn(5, 2)
    assert len(known.share) > 3
    mean, variance = np.zeros((2, len(known.share), 5))
    for i, squares in enumerate(known.squares):
        cross, cross_other = (
            np.tensordot(squares[:4], covariance_terms(known.kernel, one, known.runs), 1) for one in (new, other)
        )
        shared = np.diagonal(np.tensordot(squares[:4], covariance_terms(known.kernel, new, other), 1))
        before = squares[:4] @ (variances(known.kernel, new) + variances(known.kernel, other)) - 2 * shared
        apart = cross - cross_other
        mean[i] = apart @ known.weights[i]
        variance[i] = before - np.diagonal(apart @ known.inverse[i] @ apart.T) + 2 * known.noise_variance[i]
    expected = known.share @ (variance + mean**2) - (known.share @ mean) ** 2
    np.testing.assert_allclose(known.contrast_deviation(new, other), np.sqrt(expected), rtol=1e-6)


@pytest.mark.parametrize("constant", [0, 1])
def test_constants_are_what_a_run_moves_by_per_sensitivity(known: Posterior, constant: int) -> None:
    new, more = drawn(3, 1), np.zeros((3, 2))
    more[:, constant] = [0.1, 0.4, 1.0]
    moved = known.mean(replace(new, sensitivity=new.sensitivity + more)) - known.mean(new)
    np.testing.assert_allclose(moved, more[:, constant] * known.constants[constant], rtol=1e-9)


@pytest.mark.parametrize("count", [1, 3, LARGE, LARGE + 2])
def test_squares_by_blocks_are_those_of_the_whole_matrix(count: int) -> None:
    rng = np.random.default_rng(0)
    half, rows = rng.standard_normal((2, count, count)), rng.standard_normal((2, 5, count))
    inverse = half @ half.transpose(0, 2, 1) + np.eye(count)
    expected = [[row @ one @ row for row in some] for one, some in zip(inverse, rows, strict=True)]
    np.testing.assert_allclose(_quadratic_forms(rows, inverse, root_of(inverse)), expected, rtol=1e-5)
