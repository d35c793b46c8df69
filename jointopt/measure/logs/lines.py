"""The lines of a log as the program wrote them: without colours, and with the label of the rank taken off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_BREAK = re.compile(r"\r\n|[\n\r]")
# labels of torchrun, torch.distributed and srun: [default0]:, [rank3]:, 12:
_LABEL = re.compile(r"((?:\[[^\]\s]*\]:\s?|\d+: ?)*)(.*)", re.DOTALL)


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
