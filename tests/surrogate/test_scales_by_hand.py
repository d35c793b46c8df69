"""Small surrogates on paper: one factor on power, the runs of one job, whether plans fit, widths of intervals."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import t

from jointopt.surrogate.kernel import Kernel, Runs, default_kernel
from jointopt.surrogate.memory import GRID, MemoryEvidence, MemoryMargin, fit_probability, source_weights
from jointopt.surrogate.plan_process import (
    INFORMED,
    OF_POWER,
    ROUGH,
    USUAL,
    after_runs,
    leave_one_out,
    mean_loss,
    plan_kernel,
    plan_runs,
)
from jointopt.surrogate.posterior import condition
from jointopt.surrogate.power import power_scale
from jointopt.surrogate.surrogate import Surrogate, Widths
from tests.bench.memory_margin import loss

MARGIN = MemoryMargin(centre=0.05, source_sd=0.2, plan_sd=0.1, crash_share=0.1)
PHI = NormalDist().cdf
NONE = np.empty(0, np.int64)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_power_is_trusted_by_fifteen_against_five_per_cent(n: int) -> None:
    trust = n * 0.0225 / (n * 0.0225 + 0.0025)
    found = power_scale(np.array([np.log(0.8)] * n + [np.nan]))
    assert found.factor == pytest.approx(0.8**trust)
    assert found.log_sd == pytest.approx(np.sqrt(0.0225 * (1 - trust) + 0.0025))
    assert found.half_width == pytest.approx(1.645 * found.log_sd)


def test_a_plan_is_a_point_of_doublings_half_doublings_and_octaves() -> None:
    one = dict.fromkeys(("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size"), np.array([1, 8]))
    two = {"zero_stage": np.array([0, 3]), "recompute": np.array([0, 2]), "sequence_parallel": np.array([0, 1])}
    clocks = np.array([[1000.0, np.nan], [400.0, 600.0]])
    limits = {"power_limit_w": np.array([350.0, 700.0])}
    found = plan_runs(one | two | limits | {"stage_clock_mhz": clocks}).sensitivity
    assert found[1] - found[0] == pytest.approx([3.0] * 7 + [1.5, 1.0, 0.5, -2.0, 2.0])


def by_hand(kernel: Kernel, plan: float, run: float, both: float, seen: float) -> tuple[float, float]:
    """Mean and deviation of a plan after a run: eight rounds of Cauchy's noise under either scale, then their mixture.

    ``plan``, ``run``, ``both``: prior variances of the two, and their covariance.
    """
    scales = []
    for multiple, share in ((0.4, 0.9), (1.7, 0.1)):
        usual, spread = (multiple * kernel.noise) ** 2, 1.0
        for _ in range(8):
            noise = usual * spread
            left, doubt = seen * noise / (run + noise), run * noise / (run + noise)
            spread = max((1 + (left**2 + doubt) / usual) / 2, 0.3)
        whole = run + usual * spread
        likely = -0.5 * (np.log(whole) + seen**2 / whole) + 0.5 * (1 - np.log(spread) - 1 / spread)
        variance = plan - both**2 / whole + 2.5 * usual * min(spread, 20.0)
        scales.append((share * np.exp(likely), both / whole * seen, variance))
    shares, means, variances = np.array(scales).T
    shares = shares / shares.sum()
    mean = shares @ means
    return mean, np.sqrt(shares @ (variances + means**2) - mean**2)


def plans_at(*points: float) -> Runs:
    """Plans that differ by a degree."""
    degrees = np.zeros((len(points), 12))
    degrees[:, 0] = points
    return Runs(degrees, {}, np.full(len(points), ""), np.full(len(points), ""))


@pytest.mark.parametrize("residual", [0.1, 0.8])
def test_one_run_moves_all_plans_by_the_common_factor(residual: float) -> None:
    plans = plans_at(0.0, 0.0)
    found = after_runs(USUAL, plans, np.array([0]), np.array([residual])).joint(plans, np.array([1.0, 2.0]))
    mean, deviation = by_hand(USUAL, 0.05, 0.05, 0.05, residual)  # shared² + smooth²
    assert found.mean == pytest.approx(np.array([1.0, 2.0]) + mean)
    assert found.deviation == pytest.approx([deviation] * 2, rel=1e-6)


def test_a_doubling_away_a_run_counts_less_by_the_trend() -> None:
    # covariance of plans at 1 and -1 doublings: shared² - trend²
    kernel, plans = plan_kernel(shared=0.3, trend=0.2, noise=0.1), plans_at(1.0, -1.0)
    found = after_runs(kernel, plans, np.array([0]), np.array([0.2])).joint(plans, np.zeros(2))
    expected = [by_hand(kernel, 0.13, 0.13, both, 0.2) for both in (0.13, 0.05)]
    assert list(zip(found.mean, found.deviation, strict=True)) == [pytest.approx(one, rel=1e-6) for one in expected]


def test_before_any_run_plans_spread_by_factor_trend_and_noise() -> None:
    plans = plans_at(2.0, -2.0)
    found = after_runs(plan_kernel(0.3, 0.2, 0.1), plans, NONE, np.empty(0)).joint(plans, np.zeros(2))
    noise = 2 * 0.1**2 * (0.9 * 0.4**2 + 0.1 * 1.7**2)
    assert found.deviation == pytest.approx(np.sqrt([0.09 + 0.16 + noise] * 2))
    known = [(one.source, one.constants[0], one.shape, one.noise) for one in (USUAL, ROUGH, INFORMED, OF_POWER)]
    assert known == [(0.2, 0.0, 0.1, 0.07), (0.7, 0.2, 0.0, 0.1), (0.1, 0.02, 0.0, 0.05), (0.15, 0.03, 0.0, 0.05)]


def test_what_alike_plans_share_falls_with_the_doublings_between_them() -> None:
    # covariance of plans two doublings apart, of which 1.5 are one length: shared² + smooth² exp(-(2 / 1.5)² / 2)
    kernel, plans = plan_kernel(shared=0.3, trend=0.0, noise=0.1, smooth=0.2), plans_at(1.0, -1.0)
    found = after_runs(kernel, plans, np.array([0]), np.array([0.2])).joint(plans, np.zeros(2))
    apart = 0.09 + 0.04 * np.exp(-0.5 * (2.0 / 1.5) ** 2)
    expected = [by_hand(kernel, 0.13, 0.13, both, 0.2) for both in (0.13, apart)]
    assert list(zip(found.mean, found.deviation, strict=True)) == [pytest.approx(one, rel=1e-6) for one in expected]


def test_a_run_left_out_has_the_density_that_the_other_leaves() -> None:
    kernel, losses, plans = plan_kernel(shared=0.3, trend=0.2, noise=0.1), [], plans_at(0.0, 0.0)
    for one, other in ((0.1, 0.3), (0.3, 0.1)):
        mean, width = by_hand(kernel, 0.09, 0.09, 0.09, other)
        losses.append(np.log(width) - t.logpdf((one - mean) / width, 3))
    found = leave_one_out(kernel, plans, np.array([0, 1]), np.array([0.1, 0.3]), np.zeros(2, bool))
    assert mean_loss(*found) == pytest.approx(np.mean(losses))


def test_a_plan_fits_with_the_normal_probability_of_its_room() -> None:
    known = (np.abs(GRID - 0.1) < 1e-9).astype(float)  # the source needs 10 % more than predicted
    found = fit_probability(np.array([-0.3, -0.1, 0.0]), known, MARGIN)
    assert found == pytest.approx([PHI(2.0), 0.5, PHI(-1.0)])


@pytest.mark.parametrize(
    ("evidence", "at"),
    [
        ("log_ratio", lambda g: (1 + ((0.2 - g) / 0.1) ** 2 / 3) ** -2),
        ("ok_load", lambda g: PHI((-0.2 - g) / 0.1)),
        ("oom_load", lambda g: PHI((0.2 + g) / 0.1)),
    ],
)
def test_offsets_of_a_source_have_the_posterior_of_prior_and_run(evidence: str, at) -> None:
    weights = source_weights(MARGIN, MemoryEvidence(**{evidence: np.array([0.2])}))
    expected = np.array([at(g) * np.exp(-0.5 * ((g - 0.05) / 0.2) ** 2) for g in GRID])
    assert weights == pytest.approx(expected / expected.sum(), rel=1e-6)


def marginal(prior: np.ndarray, likelihood: np.ndarray, power: float = 1.0) -> float:
    return float(np.log((prior / prior.sum() * likelihood**power).sum()))


def test_learning_a_margin_counts_runs_failures_and_crashes() -> None:
    # spreads 0.1 and 0.08, crashes 1/(1 + e²); a failure is a crash or out of memory, a run that fitted did not crash
    point, crash = np.array([0.0, np.log(0.1), np.log(0.08), -2.0]), 1 / (1 + np.exp(2))
    fits = np.array([PHI((0.1 - g) / 0.08) for g in GRID])
    fails = np.array([crash + (1 - crash) * PHI((0.2 + g) / 0.08) for g in GRID])
    evidence = MemoryEvidence(ok_load=np.array([-0.1]), failed_load=np.array([0.2]))
    prior = np.exp(-0.5 * (GRID / 0.1) ** 2)
    assert loss(point, [evidence]) == pytest.approx(-marginal(prior, fits * fails * (1 - crash)))


def test_a_source_of_many_runs_counts_for_a_hundred_and_the_start_is_the_prior() -> None:
    start, fits = (np.array([0.0, np.log(0.1), np.log(0.08), -2.0]), np.array([PHI((0.1 - g) / 0.08) for g in GRID]))
    many = MemoryEvidence(ok_load=np.full(200, -0.1))
    prior = np.exp(-0.5 * (GRID / 0.1) ** 2)
    assert loss(start, [many]) == pytest.approx(-marginal(prior, fits**200, 0.5))
    moved = start + np.array([0.1, 0.7, 1.4, 1.0])
    assert loss(moved, []) == pytest.approx(0.5 * (1 + 1 + 4 + 1))


def surrogate(support: Runs, residual: np.ndarray) -> Surrogate:
    return Surrogate(default_kernel(1), support, residual, Widths(1.1, 1.2, 1.3, few=1.4))


def rows(n: int, source: str, peak: float = 8.0) -> Runs:
    features = {"log2_tp": np.zeros(n), "log2_peak": np.full(n, peak)}
    return Runs(np.zeros((n, 1)), features, np.full(n, source), np.full(n, "g"))


@pytest.mark.parametrize(("fitted", "factor"), [(True, 1.2), (False, 1.3)])
def test_half_a_90_percent_interval_is_1_645_deviations_times_its_factor(fitted: bool, factor: float) -> None:
    model = surrogate(rows(1, "a"), np.zeros(1))
    mean, width, inside = model.predict(rows(2, "b"), fitted)
    _, deviation = condition(model.kernel, rows(0, "b"), np.zeros(0)).predict(rows(2, "b"))
    assert mean.tolist() == [0.0, 0.0]
    assert width == pytest.approx(1.645 * factor * deviation)
    assert inside.tolist() == [fitted] * 2


def test_of_seven_runs_of_one_plan_the_median_counts_alone() -> None:
    model, new = surrogate(rows(1, "a"), np.zeros(1)), rows(1, "b")
    seven = np.array([0.3, 0.1, 0.2, 0.7, 0.6, 0.5, 0.4])
    mean, width, _ = model.predict(new, False, (rows(7, "b"), seven))
    alone = condition(model.kernel, new, np.array([0.4])).predict(new)
    assert mean == pytest.approx(alone[0])
    assert width == pytest.approx(1.645 * 1.4 * alone[1])
    six = condition(model.kernel, rows(6, "b"), seven[:6]).predict(new)[0]
    assert model.predict(new, False, (rows(6, "b"), seven[:6]))[0] == pytest.approx(six)


@pytest.mark.parametrize(("count", "factor"), [(1, 1.4), (3, 1.4), (8, 1.2361), (20, 1.1), (500, 1.1)])
def test_the_factor_goes_from_that_of_few_runs_to_that_of_many(count: int, factor: float) -> None:
    # of 8 runs: log(8 / 3) / log(20 / 3) of the way is 0.5170, and 1.4 ** 0.483 * 1.1 ** 0.517 = 1.2359
    assert Widths(1.1, few=1.4).of_measured(count) == pytest.approx(factor, abs=3e-4)


@pytest.mark.parametrize(("peak", "inside"), [(8.069, True), (8.071, False)])
def test_a_gpu_within_five_per_cent_of_a_known_one_is_in_the_domain(peak: float, inside: bool) -> None:
    found = surrogate(rows(1, "a"), np.zeros(1)).predict(rows(1, "b", peak), True)[2]
    assert found.tolist() == [inside]
