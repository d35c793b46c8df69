"""The lines of a log as the program wrote them: without colours, the label of the rank taken off, and their times."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_BREAK = re.compile(r"\r\n|[\n\r]")
# labels of torchrun, torch.distributed and srun: [default0]:, [rank3]:, 12:
_LABEL = re.compile(r"((?:\[[^\]\s]*\]:\s?|\d+: ?)*)(.*)", re.DOTALL)
_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_MONTH_FIRST = re.compile(r"(\d\d)/(\d\d)(?:/(\d{4}))? (\d\d):(\d\d):(\d\d)")  # nanotron's, without a year


class Line(NamedTuple):
    """One line: the label of the rank that wrote it (blank without one), and its text."""

    rank: str
    text: str


def lines_of(log: str) -> Iterator[Line]:
    """The lines of a log in order; a progress bar's returns count as ends of lines."""
    for raw in _BREAK.split(_ANSI.sub("", log)):
        found = _LABEL.match(raw)
        if found:
            yield Line(found[1].strip(), found[2])


def moment_of(text: str) -> float:
    """The last time in a text, of this machine's zone, in s since 1970; NaN without one."""
    if found := [*_MOMENT.finditer(text)]:
        *parts, fraction = found[-1].groups()
        return _seconds(*map(int, parts), int((fraction or "0").ljust(6, "0")))
    if found := [*_MONTH_FIRST.finditer(text)]:
        month, day, year, hour, minute, second = found[-1].groups()
        return _seconds(int(year or time.localtime().tm_year), *map(int, (month, day, hour, minute, second)))
    return math.nan


def _seconds(*parts: int) -> float:
    try:
        return datetime(*parts).timestamp()  # type: ignore[arg-type]
    except ValueError:
        return math.nan
