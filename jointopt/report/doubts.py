"""Doubts of the first row of a front, where people look first."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from jointopt.jobs.job import Job
from jointopt.report.best_mfu import above_best
from jointopt.report.open_settings import OpenSetting, largest, open_lines
from jointopt.report.reasons import Reasons
from jointopt.report.table import paragraphs

FIRST_ROW = "The first row's"
_COUNTED = re.compile(r" \([\d,]+ plans?\)$")


def first_doubts(
    job: Job, first: Mapping[str, Any], hangs_on: Sequence[OpenSetting], whose: str = FIRST_ROW
) -> list[str]:
    """Sentences on the first row (an entry with its rates): above every record, then what it hangs on."""
    above = above_best(job, first, whose)
    return [*([above] if above else []), *(one.sentence() for one in largest(hangs_on))]


def first_lines(
    job: Job, first: Mapping[str, Any], hangs_on: Sequence[OpenSetting], whose: str = FIRST_ROW
) -> list[str]:
    """The same in a few lines, as text has them before its table."""
    above = above_best(job, first, whose)
    return [*paragraphs([above] if above else []), *open_lines(hangs_on, whose)]


def unshown_lines(doubts: Sequence[str], shown: Reasons) -> list[str]:
    """The sentence on those ``doubts`` of a front that none of the plans ``shown`` has, by their reasons."""
    known: Collection[str] = {why for own in shown for why in own}
    rest = [doubt for doubt in doubts if _COUNTED.search(doubt) and _COUNTED.sub("", doubt) not in known]
    return [f"The interval of plans that are not shown here is wider: {'; '.join(rest)}."] if rest else []
