"""What tables of readings come to: units, errors, weights, what is known of a board, energy of all GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.physics.calibrate.law_fit import (
    Board,
    Estimate,
    Fit,
    Hierarchy,
    ResponsePrior,
    StageFit,
    _prior,
    board_of,
)
from jointopt.physics.calibrate.measured_pipelines import _rank_rows
from jointopt.physics.calibrate.profiles import (
    ExplainedFit,
    _weighed,
    calibration_of,
    fit_profiles,
    last_rows,
    mean_error_percent,
    rounded,
    spread_evenly,
)
from jointopt.physics.calibrate.stage_tables import ResponseTable, response_table

CLOCKS = np.array([1000.0, 900.0, 800.0, 700.0, 600.0, 500.0])
BOARD = Board("x", 1000.0, 10.0, ResponsePrior())


def sweep(**columns: object) -> pd.DataFrame:
    """A pass of 0.3 + 0.7/x s that draws 62 W and 300 W times x·v² of a knee at 0.75."""
    x = CLOCKS / 1000
    volt = 1 / 1.22 + (1 - 1 / 1.22) * np.maximum(x - 0.75, 0) / 0.25
    time = 0.3 + 0.7 / x
    table = {"clock_mhz": CLOCKS, "time_s": time, "energy_j": time * (62 + 300 * x * volt**2)}
    return pd.DataFrame(table | columns)


def test_the_mean_error_is_that_of_magnitudes() -> None:
    assert mean_error_percent(np.array([1.1, 0.7]), np.array([1.0, 1.0])) == pytest.approx(20.0)
    assert (rounded(1.23456), rounded(12345.678)) == (1.235, 12345.7)


def test_few_of_many_rows_are_spread_from_the_first_to_the_last() -> None:
    assert spread_evenly(np.arange(9), 3).tolist() == [0, 4, 8]
    assert spread_evenly(np.arange(9), 9).tolist() == list(range(9))


def test_the_tail_of_an_estimate_is_scaled_at_all_its_ends() -> None:
    found = last_rows(Estimate(*(np.array([1.0, 2.0, 3.0]) + k for k in (0, -1, 1))), 2, 4.0)
    assert [end.tolist() for end in (found.value, found.low, found.high)] == [[8, 12], [4, 8], [12, 16]]


@pytest.mark.parametrize(
    ("name", "figure", "width"),
    [("knee_fraction", 0.42, 1.0), ("static_w", 1.522, 1.522), ("voltage_ratio", 2.522, 1.522)],
)
def test_fits_are_weighed_by_how_sure_they_are(name: str, figure: float, width: float) -> None:
    # 0.4 ± 0.1 and 0.5 ± 0.2 weigh 4 to 1: 0.42, apart by 0.04, less than 1/√125 = 0.0894
    value, half = _weighed(name, np.array([[0.4, 0.1], [0.5, 0.2]]))
    assert value == pytest.approx(figure, rel=1e-3)
    assert half == pytest.approx(1.645 * np.sqrt(1 / 125) * width, rel=1e-3)


def test_fits_that_disagree_are_as_wide_as_they_lie_apart() -> None:
    # means 0 and 1 of equal weight lie half a unit from their mean
    assert _weighed("knee_fraction", np.array([[0.0, 0.1], [1.0, 0.1]])) == pytest.approx((0.5, 0.8225))


def test_a_gpu_that_the_catalogue_lacks_is_known_by_its_readings() -> None:
    # the strongest reading of 300 W is taken for 1/1.1 of what the board is rated for
    rows = pd.DataFrame({"clock_mhz": [1200.0, 900.0], "power_w": [300.0, 200.0]})
    board = board_of("no-such-gpu", ResponseTable("stages", rows))
    usual = ResponsePrior()
    assert board.max_clock_mhz == 1200.0
    assert board.prior.limit_w == pytest.approx(330.0)
    assert board.prior.static_w == pytest.approx(usual.static_w * 330 / usual.limit_w)
    assert board.prior.wait_w == pytest.approx(usual.wait_w * 330 / usual.limit_w)
    assert board.prior.limit_sd == 0.1


@pytest.mark.parametrize(("drawn", "limit", "sd"), [(405.0, 400.0, 0.03), (500.0, 515.0, 0.1)])
def test_a_board_that_draws_more_than_its_tdp_is_another_board(drawn: float, limit: float, sd: float) -> None:
    rows = pd.DataFrame({"clock_mhz": [1410.0], "power_w": [drawn]})
    found = board_of("a100-sxm4-80gb", ResponseTable("stages", rows)).prior
    assert (found.limit_w, found.limit_sd) == pytest.approx((limit, sd))
    assert (found.knee_sd, found.rise_sd, found.static_sd, found.wait_sd) == (0.01, 0.1, 0.08, 0.1)


def test_iterations_are_at_the_mean_of_their_clocks_and_per_gpu() -> None:
    table = pd.DataFrame({
        "forward_clock_mhz": [1400], "backward_clock_mhz": [1200], "iteration_time_s": [2.0], "energy_j": [900.0],
        "num_gpus": [4],
    })  # fmt: skip
    rows = response_table(table).rows
    assert rows["clock_mhz"].tolist() == [1300]
    assert rows["power_w"].tolist() == [112.5]


def test_a_rank_has_as_many_micro_batches_as_its_share_of_the_batch_holds() -> None:
    table = pd.DataFrame({
        "rank": [0], "forward_clock_mhz": [500], "backward_clock_mhz": [1000], "forward_time_s": [1.2],
        "backward_time_s": [2.4], "iteration_time_s": [5.0], "avg_power_w": [100.0], "global_batch_size": [48],
        "micro_batch_size": [2], "dp": [4],
    })  # fmt: skip
    rows = response_table(table).rows
    found = _rank_rows(rows, [("p",)], {0: 0}, 6, BOARD)
    assert rows["energy_j"].tolist() == [500.0]
    assert found.time_s.ravel().tolist() == pytest.approx([0.2, 0.4])
    assert found.x.ravel().tolist() == [0.5, 1.0]


def test_energy_of_an_iteration_is_power_times_time_of_all_gpus() -> None:
    whole = sweep(num_gpus=8).rename(columns={"time_s": "iteration_time_s"})
    table = response_table(whole)
    _, predicted = fit_profiles(table, table.rows.head(2), BOARD)
    each = predicted["predicted_avg_power_w"] * predicted["predicted_iteration_time_s"]
    assert predicted["predicted_energy_j"].to_numpy() == pytest.approx(8 * each.to_numpy())


def test_savings_are_over_the_maximum_clock() -> None:
    # from the law itself: the least energy lies at the knee, 750 MHz
    x = np.linspace(0.5, 1.0, 101)
    volt = 1 / 1.22 + (1 - 1 / 1.22) * np.maximum(x - 0.75, 0) / 0.25
    time = 0.3 + 0.7 / x
    saved = 100 * (1 - time * (62 + 300 * x * volt**2) / 362)
    fits, _ = fit_profiles(response_table(sweep()), response_table(sweep()).rows, BOARD)
    found = fits[0].savings[0]
    assert found["least_energy_clock_mhz"] == pytest.approx(1000 * x[saved.argmax()], abs=15)
    assert found["least_energy_saving_percent"] == pytest.approx(saved.max(), abs=0.5)
    for percent in (1, 5, 10):
        best = saved[time <= 1 + percent / 100].max()
        assert found[f"saving_percent_at_{percent}_percent_slowdown"] == pytest.approx(best, rel=0.05, abs=0.5)


@pytest.mark.parametrize(("sd", "stated"), [(0.079, True), (0.081, False)])
def test_a_board_limit_is_stated_where_readings_left_less_than_four_fifths_of_its_prior(
    sd: float, stated: bool
) -> None:
    # the prior of this board's limit has a deviation of 0.1
    board = Board("x", 1000.0, 10.0, ResponsePrior(limit_sd=0.1))
    none, one = Estimate(*[np.ones(1)] * 3), np.array([0])
    fitted = StageFit(Hierarchy(one, 1), np.log(np.full(16, 2.0)), np.full(16, sd), Fit(one, one), none, none, none)
    table = response_table(sweep())
    found = calibration_of(table, board, [ExplainedFit(fitted, CLOCKS / 1000, {"time": 1.0}, ["work"])])
    assert found.constants.board_limit_w == (2.0 if stated else None)
    assert found.constants.static_w == pytest.approx(2.0)
    assert found.plus_minus["static_w"] == pytest.approx(1.645 * sd * 2.0, rel=1e-3)


@pytest.mark.parametrize(("static", "known"), [(90.0, 90.0), (20.0, 70.0)])
def test_a_gpu_without_readings_draws_a_tenth_of_its_tdp_at_least(static: float, known: float) -> None:
    gpu = load_gpu("h100-sxm5-80gb")
    assert gpu.power is not None
    power = replace(gpu.power, static_w=static, wait_w=30.0)
    found = _prior(replace(gpu, tdp_w=700.0, power=power), 300.0)
    assert (found.static_w, found.wait_w) == pytest.approx((known, known))
    assert found.limit_w == pytest.approx(700.0)
    waiting = _prior(replace(gpu, tdp_w=700.0, power=replace(power, wait_w=150.0)), 300.0)
    assert waiting.wait_w == pytest.approx(1.2 * 150.0)  # at its top clock, where the catalogue has all clocks
