"""Which readings of a GPU are refused: those that it cannot have, with the unit that they are likely in."""

import numpy as np
import pandas as pd
import pytest

from jointopt.core.errors import TableError
from jointopt.physics.calibrate.stage_readings import check_query, check_readings
from jointopt.physics.calibrate.stage_tables import ResponseTable, response_table

PROFILE = pd.DataFrame({"stage": 0, "clock_mhz": [1410, 1095, 855], "time_s": 0.05, "energy_j": 15.0})
RANKS = pd.DataFrame({"rank": [0, 1], "clock_mhz": 1410, "iteration_time_s": 2.0, "energy_j": 600.0,
                      "forward_time_sum_s": 0.6, "backward_time_sum_s": 1.2})  # fmt: skip
ITERATIONS = pd.DataFrame({"clock_mhz": [1410], "iteration_time_s": 2.0, "energy_j": 2400.0, "num_gpus": 4})


def named(row: int) -> str:
    return f"row {row + 1} of p.csv"


def checked(table: pd.DataFrame, gpu: str = "a100-sxm4-80gb") -> ResponseTable:
    measured = response_table(table, named=named)
    check_readings(measured, gpu, named)
    return measured


@pytest.mark.parametrize("table", [PROFILE, RANKS, ITERATIONS, PROFILE.assign(clock_mhz=[1410.4, np.nan, 855])])
def test_readings_that_the_gpu_can_have_are_taken(table: pd.DataFrame) -> None:
    checked(table)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (PROFILE.assign(clock_mhz=[1.41, 1.1, 0.855]),
         r"^Row 1 of p.csv, column 'clock_mhz': expected a clock from 210 to 1410 MHz on this GPU, got 1.41 "
         r"\(MHz, not GHz\?\); correct the row or delete it.$"),
        (PROFILE.assign(clock_mhz=[1410, 3000, 855]), "Row 2 of p.csv, .*, got 3000; correct"),
        (PROFILE.assign(energy_j=1700), r"energy_j over time_s, .* from 31.06 to 600 W, got 34000 \(J, not mJ\?\)"),
        (PROFILE.assign(time_s=50), r"got 0.3 \(s, not ms\?\)"),
        (PROFILE.assign(energy_j=np.nan, avg_power_w=0.3), r"column 'avg_power_w': .* \(W, not kW\?\)"),
        (PROFILE.assign(power_limit_w=0.4), r"a power limit from 62.12 to 600 W, got 0.4 \(W, not kW\?\)"),
        (RANKS.assign(forward_time_sum_s=600), r"forward_time_sum_s over iteration_time_s .* \(s, not ms\?\)"),
        (RANKS.assign(energy_j=6e5), r"energy_j over iteration_time_s, .* \(J, not mJ\?\)"),
        (ITERATIONS.assign(num_gpus=1), "energy_j over iteration_time_s and num_gpus, .*, got 1200; correct"),
    ],
)  # fmt: skip
def test_a_reading_that_the_gpu_cannot_have_is_refused_with_the_unit_it_may_be_in(
    table: pd.DataFrame, message: str
) -> None:
    with pytest.raises(TableError, match=message):
        checked(table)


def test_a_gpu_that_no_catalogue_knows_has_no_clocks_in_ghz_and_no_34_kw() -> None:
    for wrong in (PROFILE.assign(clock_mhz=1.41), PROFILE.assign(energy_j=1700)):
        with pytest.raises(TableError, match=r"not GHz|not mJ"):
            checked(wrong, "my-gpu")


@pytest.mark.parametrize(("gpu", "top"), [("a100-sxm4-80gb", "1410 MHz on this GPU"), ("my-gpu", "1410 MHz, the high")])
def test_a_query_above_the_highest_clock_is_refused(gpu: str, top: str) -> None:
    query = response_table(PROFILE.assign(clock_mhz=[1410, 1500, 855])[["stage", "clock_mhz"]], "stages", named)
    with pytest.raises(TableError, match=f"Row 2 of p.csv, column 'clock_mhz': expected .* {top}.*, got 1500"):
        check_query(query, checked(PROFILE, gpu), gpu, named)


def test_query_rows_of_another_gpu_are_not_judged() -> None:
    query = PROFILE[["stage", "clock_mhz"]].assign(gpu="h100-sxm5-80gb", clock_mhz=1980)
    check_query(response_table(query, "stages", named), checked(PROFILE), "a100-sxm4-80gb", named)
