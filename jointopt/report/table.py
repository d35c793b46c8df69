"""Aligned text tables, wrapped sentences, and numbers with units."""

from __future__ import annotations

import math
import os
import sys
import textwrap
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

from jointopt.core.quote import our_command
from jointopt.core.units import KWH

WIDTH = 100  # of what goes to a file or a pipe, and the most of sentences
_NARROWEST = 60
_WIDEST = 240  # of tables on a terminal

Units = Sequence[tuple[float, str]]  # (size in the basic unit, name)
TIME_UNITS: Units = ((1e-3, "ms"), (1.0, "s"))
ENERGY_UNITS: Units = ((1.0, "J"), (1e3, "kJ"), (1e6, "MJ"), (1e9, "GJ"))
MEMORY_UNITS: Units = ((1.0, "GiB"),)
MESSAGE_UNITS: Units = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
SITE_POWER_UNITS: Units = ((1e3, "kW"), (1e6, "MW"))
RUN_TIME_UNITS: Units = ((60.0, "min"), (3600.0, "h"), (86400.0, "days"))
RUN_ENERGY_UNITS: Units = ((KWH, "kWh"), (1e3 * KWH, "MWh"), (1e6 * KWH, "GWh"))
CARBON_UNITS: Units = ((1e-6, "mg"), (1e-3, "g"), (1.0, "kg"), (1e3, "t"))
COUNT_UNITS: Units = ((1.0, ""), (1e3, "thousand"), (1e6, "million"))
RESULT_UNITS = {  # of the result columns, with the short name of each
    "iteration_time_s": ("time", TIME_UNITS), "energy_j": ("energy", ENERGY_UNITS),
    "avg_power_w": ("power", ((1.0, "W/GPU"),)), "peak_memory_gib": ("memory", MEMORY_UNITS),
}  # fmt: skip
OBJECTIVE_UNITS = RESULT_UNITS | {"peak_power_w": ("peak", ((1.0, "W/GPU"),))}


@dataclass(frozen=True)
class TextColumn:
    """One column: header lines joined by a newline, one cell per row, numbers to the right."""

    header: str
    cells: Sequence[str]
    left: bool = False
    spare: bool = False  # left out where the table would be too wide with it
    brief: Sequence[str] = ()  # cells that take the place of these where it would be too wide even then

    @property
    def width(self) -> int:
        """Characters of the widest line."""
        return max(map(len, [*self.header.split("\n"), *self.cells]))


def known(columns: Iterable[TextColumn]) -> list[TextColumn]:
    """The columns but those of dashes alone, of which nothing is known."""
    return [column for column in columns if set(column.cells) != {"-"}]


def fitting(columns: Sequence[TextColumn], width: int, gap: str = "  ") -> list[TextColumn]:
    """The columns without those spare ones, left ones first, that a table of ``width`` characters has no room for.

    With brief cells where that is not enough and they are.
    """
    kept = list(columns)
    for column in columns:
        if column.spare and table_width(kept, gap) > width:
            kept.remove(column)
    brief = [replace(column, cells=column.brief, brief=()) if column.brief else column for column in kept]
    return brief if table_width(brief, gap) <= width < table_width(kept, gap) else kept


def lay_out(columns: Sequence[TextColumn], gap: str = "  ") -> list[str]:
    """The lines of the table, header first, without trailing blanks; every column has the same number of cells."""
    height = max(column.header.count("\n") for column in columns)
    blocks = []
    for column in columns:
        missing = "\n" * (height - column.header.count("\n"))
        cells = [*f"{column.header}{missing}".split("\n"), *column.cells]
        blocks.append([f"{cell:{'<' if column.left else '>'}{column.width}}" for cell in cells])
    return [gap.join(line).rstrip() for line in zip(*blocks, strict=True)]


def table_width(columns: Sequence[TextColumn], gap: str = "  ") -> int:
    """Characters of the widest line that `lay_out` may make."""
    return sum(column.width + len(gap) for column in columns) - len(gap)


def text_width() -> int:
    """Characters of a line of a sentence: those of a terminal up to 100, and 100 where the text goes elsewhere."""
    return min(WIDTH, room())


