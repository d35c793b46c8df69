"""Settings that a job leaves open, on which its answer hangs, and by how much another value moves the first row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jointopt.report import table
from jointopt.report.table import TextColumn

LEAST_PERCENT = 0.5  # of the time, below which a setting is not remarked on
LINES, OF_ONE = 4, 2  # for people: alternatives in all, and of one setting


@dataclass(frozen=True)
class OpenSetting:
    """One alternative to what is assumed for a setting that the job leaves open."""

    key: str  # of the job file
    assumed: Any
    alternative: Any
    time_change_percent: float  # of the first row's time, where the job states the alternative
    plan: str = ""  # the first plan there, where that is another layout

    @property
    def states(self) -> str:
        """The option that states the alternative."""
        return f"--set {self.key}={self.alternative}"

    @property
    def cells(self) -> tuple[str, str, str]:
        """By how much the time moves, the option that states the alternative, and what is assumed instead."""
        other = "; another layout" if self.plan else ""
        return (
            f"{self.time_change_percent:+z.1f} %",
            f"if {self.key}={self.alternative}",
            (f"(not {_shown(self.assumed)}{other})"),
        )

    def sentence(self) -> str:
        """The alternative with its effect in a line, as text, page and JSON have it."""
        return " ".join(self.cells)

    def document(self) -> dict[str, Any]:
        """Every field of the JSON, with the option that states the alternative."""
        return asdict(self) | {"states": self.states}


def largest(found: Sequence[OpenSetting]) -> list[OpenSetting]:
    """The alternatives that people are shown, the largest change first."""
    shown: list[OpenSetting] = []
    for one in found:
        own = sum(other.key == one.key for other in shown)
        if abs(one.time_change_percent) >= LEAST_PERCENT and own < OF_ONE and len(shown) < LINES:
            shown.append(one)
    return shown


def open_lines(found: Sequence[OpenSetting], whose: str) -> list[str]:
    """Settings that the time hangs on, the largest first, `LINES` at most; none where nothing moves it."""
    shown = largest(found)
    if not shown:
        return []
    changes, settings, notes = zip(*(one.cells for one in shown), strict=True)
    columns = [
        TextColumn("", [f"  {change}" for change in changes]),
        TextColumn("", list(settings), left=True),
        TextColumn("", list(notes), left=True),
    ]
    head = f"{whose} time hangs on open settings; --set KEY=VALUE states one:"
    return [*table.paragraphs([head]), *table.lay_out(columns)[1:]]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
