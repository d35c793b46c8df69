"""The document of ``jointopt explain --json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jointopt.physics.facility import bill
from jointopt.report.parts import tidy_parts
from jointopt.report.plain import plain
from jointopt.report.site import site_parts

if TYPE_CHECKING:
    from jointopt.report.results import Explanation


def explain_document(explanation: Explanation) -> dict[str, Any]:
    """The whole explanation in plain lists, numbers and strings; the parts of a breakdown add up to its total."""
    fields: dict[str, Any] = {name: getattr(explanation, name) for name in _FIELDS}
    fields |= {name: tidy_parts(fields[name]) for name in ("time_s", "energy_by_part_j", "memory_gib")}
    stages = [
        asdict(stage) | {"energy_by_part_j": tidy_parts(stage.energy_by_part_j)}
        for stage in explanation.stages
    ]
    job, time_s, energy_j = explanation.job, explanation.iteration_time_s, explanation.energy_j
    fields["facility_energy_by_part_j"] = site_parts(job, time_s, energy_j)
    fields |= bill(job, time_s, energy_j)
    for name, (low, high) in explanation.intervals.items():
        fields |= {f"{name}_low": low, f"{name}_high": high}
    return plain({"job": explanation.job.name, **fields, "stages": stages})  # type: ignore[no-any-return]


_FIELDS = (
    "plan", "feasible", "violations", "iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib",
    "time_s", "energy_by_part_j", "memory_energy_j", "communication_energy_j", "memory_gib", "assumed",
    "in_domain", "surrogate", "informed_by",
)  # fmt: skip
