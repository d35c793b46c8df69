"""The meter with the real zeus and pynvml, over GPUs of a stand-in driver library."""

from __future__ import annotations

import math
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from jointopt.core.errors import PlanError
from jointopt.measure.hardware import meter as meters
from jointopt.measure.hardware.meter import CLOCK, Gpus, Meter, running_meter
from tests.slurm_cluster import wait_for


def measured(clock=CLOCK, seconds: float = 2.3, indices=None) -> Meter:
    with running_meter(indices, clock) as meter:
        if clock is not CLOCK:
            clock.sleep(seconds)
    return meter


def test_energy_power_temperature_utilisation_and_clock_of_every_gpu(clock) -> None:
    reading = measured(clock).reading()
    assert reading.reason == ""
    assert reading.avg_power_w == pytest.approx([690.0] * 4, rel=0.1)
    assert reading.results(1)["energy_j"] == pytest.approx(4 * 690 * reading.seconds, rel=0.1)
    assert set(reading.peak_power_w) == {690.0}
    assert set(reading.temperature_c) == {64.0}
    assert set(reading.clock_mhz) == {1980.0}
    assert reading.utilisation == pytest.approx([0.97] * 4)


def test_a_long_run_keeps_every_second_sample_and_samples_half_as_often(clock, monkeypatch) -> None:
    # the ninth sample, after 0.8 s, leaves 5 that are 0.2 s apart, and the ninth of those 5 that are 0.4 s apart
    monkeypatch.setattr(meters, "_MOST_SAMPLES", 8)
    times_s = measured(clock, 2.5).series().time_s
    assert times_s - times_s[0] == pytest.approx([0.0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 2.5], abs=1e-3)


def test_an_edge_of_a_window_comes_after_the_sample_that_is_being_taken(driver, monkeypatch) -> None:
    begun, go_on, sample, edges = threading.Event(), threading.Event(), Gpus.sample, []

    def slow(gpus: Gpus, index: int) -> tuple[float, ...]:
        begun.set()
        go_on.wait(60)
        return sample(gpus, index)

    monkeypatch.setattr(Gpus, "sample", slow)
    with running_meter([0]) as meter:
        assert begun.wait(60)
        edge = threading.Thread(target=lambda: edges.append(meter.now()))
        edge.start()
        assert not edges
        go_on.set()
        edge.join(60)
    assert meter.series().time_s[0] <= edges[0]


def test_only_the_gpus_that_run_something_are_measured(driver) -> None:
    assert measured(indices=[1, 2]).series().gpus == ("GPU-stand-in-1", "GPU-stand-in-2")


