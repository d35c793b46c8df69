"""What the meters of several nodes wrote, as one row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import LauncherError
from jointopt.measure.hardware.conditions import check_settable, with_readings, write_plan
from jointopt.measure.hardware.gpu_clocks import Setting, plan_settings
from jointopt.runs.readings import Series
from jointopt.runs.rows import result_row
from jointopt.workflows.plan_files import read_plan_file

PLAN: dict[str, Any] = {"dp": 2, "tp": 1, "pp": 2, "cp": 1}


def write_series(folder: Path, node: int, watts: float, clock_mhz: float) -> None:
    """Two GPUs that draw the same power for 20 s."""
    time_s = 1000.0 + np.arange(0, 20.1, 0.1)
    both = np.ones((len(time_s), 2))
    energy = watts * (time_s - time_s[0])[:, np.newaxis] * both
    series = Series(("a", "b"), time_s, energy, watts * both, 60.0 * both, both, clock_mhz * both)
    series.write(folder / f"reading-{node}.json")


def row(**values: Any) -> dict[str, Any]:
    return result_row("") | {"iteration_time_s": 1.0, "measured_s": [1005.0, 1015.0], "iterations": 10} | values


def test_nodes_read_the_power_profile_of_the_plan_as_it_was_written(tmp_path: Path) -> None:
    write_plan(PLAN | {"stage_clock_mhz": [1410.0, 1200.0], "power_profile": "max-q"}, tmp_path)
    read = read_plan_file(tmp_path / "plan.json")
    assert plan_settings(read) == [Setting(gpu, profiles=("max-q",)) for gpu in range(4)]


def test_energy_of_several_nodes_adds_up_and_the_hottest_counts(tmp_path: Path) -> None:
    write_series(tmp_path, 0, 300.0, 1400.0)
    write_series(tmp_path, 1, 500.0, 1200.0)
    found = with_readings(row(), PLAN, 2, tmp_path, False)
    assert found["energy_j"] == pytest.approx(2 * (300 + 500))
    assert found["avg_power_w"] == pytest.approx(400)
    assert (found["peak_power_w"], found["temperature_c"]) == (500.0, 60.0)
    assert not {"measured_s", "iterations"} & set(found)


def test_a_window_without_a_number_of_iterations_is_one_iteration(tmp_path: Path) -> None:
    write_series(tmp_path, 0, 300.0, 1400.0)
    once = {name: value for name, value in row().items() if name != "iterations"}
    assert with_readings(once, PLAN | {"pp": 1}, 1, tmp_path, False)["energy_j"] == pytest.approx(2 * 300 * 10)


def test_one_node_without_a_meter_leaves_the_sum_unknown(tmp_path: Path) -> None:
    write_series(tmp_path, 0, 300.0, 1400.0)
    found = with_readings(row(), PLAN, 2, tmp_path, False)
    assert np.isnan(found["energy_j"])
    assert found["notes"] == "energy not measured: node 1: its meter wrote nothing"


def test_energy_that_the_program_measured_itself_stays(tmp_path: Path) -> None:
    write_series(tmp_path, 0, 300.0, 1400.0)
    assert with_readings(row(energy_j=7.0), PLAN, 1, tmp_path, False)["energy_j"] == 7.0


def test_clocks_left_to_the_driver_are_those_that_were_measured(tmp_path: Path) -> None:
    write_series(tmp_path, 0, 300.0, 1400.0)
    write_series(tmp_path, 1, 300.0, 1200.0)
    found = with_readings(row(), PLAN, 2, tmp_path, True)
    assert found["stage_clock_mhz"] == [1400.0, 1200.0]
    assert found["notes"] == "at default clocks"


def test_a_stage_of_a_gpu_without_a_clock_leaves_the_clocks_unknown(tmp_path: Path) -> None:
    write_series(tmp_path, 0, 300.0, 1400.0)
    write_series(tmp_path, 1, 300.0, np.nan)
    assert with_readings(row(), PLAN, 2, tmp_path, True)["stage_clock_mhz"] is None


def test_gpus_that_cannot_be_set_are_distinguished_from_a_program_that_fails(tmp_path: Path) -> None:
    log = "Error: Clocks need administrator rights.\nsrun: error: n0: task 0: Exited with exit code 1"
    with pytest.raises(LauncherError, match="On a node: Clocks need administrator rights"):
        check_settable(tmp_path, 1, log)
    write_series(tmp_path, 0, 300.0, 1400.0)
    check_settable(tmp_path, 1, log)


def test_a_plan_of_a_table_is_written_as_exec_reads_it(tmp_path: Path) -> None:
    cells = {
        "pp": np.int64(2),
        "stage_clock_mhz": "1410;1200",
        "sequence_parallel": np.bool_(True),
        "recompute": "none",
    }
    write_plan(PLAN | cells | {"power_limit_w": float("nan"), "gpu": "x"}, tmp_path)
    written = json.loads((tmp_path / "plan.json").read_text())
    assert written == PLAN | {"stage_clock_mhz": [1410.0, 1200.0], "sequence_parallel": True, "recompute": "none"}


def test_a_gpu_of_another_node_that_did_not_hold_its_clock_is_reported(tmp_path: Path) -> None:
    write_series(tmp_path, 0, 300.0, 1400.0)
    write_series(tmp_path, 1, 300.0, 900.0)
    found = with_readings(row(), PLAN | {"stage_clock_mhz": [1400.0, 1200.0]}, 2, tmp_path, False)
    assert found["notes"] == "GPU 2 ran at 900 MHz of 1200; GPU 3 ran at 900 MHz of 1200"


@pytest.mark.parametrize(("ran_mhz", "reported"), [(1170.0, False), (1155.0, True)])
def test_a_gpu_that_ran_below_97_per_cent_of_its_clock_is_reported(
    tmp_path: Path, ran_mhz: float, reported: bool
) -> None:
    write_series(tmp_path, 0, 300.0, 1400.0)
    write_series(tmp_path, 1, 300.0, ran_mhz)
    found = with_readings(row(), PLAN | {"stage_clock_mhz": [1400.0, 1200.0]}, 2, tmp_path, False)
    assert (f"ran at {ran_mhz:.0f} MHz of 1200" in found["notes"]) == reported


def test_a_stage_at_clocks_of_the_driver_ran_at_the_mean_of_its_gpus(tmp_path: Path) -> None:
    write_series(tmp_path, 0, 300.0, 1400.0)
    write_series(tmp_path, 1, 300.0, 1000.0)
    found = with_readings(row(), PLAN | {"dp": 4, "pp": 1}, 2, tmp_path, True)
    assert found["stage_clock_mhz"] == [1200.0]
