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
    words: str  # of a sentence, with a place for the value: "the framework is {}"
    assumed: Any
    alternative: Any
    time_change_percent: float  # of the first row's time, where the job states the alternative
    plan: str = ""  # the first plan there, where that is another layout

    @property
    def states(self) -> str:
        """The option that states the alternative."""
        return f"--set {self.key}={self.alternative}"

    def sentence(self, whose: str) -> str:
        """The alternative with its effect and how to state it."""
        other, whose = ", by another layout" if self.plan else "", f"{whose[:1].lower()}{whose[1:]}"
        return (
            f"If {self.words.format(_shown(self.alternative))}, not {_shown(self.assumed)} as assumed: "
            f"{self.time_change_percent:+z.1f} % of {whose} time{other} ({self.states})."
        )

    def document(self) -> dict[str, Any]:
        """Every field of the JSON, with the option that states the alternative."""
        found = asdict(self)
        del found["words"]
        return found | {"states": self.states}


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
    notes = [f"not {_shown(one.assumed)}{'; another layout' if one.plan else ''}" for one in shown]
    columns = [
        TextColumn("", [f"  {one.time_change_percent:+z.1f} %" for one in shown]),
        TextColumn("", [f"if {one.key}={one.alternative}" for one in shown], left=True),
        TextColumn("", notes, left=True),
    ]
    head = f"{whose} time hangs on open settings; --set KEY=VALUE states one:"
    return [*table.paragraphs([head]), *table.lay_out(columns)[1:]]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
