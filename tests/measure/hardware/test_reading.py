"""A meter's samples: what a window measures, and which counters are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import TableError
from jointopt.runs.readings import QUANTITIES, Series, join_readings, no_series, not_measured


def steady(seconds: float = 10.0, watts: float = 400.0, gpus: int = 2, start: float = 1e9) -> Series:
    """GPUs at constant power, sampled every 0.1 s."""
    at = start + np.arange(0.0, seconds + 1e-9, 0.1)
    each = np.ones((len(at), gpus))
    energy = (at - start)[:, np.newaxis] * watts * each + 7e6
    names = tuple(f"GPU {i}" for i in range(gpus))
    return Series(names, at, energy, watts * each, 60 * each, 0.9 * each, 1410 * each)


def with_energy(series: Series, energy_j: np.ndarray) -> Series:
    rest = {name: getattr(series, name) for name in ("power_w", "temperature_c", "utilisation", "clock_mhz")}
    return Series(series.gpus, series.time_s, energy_j, **rest)


@given(st.floats(0, 5), st.floats(2.5, 5), st.floats(50, 1000), st.integers(1, 8))
def test_energy_is_power_times_time_of_all_gpus(offset: float, length: float, watts: float, gpus: int) -> None:
    start = 1e9 + offset
    reading = steady(watts=watts, gpus=gpus).between(start, start + length)
    assert reading.reason == ""
    assert reading.total_energy_j == pytest.approx(watts * length * gpus, rel=1e-4)
    assert reading.results(5)["energy_j"] == pytest.approx(watts * length * gpus / 5, rel=1e-4)
    assert reading.results(5)["avg_power_w"] == pytest.approx(watts, rel=1e-4)


def test_two_windows_add_up_to_the_whole() -> None:
    series = steady()
    first, second = series.between(1e9, 1e9 + 4), series.between(1e9 + 4, 1e9 + 10)
    assert first.total_energy_j + second.total_energy_j == pytest.approx(series.between().total_energy_j)


@pytest.mark.parametrize(
    ("known", "reason"), [("", "the meter took no sample in that time"), ("GPU 0 is lost", "GPU 0 is lost")]
)
def test_a_window_without_samples_gives_the_meter_s_reason_where_it_has_one(known: str, reason: str) -> None:
    reading = replace(steady(), reason=known).between(1e9 + 20, 1e9 + 23)
    assert (reading.reason, reading.seconds) == (reason, 3.0)


def test_a_counter_that_stands_still_is_refused() -> None:
    series = steady()
    energy = series.energy_j.copy()
    energy[:, 1] = energy[0, 1]
    reading = with_energy(series, energy).between()
    assert "counter of GPU 1 stood still for 10.0 s" in reading.reason
    assert math.isnan(reading.total_energy_j)


def test_a_counter_that_jumps_is_refused_however_long_the_window() -> None:
    series = steady(seconds=300)
    energy = series.energy_j.copy()
    energy[1500:, 0] += 2_000  # two per cent of the window's energy
    assert "GPU 0 jumped" in with_energy(series, energy).between().reason


def test_a_counter_that_goes_backwards_is_refused() -> None:
    series = steady()
    energy = series.energy_j.copy()
    energy[50:, 0] -= 100
    assert "went backwards" in with_energy(series, energy).between().reason


@pytest.mark.parametrize("factor", [0.5, 1.6])
def test_a_counter_that_contradicts_the_power_sensor_is_refused(factor: float) -> None:
    series = steady()
    assert "where its power adds up to 4,000 J" in with_energy(series, series.energy_j * factor).between().reason


@pytest.mark.parametrize("factor", [0.85, 1.15])
def test_sensors_that_differ_a_little_are_accepted(factor: float) -> None:
    series = steady()
    assert with_energy(series, series.energy_j * factor).between().reason == ""


def test_a_power_sensor_that_lags_a_second_behind_is_accepted() -> None:
    series = steady(seconds=4)
    late = np.where(series.time_s < 1e9 + 1, 90.0, 400.0)[:, np.newaxis] * np.ones((1, 2))
    lagging = Series(series.gpus, series.time_s, series.energy_j, late, late, late, late)
    assert lagging.between().reason == ""


def test_a_window_of_less_than_two_seconds_measures_no_energy() -> None:
    reading = steady().between(1e9 + 1, 1e9 + 1.5)
    assert "0.5 s are too short" in reading.reason
    assert reading.results(1)["peak_power_w"] == 400.0


def test_a_gpu_without_a_counter_is_not_measured() -> None:
    series = steady()
    assert "does not exist" in with_energy(series, series.energy_j * np.nan).between().reason


def test_a_meter_that_stopped_early_does_not_stand_for_the_window() -> None:
    series = steady(seconds=5)
    assert "4.0 s less" in series.between(1e9 + 1, 1e9 + 9).reason


def test_without_a_meter_energy_is_not_measured_and_never_zero() -> None:
    reading = no_series("no GPU").between()
    assert (reading.reason, reading.seconds, reading.gpus) == ("no GPU", 0.0, 0)
    assert all(math.isnan(value) for value in reading.results(3).values())
    assert reading.words() == "Energy not measured: no GPU"


def test_nodes_add_up() -> None:
    nodes = [steady(gpus=4).between(), steady(gpus=8, watts=300).between()]
    both = join_readings(nodes)
    assert both.gpus == 12
    assert both.total_energy_j == pytest.approx(10 * (4 * 400 + 8 * 300))
    assert both.results(1)["peak_power_w"] == 400
    assert both.results(1)["avg_power_w"] == pytest.approx((4 * 400 + 8 * 300) / 12)  # over the 10 s of both


def test_a_node_without_energy_leaves_the_sum_unknown_and_is_named() -> None:
    both = join_readings([steady().between(), not_measured("no GPU")])
    assert both.reason == "node 1: no GPU"
    assert math.isnan(both.total_energy_j)


def test_a_series_without_samples_has_no_gpus_and_no_times() -> None:
    empty = no_series("no driver")
    assert empty.time_s.shape == (0,)
    assert all(getattr(empty, name).shape == (0, 0) for name in QUANTITIES)


def test_samples_travel_through_a_file(tmp_path: Path) -> None:
    series = steady()
    series.write(tmp_path / "node0.json")
    read = Series.read(tmp_path / "node0.json")
    assert read.gpus == series.gpus
    np.testing.assert_array_equal(read.energy_j, series.energy_j)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"gpus": 3}', "not json"])
def test_another_file_is_no_reading(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(TableError, match="is not a meter reading"):
        Series.read(tmp_path / "x.json")


@pytest.mark.parametrize(("start", "end"), [(-2.0, 8.0), (2.0, 12.0)])
def test_a_meter_that_starts_late_or_ends_early_has_not_measured_the_window(start: float, end: float) -> None:
    reading = steady(seconds=10.0).between(1e9 + start, 1e9 + end)
    assert reading.reason == "the meter ran 2.0 s less than what was to be measured"
    assert math.isnan(reading.total_energy_j)


@pytest.mark.parametrize(("watts", "accepted"), [(129, False), (131, True), (270, True), (272, False)])
def test_counter_and_sensor_may_differ_by_a_quarter_and_a_second_of_the_sensor_s_range(watts, accepted) -> None:
    # the sensor sees 100 W for 5 s and 300 W for 5 s: 2,010 J with the step between; a quarter and 200 J are 702.5 J
    series = steady(watts=watts)
    seen = np.where(series.time_s < 1e9 + 4.95, 100.0, 300.0)[:, np.newaxis] * np.ones((1, 2))
    assert (
        Series(series.gpus, series.time_s, series.energy_j, seen, seen, seen, seen).between().reason == ""
    ) == accepted


@pytest.mark.parametrize(
    ("last_rise", "steps", "accepted"),
    [(0, 8, True), (0, 10, False), (45, 8, True), (45, 10, False), (91, 9, True), (89, 11, False)],
)
def test_a_counter_may_stand_still_for_a_second_wherever_in_the_window(last_rise, steps, accepted) -> None:
    series = steady()  # 100 steps of 0.1 s; it rises again a step after those in which it stood
    rise_j = np.diff(series.energy_j, axis=0, prepend=series.energy_j[:1])
    rise_j[last_rise + 1 : last_rise + 1 + steps] = 0.0
    assert (with_energy(series, 7e6 + np.cumsum(rise_j, axis=0)).between().reason == "") == accepted


@pytest.mark.parametrize(("extra_j", "accepted"), [(390.0, True), (410.0, False)])
def test_over_a_second_a_counter_may_rise_by_twice_what_the_sensor_saw_at_most(extra_j: float, accepted: bool) -> None:
    series = steady()  # 400 J a second
    energy = series.energy_j.copy()
    energy[35:, 0] += extra_j
    assert (with_energy(series, energy).between().reason == "") == accepted
