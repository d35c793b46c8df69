"""The document of ``jointopt tune --json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from jointopt.report.plain import plain
from jointopt.report.results import Tuned, TunedRun
from jointopt.runs.database import without_password

_RESULTS = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")


def tune_document(tuned: Tuned) -> dict[str, Any]:
    """All runs in plain lists, numbers and strings; what a failed run did not measure is null."""
    return {
        "job": tuned.job.name,
        "launcher": tuned.launcher,
        "seed": tuned.seed,
        "candidates": tuned.candidates,
        "objectives": list(tuned.objectives),
        "measured": [_run(run) for run in tuned.runs],
        "front": list(tuned.front),
        "hypervolume": list(tuned.hypervolume),
        "stopped": tuned.stopped,
        "expected_gain_left": plain(tuned.gain_left),
        "spent": asdict(tuned.spent),
        "storage": tuned.storage and without_password(tuned.storage),
        "study": tuned.study_name,
        "notes": list(tuned.notes),
        "fault": tuned.fault or None,
    }


def _run(run: TunedRun) -> dict[str, Any]:
    results = {name: plain(run.result(name)) for name in _RESULTS}
    predicted = {f"predicted_{name}": plain(value) for name, value in run.predicted.items()}
    return {
        **plain(run.plan), "status": run.status, **results, "round": run.round, **predicted,
        "probability_fits": plain(run.probability_fits), "broken": list(run.broken),
    }  # fmt: skip
