"""The law of time and power over clock and limit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.physics.calibrate.law_fit import Hierarchy, ResponsePrior, constants_of_rows
from jointopt.physics.clock_law import (
    CurveConstants,
    GpuConstants,
    log_power_w,
    log_time_s,
    reached_clock,
    switching_shape,
)

SHAPE = GpuConstants(knee=0.77, rise=0.25, softness=0.02, floor=0.2, idle_w=50.0)
WORK = CurveConstants(np.array(0.0), np.array(0.8), np.array(60.0), np.array(430.0), np.array(1.0))
X = np.linspace(0.3, 1.0, 50)


def test_switching_power_is_proportional_to_the_clock_below_the_knee_and_one_at_the_top() -> None:
    shape = switching_shape(np.array([0.35, 0.7, 1.0]), 0.77, 0.25)
    assert shape == pytest.approx([0.35 / 1.25**2, 0.7 / 1.25**2, 1.0])


def test_far_below_the_limit_the_requested_clock_is_reached() -> None:
    assert reached_clock(SHAPE, WORK, X, np.array(2000.0)) == pytest.approx(X, abs=1e-6)


def test_without_a_limit_half_the_clock_doubles_the_share_that_follows_it() -> None:
    time = np.exp(log_time_s(SHAPE, WORK, np.array([0.5, 1.0]), np.array(2000.0)))
    assert time == pytest.approx([0.8 * 2 + 0.2, 1.0], rel=1e-4)


@given(st.floats(100.0, 600.0), st.floats(0.2, 1.0))
def test_power_exceeds_no_limit_that_the_longest_pauses_can_keep(limit_w: float, x: float) -> None:
    power = np.exp(log_power_w(SHAPE, WORK, np.array([x]), np.array([limit_w])))
    assert power[0] <= limit_w * (1 + 1e-3)


def test_no_limit_is_slower_than_the_lowest_clock_which_draws_more_than_it_allows() -> None:
    deepest, one = np.array([20.0, 40.0]), np.ones(2)
    lowest_s = np.exp(log_time_s(SHAPE, WORK, np.array([SHAPE.lowest]), np.array([2000.0])))
    assert np.exp(log_time_s(SHAPE, WORK, one, deepest)) == pytest.approx(np.repeat(lowest_s, 2), rel=0.03)
    watts = np.exp(log_power_w(SHAPE, WORK, one, deepest))
    assert watts[0] == pytest.approx(watts[1], rel=0.01)
    assert watts[0] > 1.5 * deepest[1]


@given(st.floats(90.0, 600.0), st.floats(1.0, 1.5))
def test_a_higher_limit_never_takes_longer(limit_w: float, factor: float) -> None:
    limits = np.array([limit_w, limit_w * factor])
    time = log_time_s(SHAPE, WORK, np.array([1.0, 1.0]), limits)
    assert time[1] <= time[0] + 1e-9


def test_a_stronger_load_reaches_a_lower_clock_under_the_same_limit() -> None:
    loads = replace(WORK, switching_w=np.array([300.0, 400.0, 500.0]))
    assert (np.diff(reached_clock(SHAPE, loads, np.ones(3), np.array(300.0))) < 0).all()


def test_the_prior_of_a_hierarchy_yields_the_first_guesses() -> None:
    hierarchy = Hierarchy(np.array([0, 1, 0]), 2)
    mean, sd = hierarchy.prior(ResponsePrior(), np.log([1.0, 2.0, 3.0]), np.full(3, 300.0))
    assert len(mean) == len(sd) == hierarchy.size
    assert np.exp(hierarchy.work(mean).log_time_s) == pytest.approx([1.0, 2.0, 3.0])
    assert hierarchy.work(mean).switching_w == pytest.approx(300.0)


def test_a_reading_changes_with_no_parameter_that_it_does_not_follow() -> None:
    hierarchy, curve = Hierarchy(np.array([0, 1, 0]), 2), np.array([0, 1, 2, 1])
    mean, _ = hierarchy.prior(ResponsePrior(), np.zeros(3), np.full(3, 300.0))
    x, limit_w = np.array([0.5, 0.8, 0.9, 1.0]), np.full(4, 250.0)
    at = mean + 0.1 * np.eye(hierarchy.size)
    arguments = [(hierarchy.shape(theta), constants_of_rows(hierarchy.work(theta), curve)) for theta in (mean, *at)]
    times, powers = (np.array([law(*one, x, limit_w) for one in arguments]) for law in (log_time_s, log_power_w))
    changed = (times[1:] != times[0]) | (powers[1:] != powers[0])
    followed = (hierarchy.depends_on(curve)[:, None, :] == np.arange(hierarchy.size)[:, None]).any(axis=0)
    assert changed.any(axis=1).sum() > len(hierarchy.kind_of)
    assert not (changed & ~followed).any()
