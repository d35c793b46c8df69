"""The log of any known training program, read by the format of its lines, and when its iterations ran."""

from __future__ import annotations

import itertools
import math
import re
import time
from datetime import datetime

from jointopt.measure.logs import megatron
from jointopt.measure.logs.iterations import WARM_UP, RunLog
from jointopt.measure.logs.lines import lines_of
from jointopt.measure.logs.others import FORMATS, Batch

_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_MONTH_FIRST = re.compile(r"(\d\d)/(\d\d)(?:/(\d{4}))? (\d\d):(\d\d):(\d\d)")  # nanotron's, without a year
_LEAST_WHOLE_S = 20.0  # a window whose end is known to a second alone


def read_run(text: str, warmup: int, batch: Batch) -> RunLog:
    """The run of a log after ``warmup`` iterations, by the first format that fits; ValueError where none counts."""
    if megatron.is_log(text):
        return megatron.read_log(text, warmup)
    form = next((form for form in FORMATS if form.is_log(text)), None)
    if form is None:
        raise ValueError("it holds no iteration")
    return form.read(text, warmup, batch)


def window_of(text: str, log: RunLog) -> tuple[float, float] | None:
    """Start and end of the iterations that count, in s since 1970, by the time in the line of the last one.

    None where its line holds no time (of this machine's zone), where others lie between them, or where a time without
    fractions of a second is too coarse for so short a window.
    """
    first, last = log.kept[0], log.kept[-1]
    if set(log.dropped) - {WARM_UP} or len({b.number - a.number for a, b in itertools.pairwise(log.kept)}) != 1:
        return None
    seconds = math.fsum(log.iteration_s) * (log.kept[1].number - first.number)  # each is a mean of so many
    found = _time_of(text, last.number)
    if found is None or (found.is_integer() and seconds < _LEAST_WHOLE_S):
        return None
    return found - seconds, found


def iterations_in(log: RunLog) -> int:
    """Iterations in the `window_of` a log, of which each line may hold several."""
    return len(log.kept) * (log.kept[1].number - log.kept[0].number)


def _time_of(text: str, number: int) -> float | None:
    """The time in the last line of an iteration, in s since 1970; None without one."""
    line = re.compile(rf"\b(?:iteration:?|steps?:|global_step=)\s*{number}\b")
    found = [line_.text for line_ in lines_of(text) if line.search(line_.text)]
    if not found:
        return None
    if moment := _MOMENT.search(found[-1]):
        year, month, day, hour, minute, second = (int(part) for part in moment.groups()[:6])
        fraction = int((moment[7] or "0").ljust(6, "0"))
    elif moment := _MONTH_FIRST.search(found[-1]):
        month, day, hour, minute, second = (int(moment[place]) for place in (1, 2, 4, 5, 6))
        year, fraction = int(moment[3] or time.localtime().tm_year), 0
    else:
        return None
    try:
        return datetime(year, month, day, hour, minute, second, fraction).timestamp()
    except ValueError:
        return None
