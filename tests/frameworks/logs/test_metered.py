"""Energy of a window from traces: right, or absent with the reason."""

from __future__ import annotations

import math
import re

import pytest

from jointopt.frameworks.logs import Window
from jointopt.frameworks.meter_logs import of_traces, read_trace
from tests.frameworks.logs.trace_texts import dmon, exporter, smi, steady

START = 1_790_000_000.0
WINDOW = Window(START + 10.0, START + 50.0, 20)


def results(*texts: str, gpus: int = 2, window: Window = WINDOW) -> tuple[dict[str, float], str, str]:
    """Results of each iteration, the clause of their source, and the reason where there is no energy."""
    reading, words = of_traces([read_trace(text, f"{i}.txt") for i, text in enumerate(texts)], window, gpus)
    return reading.results(window.iterations), words, reading.reason


@pytest.mark.parametrize("text", [dmon(START, 60), exporter(START, 60), exporter(START, 60, federated=True)])
def test_counters_give_the_energy_of_all_gpus_for_each_iteration(text: str) -> None:
    found, words, reason = results(text)
    assert reason == ""
    assert found["energy_j"] == pytest.approx(40 * (400 + 401) / 20, rel=1e-3)
    assert found["avg_power_w"] == pytest.approx(400.5, rel=1e-3)
    assert found["peak_power_w"] == pytest.approx(401.1, abs=0.1)
    assert found["temperature_c"] in (61.0, 63.0)
    assert re.search(
        r"\(energy counters\) over 20 iterations in 40\.0 s, times of the log taken as UTC[+-]\d{4}", words
    )


def test_without_counters_power_is_added_up_and_the_note_says_so() -> None:
    found, words, reason = results(smi(START, 60))
    assert reason == ""
    assert found["energy_j"] == pytest.approx(40 * (400.05 + 401.05) / 20, rel=1e-3)
    assert words == "energy of nvidia-smi (power samples added up, for want of counters) over 20 iterations in 40.0 s"
    assert results(dmon(START, 60, TOTEC="N/A"))[0]["energy_j"] == pytest.approx(found["energy_j"], rel=1e-3)


def test_power_before_and_after_the_window_does_not_count() -> None:
    def burst(after_s: float, gpu: int) -> float:
        return steady(after_s, gpu) if 8 <= after_s <= 52 else 70.0 + after_s % 2

    assert results(smi(START, 90, watts=burst))[0]["avg_power_w"] == pytest.approx(400.55, rel=1e-3)


def test_nodes_are_added_up_and_their_gpus_kept_apart() -> None:
    found, _, reason = results(dmon(START, 60), dmon(START - 5, 70), gpus=4)
    assert reason == ""
    assert found["energy_j"] == pytest.approx(2 * 40 * (400 + 401) / 20, rel=1e-3)


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ([dmon(START, 60, gpus=1)], r"cover 1 of 2 GPUs"),
        ([dmon(START, 60, gpus=8)], r"cover 8 of 2 GPUs; give those of the run's GPUs alone"),
        ([dmon(START, 60, gpus=1)] * 2, r"the same trace is given twice"),
        ([dmon(START, 60, gpus=1), smi(START, 60, gpus=1)], r"of several programs"),
        ([dmon(START, 60, prefix="")], r"holds no times; have `ts %\.s` write them"),
        ([dmon(START + 15, 60)], r"GPU 0 of 0\.txt has samples from .* the iterations ran from"),
        ([dmon(START - 7200, 60)], r"\(TZ sets the zone of the log\)"),
        ([dmon(START, 45)], r"has samples from"),
    ],
)
def test_a_trace_that_does_not_hold_the_run_gives_nothing(texts: list[str], why: str) -> None:
    found, _, reason = results(*texts)
    assert re.search(why, reason)
    assert all(math.isnan(value) for value in found.values())


