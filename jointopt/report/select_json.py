"""The document of ``jointopt select --json``."""

from __future__ import annotations

from typing import Any

from jointopt.report.clocks import short_plan
from jointopt.report.plain import length, plain, plan_entries
from jointopt.report.results import Limit, Relaxation, Selection
from jointopt.spec.jobfile import shipped_jobs
from jointopt.spec.plans.parse import PLAN_KEYS


def select_document(selection: Selection) -> dict[str, Any]:
    """The plan chosen, its predictions with both ends of their 90 % intervals, the limits and what relaxing them buys.

    ``gain`` is in units of ``score``: seconds, joules, or their product. ``next`` is a command to go on with.
    """
    (entry,) = plan_entries(selection.plans, [selection.row])
    plan = {name: value for name, value in entry.items() if name in PLAN_KEYS}
    return plain(  # type: ignore[no-any-return]
        {
            "source": selection.source,
            "job": selection.job_name,
            "objective": selection.objective,
            "objective_because": selection.reason,
            "energy": selection.energy,
            "measured": selection.measured,
            "at_high_end": selection.at_high_end,
            "stored_plans": length(selection.plans),
            "satisfying_plans": selection.satisfying,
            "plan": plan,
            **{name: value for name, value in entry.items() if name not in plan},
            "constraints": {limit.name: _stand(limit) for limit in selection.limits},
            "binding": list(selection.binding),
            "binds_together": selection.binds_together,
            "relaxations": {limit.name: _relaxations(selection, limit) for limit in selection.limits},
            "next": next_command(selection),
        }
    )


def next_command(selection: Selection) -> str:
    """The command that takes the plan apart; ``job.yaml`` stands for the job's own file where it is no shipped job."""
    job = selection.job_name if selection.job_name in shipped_jobs() else "job.yaml"
    return f'jointopt explain {job} --plan "{short_plan(selection.plans, selection.row)}"'


def _stand(limit: Limit) -> dict[str, Any]:
    room = 100.0 * (1.0 - limit.held / limit.bound)
    return {"limit": limit.bound, "value": limit.value, "high": limit.high, "room_percent": room}


def _relaxations(selection: Selection, limit: Limit) -> dict[str, Any]:
    nearest = limit.nearest
    return _relaxation(selection, limit, limit.relaxed) | {
        "nearest_useful": None if nearest is None else _relaxation(selection, limit, nearest)
    }


def _relaxation(selection: Selection, limit: Limit, relaxation: Relaxation) -> dict[str, Any]:
    row = relaxation.row
    return {
        "relaxed_to": relaxation.relaxed_to,
        "relaxed_by_percent": 100.0 * (relaxation.relaxed_to / limit.bound - 1.0),
        "gain": relaxation.gain,
        "gain_percent": relaxation.gain_percent,
        "iteration_time_s": float(selection.plans["iteration_time_s"][row]),
        selection.energy: float(selection.plans[selection.energy][row]),
    }
