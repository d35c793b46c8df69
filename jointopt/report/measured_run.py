"""Real runs, as ``tune`` and ``validate`` return and list them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jointopt.report import table
from jointopt.report.documents import Result
from jointopt.report.plan_table import plan_table
from jointopt.report.table import TextColumn
from jointopt.spec.job import Job

STOPPED = {  # why no further plan is run
    "done": "",
    "interrupted": "Interrupted: what was on its way is lost, all else is kept; the same command goes on.",
    "failed": "Stopped before its time:",  # and the reason
    "budget": "The budget is spent.",
    "converged": "Converged: no plan that is left is likely to be better by 1 %.",
    "exhausted": "Exhausted: every plan that can be run has been run.",
}


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One real run: its plan, the prediction when the plan was chosen, and the measurement."""

    plan: Mapping[str, Any]  # plan columns of one plan; stage_clock_mhz is a list of floats
    row: Mapping[str, Any]  # the measurement, columns of jointopt.core.schema
    predicted: Mapping[str, float]  # results, each with _low and _high (90 % interval)
    broken: tuple[str, ...] = ()  # constraints of the job that the run did not keep

    @property
    def status(self) -> str:
        return str(self.row["status"])

    @property
    def notes(self) -> str:
        """The launcher's notes, empty where there are none."""
        notes = self.row.get("notes")
        return notes if isinstance(notes, str) else ""

    def result(self, name: str) -> float:
        """A result column as a number, NaN where unknown or where the run failed."""
        value = self.row.get(name)
        return math.nan if value is None or self.status != "ok" else float(value)


@dataclass(frozen=True, kw_only=True)
class MeasuredResult(Result):
    """The part that the results of ``tune`` and ``validate`` share: the runs, why they ended, where they are kept."""

    rows = "measured"
    job: Job
    launcher: str
    runs: Sequence[MeasuredRun]
    stopped: str  # a key of `STOPPED`
    storage: str | None = None
    study_name: str | None = None  # the study whose trials the runs are
    notes: tuple[str, ...] = ()  # sentences: earlier runs that counted, predictions that were not trusted
    fault: str = ""  # why no run is a plan to use; empty where one is
    reason: str = ""  # why it failed, one of the notes
    unstored: int = 0  # runs that could not be stored

    @property
    def over_legend(self) -> str:
        """The meaning of the status ``over``, where a run has it."""
        broken = sorted({name for run in self.runs for name in run.broken})
        return f"over: beyond the job's bound on {', '.join(broken)}." if broken else ""

    def closing_lines(self, *remarks: str) -> list[str]:
        """Why there are no further runs, notes and remarks, then where runs and study are, without a password."""
        from jointopt.runs.database import without_password  # with SQLAlchemy

        lines = [f"{STOPPED[self.stopped]} {self.reason}".strip()]
        lines += [note for note in (*self.notes, *remarks) if note != self.reason]
        place = without_password(self.storage) if self.storage else ""
        if place and (len(self.runs) > self.unstored or not self.unstored):
            without = f", without the {self.unstored} that could not be stored" if self.unstored else ""
            kept = [f"Measurements: {place}{without}"]
        else:
            kept = []
        if self.study_name:
            kept.append(f"Study: {self.study_name}")
            kept += table.wrapped(
                f"  jointopt dashboard --storage {place} --study {self.study_name}", "      "
            )
        return [*table.paragraphs(line for line in lines if line), *kept]


def run_table(
    runs: Sequence[MeasuredRun], left: Sequence[TextColumn], right: Sequence[TextColumn]
) -> list[str]:
    """The table of plans with the status of each run; ``over`` is one beyond a bound of the job."""
    status = TextColumn("status", ["over" if run.broken else run.status for run in runs], left=True)
    return (
        plan_table([run.plan for run in runs], left, [status, *right]) if runs else ["Nothing was measured."]
    )


def result_columns(runs: Sequence[MeasuredRun], name: str, predicted_head: str) -> list[TextColumn]:
    """A result as measured and, in the same unit, as predicted; each only where at least one run has it.

    ``predicted_head`` may name the ``{unit}``.
    """
    head, units = table.RESULT_UNITS[name]
    values = [run.result(name) for run in runs]
    if math.isnan(least := table.least_of(values)):
        return []
    factor, unit = table.unit_of(least, units)
    predicted = table.numbers([run.predicted.get(name, math.nan) / factor for run in runs], least / factor)
    beside = [TextColumn(predicted_head.format(unit=unit), predicted)] if set(predicted) != {"-"} else []
    return [table.measured(head, values, units), *beside]
