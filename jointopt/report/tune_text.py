"""What `tune` did, for people: one line per run, the best marked, and why it stopped."""

from __future__ import annotations

import itertools
import math

from jointopt.report.results import Tuned, TunedRun
from jointopt.report.runs_text import (
    STOPPED,
    broken_legend,
    gain_words,
    kept_lines,
    plan_columns,
    stopped_lines,
)
from jointopt.report.table import (
    ENERGY_UNITS,
    TIME_UNITS,
    TextColumn,
    lay_out,
    numbers,
    unit_of,
    wrapped,
)

_STOPPED = STOPPED | {
    "budget": "The budget is spent.",
    "converged": "Converged: no plan that is left is likely to be better by 1 %.",
    "exhausted": "Exhausted: every plan that can be run has been run.",
}


def tuned_text(tuned: Tuned) -> str:
    """The runs in their order, * on those that no other beats, and a summary."""
    count = sum(run.round > 0 for run in tuned.runs)
    title = (
        f"{tuned.job.name}: {count} of {tuned.candidates:,} plans run by {tuned.launcher}, "
        f"for {' and '.join(_OBJECTIVE[name] for name in tuned.objectives)}."
    )
    table = lay_out(_columns(tuned)) if tuned.runs else ["Nothing was measured."]
    legend, ended = _legend(tuned), stopped_lines(_STOPPED[tuned.stopped], tuned.reason)
    lines = [*wrapped(title), "", *table, "", *(wrapped(legend) if legend else []), *ended]
    notes = [note for note in tuned.notes if note != tuned.reason]
    if tuned.front:
        words = gain_words(tuned.gain_left, len(tuned.objectives), "the plans that are left")
        notes.append(f"{words[0].upper()}{words[1:]}.")
    stored = len(tuned.runs) - tuned.unstored
    return "\n".join([*lines, *kept_lines(notes, tuned.storage, tuned.study_name, stored, tuned.unstored)])


_OBJECTIVE = {"iteration_time_s": "iteration time", "energy_j": "energy"}


def _columns(tuned: Tuned) -> list[TextColumn]:
    runs = tuned.runs
    marks = ["*" if i in tuned.front else " " for i in range(len(runs))]
    return [
        TextColumn("", marks),
        TextColumn("run", _numbers(tuned)),
        *plan_columns(runs),
        *_measured(runs, "iteration_time_s", "time", TIME_UNITS),
        *_measured(runs, "energy_j", "energy", ENERGY_UNITS),
        TextColumn("best\nΔ%", _against_best([_kept(run, tuned.objectives[0]) for run in runs])),
    ]


def _numbers(tuned: Tuned) -> list[str]:
    """Runs of this tune, numbered on from what one before it has spent of the budget; - are those before it."""
    count = sum(run.round > 0 for run in tuned.runs)
    numbers = itertools.count(max(tuned.spent.runs - count, 0) + 1)
    return [str(next(numbers)) if run.round > 0 else "-" for run in tuned.runs]


def _kept(run: TunedRun, name: str) -> float:
    return math.nan if run.broken else run.result(name)


def _measured(
    runs: tuple[TunedRun, ...], name: str, header: str, units: tuple[tuple[float, str], ...]
) -> list[TextColumn]:
    """What came out, and beside it what had been expected; nothing where no run measured it."""
    values = [run.result(name) for run in runs]
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return []
    factor, unit = unit_of(min(known), units)
    expected = [run.predicted.get(name, math.nan) for run in runs]
    scale = min(known) / factor
    return [
        TextColumn(f"{header}\n{unit}", numbers([value / factor for value in values], scale)),
        TextColumn(f"expec-\nted {unit}", numbers([value / factor for value in expected], scale)),
    ]


def _against_best(values: list[float]) -> list[str]:
    known = [value for value in values if math.isfinite(value)]
    best = min(known, default=math.nan)
    return [f"{100 * (v / best - 1):.1f}" if math.isfinite(v) else "-" for v in values]


def _legend(tuned: Tuned) -> str:
    first = _OBJECTIVE[tuned.objectives[0]]
    best = f"* no other run is better; Δ% is the {first} against the best; expected was before the run."
    return f"{best if tuned.front else ''} {broken_legend(tuned.runs)}".strip()
