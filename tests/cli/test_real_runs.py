"""tune and validate over real trainings of a tiny model: two processes of torchrun on CPU cores.

With the stand-in for the driver's library GPUs are there whose clocks are locked and whose energy is measured.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import optuna
import psutil
import pytest
from click.testing import CliRunner, Result

from jointopt.cli.main import jointopt
from jointopt.measure.hardware import gpu_clocks
from jointopt.runs.store import Store

pytestmark = pytest.mark.usefixtures("torch")

JOB = """
model: {num_layers: 2, hidden_size: 64, ffn_hidden_size: 128, num_attention_heads: 4, num_query_groups: 4,
        vocab_size: 256, gated_mlp: true}
training: {seq_length: 32, global_batch_size: 8, dtype: fp32, attention: unfused, framework: torchtitan}
cluster: {gpu: cpu-core, nodes: 1, gpus_per_node: 2}
search: {cp: [1], vpp: [1], recompute: [none], zero_stage: [2], micro_batch_size: [4]}
objectives: [iteration_time_s]
"""
GPUS = JOB.replace("cpu-core", "h100-sxm5-80gb").replace("[iteration_time_s]", "[iteration_time_s, energy_j]")
GPUS = GPUS.replace("search: {", "search: {clock_mhz: {min: 990, max: 1980, step: 495}, ")
FEW = ("--launcher", "torchrun", "--iterations", "2", "--warmup-iterations", "1", "--json")
URL = "sqlite:///jointopt.db"


def run(*words: str) -> Result:
    return CliRunner().invoke(jointopt, list(words))


def test_tune_and_then_validate_from_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    tuned = run("tune", "job.yaml", *FEW, "--budget", "2")
    assert tuned.exit_code == 0, tuned.stderr
    document = json.loads(tuned.stdout)
    assert [entry["status"] for entry in document["measured"]] == ["ok", "ok"]
    validated = run("validate", "job.yaml", *FEW, "--top", "1", "--again")
    assert validated.exit_code == 0, validated.stderr
    (entry,) = json.loads(validated.stdout)["measured"]
    assert entry["iteration_time_s"] > 0
    assert entry["predicted_iteration_time_s_low"] < entry["predicted_iteration_time_s_high"]
    trials = optuna.load_study(study_name=document["study"], storage=URL).trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    assert len(Store(URL).read()) == 3


@pytest.fixture
def folder(driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a job whose two GPUs are stand-ins."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("job.yaml").write_text(GPUS)
    return tmp_path / "work"


def eventually(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.05)


def belonging_to(driver) -> list[psutil.Process]:
    """Processes that speak to these stand-in GPUs, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("STAND_IN_NVML") == str(driver.folder)
            if mine and process.status() != psutil.STATUS_ZOMBIE and process != psutil.Process():
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def training(driver) -> bool:
    return sum("jointopt.measure.trainer" in process.cmdline() for process in belonging_to(driver)) > 2


def test_tune_locks_the_clocks_of_each_plan_and_measures_its_energy(driver, folder: Path) -> None:
    tuned = run("tune", "job.yaml", *FEW, "--budget", "2")
    assert tuned.exit_code == 0, tuned.stderr
    document = json.loads(tuned.stdout)
    assert document["objectives"] == ["iteration_time_s", "energy_j"]
    expected = []
    for entry in document["measured"]:
        clock = round(entry["stage_clock_mhz"][0])
        watts = 90 + 600 * (clock / 1980) ** 3
        assert entry["avg_power_w"] == pytest.approx(watts, rel=0.1)
        assert entry["energy_j"] > 0
        expected += [f"lock {gpu} {clock}" for gpu in (0, 1)] + [f"reset {gpu} 1980" for gpu in (1, 0)]
    assert len(document["measured"]) == 2
    assert (driver.calls(), gpu_clocks.leftovers()) == (expected, [])
    study = optuna.load_study(study_name=document["study"], storage=URL)
    assert [len(trial.values) for trial in study.trials] == [2, 2]


def test_without_rights_nothing_runs_unless_clocks_are_left_to_the_driver(driver, folder: Path) -> None:
    driver.disturb("no-permission")
    refused = run("tune", "job.yaml", *FEW, "--budget", "1")
    assert (refused.exit_code, refused.stderr.count("Error: GPU 0 refuses to lock")) == (1, 1), refused.stderr
    assert "go on at default clocks with --default-clocks" in refused.stderr
    assert (driver.calls(), len(Store(URL).read())) == ([], 0)
    tuned = run("tune", "job.yaml", *FEW, "--budget", "1", "--default-clocks")
    assert tuned.exit_code == 0, tuned.stderr
    (row,) = Store(URL).read().to_dict("records")
    assert (row["stage_clock_mhz"], row["energy_j"] > 0) == ("1980", True)
    assert "at default clocks" in row["notes"]


def ended(driver, number: int, budget: int, runs: int) -> tuple[int, str]:
    """(exit status, stderr) of a tune that gets a signal in the last of so many runs, whose processes end with it."""
    command = [sys.executable, "-m", "jointopt", "tune", "job.yaml", *FEW, "--budget", str(budget)]
    tool = subprocess.Popen(command, env=driver.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    eventually(lambda: len([call for call in driver.calls() if "lock" in call]) == 2 * runs and training(driver))
    tool.send_signal(number)
    message = tool.communicate(timeout=60)[1].decode()
    eventually(lambda: not belonging_to(driver))
    return tool.returncode, message


def test_a_tune_that_is_terminated_reports_what_is_kept(driver, folder: Path) -> None:
    status, message = ended(driver, signal.SIGTERM, budget=1, runs=1)
    assert (status, "Ended by a signal: runs that had ended are kept" in message) == (143, True)
    assert (driver.held(), gpu_clocks.leftovers(), len(Store(URL).read())) == ({}, [], 0)


def test_a_tune_that_is_killed_mid_run_keeps_its_rows_and_goes_on(driver, folder: Path) -> None:
    assert ended(driver, signal.SIGKILL, budget=2, runs=2)[0] == -signal.SIGKILL
    assert (driver.held(), gpu_clocks.leftovers()) == ({}, [])
    assert list(Store(URL).read()["energy_j"].notna()) == [True]
    again = run("tune", "job.yaml", *FEW, "--budget", "2")
    assert again.exit_code == 0, again.stderr
    assert "Going on where a tune was stopped: 1 of 2 runs are spent" in again.stderr
    assert (driver.held(), gpu_clocks.leftovers()) == ({}, [])
    rows = Store(URL).read()
    assert len(rows) == len(rows.drop_duplicates(["dp", "tp", "pp", "stage_clock_mhz"])) == 2


def test_a_gpu_that_disappears_mid_run_costs_energy_and_the_runs_after_it_alone(driver, folder: Path) -> None:
    def lose() -> None:
        eventually(lambda: training(driver))
        driver.disturb("lost-1")

    threading.Thread(target=lose, daemon=True).start()
    tuned = run("tune", "job.yaml", *FEW, "--budget", "3")
    (row,) = Store(URL).read().to_dict("records")
    assert (row["status"], row["iteration_time_s"] > 0, row["energy_j"] == row["energy_j"]) == ("ok", True, False)
    assert "energy not measured: GPU 1 stopped answering" in row["notes"]
    assert "the clock of GPU 1 was not put back" in row["notes"]
    assert tuned.exit_code == 1
    assert "No further run could be started: GPU 1" in tuned.stderr
    assert driver.held().keys() == {1}
