"""Doubts of plans: why intervals are wider, in one form for every table, and what the time of a plan hangs on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.errors import TableError
from jointopt.core.facts import Source
from jointopt.jobs.catalog.recipes import best_mfu, model_kind
from jointopt.jobs.job import Job
from jointopt.report.tables import TextColumn, fit_columns, lay_out, paragraphs, result_text
from jointopt.surrogate.files import load_surrogate, surrogate_names
from jointopt.surrogate.intervals import DOUBTS, NOT_AS_STATED, UNLIKE

Reasons = Sequence[Collection[str]]  # of each plan, in words; of one that recorded runs support none
NOT_KNOWN = "outside of what was checked (`jointopt explain` says why)"
_STANDS_IN = "another precision or attention kernel stands in for the plan's"
LEAST_PERCENT = 0.5  # of the time, below which a setting is not remarked on
LINES, OF_ONE = 4, 2  # for people: alternatives in all, and of one setting
OF_ROW = 2  # of a table: settings that move its time most, which a sentence counts
_COUNTED = re.compile(r" \([\d,]+ plans?\)$")
_KINDS = {"adapters": "with adapters", "moe": "of mixtures of experts", "dense": "of dense models"}


@dataclass(frozen=True)
class OpenSetting:
    """One alternative to what is assumed for a setting that the job leaves open."""

    key: str  # of the job file
    assumed: Any
    alternative: Any
    time_change_percent: float  # of the plan's time, where the job states the alternative
    plan: str = ""  # the first plan there, where that is another layout

    @property
    def cells(self) -> tuple[str, str, str]:
        """By how much the time moves, the option that states the alternative, and what is assumed instead."""
        assumed = f"{self.assumed:g}" if isinstance(self.assumed, float) else self.assumed
        other = "; another layout" if self.plan else ""
        return f"{self.time_change_percent:+z.1f} %", f"if {self._stated}", f"(not {assumed}{other})"

    @property
    def states(self) -> str:
        """The option that states the alternative."""
        return f"--set {self._stated}"

    @property
    def _stated(self) -> str:
        value = self.alternative
        return f"{self.key}={str(value).lower() if isinstance(value, bool) else value}"

    def document(self) -> dict[str, Any]:
        """Every field of the JSON, with the option that states the alternative."""
        return asdict(self) | {"states": self.states}


def plan_doubts(
    job: Job, plan: Mapping[str, Any], hangs_on: Sequence[OpenSetting], whose: str = "The plan's"
) -> list[str]:
    """Sentences on a plan (an entry with its rates): above every record, then what its time hangs on."""
    above = above_best(job, plan, whose)
    return [*([above] if above else []), *(" ".join(one.cells) for one in _shown_settings(hangs_on))]


def doubt_lines(
    job: Job, plan: Mapping[str, Any], hangs_on: Sequence[OpenSetting], whose: str = "The plan's"
) -> list[str]:
    """The same in a few lines, as text has them before its table."""
    return [*paragraphs([above_best(job, plan, whose)]), *settings_lines(hangs_on, whose=whose)]


def settings_lines(
    hangs_on: Sequence[OpenSetting], most: int = LINES, whose: str = "The", width: int | None = None
) -> list[str]:
    """The open settings that move a time most, a line each below a sentence; none where none does."""
    shown = _shown_settings(hangs_on)[:most]
    if not shown:
        return []
    changes, settings, notes = zip(*(one.cells for one in shown), strict=True)
    columns = [TextColumn("", [f"  {change}" for change in changes])]
    columns += [TextColumn("", settings, left=True), TextColumn("", notes, left=True, spare=True)]
    columns = fit_columns(columns, width) if width else columns
    return [*paragraphs([f"{whose} time hangs on open settings (estimates; --set KEY=VALUE):"]), *lay_out(columns)[1:]]


def open_line(hangs_on: Sequence[str]) -> str:
    """A sentence on the settings that move rows of a table most (a cell of its column `hangs_on` each); else blank."""
    first = Counter(name for cell in hangs_on for name in str(cell).split()[:OF_ROW])
    if not first:
        return ""
    rows = ", ".join(f"{name} ({count:,} row{'s' * (count != 1)})" for name, count in first.most_common(LINES))
    return f"Times hang most on settings left open, which a column of that name states: {rows}; `hangs_on` has all."


def _shown_settings(found: Sequence[OpenSetting]) -> list[OpenSetting]:
    """The alternatives that people are shown, the largest change first: `LINES` at most, and `OF_ONE` of a setting."""
    shown: list[OpenSetting] = []
    for one in found:
        own = sum(other.key == one.key for other in shown)
        if abs(one.time_change_percent) >= LEAST_PERCENT and own < OF_ONE and len(shown) < LINES:
            shown.append(one)
    return shown


def unshown_lines(doubts: Sequence[str], shown: Reasons) -> list[str]:
    """The sentence on ``doubts`` of a front that are no reason of any plan ``shown``."""
    known = {why for own in shown for why in own}
    rest = [doubt for doubt in doubts if _COUNTED.search(doubt) and _COUNTED.sub("", doubt) not in known]
    return [f"The interval of plans that are not shown here is wider: {'; '.join(rest)}."] if rest else []


def above_best(job: Job, plan: Mapping[str, Any], whose: str) -> str:
    """A sentence where the MFU of a plan (an entry) is above the best recorded; else blank.

    The time to count on is then the slow end of the plan's interval.
    """
    best, mfu = best_mfu(job), plan.get("mfu")
    if best is None or mfu is None or not mfu > best.mfu:
        return ""
    high_s = plan.get("iteration_time_s_high")
    count = f": count on {result_text('iteration_time_s', high_s)}, the slow end of its interval" if high_s else ""
    return (
        f"{whose} MFU of {mfu:.1%} is above the best recorded {_KINDS[model_kind(job)]} on {job.cluster.gpu.id} in "
        f"{job.training.precision}, {best.mfu:.1%} ({best.run}; {best.source}){count}."
    )


def unlike_recorded_runs(surrogate: str, job: Job | None = None) -> str:
    """Reason for a plan that is like no recorded run in several ways at once; blank: measured runs correct it too.

    Of the ``job``'s GPU, where it is known, it says whether a surrogate in a folder learned from runs there.
    """
    known = {"none": "the physics was checked on", "": "predictions were learned from"}
    gpus: list[str] = []  # whose runs a surrogate in a folder remembers; none of one that can be read no more
    with suppress(TableError):
        if surrogate not in (*known, *surrogate_names()) and Path(surrogate).is_dir():
            found = load_surrogate(surrogate)
            gpus = sorted({Source.parse(key).gpu for key in np.unique(found.support.source).tolist()}) if found else []
    if not gpus:
        return f"beyond the runs that {known.get(surrogate, f'{surrogate} was trained on')}"
    runs, measure = f"beyond the runs on {', '.join(gpus)} that {surrogate} learned from", "with `jointopt validate`"
    if job is None or job.cluster.gpu.id in gpus:
        return f"{runs} (measure some plans {measure} and retrain)"
    here = f"{runs}, and this job has {job.cluster.gpu.id}"
    return f"{here} (measure a few plans there {measure} and retrain, or leave --surrogate out)"


def reasons_of(
    plans: Sequence[Mapping[str, Any]], surrogate: str = "", job: Job | None = None
) -> list[tuple[str, ...]]:
    """Why the interval of each plan (records) is wider, by its ``in_domain`` and ``doubts``; none where it is not."""
    words = {**DOUBTS, UNLIKE: unlike_recorded_runs(surrogate, job), NOT_AS_STATED: _STANDS_IN}
    return [
        tuple(words[name] for name in str(plan.get("doubts") or "").split() if name in words) or (NOT_KNOWN,)
        if plan.get("in_domain") is False
        else ()
        for plan in plans
    ]


def distinct_reasons(reasons: Reasons) -> list[tuple[str, ...]]:
    """The reasons of each plan that some other plan does not have: its ``?`` stands for them."""
    return [tuple(why for why in own if not all(why in other for other in reasons)) for own in reasons]


def wider_lines(reasons: Reasons, names: Sequence[str] = (), interval: str = "interval (±)") -> list[str]:
    """Sentences of a legend on why intervals are wider, those of all plans first; none where nothing widens any.

    ``names``: of the plans, where a table has no room for ``?``; those of the same reasons are named together.
    Reasons that only some of the marked plans have are counted.
    """
    own = distinct_reasons(reasons)
    common = [why for why in reasons[0] if why not in own[0]] if reasons else []
    every = " for every plan here" if len(reasons) > 1 else ""
    lines = [f"The {interval} is wider{every}: {'; '.join(common)}."] if common else []
    still = " still" if common else ""
    marked = [one for one in own if one]
    if names:
        for whys in dict.fromkeys(marked):
            *most, last = (name for name, one in zip(names, own, strict=True) if one == whys)
            together = f"{', '.join(most)} and {last}" if most else last
            lines.append(f"The {interval} of {together} is wider{still}: {'; '.join(whys)}.")
    elif marked:
        counts = Counter(why for one in marked for why in one)
        words = [why if count == len(marked) else f"{why} ({count} plan{'s' * (count != 1)})"
                 for why, count in counts.items()]  # fmt: skip
        lines.append(f"? the {interval} is wider{still}: {'; '.join(words)}.")
    return lines
