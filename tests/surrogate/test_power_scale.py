"""One factor on power or two, as far as power was measured."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import huber

from jointopt.surrogate.power import RUN_SD, SOURCE_SD, PowerScale, _two, _two_are_better, power_scale, scale_at_limit


def test_nothing_measured_moves_nothing() -> None:
    assert power_scale(np.array([np.nan])).factor == 1.0
    assert power_scale(np.empty(0)).half_width is None


def test_the_scale_of_many_plans_splits_into_those_of_each_job() -> None:
    first, second = PowerScale(np.array([1.0, 2.0, 3.0]), 0.05, 7.0).split([1, 2])
    assert first.factor.tolist() == [1.0]
    assert second.factor.tolist() == [2.0, 3.0]
    assert first.offset_w.tolist() == [7.0]
    assert second.offset_w.tolist() == [7.0, 7.0]
    assert first.log_sd == second.log_sd == 0.05


def test_more_runs_are_trusted_more_and_leave_less_doubt() -> None:
    few, many = (power_scale(np.full(n, np.log(0.8))) for n in (1, 20))
    assert 1.0 > few.factor > many.factor > 0.8
    assert few.log_sd > many.log_sd > RUN_SD


def test_power_is_learned_under_the_highest_limit_as_others_show_what_a_limit_leaves() -> None:
    ratios, limits_w = np.log([1.2, 1.2, 1.2, 0.7, 0.7, 0.7]), np.repeat([400.0, 250.0], 3)
    found = scale_at_limit(ratios, np.full(6, 0.2), 60.0, limits_w)
    assert found == power_scale(ratios[:3])
    assert found.factor > 1.1


def test_one_broken_meter_among_many_moves_little() -> None:
    ratios = np.log([0.9, 0.91, 0.89, 0.9, 50.0])
    assert power_scale(ratios).factor == pytest.approx(0.9, abs=0.01)


def test_runs_at_two_clocks_show_a_gpu_that_rests_at_more_and_works_at_less() -> None:
    predicted = np.array([120.0, 130.0, 140.0, 380.0, 390.0, 400.0])
    measured = 60.0 * 1.5 + (predicted - 60.0) * 0.9
    found = power_scale(np.log(measured / predicted), 60.0 / predicted, 60.0)
    assert found.offset_w > 0.0 > np.log(found.factor)
    assert predicted * found.over(predicted) == pytest.approx(measured, rel=0.03)
    assert power_scale(np.log(measured / predicted)).offset_w == 0.0


def test_runs_off_by_one_factor_keep_it() -> None:
    predicted = np.array([120.0, 150.0, 250.0, 380.0, 400.0])
    found = power_scale(np.full(5, np.log(1.1)), 60.0 / predicted, 60.0)
    assert (found.offset_w, found.factor) == (0.0, pytest.approx(1.1, abs=0.01))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_factors_are_the_likeliest_under_their_prior_with_runs_far_off_weighed_less(seed: int) -> None:
    rng = np.random.default_rng(seed)
    share = rng.uniform(0.1, 0.7, 6)
    ratio = np.log(0.8 + 0.5 * share) + RUN_SD * rng.standard_normal(6)
    ratio[-1] += 4.0 * RUN_SD  # further off than two standard deviations

    def loss(theta: np.ndarray) -> float:
        off = ratio - theta[0] - np.log(1.0 + np.expm1(theta[1]) * share)
        return float(huber(2.0, off / RUN_SD).sum() + ((theta / [SOURCE_SD, 0.3]) ** 2).sum() / 2.0)

    dynamic, apart = minimize(loss, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    assert np.log(_two(ratio, share)) == pytest.approx([dynamic, dynamic + apart], abs=2e-3)


def test_two_factors_are_better_where_loads_differ_and_not_where_they_do_not() -> None:
    share = np.linspace(0.1, 0.7, 20)
    assert _two_are_better(np.log(1.2 - 0.5 * share), share)  # 1.2 of what runs, 0.7 of what rests
    assert _two_are_better(np.log(0.8 + 0.6 * share), share)
    assert not _two_are_better(np.full(20, 0.2), share)


def test_no_plan_draws_more_than_its_limit_in_the_mean_and_those_below_stay() -> None:
    scale, watts = PowerScale(1.2, 0.05, 20.0), np.array([400.0, 600.0])  # 500 and 740 W
    held = scale.within(700.0, watts)
    np.testing.assert_allclose(held.over(watts) * watts, [500.0, 700.0])
    assert held.log_sd == 0.05
    assert scale.within(800.0, watts) is scale
    np.testing.assert_allclose(scale.within(np.array([250.0, 740.0]), watts).factor, [0.6, 1.2])
