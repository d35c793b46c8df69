"""The measured law of time and power over clock and limit, and what it takes for granted before any reading."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.physics.calibrate.law_fit import Hierarchy, ResponsePrior, matern
from jointopt.physics.clock_law import (
    CurveConstants,
    GpuConstants,
    lagged_limit,
    lead_s,
    log_power_w,
    log_time_s,
    reached_clock,
    switching_shape,
)

# V is 1 / 1.25 = 0.8 up to x = 0.6 and 0.9 at 0.8; at the top 50 + 300 W.
SHARP = GpuConstants(knee=0.6, rise=0.25, softness=1e-4, floor=0.3, idle_w=40.0)
WORK = CurveConstants(np.log(np.array(2.0)), np.array(0.7), np.array(50.0), np.array(300.0), np.array(1.0))
FREE = np.array(5000.0)


@pytest.mark.parametrize(("x", "shape"), [(0.3, 0.3 * 0.64), (0.6, 0.6 * 0.64), (0.8, 0.8 * 0.81), (1.0, 1.0)])
def test_switching_power_over_that_at_the_top(x: float, shape: float) -> None:
    assert float(switching_shape(np.array(x), 0.6, 0.25)) == pytest.approx(shape)
    assert float(np.exp(log_power_w(SHARP, WORK, np.array(x), FREE))) == pytest.approx(50 + 300 * shape)


@pytest.mark.parametrize("x", [0.4, 0.8, 1.0])
def test_time_is_t0_and_t1_over_the_clock(x: float) -> None:
    found = np.exp(log_time_s(SHARP, WORK, np.array(x), FREE))
    assert float(found) == pytest.approx(2.0 * (0.3 + 0.7 / x), rel=1e-4)


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_a_limit_at_the_power_of_a_clock_holds_that_clock(factor: float) -> None:
    # at x = 0.8 the work draws 50 + 300·0.648 = 244.4 W
    limit = np.array(244.4 / factor)
    work = replace(WORK, limit_factor=np.array(factor))
    assert float(reached_clock(SHARP, work, np.array(1.0), limit)) == pytest.approx(0.8, rel=1e-3)
    assert float(np.exp(log_power_w(SHARP, work, np.array(1.0), limit))) == pytest.approx(244.4)
    time = np.exp(log_time_s(SHARP, work, np.array(1.0), limit))
    assert float(time) == pytest.approx(2.0 * (0.3 + 0.7 / 0.8), rel=1e-3)


def test_the_corner_at_the_limit_is_as_wide_as_the_softness() -> None:
    # where both meet, a soft minimum lies ln 2 widths below; power's corner is half as wide
    soft = replace(SHARP, softness=0.02)
    at, limit = np.array(0.8), np.array(244.4)
    assert float(reached_clock(soft, WORK, at, limit)) == pytest.approx(0.8 - 0.02 * np.log(2), rel=1e-3)
    found = float(log_power_w(soft, WORK, at, limit))
    assert found == pytest.approx(np.log(244.4) - 0.01 * np.log(2), rel=1e-6)


@pytest.mark.parametrize(("ceiling", "reached"), [(0.02, 0.3), (0.3, 0.3 + 0.015 * np.log(2))])
def test_a_limited_gpu_stays_at_its_floor(ceiling: float, reached: float) -> None:
    limit = np.array(50 + 300 * ceiling * 0.64)
    assert float(reached_clock(SHARP, WORK, np.array(1.0), limit)) == pytest.approx(reached, rel=2e-3)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_at_its_floor_a_gpu_pauses_at_idle_power(ratio: float) -> None:
    # at x = 0.3 it draws 50 + 300·0.192 = 107.6 W, which are 67.6 W above idle; the corner is 0.03 wide
    limit = np.array(40 + 67.6 / ratio)
    low = replace(SHARP, lowest=0.02)
    running = 2.0 * (0.3 + 0.7 / float(reached_clock(low, WORK, np.array(1.0), limit)))
    found = float(np.exp(log_time_s(low, WORK, np.array(1.0), limit)))
    assert found / running == pytest.approx((1 + ratio ** (1 / 0.03)) ** 0.03, rel=1e-6)


def test_a_limit_that_comes_late_lets_work_run_free_for_a_while() -> None:
    # after 50 ms, two ramps of 25 ms, 86 % of the lag of 40 ms; of 100 ms at 300 W and held 200 ms at 150 W
    ahead_s = lead_s(0.04, np.array([0.05]))
    assert ahead_s == pytest.approx([0.04 * (1 - np.exp(-2))])
    seconds, watts = lagged_limit(np.array([[0.1], [300.0]]), np.array([[0.2], [150.0]]), ahead_s)
    held_s = (1 - ahead_s / 0.1) * 0.2
    assert seconds == pytest.approx(ahead_s + held_s)
    assert watts == pytest.approx((300 * ahead_s + 150 * held_s) / (ahead_s + held_s))


def test_a_matern_correlation_of_order_three_halves() -> None:
    # Rasmussen and Williams 2006, equation 4.17: (1 + √3 r/l)·exp(-√3 r/l)
    assert matern(np.array([0.0, 0.2]), 0.2) == pytest.approx([1.0, 0.48335772], rel=1e-6)


def test_parameters_of_gpu_kind_and_curve_make_the_constants_of_a_curve() -> None:
    # nine of the GPU; share and static of two kinds; time, switching, share, static and limit of three curves
    theta = np.zeros(9 + 2 * 2 + 5 * 3)
    theta[[0, 1, 2, 3, 4]] = 0.7, np.log(0.25), np.log(0.02), np.log(0.3), np.log(40)
    theta[[5, 6, 7, 8]] = 0.5, np.log(60), np.log(400), np.log(300)
    theta[[10, 12]] = 0.25, np.log(1.5)  # of the second kind
    theta[13:] = np.repeat([np.log(2), np.log(1.2), 0.1, np.log(1.1), np.log(0.9)], 3)
    hierarchy = Hierarchy(np.array([0, 1, 0]), 2)
    work = hierarchy.work(theta)
    assert hierarchy.shape(theta) == GpuConstants(*map(pytest.approx, (0.7, 0.25, 0.02, 0.3, 40.0)))
    assert hierarchy.limit_w(theta) == pytest.approx(400)
    assert np.exp(work.log_time_s).tolist() == pytest.approx([2.0] * 3)
    assert work.share.tolist() == pytest.approx([1 / (1 + np.exp(-s)) for s in (0.6, 0.85, 0.6)])
    assert work.static_w.tolist() == pytest.approx([66, 99, 66])
    assert work.switching_w.tolist() == pytest.approx([360] * 3)
    assert work.limit_factor.tolist() == pytest.approx([0.9] * 3)


def test_the_prior_of_a_gpu_is_what_is_known_of_it() -> None:
    known = ResponsePrior(knee=0.7, rise=0.25, static_w=60.0, pause_w=72.0, limit_w=400.0)
    mean, _ = Hierarchy(np.array([0, 1]), 2).prior(known, np.log([2.0, 3.0]), np.array([200.0, 300.0]))
    assert mean[0] == 0.7
    assert np.exp(mean[[1, 2, 3, 4, 6, 7, 8]]) == pytest.approx([0.25, 0.025, 0.92 * 0.7, 72, 60, 400, 250])
    assert np.exp(mean[13:15]) == pytest.approx([2, 3])
    assert (mean[9:13] == 0).all()
    assert (mean[15:] == 0).all()


def test_a_prior_is_as_sure_as_the_known_figures_and_narrow_in_curves() -> None:
    known = ResponsePrior(knee_sd=0.01, rise_sd=0.02, static_sd=0.03, limit_sd=0.04)
    _, sd = Hierarchy(np.array([0]), 1).prior(known, np.zeros(1), np.ones(1), 0.06)
    assert sd[[0, 1, 6, 7]].tolist() == [0.01, 0.02, 0.03, 0.04]
    # half widths at 90 %: a curve's time within a factor 3.2, its static power within 3 %
    assert np.exp(1.645 * sd[[11, 14]]) == pytest.approx([3.16, 1.033], rel=0.01)
    assert sd[15] == 0.06