def test_a_counter_that_starts_again_gives_no_energy_but_the_peak() -> None:
    text = dmon(START, 60)
    for after in range(30, 61):  # the driver was loaded anew
        text = text.replace(
            str(7_000_000 + round(1e3 * steady(after, 1) * after)), str(round(401_000.0 * (after - 30)))
        )
    found, _, reason = results(text)
    assert reason == "the energy counter of GPU 1 of 0.txt went backwards"
    assert math.isnan(found["energy_j"])
    assert found["peak_power_w"] == pytest.approx(401.1, abs=0.1)


def test_an_exporter_that_collects_every_half_minute_is_too_coarse() -> None:
    assert "node1 GPU 0 stood still for 20.0 s" in results(exporter(START, 60, collect_s=30))[2]
    long = Window(START + 20, START + 220, 100)
    found, _, reason = results(exporter(START, 240, collect_s=10), window=long)
    assert (reason, found["energy_j"]) == ("", pytest.approx(200 * 801 / 100, rel=0.03))


def test_few_power_samples_are_not_added_up() -> None:
    assert "the power of GPU 0 of 0.txt stood still for 5.0 s" in results(smi(START, 60, every_s=5.0))[2]


def test_a_counter_that_contradicts_the_power_is_refused() -> None:
    assert re.search(r"reports .* J where its power adds up to", results(dmon(START, 60, POWER="200.000"))[2])


@pytest.mark.parametrize(
    ("still", "reason"),
    [((20, 30), "the power of GPU 0 of 0.txt stood still for 10.0 s, too long for a window of 40.0 s"), ((5, 11), "")],
)
def test_power_that_stands_still_within_the_window_is_not_added_up(still: tuple[int, int], reason: str) -> None:
    def watts(after_s: float, gpu: int) -> float:
        return 400.0 if still[0] <= after_s < still[1] else 401.0 + after_s % 2

    assert results(smi(START, 60, gpus=1, watts=watts), gpus=1)[2] == reason


@pytest.mark.parametrize(("every_s", "known"), [(1.3, True), (1.4, False)])
def test_power_added_up_must_change_thirty_times_in_a_window(every_s: float, known: bool) -> None:
    text = smi(START, 60, gpus=1, watts=lambda after_s, gpu: 400.0 + round(after_s / every_s) % 2, every_s=every_s)
    assert (results(text, gpus=1)[2] == "") is known


def test_one_gpu_without_a_counter_is_enough_for_the_note_to_say_so() -> None:
    found, words, reason = results(dmon(START, 60, gpus=1), dmon(START, 60, gpus=1, TOTEC="N/A"))
    assert reason == ""
    assert "(power samples added up, for want of counters)" in words
    assert found["energy_j"] == pytest.approx(40 * (400.0 + 400.05) / 20, rel=1e-3)


def test_two_gpus_of_one_power_at_other_times_are_two() -> None:
    assert results(dmon(START, 60, gpus=1), dmon(START + 0.25, 60, gpus=1))[2] == ""
    assert results(dmon(START, 60, gpus=1), dmon(START, 60, gpus=1))[2] == "the same trace is given twice"


def test_a_line_without_a_time_counts_for_nothing() -> None:
    whole = dmon(START, 60)
    text = whole.replace(f"{START + 30:.3f} GPU 0", "GPU 0", 1)
    assert text != whole
    assert results(text)[0]["energy_j"] == pytest.approx(results(whole)[0]["energy_j"], rel=1e-3)


def test_a_window_may_begin_with_the_first_sample_and_end_with_the_last() -> None:
    assert results(dmon(START, 60), window=Window(START, START + 60.0, 20))[2] == ""
    assert "has samples from" in results(dmon(START, 60), window=Window(START, START + 60.5, 20))[2]
    assert "has samples from" in results(dmon(START, 60), window=Window(START - 0.5, START + 60.0, 20))[2]


def test_power_that_goes_on_where_a_counter_ends_does_not_stand_in_for_it() -> None:
    text = dmon(START, 40) + dmon(START + 41, 20, TOTEC="N/A")
    assert "GPU 0 of 0.txt has samples from" in results(text)[2]
    found, _, reason = results(text, window=Window(START + 2.0, START + 38.0, 18))
    assert (reason, found["energy_j"]) == ("", pytest.approx(36 * (400 + 401) / 18, rel=1e-3))
