"""Runs of a real program on the stand-in driver's GPUs that are ended for their time and energy, or go on."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jointopt.core.facts import FailureKind
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.job import Job
from jointopt.measure.base import EndsDominated
from jointopt.measure.local import EarlyEnd, LocalLauncher, least_watts
from jointopt.measure.process import Program
from jointopt.runs.readings import not_measured
from jointopt.runs.rows import is_bounded, result_row
from tests.conftest import Driver

PLAN: dict[str, Any] = {
    "dp": 2, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 2, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 1, "stage_clock_mhz": [990.0],
}  # fmt: skip
WATTS = 2 * (90.0 + 600.0 / 8.0)  # of two GPUs at half their highest clock, as the driver has them
TRAINS = "import time\nfor _ in range({}):\n    time.sleep(0.5)\n    print('step 0.5', flush=True)"


class Steps(Program):
    """A program that takes half a second an iteration, and prints it."""

    name = "steps"

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path, least_s: float = 0.0) -> None:
        self.least_s = least_s

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path, alone: bool = False) -> list[str]:
        return [sys.executable, "-c", TRAINS.format(self.iterations)]

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any]:
        return result_row("", iteration_time_s=0.5, energy_j=0.5 * WATTS)

    def progress(self, job: Job, log: str) -> tuple[Sequence[float], Mapping[str, Any]]:
        seconds = [float(line.removeprefix("step ")) for line in log.splitlines() if line.startswith("step ")]
        return seconds, {"peak_memory_gib": 3.0}


def run(job: Job, bounds: Sequence[tuple[float, float]], iterations: int = 60) -> Mapping[str, Any]:
    cluster = replace(job.cluster, gpu=load_gpu("h100-sxm5-80gb"), nodes=1, gpus_per_node=2)
    launcher = LocalLauncher(Steps(iterations), 120.0, None, False)
    launcher.name, launcher.behind_both = "steps", bounds
    assert isinstance(launcher, EndsDominated)
    row = launcher.run(replace(job, cluster=cluster), PLAN)
    assert launcher.program.least_s == 3.0  # half as long again as counters need
    return row


def test_a_run_behind_in_time_and_energy_is_ended_with_bounds_of_both_and_all_that_was_measured(
    job: Job, driver: Driver
) -> None:
    row = run(job, [(9.0, 1.0), (0.4, 0.7 * 0.5 * WATTS)])
    assert is_bounded(row), row["notes"]
    assert row["failure"].kind is FailureKind.BEHIND
    assert (row["iteration_time_s"], row["peak_memory_gib"]) == (0.5, 3.0)
    assert 0.8 * 0.5 * WATTS < row["energy_j"] < 1.01 * 0.5 * WATTS  # at least: counters move every 100 ms
    assert row["avg_power_w"] == pytest.approx(WATTS / 2, rel=0.02)
    assert f"beyond 0.4; at {row['energy_j'] / 0.5:,.0f} W or more an iteration takes" in row["notes"]
    assert driver.calls()[:2] == ["lock 0 990", "lock 1 990"]
    assert driver.held() == {}


@pytest.mark.parametrize(
    "bounds", [[(0.4, 1.2 * 0.5 * WATTS), (0.6, 1.0)]], ids=["less energy than one, faster than two"]
)
def test_a_slow_run_of_little_energy_goes_on_and_so_does_a_fast_one(
    job: Job, driver: Driver, bounds: list[tuple[float, float]]
) -> None:
    row = run(job, bounds, iterations=20)
    assert (row["status"], row["iteration_time_s"]) == ("ok", 0.5)
    assert driver.held() == {}


def test_a_run_whose_counters_stand_still_is_not_ended_for_its_energy(job: Job, driver: Driver) -> None:
    driver.disturb("still-1")
    assert run(job, [(0.4, 1e-3)], iterations=20)["status"] == "ok"


@pytest.mark.parametrize(("watts", "least"), [((300.0, 300.0, 300.0), 300.0), ((270.0, 300.0, 330.0), 249.43)])
def test_the_least_power_is_students_bound_of_three_spans(watts: tuple[float, ...], least: float) -> None:
    spans: list[tuple[float, float]] = []

    def reading(start_s: float, end_s: float) -> Any:
        spans.append((start_s, end_s))
        return replace(not_measured(""), seconds=4.0, energy_j=np.array([watts[len(spans) - 1] * 2.0] * 2))

    # 30 / sqrt(3) W is the error of the mean of three; 2.920 of them hold in 95 % of cases
    assert least_watts(SimpleNamespace(reading=reading), 10.0, 22.0) == pytest.approx(least, rel=1e-4)
    assert spans == [(10.0, 14.0), (14.0, 18.0), (18.0, 22.0)]


def test_power_is_judged_after_three_spans_each_as_long_as_an_iteration(job: Job, tmp_path: Path) -> None:
    program, log, now_s = Steps(9), tmp_path / "log.txt", [100.0]
    program.behind_both = ((1.0, 1.0),)
    log.write_text("step 5.0\n" * 5)

    def reading(start_s: float, end_s: float) -> Any:
        return replace(not_measured(""), seconds=end_s - start_s, energy_j=np.array([300.0 * (end_s - start_s)]))

    early = EarlyEnd(program, job, log, SimpleNamespace(now=lambda: now_s[0], reading=reading))
    due = []
    for now_s[0] in (100.0, 114.9, 115.1):  # three spans of counters alone are 6.6 s
        due.append(early.is_due())
    assert due == [False, False, True]
