"""What the answers of `tune` and `validate` have in common for people: how runs are listed, and where they are kept."""

from __future__ import annotations

from collections.abc import Sequence

from jointopt.database import without_password
from jointopt.report.clocks import short_clocks
from jointopt.report.results import TunedRun, ValidatedRun
from jointopt.report.table import TextColumn, wrapped

STOPPED = {
    "interrupted": "Interrupted: what was on its way is lost, all else is kept; the same command goes on.",
    "failed": "Stopped before its time:",
}
_RECOMPUTE = {"none": "-", "selective": "sel", "full": "all"}
_CLOCKS_WIDTH = 12


def plan_columns(runs: Sequence[TunedRun | ValidatedRun], degrees: Sequence[str]) -> list[TextColumn]:
    """The plan of every run, ``degrees`` first, and how the run ended."""
    plans = [run.plan for run in runs]
    return [
        *(TextColumn(name, [str(plan[name]) for plan in plans]) for name in degrees),
        TextColumn("mbs", [str(plan["micro_batch_size"]) for plan in plans]),
        TextColumn("sp", ["y" if plan["sequence_parallel"] else "-" for plan in plans]),
        TextColumn("rc", [_RECOMPUTE[plan["recompute"]] for plan in plans]),
        TextColumn("ZeRO", [str(plan["zero_stage"]) for plan in plans]),
        TextColumn("clock\nMHz", [short_clocks(plan["stage_clock_mhz"], _CLOCKS_WIDTH) for plan in plans]),
        TextColumn("status", ["over" if run.broken else run.status for run in runs], left=True),
    ]


def broken_legend(runs: Sequence[TunedRun | ValidatedRun]) -> str:
    """What the status ``over`` means, where a run has it."""
    broken = sorted({name for run in runs for name in run.broken})
    return f"over: beyond the job's bound on {', '.join(broken)}." if broken else ""


def kept_lines(notes: Sequence[str], storage: str | None, study_name: str | None) -> list[str]:
    """The notes, then where measurements and study are and how to open the study; no password is told."""
    lines = [line for note in notes for line in wrapped(note)]
    place = without_password(storage) if storage else ""
    if place:
        lines.append(f"Measurements: {place}")
    if study_name:
        lines.append(f"Study: {study_name}")
        lines += wrapped(f"  jointopt dashboard --storage {place} --study {study_name}", "      ")
    return lines
