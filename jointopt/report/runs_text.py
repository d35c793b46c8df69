"""Text that answers share: lists of plans and of real runs, and where these are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.report.clocks import short_clocks
from jointopt.report.results import MeasuredRun
from jointopt.report.table import TextColumn, wrapped
from jointopt.runs.database import without_password

STOPPED = {
    "interrupted": "Interrupted: what was on its way is lost, all else is kept; the same command goes on.",
    "failed": "Stopped before its time:",  # and why
}
TERMINATED = "Ended by a signal: runs that had ended are kept, and the same command goes on."
_RECOMPUTE = {"none": "-", "selective": "sel", "full": "all"}
PLAN_CELLS: dict[str, Callable[[Mapping[str, Any]], str]] = {  # of one plan, by the head of the column
    "mbs": lambda plan: str(plan["micro_batch_size"]),
    "sp": lambda plan: "y" if plan["sequence_parallel"] else "-",
    "rc": lambda plan: _RECOMPUTE[plan["recompute"]],
    "ZeRO": lambda plan: str(plan["zero_stage"]),
}
_CLOCKS_WIDTH = 12
_LINE_WIDTH = 40  # of the clocks in a line of words
_WORDS = (*LAYOUT_COLUMNS, "stage_clock_mhz")
_DEGREES = LAYOUT_COLUMNS[:6]
_ALWAYS = ("dp", "tp", "pp", "micro_batch_size", "recompute", "zero_stage")
_HEADS = {  # as in the tables
    "micro_batch_size": "mbs", "sequence_parallel": "sp", "recompute": "rc", "zero_stage": "ZeRO",
    "stage_clock_mhz": "clock",
}  # fmt: skip


def plan_columns(runs: Sequence[MeasuredRun]) -> list[TextColumn]:
    """The plan of every run, its degrees first (beyond dp, tp and pp those that any run has), and how the run ended."""
    plans = [run.plan for run in runs]
    degrees = [name for name in _DEGREES if name in _ALWAYS or any(plan[name] != 1 for plan in plans)]
    return [
        *(TextColumn(name, [str(plan[name]) for plan in plans]) for name in degrees),
        *(TextColumn(head, [cell(plan) for plan in plans]) for head, cell in PLAN_CELLS.items()),
        TextColumn("clock\nMHz", [short_clocks(plan["stage_clock_mhz"], _CLOCKS_WIDTH) for plan in plans]),
        TextColumn("status", ["over" if run.broken else run.status for run in runs], left=True),
    ]


def differing(plans: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Plan columns in which ``plans`` (records) differ."""
    met: dict[str, set[str]] = {}
    for plan in plans:
        for name, value in plan.items():
            met.setdefault(name, set()).add(str(value))
    return frozenset(name for name, values in met.items() if len(values) > 1)


def plan_words(plan: Mapping[str, Any], differing: Collection[str]) -> str:
    """A plan in one line: the columns in which most plans differ, and those that are ``differing`` beside it."""
    shown = [name for name in _WORDS if name in _ALWAYS or name in differing]
    return " ".join(f"{_HEADS.get(name, name)}={_word(plan[name])}" for name in shown)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "y" if value else "n"
    if isinstance(value, list | tuple):
        return f"{short_clocks(value, _LINE_WIDTH)} MHz"
    return str(value)


def gain_words(gain: float, objectives: int, plans: str) -> str:
    """The expected gain of ``plans`` in words: a share ``gain`` of the time, or of the front; NaN = not known."""
    if math.isnan(gain):
        return f"what {plans} bring cannot be told yet (too few runs)"
    what = "be faster by" if objectives == 1 else "widen the front by"
    return f"{plans} are expected to {what} {gain:.1%}"


def stopped_lines(stopped: str, reason: str) -> list[str]:
    """Why there are no further runs; ``reason`` where it was not to be expected."""
    return wrapped(f"{stopped} {reason}".strip())


def broken_legend(runs: Sequence[MeasuredRun]) -> str:
    """The meaning of the status ``over``, where a run has it."""
    broken = sorted({name for run in runs for name in run.broken})
    return f"over: beyond the job's bound on {', '.join(broken)}." if broken else ""


def kept_lines(
    notes: Sequence[str], storage: str | None, study_name: str | None, kept: int = 1, unstored: int = 0
) -> list[str]:
    """The notes, then where measurements and study are and how to open the study; no password is shown.

    ``unstored`` runs could not be stored; where none of the others is ``kept`` nothing is there.
    """
    lines = [line for note in notes for line in wrapped(note)]
    place = without_password(storage) if storage else ""
    if place and (kept or not unstored):
        without = f", without the {unstored} that could not be stored" if unstored else ""
        lines.append(f"Measurements: {place}{without}")
    if study_name:
        lines.append(f"Study: {study_name}")
        lines += wrapped(f"  jointopt dashboard --storage {place} --study {study_name}", "      ")
    return lines
