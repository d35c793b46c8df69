"""Stage profiles and ranks: how far the law may be off, first guesses, energy of a rank, schedules that scatter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.physics.calibrate.law_fit import (
    Estimate,
    Hierarchy,
    Prediction,
    ResponsePrior,
    StageRows,
    _first_guesses,
    _readings,
    error_correlation,
    fit_stages,
    interval,
    per_curve,
)
from jointopt.physics.calibrate.pipeline_fit import (
    RankRows,
    _energy_width,
    _iterations,
    _prior,
    _RankLaw,
    _schedules,
    _waits_s,
    _with_beyond,
    scattered_schedule_s,
)
from jointopt.physics.calibrate.pipeline_fit import _readings as rank_readings

NAN = np.nan
KNOWN = ResponsePrior(knee=0.6, rise=0.25, static_w=50.0, wait_w=80.0, limit_w=400.0)


def stage_rows(x: list[float], limit_w: list[float], curve: list[int], mixed: bool = False) -> StageRows:
    n = len(x)
    return StageRows(
        np.array(curve), np.array([0, 0]), np.array(x), np.array(limit_w), np.full(n, 2.0), np.full(n, 200.0), mixed
    )


def test_errors_of_the_law_are_alike_near_each_other_and_apart_under_a_limit() -> None:
    # Matérn at √3·ln(1/0.9)/0.1 and, between limits, √3·ln(300/250)/0.3
    near = error_correlation(np.array([1.0, 0.9, 1.0, 1.0]), np.array([NAN, NAN, 300.0, 250.0]))
    z, w = np.sqrt(3) * np.log(1 / 0.9) / 0.1, np.sqrt(3) * np.log(1.2) / 0.3
    assert near[0, 1] == pytest.approx((1 + z) * np.exp(-z))
    assert near[2, 3] == pytest.approx((1 + w) * np.exp(-w))
    assert near[0, 2] == 0.0


def test_time_and_power_depart_by_about_a_per_cent_more_so_far_from_the_top() -> None:
    # one curve 1.0 % and both curves 0.6 % in time, 0.8 % and 1.2 % in power; 5 % per unit of ln x in time
    found = _readings(stage_rows([0.5, 0.5], [NAN, NAN], [0, 1])).departure
    far = (0.05 * np.log(0.5)) ** 2
    assert found[:2, :2] == pytest.approx(np.array([[1.36e-4, 0.36e-4], [0.36e-4, 1.36e-4]]) + far)
    assert found[2:, 2:] == pytest.approx(np.array([[2.08e-4, 1.44e-4], [1.44e-4, 2.08e-4]]))
    assert (found[:2, 2:] == 0).all()


def test_under_a_limit_the_law_departs_by_one_and_a_half_per_cent() -> None:
    found = _readings(stage_rows([1.0, 1.0], [300.0, 300.0], [0, 1]))
    assert found.departure[:2, :2] == pytest.approx(0.015**2 * np.array([[1.5, 0.5], [0.5, 1.5]]))
    assert found.noise.tolist() == [0.015] * 4


@pytest.mark.parametrize(("mixed", "time"), [(False, [0.0025, 0.015]), (True, [0.04, 0.06])])
def test_noise_of_times_and_powers(mixed: bool, time: list[float]) -> None:
    found = _readings(stage_rows([1.0, 1.0], [NAN, 300.0], [0, 1], mixed))
    assert found.noise.tolist() == [*time, 0.008, 0.015]
    assert np.exp(found.value) == pytest.approx([2.0, 2.0, 200.0, 200.0])


def test_a_first_guess_takes_seven_tenths_of_the_time_to_follow_the_clock() -> None:
    rows = stage_rows([0.5, 1.0, 0.8], [NAN] * 3, [0, 0, 1])
    assert np.exp(_first_guesses(rows, KNOWN)[0]) == pytest.approx([2 * 0.5**0.7, 2 * 0.8**0.7])
    # (200 - 50) W over x·v²: 0.5·0.64 and 1 for the first curve, 0.8·0.81 for the second
    assert _first_guesses(rows, KNOWN)[1] == pytest.approx([150 * (1 / 0.32 + 1) / 2, 150 / 0.648])


def test_a_curve_without_readings_gets_the_mean_of_the_others() -> None:
    found = per_curve(np.array([1.0, 3.0, NAN, 8.0]), np.array([0, 0, 1, 2]), 3, np.nanmin)
    assert found.tolist() == [1.0, 4.5, 8.0]


def test_an_interval_is_symmetric_in_logarithms() -> None:
    found = interval(np.log(np.array([4.0])), np.log(np.array([2.0])))
    assert [float(end[0]) for end in (found.value, found.low, found.high)] == pytest.approx([4.0, 2.0, 8.0])


def test_energy_is_as_wide_as_time_and_power_together() -> None:
    rows = stage_rows([1.0, 0.8, 0.6], [NAN] * 3, [0, 0, 0])
    predicted = fit_stages(replace(rows, kind_of=np.array([0])), KNOWN)
    widths = [np.log(part.high / part.value) for part in (predicted.time, predicted.power, predicted.energy)]
    assert widths[2] == pytest.approx(np.hypot(widths[0], widths[1]))


def test_outside_of_the_clocks_read_each_interval_is_wider_by_five_per_cent_per_unit_of_log_x() -> None:
    rows = replace(stage_rows([1.0, 0.8, 0.5], [NAN] * 3, [0, 0, 0]), kind_of=np.array([0]))
    blank = np.array([1.0, 1.0, NAN])
    predicted = fit_stages(replace(rows, time_s=2.0 * blank, power_w=200.0 * blank), KNOWN)
    widths = [np.log(part.high / part.value)[2] for part in (predicted.time, predicted.power, predicted.energy)]
    assert widths[2] == pytest.approx(np.hypot(widths[0], widths[1]) + 0.05 * np.log(0.8 / 0.5))


def ranks(n: int = 1, **fields: object) -> RankRows:
    """``n`` rows of rank 0 at x = 0.8: a micro-batch of 0.1 + 0.2 s, four of them in 2 s, 500 J."""
    given: dict[str, object] = {
        "rank": np.zeros(n, np.int64), "plan": np.arange(n), "x": np.full((2, n), 0.8), "limit_w": np.full(n, NAN),
        "num_micro_batches": 4, "time_s": np.repeat([[0.1], [0.2]], n, axis=1), "iteration_s": np.full(n, 2.0),
        "energy_j": np.full(n, 500.0),
    }  # fmt: skip
    return RankRows(**(given | fields))  # type: ignore[arg-type]


def law_at(rows: RankRows) -> np.ndarray:
    """Times and energy where passes draw 60 and 50 W static and 200 and 300 W of switching, waiting 80 W at the top."""
    hierarchy = Hierarchy(np.array([0, 1]), 2)
    theta = np.concatenate([_prior(rows, hierarchy, KNOWN).mean[:13], np.zeros(10), np.log([80.0, 0.04])])
    theta[[5, 6, 8]] = 0.0, np.log(50.0), np.log(200.0)
    theta[11] = np.log(1.2)
    theta[16] = np.log(1.5)
    theta[13:15] = np.log([0.08, 0.16])
    return np.exp(_RankLaw(rows, hierarchy, rows.time_s, rows.iteration_s)(theta))


def test_energy_of_a_rank_is_waiting_and_both_passes() -> None:
    # of 2 s it is busy for 4·0.3 s; x·v² at 0.8 is 0.648; half of a pass's time follows the clock
    rows = ranks(x=np.full((2, 1), 0.8), limit_w=np.array([NAN]))
    forward_w, backward_w = 60 + 200 * 0.648, 50 + 300 * 0.648
    waiting_w = 50 + (80 - 50) * 0.648
    found = law_at(rows)
    assert found[2] == pytest.approx(waiting_w * 0.8 + 0.4 * forward_w + 0.8 * backward_w, rel=1e-5)
    assert found[:2] == pytest.approx(np.array([0.08, 0.16]) * (0.5 + 0.5 / 0.8), rel=1e-3)


def test_a_limit_that_does_not_bite_changes_neither_time_nor_energy() -> None:
    free, limited = (law_at(ranks(x=np.full((2, 1), 0.5), limit_w=np.array([watts]))) for watts in (NAN, 380.0))
    assert limited == pytest.approx(free, rel=1e-4)
    waiting_w, forward_w, backward_w = 50 + 30 * 0.32, 60 + 200 * 0.32, 50 + 300 * 0.32
    assert free[2] == pytest.approx(waiting_w * 0.8 + 0.4 * forward_w + 0.8 * backward_w, rel=1e-4)


def test_where_every_reading_is_limited_most_work_would_draw_the_limit_and_more() -> None:
    rows = ranks(limit_w=np.array([200.0]))
    mean = _prior(rows, Hierarchy(np.array([0, 1]), 2), KNOWN).mean
    assert np.exp(mean[8]) == pytest.approx(KNOWN.limit_w)


def test_those_behind_the_slowest_rank_wait_before_forward_passes_and_those_before_it_before_backward_ones() -> None:
    time_s = np.array([[0.1, 0.2, 0.1], [0.2, 0.3, 0.25]])
    rows = ranks(3, rank=np.arange(3), plan=np.zeros(3, np.int64), time_s=time_s)
    assert _waits_s(rows, time_s) == pytest.approx(np.array([[0.0, 0.0, 0.15], [0.2, 0.0, 0.0]]))


def test_first_guesses_of_a_rank_take_its_busy_power() -> None:
    # (500 - 80·0.8) J over 1.2 s, less 50 W static, over 0.648; half of the time follows the clock
    mean = _prior(ranks(), Hierarchy(np.array([0, 1]), 2), KNOWN).mean
    assert np.exp(mean[8]) == pytest.approx((436 / 1.2 - 50) / 0.648)
    assert np.exp(mean[13:15]) == pytest.approx(np.array([0.1, 0.2]) * 0.8**0.5)
    assert mean[-3:] == pytest.approx([0, np.log(80), np.log(0.03)])


@pytest.mark.parametrize(
    ("limit", "time", "energy", "noise"),
    [(NAN, (18e-6, 9e-6), (32e-6, 16e-6), (0.004, 0.006)), (300.0, (6e-4, 2e-4), (1.5e-4, 0.5e-4), (0.025, 0.01))],
)
def test_departures_and_noise_of_ranks(
    limit: float, time: tuple[float, float], energy: tuple[float, float], noise: tuple[float, float]
) -> None:
    rows = ranks(2, rank=np.array([0, 1]), limit_w=np.full(2, limit))
    found = rank_readings(rows)
    for block, (own, other) in zip((slice(0, 2), slice(2, 4), slice(4, 6)), (time, time, energy), strict=True):
        assert found.departure[block, block] == pytest.approx(np.array([[own, other], [other, own]]))
    assert found.noise.tolist() == [noise[0]] * 4 + [noise[1]] * 2


def test_a_pipeline_of_two_unequal_ranks_by_hand() -> None:
    # rank 0: F 0-1, F 1-2; rank 1: F 1-3, B 3-6, F 6-8, B 8-11; rank 0: B 6-8 and B 11-13
    found = scattered_schedule_s(np.array([[1.0, 2.0]]), np.array([[2.0, 3.0]]), 2, np.zeros((1, 2)))
    assert found.tolist() == [13.0]


def test_scattered_passes_are_log_normal_about_their_mean() -> None:
    z = np.random.default_rng(0).standard_normal(4)
    factors = np.exp(0.3 * z - 0.045)  # forward and backward of one rank in turn
    found = scattered_schedule_s(np.array([[1.0]]), np.array([[2.0]]), 2, np.array([[0.3]]))
    assert found == pytest.approx([factors[0] + 2 * factors[1] + factors[2] + 2 * factors[3]])


def test_a_pass_that_a_limit_slows_scatters_in_proportion() -> None:
    # full scatter, 12 %, from 15 % in the logarithm; half of it here
    slow = np.exp(0.075)
    rows = ranks(limit_w=np.array([300.0]))
    found = _schedules(rows, np.array([0]), slow * np.array([[0.1], [0.2]]), np.array([0.1, 0.2]), 0.12)
    one = slow * np.array([[0.1]]), slow * np.array([[0.2]])
    assert found == pytest.approx(scattered_schedule_s(*one, 4, np.array([[0.06]])))


def test_without_a_measured_iteration_two_per_cent_lie_beyond_the_schedule() -> None:
    value, sd = _with_beyond(np.array([3.0]), np.array([-np.inf]), np.array([False]))
    assert value.tolist() == pytest.approx([3.06])
    assert sd.tolist() == [0.02]


def test_what_lies_beyond_is_the_median_and_nine_tenths_of_what_a_plan_departs_from_it() -> None:
    # beyond: 0.1 and 0.3 s; 0.006² / (0.006² + 0.002²) = 0.9 of a plan's own departure is kept
    scheduled, measured = np.array([1.0, 10.0, 1000.0]), np.array([1.1, 10.3, -np.inf])
    value, sd = _with_beyond(scheduled, measured, np.zeros(3, bool))
    assert value == pytest.approx([1.2 - 0.9 * 0.1, 10.2 + 0.9 * 0.1, 1000.2])
    assert sd == pytest.approx([0.006 * np.sqrt(0.1)] * 2 + [0.006])


def prediction(n: int) -> Prediction:
    return Prediction(np.log(np.full(3 * n, 500.0)), np.full(3 * n, 0.01), 1.7, np.zeros(1))


@pytest.mark.parametrize(("limit", "late_w"), [(NAN, 80.0), (300.0, 0.5 * (80 + 500 / 2))])
def test_energy_is_as_unsure_as_law_waiting_and_unmeasured_passes(limit: float, late_w: float) -> None:
    # passes of 0.4 + 0.8 s, unknown to 1.7 %, draw 500/1.2 - 80 W above waiting; the iteration may take 0.1 s longer
    unknown = ranks(limit_w=np.array([limit]), time_s=np.full((2, 1), NAN))
    law = _RankLaw(unknown, Hierarchy(np.array([0, 1]), 2), np.array([[0.1], [0.2]]), np.array([2.0]))
    iteration = Estimate(np.array([2.0]), np.array([1.9]), np.array([2.1]))
    found = _energy_width(law, np.array([80.0]), prediction(1), prediction(1), iteration)
    passes = 0.017 * 1.2 * (500 / 1.2 - 80) / 500
    assert found == pytest.approx([np.sqrt(0.017**2 + (late_w * 0.1 / 500) ** 2 + passes**2)])


@pytest.mark.parametrize(("limit", "floor", "beyond"), [(NAN, 0.002, 0.006 * np.sqrt(0.1)), (300.0, 0.035, 0.006)])
def test_an_iteration_is_as_unsure_as_its_slowest_rank_and_what_lies_beyond(
    limit: float, floor: float, beyond: float
) -> None:
    # two ranks of 0.1 + 0.2 s: (4 + 2 - 1)·0.3 = 1.5 s; of the second plan pass times are unsure by 1 % and 3 %
    second = np.array([np.nan, np.nan])
    rows = ranks(
        4, rank=np.array([0, 1, 0, 1]), plan=np.array([0, 0, 1, 1]), limit_w=np.array([NAN, NAN, limit, limit]),
        time_s=np.array([[0.1, 0.1, *second], [0.2, 0.2, *second]]), iteration_s=np.array([2.0, 2.0, *second]),
    )  # fmt: skip
    times = np.repeat([[0.1], [0.2]], 4, axis=1)
    predicted = replace(prediction(4), sd=np.tile([0.01, 0.03], 6))
    found = _iterations(rows, times, predicted, np.array([0.1, 0.1, 0.2, 0.2]), 0.0)
    width = np.log(found.high / found.value)
    assert found.value == pytest.approx([2.0] * 4)
    assert width[:2] == pytest.approx([1.7 * 0.001] * 2)
    assert width[2:] == pytest.approx([1.7 * np.sqrt(floor**2 + beyond**2 + 0.03**2)] * 2)
