"""Parts of a calibration that a good fit hides, each alone."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from jointopt.physics.calibrate.law_fit import (
    Board,
    Estimate,
    Fit,
    Hierarchy,
    Readings,
    ResponsePrior,
    StageFit,
    _covariance,
    board_of,
)
from jointopt.physics.calibrate.measured_pipelines import _whole_plans, fit_pipelines
from jointopt.physics.calibrate.pipeline_fit import _prior, _RankLaw
from jointopt.physics.calibrate.profiles import (
    NOT_PREDICTED,
    ExplainedFit,
    _keys,
    _listed,
    calibration_of,
    fit_profiles,
)
from jointopt.physics.calibrate.stage_tables import ResponseTable, response_table
from tests.physics.calibrate.test_by_hand import BOARD, sweep
from tests.physics.calibrate.test_pipeline_fit import MICRO_BATCHES, PLANS, hidden, measured


def test_of_many_values_the_ends_and_the_quartiles_are_listed() -> None:
    assert _listed(np.arange(40.0)) == list(range(40))
    assert _listed(np.arange(41.0)) == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_a_gpu_before_any_reading_has_this_prior() -> None:
    # relative deviations but for the knee, which is a fraction of the maximum clock
    known = asdict(ResponsePrior())
    sure = {"knee_sd": 0.05, "rise_sd": 0.35, "static_sd": 0.2, "wait_sd": 0.15, "limit_sd": 0.12, "scatter": 0.05}
    values = {"knee": 0.75, "rise": 0.22, "static_w": 62.0, "wait_w": 100.0, "pause_w": 75.0, "limit_w": 400.0}
    assert known == sure | values | {"lowest": 0.12}


def test_kinds_of_work_differ_by_a_factor_of_two_in_their_share_and_by_5_percent_in_static_power() -> None:
    _, sd = Hierarchy(np.array([0, 1]), 2).prior(ResponsePrior(), np.zeros(2), np.ones(2))
    assert sd[9:13].tolist() == [0.4, 0.4, 0.03, 0.03]
    assert sd[13:].tolist() == [0.7, 0.7, 0.15, 0.15, 0.25, 0.25, 0.02, 0.02, 0.02, 0.02]


@pytest.mark.parametrize(("gpu", "seen", "top"), [("a100-sxm4-80gb", 1200.0, 1410.0), ("no-such-gpu", 1200.0, 1200.0)])
def test_the_highest_clock_is_the_catalogue_s_else_that_of_the_readings(gpu: str, seen: float, top: float) -> None:
    rows = pd.DataFrame({"clock_mhz": [seen, 900.0], "power_w": [300.0, 200.0]})
    assert board_of(gpu, ResponseTable("stages", rows)).max_clock_mhz == top


def test_known_readings_vary_by_the_law_s_own_error_and_by_noise_over_their_weight() -> None:
    departure = np.array([[0.4, 0.1, 0.2], [0.1, 0.5, 0.3], [0.2, 0.3, 0.6]])
    readings = Readings(np.array([1.0, np.nan, 2.0]), departure, np.array([0.1, 0.2, 0.3]))
    found = _covariance(readings, np.array([1.0, 1.0, 0.5]))
    assert found == pytest.approx(np.array([[0.4 + 0.01, 0.2], [0.2, 0.6 + 0.18]]))


def test_a_calibration_states_each_figure_from_its_own_place() -> None:
    none, one = Estimate(*[np.ones(1)] * 3), np.array([0])
    theta = np.log(np.arange(2.0, 18.0))
    theta[0] = 0.7
    fitted = StageFit(Hierarchy(one, 1), theta, np.full(16, 0.01), Fit(one, one), none, none, none)
    board = Board("x", 1000.0, 10.0, ResponsePrior(limit_sd=0.1))
    found = calibration_of(response_table(sweep()), board, [ExplainedFit(fitted, np.ones(1), {"time": 1.0}, ["work"])])
    stated = found.constants
    figures = (stated.knee_fraction, stated.voltage_ratio, stated.static_w, stated.board_limit_w)
    assert figures == pytest.approx((0.7, 1.0 + 3.0, 8.0, 9.0), rel=1e-3)


def test_a_row_without_clock_and_limit_is_not_predicted_with_the_reason_stated() -> None:
    table = response_table(sweep())
    queried = table.rows.head(3).assign(clock_mhz=[1000.0, np.nan, 900.0], power_limit_w=np.nan)
    _, found = fit_profiles(table, queried, BOARD)
    assert found["predicted_time_s"].isna().tolist() == [False, True, False]
    assert found[NOT_PREDICTED].tolist() == ["", "clock_mhz and power_limit_w are blank", ""]


@pytest.mark.parametrize(("columns", "stages"), [(["stage"], 2), ([], 1)])
def test_stages_are_curves_of_their_own_where_both_tables_name_them(columns: list[str], stages: int) -> None:
    table = response_table(pd.concat([sweep(stage=0), sweep(stage=1)], ignore_index=True)).rows
    for queried in (table[["clock_mhz", "power_limit_w", "instruction", *columns]], table.iloc[:0]):
        keys, wanted = _keys(table, queried)
        kinds = len({key[:-1] for key in keys} | {key[-1] for key in keys} - {"profile 1", "profile 2"})
        assert len({"stage" in table and key[0] for key in keys}) == (stages if len(queried) else 2), kinds
        assert len(wanted) == len(queried)


def test_known_times_of_passes_stay_and_the_others_settle_at_those_of_the_law() -> None:
    rows = hidden(measured(PLANS), 4)
    hierarchy = Hierarchy(np.repeat([0, 1], 2), 2)
    theta = _prior(rows, hierarchy, ResponsePrior(limit_w=400.0)).mean
    law = _RankLaw(rows, hierarchy, rows.time_s, np.nan_to_num(rows.iteration_s)).with_own_times(theta)
    out = rows.plan == 4
    assert (law.time_s[:, ~out] == rows.time_s[:, ~out]).all()
    assert law.time_s[:, out] == pytest.approx(law.passes(theta)[0][:, out], rel=1e-3)


def ranks() -> pd.DataFrame:
    rows = measured(PLANS)
    return pd.DataFrame({
        "rank": rows.rank, "forward_clock_mhz": 1000 * rows.x[0], "backward_clock_mhz": 1000 * rows.x[1],
        "forward_time_s": MICRO_BATCHES * rows.time_s[0], "backward_time_s": MICRO_BATCHES * rows.time_s[1],
        "iteration_time_s": rows.iteration_s, "avg_power_w": rows.energy_j / rows.iteration_s, "plan": rows.plan,
        "num_micro_batches": MICRO_BATCHES,
    })  # fmt: skip


def test_plans_that_are_queried_together_are_predicted_as_each_alone() -> None:
    table = response_table(ranks())
    names = ["predicted_iteration_time_s", "predicted_energy_j"]
    blank = ["forward_time_sum_s", "backward_time_sum_s", "iteration_time_s", "energy_j"]
    lower = table.rows.assign(**dict.fromkeys(blank, np.nan))
    lower["forward_clock_mhz_mean"] *= 0.95
    both, first, second = (fit_pipelines(table, lower.iloc[at], BOARD)[1][names] for at in
                           (slice(2, 6), slice(2, 4), slice(4, 6)))  # fmt: skip
    assert both.to_numpy() == pytest.approx(pd.concat([first, second]).to_numpy(), rel=5e-3)


def test_a_rank_that_was_not_measured_is_not_predicted_with_the_reason_stated() -> None:
    table = response_table(ranks())
    _, found = fit_pipelines(table, table.rows.head(2).assign(rank=[0, 7]), BOARD)
    assert found[NOT_PREDICTED].tolist() == ["", "no reading of that rank: measured are 0, 1"]


def test_rows_are_predicted_plan_by_plan_whole_and_each_once() -> None:
    plans = [(str(i % 300),) for i in range(900)]
    blocks = list(_whole_plans(plans))
    assert sorted(np.concatenate(blocks).tolist()) == list(range(900))
    assert len(blocks) > 1
    assert sum(len({plans[i] for i in block}) for block in blocks) == 300
