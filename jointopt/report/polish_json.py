"""The document of ``jointopt polish --json``."""

from __future__ import annotations

from typing import Any

from jointopt.report.plain import plain
from jointopt.report.polish_results import Polished, PolishedPoint
from jointopt.report.zeus_export import zeus_schedule


def polish_document(polished: Polished) -> dict[str, Any]:
    """The plan, the schedules that nothing beats, and the clocks of the chosen one, per stage in order of execution."""
    names = (
        "plan",
        "iteration_time_s",
        "energy_j",
        "slowdown",
        "solver",
        "unit_s",
        "solved_micro_batches",
        "seconds",
        "informed_by",
    )
    document: dict[str, Any] = {"job": polished.job.name}
    document |= {name: getattr(polished, name) for name in names}
    document["num_micro_batches"] = polished.graph.num_micro_batches
    document["points"] = [_entry(polished, point) for point in polished.points]
    chosen = _entry(polished, polished.chosen) | {"stages": zeus_schedule(polished)}
    return plain(document | {"chosen": chosen, "assumed": polished.assumed})  # type: ignore[no-any-return]


def _entry(polished: Polished, point: PolishedPoint) -> dict[str, float]:
    return {
        "iteration_time_s": point.iteration_time_s,
        "energy_j": point.energy_j,
        "energy_saved": polished.saving(point),
        "lowest_clock_mhz": float(point.clock_mhz.min()),
        "highest_clock_mhz": float(point.clock_mhz.max()),
    }
