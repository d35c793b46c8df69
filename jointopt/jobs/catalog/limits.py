"""The most that a figure of a job may be (``limits.yaml``), for job files, options, scripts and configurations alike.

A figure beyond is refused with the largest that is known of its kind: it is nearly always a slip of units.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from jointopt.core.errors import JobError
from jointopt.jobs.catalog.catalog_files import cite, read_yaml
from jointopt.jobs.reading import Section, is_number

_FILE = "limits.yaml"


class Limit(NamedTuple):
    """The most of a figure, the largest known in words (blank: none is stated), and where that is known from."""

    most: float
    known: str
    source: str

    @property
    def why(self) -> str:
        """The largest known as a message adds it."""
        return f" (the largest known: {self.known})" if self.known else ""


@functools.cache
def limits() -> dict[str, Limit]:
    """Every limit by the key of the job file, such as ``model.num_layers``; ``gpu.`` of a GPU that a job states."""
    cells = read_yaml(_FILE)["most"]
    return {key: Limit(cell[0], cell[2] if len(cell) > 2 else "", cite(cell, _FILE)) for key, cell in cells.items()}


def limit_of(key: str) -> int:
    """The most of a figure that is counted."""
    return int(limits()[key].most)


def limited_whole(section: Section, name: str, key: str, low: int = 1, default: int | None = None) -> int:
    """The whole number under ``name`` of a section, within the limit of ``key``; JobError beyond it."""
    limit, value = limits()[key], section.values.get(name)
    why = limit.why if is_number(value) and value > limit.most else ""
    return section.whole(name, low, int(limit.most), default, why)


def limited_number(section: Section, name: str, key: str, *, zero: bool = False, default: float | None = None) -> float:
    """The number under ``name`` of a section, within the limit of ``key``; JobError beyond it."""
    limit, value = limits()[key], section.values.get(name)
    why = limit.why if is_number(value) and value > limit.most else ""
    return section.number(name, limit.most, zero=zero, default=default, why=why)


def check_batch(sequences: int, seq_length: int, where: str = "training.global_batch_size") -> None:
    """JobError for a batch beyond any known one, in sequences or in tokens: it may be a number of tokens."""
    tokens = sequences * seq_length
    of_tokens, counted = limits()["training.tokens"], limits()["training.global_batch_size"]
    if tokens <= of_tokens.most and sequences <= counted.most:
        return
    expected = f"expected at most {counted.most:,} sequences{counted.why}"
    if tokens > of_tokens.most:
        expected = f"expected at most {of_tokens.most:,} tokens{of_tokens.why}"
    meant, rest = divmod(sequences, seq_length)  # a number of tokens, where that makes a batch
    if meant >= 16:
        expected += f"; {sequences:,} tokens are {'about ' * (rest > 0)}{meant:,} sequences: write {meant}"
    raise JobError(
        f"{where} counts sequences, and {sequences:,} of seq_length {seq_length:,} are {tokens:,} tokens per "
        f"iteration; {expected}."
    )