def room() -> int:
    """Characters of a line of a table: those of a terminal, and 100 where the text goes elsewhere."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError, AttributeError):  # no terminal, or no stdout at all
        return WIDTH
    return min(_WIDEST, max(columns, _NARROWEST)) if columns else WIDTH


def paragraphs(sentences: Iterable[str], indent: str = "  ") -> list[str]:
    """The lines of sentences, each from a new line, later ones indented; long words such as URLs stay whole."""
    wrapper = textwrap.TextWrapper(
        text_width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line for text in sentences for line in wrapper.wrap(text)]


def blocks_text(*blocks: Sequence[str]) -> str:
    """Blocks of lines with a blank line between them; empty ones are left out."""
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _decimals_for(scale: float, digits: int = 4) -> int:
    """Decimals that show ``scale`` with so many significant digits, between 0 and 6."""
    return min(6, max(0, digits - 1 - math.floor(math.log10(scale)))) if 0 < scale < math.inf else 0


def numbers(values: Sequence[float], scale: float) -> list[str]:
    """As `fixed`, with the decimals that ``scale`` needs, fewer where large values would take over 7 characters."""
    whole_digits = max((len(f"{abs(value):.0f}") for value in values if math.isfinite(value)), default=1)
    return fixed(values, f".{max(0, min(_decimals_for(scale), 6 - whole_digits))}f")


def fixed(values: Iterable[float | None], form: str) -> list[str]:
    """The values in a format such as ``+.1f``, none as ``-0.0``; a dash for None and for what is not finite."""
    form = f"+z{form[1:]}" if form.startswith("+") else f"z{form}"
    return ["-" if v is None or not math.isfinite(v) else format(v, form) for v in values]


def percent_of(values: Iterable[float], reference: float, form: str) -> list[str]:
    """The percentages by which values lie above a reference, as `fixed`."""
    return fixed((100 * (value / reference - 1) for value in values), form)


def plus_minus(values: Sequence[str], half_widths: Sequence[float]) -> list[str]:
    """Values with half of an interval behind them, ``+14.2±5.1``, where it is known; the signs below one another."""
    halves = ["" if half != half else f"±{half:.{0 if half >= 9.95 else 1}f}" for half in half_widths]
    first, second = (max(map(len, words), default=0) for words in (values, halves))
    return [f"{value:>{first}}{half:<{second}}" for value, half in zip(values, halves, strict=True)]


def figure(value: float) -> str:
    """One number of a sentence: all of its whole digits, or four digits in all, without an exponent."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    text = f"{value:z.{_decimals_for(abs(value))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def unit_of(largest: float, units: Units) -> tuple[float, str]:
    """The largest (factor, unit) that keeps ``largest`` at 1 or more; the smallest unit where none does."""
    return max((unit for unit in units if largest >= unit[0]), default=min(units))


def least_of(values: Iterable[float]) -> float:
    """The least value above 0; NaN where there is none."""
    return min((value for value in values if 0 < value < math.inf), default=math.nan)


def measured(head: str, values: Sequence[float], units: Units, at: float | None = None) -> TextColumn:
    """A column in the unit and with the decimals that suit ``at`` (default: the least value); the unit is a header."""
    at = least_of(values) if at is None else at
    factor, unit = unit_of(at, units)
    cells = numbers([value / factor for value in values], at / factor)
    return TextColumn(f"{head}\n{unit}" if head else unit, cells)


def quantity(value: float, units: Units) -> str:
    """One number with its unit, such as ``3.554 s``."""
    column = measured("", [value], units, value)
    return f"{column.cells[0]} {column.header}"


def result(name: str, value: float) -> str:
    """A figure of a result column with its unit."""
    return quantity(value, OBJECTIVE_UNITS[name][1])


def study_lines(name: str, storage: str, study: str | None = None) -> list[str]:
    """The name of a study, and the command that opens it, or the newest one of the storage."""
    return [f"Study: {name}", f"  {our_command('dashboard', storage=storage, study=study)}"]


def equal_runs(keys: Iterable[Hashable]) -> list[range]:
    """The positions of each run of equal neighbours."""
    ends = accumulate((len(list(run)) for _, run in groupby(keys)), initial=0)
    return [range(*bounds) for bounds in pairwise(ends)]


def span(low: object, high: object, dots: str = "..") -> str:
    """Two cells as one, ``1200..1410``; equal ones once."""
    return str(low) if low == high else f"{low}{dots}{high}"