def test_local_ranks_are_the_visible_gpus(driver, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert Gpus().ids == ("GPU-stand-in-3", "GPU-stand-in-1")
    assert len(Gpus(visible=False)) == 4


@pytest.mark.parametrize("shown", ["", "GPU-stand-in-1", "MIG-1"])
def test_gpus_that_are_not_shown_by_number_are_not_measured(driver, monkeypatch, shown: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    reading = measured().reading()
    assert "CUDA_VISIBLE_DEVICES" in reading.reason
    assert math.isnan(reading.total_energy_j)


def test_more_ranks_than_gpus_are_not_measured(driver) -> None:
    assert measured(indices=range(8)).reading().reason == "8 GPUs are used and the meter sees 4"


def test_a_gpu_that_is_cut_into_instances_is_not_measured_for_one_of_them(driver) -> None:
    driver.disturb("cut-2")
    assert "GPU 2 (NVIDIA H100 80GB HBM3) is cut into instances (MIG)" in measured().reading().reason
    assert measured(indices=[0, 1]).reading().reason != measured().reading().reason


def test_a_gpu_that_disappears_mid_run_leaves_energy_unmeasured_with_the_reason(driver, clock) -> None:
    with running_meter(clock=clock) as meter:
        clock.sleep(0.4)
        driver.disturb("lost-2")
        clock.sleep(2.2)
    reading = meter.reading(end_s=clock.time())
    assert "GPU 2 stopped answering: GPU is lost" in reading.reason
    assert math.isnan(reading.total_energy_j)
    assert set(reading.peak_power_w) == {690.0}


def test_a_counter_that_stands_still_is_refused(driver, clock) -> None:
    driver.disturb("still-1")
    assert "counter of GPU-stand-in-1 stood still" in measured(clock).reading().reason


def test_a_counter_that_jumps_mid_run_is_refused(driver, clock) -> None:
    with running_meter(clock=clock) as meter:
        clock.sleep(1.2)
        driver.disturb("jump-0")
        clock.sleep(1.2)
    assert "counter of GPU-stand-in-0 jumped" in meter.reading().reason


def test_without_a_driver_the_reason_is_reported_and_nothing_raises(driver, monkeypatch) -> None:
    monkeypatch.delenv("STAND_IN_NVML")
    assert "No GPU is found: NVIDIA's driver says 'Driver Not Loaded'" in measured().reading().reason


def test_without_zeus_the_reason_names_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "zeus.device.gpu.nvidia", None)
    assert "pip install 'jointopt[meter]'" in measured().reading().reason


def test_long_runs_keep_a_bounded_number_of_samples(clock, monkeypatch) -> None:
    monkeypatch.setattr(meters, "_MOST_SAMPLES", 20)
    meter = Meter(period_s=0.02, clock=clock)
    meter.start()
    clock.sleep(2.3)
    meter.stop()
    assert len(meter.series().time_s) <= 21
    assert meter.reading().results(1)["avg_power_w"] == pytest.approx(690, rel=0.1)


def test_a_clock_that_the_gpu_does_not_have_is_refused_with_those_it_has(driver) -> None:
    with pytest.raises(PlanError, match=r"GPU 0 .*H100.* has no clock of 5000 MHz; it has 210 to 1980 MHz"):
        Gpus().lock_clock(0, 5000)


def test_a_power_limit_that_the_gpu_does_not_take_is_refused(driver) -> None:
    with pytest.raises(PlanError, match="takes no power limit of 100 W; it takes 200 to 700 W"):
        Gpus().set_power_limit(1, 100)


def with_dcgm(tmp_path: Path, monkeypatch, script: str) -> None:
    """A program ``dcgmi`` on the path, in place of DCGM's."""
    (tmp_path / "dcgmi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "dcgmi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_sm_activity_of_dcgm_is_taken_where_it_is_installed(driver, tmp_path: Path, monkeypatch) -> None:
    rows = "echo '#Entity  SMACT'; echo 'ID'; while true; do echo 'GPU 3  0.425'; echo 'GPU 1  N/A'; sleep 0.05; done"
    with_dcgm(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/arguments; {rows}')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    with running_meter() as meter:
        wait_for(lambda: meter.reading().utilisation == pytest.approx([0.425, 0.97]), "SM activity is taken")
    assert (tmp_path / "arguments").read_text() == "dmon -e 1002 -d 100 -i 3,1\n"


@pytest.mark.parametrize(
    "script", ["exit 1", "head -c 1000 /dev/urandom", "trap '' TERM; while true; do sleep 0.1; done"]
)
def test_a_dcgm_that_does_not_work_changes_nothing(clock, tmp_path: Path, monkeypatch, script: str) -> None:
    with_dcgm(tmp_path, monkeypatch, script)
    monkeypatch.setattr(meters, "_DCGM_PATIENCE_S", 0.1)
    reading = measured(clock).reading()
    assert reading.reason == ""
    assert reading.utilisation == pytest.approx([0.97] * 4)


def test_a_sample_is_in_joules_watts_degrees_shares_and_megahertz(clock) -> None:
    gpus = Gpus()
    first = gpus.sample(0)
    clock.sleep(20.0)
    second = gpus.sample(0)
    assert second[0] - first[0] == pytest.approx(20.0 * 690.0, rel=0.02)  # the counter moves every 0.1 s
    assert first[1:] == pytest.approx((690.0, 64.0, 0.97, 1980.0))


def test_a_slow_gpu_draws_by_its_lowered_clock_and_cools_with_a_lag(clock, driver) -> None:
    gpus = Gpus()
    assert gpus.sample(0)[1:3] == pytest.approx((690.0, 64.0))
    (driver.folder / "unsteady").write_text("0 8")
    (driver.folder / "slow-0").write_text("990 4")
    clock.sleep(8.0)
    assert gpus.sample(0)[1:3] == pytest.approx((165.0, 38.25 + 26.25 * math.exp(-1.0)), abs=1.0)


def test_power_is_taken_from_a_source_that_the_driver_has(driver) -> None:
    assert Gpus()._power[0]() == pytest.approx(690_000)


def test_the_clocks_of_a_gpu_are_those_at_its_fastest_memory_clock() -> None:
    clocks = {2619: [345, 1980, 1200], 810: [345]}
    gpu = SimpleNamespace(get_supported_memory_clocks=lambda: [810, 2619], get_supported_graphics_clocks=clocks.get)
    gpus = Gpus.__new__(Gpus)
    gpus._gpus = [gpu]
    assert gpus.clocks_mhz(0) == [1980, 1200, 345]
