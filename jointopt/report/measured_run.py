"""Real runs, as ``tune`` and ``validate`` return and list them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jointopt.report import table
from jointopt.report.plan_table import plan_table
from jointopt.report.table import TextColumn


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
