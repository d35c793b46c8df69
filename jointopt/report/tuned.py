"""The answer of ``tune``: one line per run, the best marked, and why it stopped."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

from jointopt.core.budget import Spent
from jointopt.report import table
from jointopt.report.documents import TUNE
from jointopt.report.measured_run import MeasuredResult, MeasuredRun, result_columns, run_table
from jointopt.report.runs_text import gain_words
from jointopt.report.table import TextColumn


@dataclass(frozen=True, kw_only=True)
class TunedRun(MeasuredRun):
    """One run of `tune`; its objectives were predicted."""

    round: int  # from 1; plans of one round were chosen before any of them had run; 0 = measured before this tune
    probability_fits: float  # in memory and within the job's constraints, when the plan was chosen


@dataclass(frozen=True, kw_only=True)
class Tuned(MeasuredResult):
    """The runs of a budget, in their order, and the best of them."""

    keys = TUNE
    runs: tuple[TunedRun, ...]
    seed: int
    candidates: int  # plans that could have been run
    front: tuple[int, ...]  # indices into runs: no other run beats them in every objective
    hypervolume: tuple[float, ...]  # after each run, see `jointopt.workflows.tune.volumes`
    objectives: tuple[str, ...]  # of the job's, those that the runs measure
    gain_left: float = math.nan  # share by which the plans that are left are expected to better the runs
    spent: Spent = field(default_factory=Spent)

    def text(self) -> str:
        """The runs in their order, * on those that no other beats, and a summary."""
        title = (
            f"{self.job.name}: {_count(self)} of {self.candidates:,} plans run by {self.launcher}, "
            f"for {' and '.join(table.OBJECTIVE_WORDS[name] for name in self.objectives)}."
        )
        legend = _legend(self)
        words = gain_words(self.gain_left, len(self.objectives), "the plans that are left")
        gain = [f"{words[0].upper()}{words[1:]}."] if self.front else []
        return "\n".join([
            *table.wrapped(title), "", *_table(self), "", *(table.wrapped(legend) if legend else []),
            *self.closing_lines(*gain),
        ])  # fmt: skip


def _count(found: Tuned) -> int:
    """Runs of this tune; the others had been measured before it."""
    return sum(run.round > 0 for run in found.runs)


def _table(found: Tuned) -> list[str]:
    runs, first = found.runs, found.objectives[0]
    numbered = itertools.count(max(found.spent.runs - _count(found), 0) + 1)
    left = [
        TextColumn("", ["*" if i in found.front else " " for i in range(len(runs))]),
        TextColumn("run", [str(next(numbered)) if run.round > 0 else "-" for run in runs]),
    ]
    kept = [math.nan if run.broken else run.result(first) for run in runs]
    slower = table.fixed((100 * (value / table.least_of(kept) - 1) for value in kept), ".1f")
    results = [
        column
        for name in ("iteration_time_s", "energy_j")
        for column in result_columns(runs, name, "expec-\nted {unit}")
    ]
    return run_table(runs, left, [*results, TextColumn("best\nΔ%", slower)])


def _legend(found: Tuned) -> str:
    first = table.OBJECTIVE_WORDS[found.objectives[0]]
    best = f"* no other run is better; Δ% is the {first} against the best; expected was before the run."
    return f"{best if found.front else ''} {found.over_legend}".strip()
