"""What `validate` found, for people: predicted beside measured, run by run, and how far off it was in all."""

from __future__ import annotations

import math
import statistics

from jointopt.report.results import Validated, ValidatedRun
from jointopt.report.runs_text import STOPPED, broken_legend, kept_lines, plan_columns, stopped_lines
from jointopt.report.table import (
    ENERGY_UNITS,
    TIME_UNITS,
    TextColumn,
    lay_out,
    numbers,
    unit_of,
    wrapped,
)
from jointopt.surrogate.intervals import RESULTS

_NAMES = {
    "iteration_time_s": "time", "energy_j": "energy", "avg_power_w": "power", "peak_memory_gib": "memory",
}  # fmt: skip
_UNITS = {
    "iteration_time_s": TIME_UNITS, "energy_j": ENERGY_UNITS, "avg_power_w": ((1.0, "W/GPU"),),
    "peak_memory_gib": ((1.0, "GiB"),),
}  # fmt: skip


def validated_text(found: Validated) -> str:
    """The runs in the order of the proposal, and a summary."""
    count = f"{len(found.runs)} proposed plans (surrogate {found.surrogate})"
    title = f"{found.job.name}: {count}, run by {found.launcher}."
    lines = [
        *wrapped(title),
        "",
        *(lay_out(_columns(found)) if found.runs else ["Nothing was measured."]),
        "",
    ]
    lines += wrapped(_legend(found))
    for run in found.runs:
        if run.status != "ok":
            lines += wrapped(
                f"Row {found.runs.index(run) + 1}, {run.status}: {run.row.get('notes') or 'no reason known'}"
            )
    for name, error in median_errors(found).items():
        judged = [run.inside(name) for run in found.runs if run.inside(name) is not None and not run.earlier]
        lines += wrapped(
            f"{_NAMES[name].capitalize()} is off by {error:.1%} (median); {sum(map(bool, judged))} of {len(judged)} "
            "runs lie in their 90 % interval."
        )
    lines += stopped_lines(STOPPED[found.stopped], found.reason) if found.stopped != "done" else []
    notes = [note for note in found.notes if note != found.reason]
    stored = len(found.runs) - found.unstored
    return "\n".join([*lines, *kept_lines(notes, found.storage, found.study_name, stored, found.unstored)])


def median_errors(found: Validated) -> dict[str, float]:
    """Median absolute error, as a share, of every result that was predicted and measured.

    Runs that were measured before do not count: the predictions have learned from them.
    """
    out = {}
    for name in RESULTS:
        new = [run for run in found.runs if not run.earlier]
        errors = [abs(error) for run in new if math.isfinite(error := run.error(name))]
        if errors:
            out[name] = statistics.median(errors)
    return out


def _columns(found: Validated) -> list[TextColumn]:
    runs = found.runs
    columns = [
        TextColumn("", [_mark(run) for run in runs]),
        *plan_columns(runs),
    ]
    for name in ("iteration_time_s", "energy_j", "peak_memory_gib"):
        columns += _compared(runs, name)
    return columns


def _mark(run: ValidatedRun) -> str:
    return ("=" if run.reference else "") + ("0" if run.earlier else "") + ("" if run.in_domain else "?")


def _compared(runs: tuple[ValidatedRun, ...], name: str) -> list[TextColumn]:
    """Measured, predicted, error and whether inside the interval; nothing where no run measured it."""
    measured = [run.result(name) for run in runs]
    known = [value for value in measured if math.isfinite(value) and value > 0]
    if not known:
        return []
    factor, unit = unit_of(min(known), _UNITS[name])
    scale = min(known) / factor
    head = _NAMES[name]
    predicted = [run.predicted[name] / factor for run in runs]
    columns = [TextColumn(f"{head}\n{unit}", numbers([value / factor for value in measured], scale))]
    if any(map(math.isfinite, predicted)):
        columns += [
            TextColumn("pre-\ndicted", numbers(predicted, scale)),
            TextColumn(
                "err\n%",
                [f"{100 * run.error(name):+.0f}" if math.isfinite(run.error(name)) else "-" for run in runs],
            ),
            TextColumn("in", [{True: "y", False: "n", None: "-"}[run.inside(name)] for run in runs]),
        ]
    return columns


def _legend(found: Validated) -> str:
    parts = ["err: the prediction against the measurement; in: within the 90 % interval."]
    if any(run.reference for run in found.runs):
        parts.append("= the fastest plan at the GPU's own clock.")
    if any(run.earlier for run in found.runs):
        parts.append("0 measured before, not run again (--again does).")
    if any(not run.in_domain for run in found.runs):
        parts.append("? outside of what the prediction was checked against.")
    return " ".join([*parts, broken_legend(found.runs)]).strip()
