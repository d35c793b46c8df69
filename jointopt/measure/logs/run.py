"""The log of any known training program, read by the format of its lines, and when its iterations ran."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from jointopt.measure.logs import megatron
from jointopt.measure.logs.iterations import Iteration, RunLog
from jointopt.measure.logs.others import FORMATS, Batch

_LEAST_WHOLE_S = 20.0  # a window whose end is known to a second alone
_BETWEEN = 0.1  # of the iterations' time: what may have passed between them, and be in no line
_ROUNDED_S = 1.0  # times of lines may be whole seconds


def read_run(text: str, warmup: int, batch: Batch) -> RunLog:
    """The run of a log after ``warmup`` iterations, by the first format that fits; ValueError where none counts."""
    if megatron.is_log(text):
        return megatron.read_log(text, warmup)
    form = next((form for form in FORMATS if form.is_log(text)), None)
    if form is None:
        raise ValueError("it holds no iteration")
    return form.read(text, warmup, batch)


class Window(NamedTuple):
    """A time in which nothing but iterations that count ran: start and end in s since 1970, and their number."""

    start_s: float
    end_s: float
    iterations: int


def window_of(log: RunLog) -> Window:
    """The longest stretch of iterations that count, none between them that does not, by the times of its lines.

    ValueError says why there is none: lines without times (of this machine's zone), times that are too coarse for so
    short a stretch, or that tell more or less time than the iterations took.
    """
    stretch = max(_stretches(log.kept), key=_seconds)
    seconds, end = _seconds(stretch), stretch[-1].ended_s
    if not math.isfinite(end):
        raise ValueError("its lines hold no times")
    if end.is_integer() and seconds < _LEAST_WHOLE_S:
        raise ValueError(f"its times are whole seconds, too coarse for {seconds:.1f} s without an interruption")
    passed, counted = end - stretch[0].ended_s, seconds - _seconds(stretch[:1])
    if abs(passed - counted) > _ROUNDED_S + _BETWEEN * counted:
        raise ValueError(f"{passed:.1f} s passed from its first line that counts to its last, of which the iterations "
                         f"took {counted:.1f} s")  # fmt: skip
    return Window(end - seconds, end, sum(one.span for one in stretch))


def _stretches(kept: Iterable[Iteration]) -> list[list[Iteration]]:
    """Iterations that follow on each other."""
    found: list[list[Iteration]] = []
    for one in kept:
        if not found or one.number - found[-1][-1].number != one.span:
            found.append([])
        found[-1].append(one)
    return found


def _seconds(stretch: Iterable[Iteration]) -> float:
    return math.fsum(one.seconds * one.span for one in stretch)
