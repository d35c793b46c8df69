"""How tables of profiles and ranks are read."""

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import TableError
from jointopt.physics.calibrate.stage_tables import check_results, response_table

PROFILE = pd.DataFrame(
    {"stage": 0, "instruction": "forward", "clock_mhz": [1410, 1095, 855], "time_s": [1.0, 1.2, 1.4], "energy_j": 300.0}
)


def test_the_names_that_zeus_writes_are_read() -> None:
    zeus = PROFILE.rename(columns={"clock_mhz": "Frequency", "time_s": "time", "energy_j": "energy"})
    read = response_table(zeus)
    assert read.kind == "stages"
    assert read.rows.power_w.tolist() == pytest.approx([300.0, 250.0, 300.0 / 1.4])


def test_milliseconds_and_millijoules_are_converted() -> None:
    read = response_table(pd.DataFrame({"clock_mhz": [1000], "time_ms": [20.0], "energy_mj": [6000.0]}))
    assert read.rows.power_w.tolist() == pytest.approx([300.0])


def test_iterations_and_ranks_are_distinguished_by_their_columns() -> None:
    iteration = pd.DataFrame({"clock_mhz": [1410], "iteration_time_s": [2.0], "energy_j": [900.0], "num_gpus": [4]})
    assert response_table(iteration).kind == "iterations"
    assert response_table(iteration).rows.power_w.tolist() == [112.5]
    assert response_table(iteration.assign(rank=0)).kind == "ranks"


def test_the_clock_of_an_iteration_is_the_stated_one_else_the_mean_of_its_passes() -> None:
    passes = pd.DataFrame({"forward_clock_mhz_mean": [1400.0], "backward_clock_mhz_mean": [1200.0],
                           "iteration_time_s": [2.0], "energy_j": [900.0]})  # fmt: skip
    assert response_table(passes).rows.clock_mhz.tolist() == [1300.0]
    assert response_table(passes.assign(clock_mhz=1410.0)).rows.clock_mhz.tolist() == [1410.0]
    limited = passes[["iteration_time_s", "energy_j"]].assign(power_limit_w=[300.0])
    assert response_table(limited).rows.clock_mhz.isna().all()


def test_what_a_table_of_ranks_leaves_blank_follows_from_its_other_columns() -> None:
    ranks = pd.DataFrame({"rank": [0], "clock_mhz": [1410.0], "iteration_time_s": [2.0], "avg_power_w": [300.0],
                          "forward_time_sum_s": [0.6], "backward_time_sum_s": [1.2], "global_batch_size": [64],
                          "micro_batch_size": [2], "dp": [4]})  # fmt: skip
    rows = response_table(ranks).rows.iloc[0]
    assert (rows.energy_j, rows.num_micro_batches) == (600.0, 8.0)
    assert rows.forward_clock_mhz_mean == rows.backward_clock_mhz_mean == 1410.0
    staged = ranks.rename(columns={"rank": "stage"}).assign(stage=[3])
    assert response_table(staged).rows["rank"].tolist() == [3]
    assert response_table(staged.assign(rank=[7])).rows["rank"].tolist() == [7]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (PROFILE.drop(columns="energy_j"), "lacks the column 'energy_j'"),
        (PROFILE.drop(columns="time_s"), "lacks the column 'time_s'"),
        (PROFILE.drop(columns="clock_mhz"), "lacks the column 'clock_mhz'"),
        (PROFILE.drop(columns="time_s").assign(iteration_time_s=1.0, rank=0), "'forward_time_sum_s'"),
        (
            PROFILE.assign(time_s=["1", "x", "2"]),
            "Row 2, column 'time_s': expected a finite number above 0 or a blank, got 'x'",
        ),
        (PROFILE.assign(energy_j=[300, -17, 300]), "Row 2, column 'energy_j': expected .* above 0 or a blank, got -17"),
        (PROFILE.assign(time_s=[1, np.inf, 1]), "Row 2, column 'time_s': expected a finite number"),
        (PROFILE.assign(clock_mhz=[1410, -5, 855]), "Row 2, column 'clock_mhz'"),
    ],
)
def test_what_a_table_lacks_is_named(table: pd.DataFrame, message: str) -> None:
    with pytest.raises(TableError, match=message):
        check_results(response_table(table))
