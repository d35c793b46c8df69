"""Aligned text tables and the numbers in them, for a terminal of 100 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 100


@dataclass(frozen=True)
class TextColumn:
    """One column: header lines joined by a newline, one cell per row, numbers to the right."""

    header: str
    cells: Sequence[str]
    left: bool = False

    @property
    def width(self) -> int:
        return max(map(len, [*self.header.split("\n"), *self.cells]))

    def lines(self, header_lines: int) -> list[str]:
        """Header and cells, each as wide as the widest."""
        head = self.header.split("\n")
        head += [""] * (header_lines - len(head))
        return [
            cell.ljust(self.width) if self.left else cell.rjust(self.width) for cell in (*head, *self.cells)
        ]


def lay_out(columns: Sequence[TextColumn], gap: str = " ") -> list[str]:
    """The lines of the table, header first, without trailing blanks; every column has the same number of cells."""
    header_lines = max(column.header.count("\n") + 1 for column in columns)
    return [gap.join(cells).rstrip() for cells in zip(*(c.lines(header_lines) for c in columns), strict=True)]


def table_width(columns: Sequence[TextColumn], gap: str = " ") -> int:
    """Characters of the widest line that `lay_out` may make."""
    return sum(column.width for column in columns) + len(gap) * (len(columns) - 1)


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """A sentence on as many lines as it needs, later ones indented; long words such as URLs stay whole."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ) or [""]


def decimals_for(scale: float, digits: int = 4) -> int:
    """Decimals that show ``scale`` with so many significant digits, between 0 and 6."""
    return min(6, max(0, digits - 1 - math.floor(math.log10(scale)))) if 0 < scale < math.inf else 0


def numbers(values: Sequence[float], scale: float) -> list[str]:
    """The values with equal decimals: those that ``scale`` needs, fewer where large ones would take over 7 characters.

    A dash stands for what is not finite.
    """
    whole_digits = max((len(f"{abs(value):.0f}") for value in values if math.isfinite(value)), default=1)
    decimals = max(0, min(decimals_for(scale), 6 - whole_digits))
    return [f"{value:.{decimals}f}" if math.isfinite(value) else "-" for value in values]


def figure(value: float) -> str:
    """One number of a sentence: all of its whole digits, or four digits in all, without an exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.{decimals_for(abs(value))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def unit_of(largest: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """The largest (factor, unit) that keeps ``largest`` at 1 or more; the smallest unit where none does."""
    fitting = [unit for unit in units if largest >= unit[0]]
    return max(fitting) if fitting else min(units)


TIME_UNITS = ((1e-3, "ms"), (1.0, "s"))
ENERGY_UNITS = ((1.0, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ"))
