"""Which rows are of one piece of work, one stage, one plan."""

import pandas as pd
import pytest

from jointopt.physics.calibrate.stage_tables import (
    keys_of,
    plan_keys,
    response_table,
    stage_blocks,
    unlabelled_stages,
    work_columns,
)


def test_sweeps_that_follow_each_other_are_stages_of_their_own() -> None:
    clocks = [1410, 1095, 855] * 2
    rows = pd.DataFrame({"instruction": "forward", "clock_mhz": clocks, "time_s": [1.0, 1.2, 1.4] * 2})
    rows = response_table(rows.assign(energy_j=300.0)).rows
    assert stage_blocks(rows, keys_of(rows, ["instruction"])).tolist() == [0, 0, 0, 1, 1, 1]


def test_without_a_plan_column_a_rank_that_comes_again_begins_the_next_iteration() -> None:
    rows = pd.DataFrame({"rank": [0, 1, 0, 1]})
    assert plan_keys(rows) == [("0",), ("0",), ("1",), ("1",)]


def test_equal_plans_of_two_pipelines_are_two_iterations() -> None:
    rows = pd.DataFrame({"model": ["a", "b", "a", "b", "b"], "plan": 3, "rank": [0, 0, 1, 1, 2]})
    keys = plan_keys(rows)
    assert keys[0] == keys[2] != keys[1] == keys[3] == keys[4]


def test_numbers_are_keys_however_they_are_spelled() -> None:
    assert keys_of(pd.DataFrame({"stage": [1.0]}), ["stage"]) == keys_of(pd.DataFrame({"stage": ["1"]}), ["stage"])


@pytest.mark.parametrize(("second", "several"), [(1.01, False), (1.014, False), (1.016, True), (1.2, True)])
def test_readings_of_one_clock_that_differ_by_more_than_1_5_percent_are_of_several_stages(second, several) -> None:
    rows = pd.DataFrame({"clock_mhz": [1410, 1410, 855, 855], "time_s": [1.0, second, 2.0 * second, 2.0]})
    rows = response_table(rows.assign(instruction="forward", energy_j=300.0)).rows
    keys = keys_of(rows, ["instruction"])
    assert unlabelled_stages(rows, keys, rows, keys) == several


def test_work_differs_by_the_columns_that_both_tables_have() -> None:
    cells = {"model": ["gpt"], "tp": [2], "time_s": [1.0]}
    measured = pd.DataFrame(cells | {"micro_batch_size": [4], "dtype": ["fp16"]})
    queried = pd.DataFrame(cells | {"dtype": ["bf16"], "num_layers": [24], "method": ["plan"]})
    assert work_columns(measured, queried) == ["model", "tp", "dtype"]


@pytest.mark.parametrize(("of_measured", "of_queried", "several"), [(2, 2, True), (1, 1, False), (2, 3, False)])
def test_tables_that_both_run_through_the_clocks_twice_are_of_two_stages(of_measured, of_queried, several) -> None:
    # no clock is read twice
    tables = []
    for count in (of_measured, of_queried):
        clocks = [clock - 15 * sweep for sweep in range(count) for clock in (1410, 1110, 810)]
        table = pd.DataFrame({"clock_mhz": clocks, "time_s": [1e3 / clock for clock in clocks]})
        rows = response_table(table.assign(instruction="forward", energy_j=300.0)).rows
        tables += [rows, keys_of(rows, ["instruction"])]
    assert unlabelled_stages(*tables) == several
