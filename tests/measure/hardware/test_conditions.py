"""Runs on GPUs: at the clocks of their plan, with their energy; stand-in GPUs, real trainings on CPU."""

from __future__ import annotations

import math
import os

import psutil
import pytest

from jointopt.core.errors import DevicePermissionError, PlanError
from jointopt.jobs.cluster import Cluster
from jointopt.jobs.job import Job, Training
from jointopt.jobs.model import Model
from jointopt.measure.base import Launcher
from jointopt.measure.hardware.conditions import under_plan
from jointopt.measure.hardware.meter import Gpus
from jointopt.measure.torchrun import TorchrunLauncher
from jointopt.runs.rows import RESULTS

PLAN = {
    "dp": 1, "tp": 1, "pp": 2, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 0, "stage_clock_mhz": [1410.0, 1200.0],
}  # fmt: skip
NOTHING = dict.fromkeys(RESULTS, math.nan) | {"status": "ok", "iteration_time_s": 1.0, "notes": "10 iterations"}


@pytest.fixture
def tiny(job: Job) -> Job:
    model = Model("tiny", 2, 32, 64, 2, 2, 64, 16, gated_mlp=True)
    cluster = Cluster(job.cluster.gpu, 1, 2, 300.0, 25.0, 5.0, 5.0, 30.0, 25.0, 0.0, 1.0, 400.0)
    return Job("tiny", model, Training(16, 4, dtype="fp32"), cluster)


def torchrun(**options) -> Launcher:
    return TorchrunLauncher(iterations=2, warmup_iterations=1, **options)


@pytest.mark.usefixtures("torch")
def test_a_training_is_measured_at_the_clocks_of_its_stages(driver, tiny: Job) -> None:
    row = torchrun().run(tiny, PLAN)
    assert (row["status"], driver.held()) == ("ok", {})
    assert driver.calls()[:2] == ["lock 0 1410", "lock 1 1200"]
    watts = [90 + 600 * (clock / 1980) ** 3 for clock in (1410, 1200)]
    assert row["avg_power_w"] == pytest.approx(sum(watts) / 2, rel=0.1)
    assert row["peak_power_w"] == pytest.approx(watts[0], abs=1)
    assert row["energy_j"] / row["iteration_time_s"] == pytest.approx(sum(watts), rel=0.5)
    assert row["temperature_c"] == 45


def test_at_default_clocks_the_row_states_the_clocks_it_ran_at(driver, clock) -> None:
    driver.disturb("no-permission")
    with pytest.raises(DevicePermissionError, match="--default-clocks"), under_plan(PLAN):
        pass
    with under_plan(PLAN, True, clock) as conditions:
        start = clock.time()
        clock.sleep(2.2)
    row = conditions.with_meter(NOTHING, (start, clock.time()), 10)
    assert row["stage_clock_mhz"] == [1980, 1980]
    assert "at default clocks" in row["notes"]
    assert row["energy_j"] > 0


def test_under_a_power_profile_the_row_states_the_profile_and_the_clocks_it_ran_at(driver, clock, monkeypatch) -> None:
    monkeypatch.setenv("STAND_IN_NVML_PROFILES", "2")
    with under_plan(PLAN | {"power_profile": "max-q"}, clock=clock) as conditions:
        start = clock.time()
        clock.sleep(2.2)
    row = conditions.with_meter(NOTHING, (start, clock.time()), 10)
    assert row["stage_clock_mhz"] == [1980, 1980]
    assert "at clocks of the power profile max-q" in row["notes"]
    assert driver.calls() == ["profiles-on 0 2", "profiles-on 1 2", "profiles-off 1 2", "profiles-off 0 2"]


@pytest.mark.usefixtures("torch")
def test_a_clock_that_the_gpus_do_not_have_is_a_failed_run(driver, tiny: Job) -> None:
    row = torchrun().run(tiny, PLAN | {"stage_clock_mhz": [1410.0, 2500.0]})
    assert (row["status"], driver.held()) == ("failed", {})
    assert "has no clock of 2500 MHz" in row["notes"]


