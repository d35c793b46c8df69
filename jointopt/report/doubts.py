"""Doubts of the first row of a front, where people look first."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jointopt.jobs.catalog.best_mfu import best_mfu, kind_of
from jointopt.jobs.job import Job
from jointopt.report.reasons import Reasons
from jointopt.report.tables import TextColumn, lay_out, paragraphs, result

LEAST_PERCENT = 0.5  # of the time, below which a setting is not remarked on
LINES, OF_ONE = 4, 2  # for people: alternatives in all, and of one setting
_COUNTED = re.compile(r" \([\d,]+ plans?\)$")
_KINDS = {"adapters": "with adapters", "moe": "of mixtures of experts", "dense": "of dense models"}


@dataclass(frozen=True)
class OpenSetting:
    """One alternative to what is assumed for a setting that the job leaves open."""

    key: str  # of the job file
    assumed: Any
    alternative: Any
    time_change_percent: float  # of the first row's time, where the job states the alternative
    plan: str = ""  # the first plan there, where that is another layout

    @property
    def cells(self) -> tuple[str, str, str]:
        """By how much the time moves, the option that states the alternative, and what is assumed instead."""
        assumed = f"{self.assumed:g}" if isinstance(self.assumed, float) else self.assumed
        other = "; another layout" if self.plan else ""
        return f"{self.time_change_percent:+z.1f} %", f"if {self.key}={self.alternative}", f"(not {assumed}{other})"

    @property
    def states(self) -> str:
        """The option that states the alternative."""
        return f"--set {self.key}={self.alternative}"

    def document(self) -> dict[str, Any]:
        """Every field of the JSON, with the option that states the alternative."""
        return asdict(self) | {"states": self.states}


def first_doubts(
    job: Job, first: Mapping[str, Any], hangs_on: Sequence[OpenSetting], whose: str = "The first row's"
) -> list[str]:
    """Sentences on the first row (an entry with its rates): above every record, then what it hangs on."""
    above = above_best(job, first, whose)
    return [*([above] if above else []), *(" ".join(one.cells) for one in _largest(hangs_on))]


def first_lines(
    job: Job, first: Mapping[str, Any], hangs_on: Sequence[OpenSetting], whose: str = "The first row's"
) -> list[str]:
    """The same in a few lines, as text has them before its table."""
    lines = paragraphs([above_best(job, first, whose)])
    if shown := _largest(hangs_on):
        cells = zip(*(one.cells for one in shown), strict=True)
        changes, settings, notes = (list(column) for column in cells)
        columns = [TextColumn("", [f"  {change}" for change in changes])]
        columns += [TextColumn("", column, left=True) for column in (settings, notes)]
        lines += paragraphs([f"{whose} time hangs on open settings; --set KEY=VALUE states one:"])
        lines += lay_out(columns)[1:]
    return lines


def _largest(found: Sequence[OpenSetting]) -> list[OpenSetting]:
    """The alternatives that people are shown, the largest change first: `LINES` at most, and `OF_ONE` of a setting."""
    shown: list[OpenSetting] = []
    for one in found:
        own = sum(other.key == one.key for other in shown)
        if abs(one.time_change_percent) >= LEAST_PERCENT and own < OF_ONE and len(shown) < LINES:
            shown.append(one)
    return shown


def unshown_lines(doubts: Sequence[str], shown: Reasons) -> list[str]:
    """The sentence on those ``doubts`` of a front that none of the plans ``shown`` has, by their reasons."""
    known = {why for own in shown for why in own}
    rest = [doubt for doubt in doubts if _COUNTED.search(doubt) and _COUNTED.sub("", doubt) not in known]
    return [f"The interval of plans that are not shown here is wider: {'; '.join(rest)}."] if rest else []


def above_best(job: Job, plan: Mapping[str, Any], whose: str) -> str:
    """That the MFU of a plan (an entry with it and its interval) is above the best recorded; blank where it is not.

    Its own time is then not what to count on, but the slow end of its interval.
    """
    best, mfu = best_mfu(job), plan.get("mfu")
    if best is None or mfu is None or not mfu > best.mfu:
        return ""
    high_s = plan.get("iteration_time_s_high")
    count = f": count on {result('iteration_time_s', high_s)}, the slow end of its interval" if high_s else ""
    return (
        f"{whose} MFU of {mfu:.1%} is above the best recorded {_KINDS[kind_of(job)]} on {job.cluster.gpu.id} in "
        f"{job.training.precision}, {best.mfu:.1%} ({best.run}; {best.source}){count}."
    )
