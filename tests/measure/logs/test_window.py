"""When the iterations of a log ran, for meters that were read meanwhile."""

from __future__ import annotations

from datetime import datetime

import pytest

from jointopt.measure.logs.others import Batch
from jointopt.measure.logs.run import iterations_in, read_run, window_of

BATCH = Batch(sequences=64, seq_length=1024, num_gpus=8)
END = datetime(2026, 11, 22, 4, 16, 36, 380_000).timestamp()
END_2024 = datetime(2024, 11, 22, 4, 16, 36).timestamp()


def titan(step: int, tps: int = 8192, moment: str = "2026-11-22 04:16:36,380", loss: float = 8.2) -> str:
    return (
        f"[rank0]:[titan] {moment} - root - INFO - step: {step:2}  loss: {loss:8.5f}  grad_norm: 2.4  memory: 61.25GiB"
        f"(77.40%)  tps: {tps:,}  tflops: 400.50  mfu: 40.49%\n"
    )


def found(text: str, warmup: int = 1) -> tuple[float, float] | None:
    return window_of(text, read_run(text, warmup, BATCH))


def test_a_window_ends_with_the_last_line_and_is_as_long_as_its_iterations() -> None:
    text = titan(1, 90) + titan(2) + titan(3)
    assert found(text) == pytest.approx((END - 2.0, END))
    assert iterations_in(read_run(text, 1, BATCH)) == 2


def test_a_line_of_several_iterations_counts_for_all_of_them() -> None:
    text = titan(10, 90) + titan(20) + titan(30)
    assert found(text, 10) == pytest.approx((END - 20.0, END))
    assert iterations_in(read_run(text, 10, BATCH)) == 20


@pytest.mark.parametrize(
    "text",
    [
        titan(1, 90) + titan(2) + titan(3, loss=float("nan")) + titan(4),  # one between them does not count
        titan(1, 90) + titan(2) + titan(3, moment="just now"),
        titan(1, 90) + titan(2) + titan(3, moment="2026-11-22 04:16:36"),  # to a second, of two
        titan(1, 90) + titan(2) + titan(3, moment="11/22 04:16:36"),
        titan(1, 90) + titan(2) + titan(3, moment="2026-13-22 04:16:36,380"),
    ],
)
def test_without_a_time_that_is_good_enough_there_is_no_window(text: str) -> None:
    assert found(text) is None


def test_whole_seconds_are_good_enough_for_a_long_window() -> None:
    text = titan(1, 90) + titan(2, 512) + titan(3, 512, moment="11/22 04:16:36")
    window = found(text)
    assert window is not None
    assert window[1] - window[0] == pytest.approx(32.0)
    assert window[1] == datetime(datetime.now().year, 11, 22, 4, 16, 36).timestamp()


@pytest.mark.parametrize(("tps", "found_at_all"), [(512, True), (8192, False)])
def test_a_moment_with_its_year_last_is_read_too(tps: int, found_at_all: bool) -> None:
    window = found(titan(1, 90) + titan(2, tps) + titan(3, tps, moment="11/22/2024 04:16:36"))
    assert (window is not None) == found_at_all
    assert window is None or window == (END_2024 - 32.0, END_2024)