def _path_of(process: psutil.Process) -> str:
    """Where a process, whoever its parent is by now, looks for modules; blank for one that is over."""
    try:
        return str(process.environ().get("PYTHONPATH", ""))
    except (psutil.Error, OSError):
        return ""


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("os.kill(os.getpid(), 9)", "failed", "rank 1 was killed (SIGKILL)"),
        ("sys.exit('torch.OutOfMemoryError: CUDA out of memory.')", "oom", "out of memory"),
    ],
)
def test_whatever_becomes_of_a_rank_clocks_return_and_no_process_stays(
    driver, tiny: Job, tmp_path, monkeypatch, fault: str, status: str, words: str
) -> None:
    program = "import os, sys\nif os.environ.get('RANK') == '1':\n    " + fault
    (tmp_path / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    row = torchrun(limit_s=120.0).run(tiny, PLAN)
    assert (row["status"], words in row["notes"]) == (status, True), row["notes"]
    assert (driver.held(), len(driver.calls())) == ({}, 4)
    assert not [p for p in psutil.process_iter() if str(tmp_path) in _path_of(p)]


def test_a_broken_counter_costs_the_energy_and_not_the_run(driver, clock) -> None:
    driver.disturb("still-1")
    with under_plan(PLAN, clock=clock) as conditions:
        start = clock.time()
        clock.sleep(2.2)
    row = conditions.with_meter(NOTHING, (start, clock.time()), 10)
    assert (row["status"], row["iteration_time_s"], math.isnan(row["energy_j"])) == ("ok", 1.0, True)
    assert "energy not measured: the energy counter of GPU-stand-in-1 stood still" in row["notes"]


def test_results_that_a_run_reports_itself_are_kept(clock) -> None:
    with under_plan(PLAN, True, clock) as conditions:
        clock.sleep(0.3)
    row = conditions.with_meter(NOTHING | {"energy_j": 5.0, "peak_power_w": math.nan})
    assert (row["energy_j"], round(row["peak_power_w"]), row["notes"]) == (5.0, 690, "10 iterations; at default clocks")


def test_a_gpu_that_did_not_hold_its_clock_is_reported(clock) -> None:
    with under_plan(PLAN, clock=clock) as conditions:
        Gpus().lock_clock(1, 900)  # as heat or a power limit would
        clock.sleep(0.2)
        start = clock.time()
        clock.sleep(2.2)
        end = clock.time()
        clock.sleep(0.2)
    row = conditions.with_meter(NOTHING, (start, end), 10)
    assert "GPU 1 ran at 900 MHz of 1200" in row["notes"]


def test_without_a_gpu_nothing_is_set_and_nothing_noted(driver, monkeypatch) -> None:
    monkeypatch.delenv("STAND_IN_NVML")
    monkeypatch.setattr("jointopt.measure.hardware.conditions._DRIVER_FILES", ())
    with under_plan(PLAN) as conditions:
        pass
    assert conditions.meter is None
    assert conditions.with_meter(NOTHING, (0.0, 9.0), 10) == NOTHING


def test_gpus_that_cannot_be_controlled_stop_a_run_unless_clocks_are_left_alone(driver, monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("STAND_IN_NVML")
    monkeypatch.setattr("jointopt.measure.hardware.conditions._DRIVER_FILES", (tmp_path,))
    with pytest.raises(Exception, match="Or go on at default clocks: --default-clocks"), under_plan(PLAN):
        pass
    with under_plan(PLAN, default_clocks=True) as conditions:
        pass
    row = conditions.with_meter(NOTHING, (0.0, 9.0), 10)
    assert row["stage_clock_mhz"] is None
    assert "energy not measured: No GPU is found" in row["notes"]


def test_a_power_limit_that_the_gpus_do_not_take_is_the_plans_fault(driver) -> None:
    with pytest.raises(PlanError, match="takes no power limit of 10 W"), under_plan(PLAN | {"power_limit_w": 10.0}):
        pass
    assert driver.held() == {}
