"""The answer of ``validate``: predicted beside measured, run by run, and how far off it was in all."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from jointopt.report import table
from jointopt.report.documents import VALIDATE
from jointopt.report.measured_run import MeasuredResult, MeasuredRun, result_columns, run_table
from jointopt.report.table import TextColumn
from jointopt.surrogate.intervals import RESULTS


@dataclass(frozen=True, kw_only=True)
class ValidatedRun(MeasuredRun):
    """One proposed plan that was run."""

    in_domain: bool
    reference: bool  # what a job does without jointopt: the fastest plan at the GPU's own clock
    earlier: bool  # the store had measured it, it was not run again

    def error(self, name: str) -> float:
        """Prediction minus measurement, as a share of the measurement; NaN where unknown."""
        value = self.result(name)
        return (self.predicted[name] - value) / value if value else math.nan

    def inside(self, name: str) -> bool | None:
        """True where the measurement lies in the 90 % interval; None where one of them is unknown."""
        low, high = self.predicted[f"{name}_low"], self.predicted[f"{name}_high"]
        value = self.result(name)
        return bool(low <= value <= high) if math.isfinite(value) and math.isfinite(low) else None


@dataclass(frozen=True, kw_only=True)
class Validated(MeasuredResult):
    """The best proposed plans, run."""

    keys = VALIDATE
    runs: tuple[ValidatedRun, ...]
    surrogate: str
    proposed: int  # plans that none other was predicted to beat

    @property
    def median_errors(self) -> dict[str, float]:
        """Median absolute error, as a share, of every result that was predicted and measured.

        Runs that were measured before do not count: the predictions have learned from them.
        """
        new = [run for run in self.runs if not run.earlier]
        errors = {name: [abs(e) for run in new if math.isfinite(e := run.error(name))] for name in RESULTS}
        return {name: statistics.median(found) for name, found in errors.items() if found}

    def text(self) -> str:
        """The runs in the order of the proposal, and a summary."""
        count = f"{len(self.runs)} proposed plans (surrogate {self.surrogate})"
        lines = [*table.wrapped(f"{self.job.name}: {count}, run by {self.launcher}."), "", *_table(self), ""]
        failed = [
            f"Row {number}, {run.status}: {run.row.get('notes') or 'no reason known'}"
            for number, run in enumerate(self.runs, start=1)
            if run.status != "ok"
        ]
        lines += table.paragraphs([_legend(self), *failed, *_accuracy(self)])
        return "\n".join([*lines, *self.closing_lines()])


def _accuracy(found: Validated) -> list[str]:
    out = []
    for name, error in found.median_errors.items():
        judged = [run.inside(name) for run in found.runs if run.inside(name) is not None and not run.earlier]
        out.append(
            f"{table.RESULT_UNITS[name][0].capitalize()} is off by {error:.1%} (median); {sum(map(bool, judged))} of "
            f"{len(judged)} runs lie in their 90 % interval."
        )
    return out


def _table(found: Validated) -> list[str]:
    runs = found.runs
    marks = ["=" * run.reference + "0" * run.earlier + "?" * (not run.in_domain) for run in runs]
    names = ("iteration_time_s", "energy_j", "peak_memory_gib")
    return run_table(
        runs, [TextColumn("", marks)], [column for name in names for column in _compared(runs, name)]
    )


def _compared(runs: tuple[ValidatedRun, ...], name: str) -> list[TextColumn]:
    """Measured, predicted, error and whether inside the interval; the last three where there was a prediction."""
    columns = result_columns(runs, name, "pre-\ndicted")
    if len(columns) < 2:
        return columns
    errors = table.fixed((100 * run.error(name) for run in runs), "+.0f")
    inside = [{True: "y", False: "n", None: "-"}[run.inside(name)] for run in runs]
    return [*columns, TextColumn("err\n%", errors), TextColumn("in", inside)]


def _legend(found: Validated) -> str:
    runs = found.runs
    parts = {
        "err: the prediction against the measurement; in: within the 90 % interval.": True,
        "= the fastest plan at the GPU's own clock.": any(run.reference for run in runs),
        "0 measured before, not run again (--again does).": any(run.earlier for run in runs),
        "? outside of what the prediction was checked against.": any(not run.in_domain for run in runs),
        found.over_legend: True,
    }
    return " ".join(part for part, needed in parts.items() if needed).strip()
