"""The document of ``jointopt validate --json``."""

from __future__ import annotations

from typing import Any

from jointopt.report.plain import plain
from jointopt.report.results import Validated, ValidatedRun
from jointopt.report.validate_text import median_errors
from jointopt.runs.database import without_password
from jointopt.surrogate.intervals import RESULTS


def validate_document(found: Validated) -> dict[str, Any]:
    """Every run in plain lists, numbers and strings; what was not measured is null.

    ``error_<result>`` is the prediction minus the measurement, as a share of the measurement.
    """
    return {
        "job": found.job.name,
        "launcher": found.launcher,
        "surrogate": found.surrogate,
        "proposed": found.proposed,
        "measured": [_run(run) for run in found.runs],
        "median_absolute_error": plain(median_errors(found)),
        "stopped": found.stopped,
        "storage": found.storage and without_password(found.storage),
        "study": found.study_name,
        "notes": list(found.notes),
        "fault": found.fault or None,
    }


def _run(run: ValidatedRun) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in RESULTS:
        results[name] = run.result(name)
        results |= {f"predicted_{name}{end}": run.predicted[f"{name}{end}"] for end in ("", "_low", "_high")}
        results |= {f"error_{name}": run.error(name), f"{name}_inside": run.inside(name)}
    run_document: dict[str, Any] = plain(
        {
            **run.plan, "status": run.status, **results, "in_domain": run.in_domain, "reference": run.reference,
            "earlier": run.earlier, "broken": list(run.broken), "notes": _words(run.row.get("notes")),
        }
    )  # fmt: skip
    return run_document


def _words(value: Any) -> str:
    return value if isinstance(value, str) else ""
