"""How far loops are that may last: log records below INFO, of which a terminal makes bars; others see nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
LEVEL = 15  # between DEBUG and INFO
_log = logging.getLogger(__name__)


def report(text: str, done: float, total: float) -> None:
    """Logs that ``done`` of ``total`` are done of what ``text`` names; it ends where both are the same."""
    _log.log(LEVEL, "%s: %g of %g", text, done, total, extra={"progress": (text, done, total)})


def steps(items: Sequence[T], text: str) -> Iterator[T]:
    """Yields the items and reports progress after each, and the end however the loop ends."""
    try:
        for done, item in enumerate(items):
            report(text, done, len(items))
            yield item
    finally:
        report(text, len(items), len(items))
