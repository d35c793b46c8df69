"""What the plans that are left are expected to bring."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jointopt.search.acquire import gain_left

TIME, BOTH = ("iteration_time_s",), ("iteration_time_s", "energy_j")


def drawn(time: list[float], energy: list[float] | None = None, fits: float = 1.0) -> dict:
    """Draws (plans, 100) without spread; a share ``fits`` of them fits."""
    ones = np.ones((len(time), 100))
    draws = {"iteration_time_s": np.array(time)[:, None] * ones, "fits": np.arange(100) < 100 * fits * ones}
    return draws if energy is None else draws | {"energy_j": np.array(energy)[:, None] * ones}


def left(draws: dict, *which: bool) -> np.ndarray:
    return np.array(which or [True] * len(draws["fits"]))


def test_nothing_is_left_to_gain_where_no_plan_is_left_or_none_is_better() -> None:
    measured = {"iteration_time_s": np.array([2.0])}
    draws = drawn([1.0, 3.0])
    assert gain_left(draws, measured, TIME, left(draws, False, False)) == 0.0
    assert gain_left(draws, measured, TIME, left(draws, False, True)) == 0.0


def test_with_one_objective_it_is_the_share_by_which_the_best_falls() -> None:
    measured = {"iteration_time_s": np.array([4.0, 2.0])}
    draws = drawn([1.0, 1.5])
    assert gain_left(draws, measured, TIME, left(draws)) == pytest.approx(0.5)


def test_a_plan_that_may_not_fit_brings_less() -> None:
    measured = {"iteration_time_s": np.array([2.0])}
    sure, unsure = (gain_left(drawn([1.0], fits=share), measured, TIME, np.array([True])) for share in (1.0, 0.5))
    assert 0.0 < unsure < sure


def test_with_two_objectives_a_plan_beyond_the_front_widens_it_and_one_behind_does_not() -> None:
    measured = {"iteration_time_s": np.array([1.0, 1.3, 2.0]), "energy_j": np.array([2.0, 1.3, 1.0])}
    ahead, behind = drawn([1.2], [1.2]), drawn([2.5], [2.5])
    assert gain_left(ahead, measured, BOTH, left(ahead)) > 0.0
    assert gain_left(behind, measured, BOTH, left(behind)) == pytest.approx(0.0)


def test_before_the_first_success_the_gain_left_is_unknown() -> None:
    assert math.isnan(gain_left(drawn([1.0]), {"iteration_time_s": np.empty(0)}, TIME, np.array([True])))


def test_where_more_than_twice_as_much_is_expected_the_gain_left_is_unknown() -> None:
    measured = {"iteration_time_s": np.array([4.0]), "energy_j": np.array([4.0])}
    hope = drawn([1.0, 5.0], [1.0, 5.0])
    assert math.isnan(gain_left(hope, measured, TIME, left(hope)))
    assert math.isnan(gain_left(hope, measured, BOTH, left(hope)))
