"""When the iterations of a log ran, for meters that were read meanwhile."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from jointopt.frameworks.logs import Batch, Window, read_run, window_of

BATCH = Batch(sequences=64, seq_length=1024, num_gpus=8)
BEGIN = datetime(2026, 11, 22, 4, 16, 36, 380_000)


def titan(step: int, tps: int = 8192, after_s: float | None = None, loss: float = 8.2, written: str = "") -> str:
    """One line of torchtitan, written so long after the start (by default a second for each step)."""
    moment = BEGIN + timedelta(seconds=step if after_s is None else after_s)
    written = written or f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"
    return (
        f"[rank0]:[titan] {written} - root - INFO - step: {step:2}  loss: {loss:8.5f}  grad_norm: 2.4  memory: 61.25GiB"
        f"(77.40%)  tps: {tps:,}  tflops: 400.50  mfu: 40.49%\n"
    )


def found(text: str, warmup: int = 1) -> Window:
    return window_of(read_run(text, warmup, BATCH))


def test_a_window_ends_with_the_last_line_and_is_as_long_as_its_iterations() -> None:
    window = found(titan(1, 90) + titan(2) + titan(3))
    end = BEGIN.timestamp() + 3.0
    assert window == pytest.approx((end - 2.0, end, 2))


def test_a_line_of_several_iterations_counts_for_all_of_them() -> None:
    window = found(titan(10, 90) + titan(20) + titan(30), 10)
    end = BEGIN.timestamp() + 30.0
    assert window == pytest.approx((end - 20.0, end, 20))


def test_the_longest_stretch_without_an_interruption_counts() -> None:
    text = titan(10, 90) + titan(20) + titan(30, loss=float("nan")) + "".join(titan(step) for step in (40, 50, 60))
    assert found(text, 10).iterations == 30
    cut = titan(10, 90) + titan(20) + titan(40) + titan(60)  # the spans of lines that are missing count for nothing
    assert found(cut + titan(70), 10).iterations == 20


@pytest.mark.parametrize(
    ("third", "why"),
    [
        (titan(3, written="just now"), "its lines hold no times"),
        (titan(3, written="2026-13-22 04:16:36,380"), "its lines hold no times"),
        (titan(3, written="2026-11-22 04:16:39"), r"whole seconds, too coarse for 2\.0 s"),
        (titan(3, after_s=9.0), r"7\.0 s passed .*, of which the iterations took 1\.0 s"),
        (titan(3, after_s=-3600.0), r"-3602\.0 s passed"),
    ],
)
def test_without_a_time_that_is_good_enough_there_is_no_window(third: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        found(titan(1, 90) + titan(2) + third)


def test_whole_seconds_are_good_enough_for_a_long_window() -> None:
    text = titan(1, 90) + titan(2, 512, written="11/22 04:16:20") + titan(3, 512, written="11/22 04:16:36")
    window = found(text)
    assert window.end_s - window.start_s == pytest.approx(32.0)
    assert datetime.fromtimestamp(window.end_s).strftime("%m/%d %H:%M:%S") == "11/22 04:16:36"


@pytest.mark.parametrize(("passed_s", "good"), [(110.9, True), (111.2, False), (89.2, True), (88.9, False)])
def test_the_lines_may_differ_from_the_iterations_by_a_second_and_a_tenth(passed_s: float, good: bool) -> None:
    # after the first line ten iterations of 10 s, 8192 tokens per GPU at 819 per s: up to 1 + 10 s more or less
    text = titan(1, 90) + "".join(titan(n, 819, 10.0 * n) for n in range(2, 12)) + titan(12, 819, 20.0 + passed_s)
    if good:
        assert found(text).iterations == 11
    else:
        with pytest.raises(ValueError, match="of which the iterations"):
            found(text)
