"""The document of ``jointopt explain --json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jointopt.report.results import Explanation, Stage


def explain_document(explanation: Explanation) -> dict[str, Any]:
    """Plain lists, numbers and strings; the parts of each breakdown add up to its total."""
    return {
        "job": explanation.job.name,
        "plan": dict(explanation.plan),
        "feasible": bool(explanation.feasible),
        "violations": list(explanation.violations),
        "iteration_time_s": float(explanation.iteration_time_s),
        "energy_j": float(explanation.energy_j),
        "avg_power_w": float(explanation.avg_power_w),
        "peak_memory_gib": float(explanation.peak_memory_gib),
        "time_s": _floats(explanation.time_s),
        "energy_by_part_j": _floats(explanation.energy_by_part_j),
        "memory_gib": _floats(explanation.memory_gib),
        "stages": [_stage(stage) for stage in explanation.stages],
        "assumed": list(explanation.assumed),
    }


def _floats(parts: Any) -> dict[str, float]:
    return {name: float(value) for name, value in parts.items()}


def _stage(stage: Stage) -> dict[str, Any]:
    return {name: value for name, value in asdict(stage).items() if value is not None}
