"""Sentences on real runs, and where these are kept."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jointopt.report.clocks import short_clocks
from jointopt.report.measured_run import MeasuredRun
from jointopt.report.plan_table import PLAN_COLUMNS
from jointopt.report.table import wrapped
from jointopt.runs.database import without_password

STOPPED = {
    "interrupted": "Interrupted: what was on its way is lost, all else is kept; the same command goes on.",
    "failed": "Stopped before its time:",  # and why
}
TERMINATED = "Ended by a signal: runs that had ended are kept, and the same command goes on."
_LINE_WIDTH = 40  # of the clocks in a line of words
_ALWAYS = ("dp", "tp", "pp", "micro_batch_size", "recompute", "zero_stage")


def differing(plans: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Plan columns in which ``plans`` (records) differ."""
    met: dict[str, set[str]] = {}
    for plan in plans:
        for name, value in plan.items():
            met.setdefault(name, set()).add(str(value))
    return frozenset(name for name, values in met.items() if len(values) > 1)


def plan_words(plan: Mapping[str, Any], differing: Collection[str]) -> str:
    """A plan in one line: the columns that distinguish most plans, and those in which it is ``differing``."""
    heads = {name: column.head for name, column in PLAN_COLUMNS.items()} | {"stage_clock_mhz": "clock"}
    shown = [name for name in heads if name in _ALWAYS or name in differing]
    return " ".join(f"{heads[name]}={_word(plan[name])}" for name in shown)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "y" if value else "n"
    if isinstance(value, list | tuple):
        return f"{short_clocks(value, _LINE_WIDTH)} MHz"
    return str(value)


def gain_words(gain: float, objectives: int, plans: str) -> str:
    """The expected gain of ``plans``: a share of the time, or of the front; NaN = not known yet."""
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
    """The notes, then where measurements and study are and how to open the study; without its password.

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
