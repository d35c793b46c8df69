"""Plans that workers have finished, by one query: Optuna reads trials as objects of 40 KB each, all of a study."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from optuna.storages._rdb.models import TrialModel, TrialSystemAttributeModel, TrialUserAttributeModel, TrialValueModel
from optuna.trial import TrialState

from jointopt.jobs.plans.text import format_stage_clocks
from jointopt.runs.database import open_database
from jointopt.search.studies.trials import CONSTRAINTS, GENES, PLAN, RESULTS, WORKER

_AT_ONCE = 1000  # rows
_NEEDED: dict[str, Any] = {
    PLAN: TrialUserAttributeModel, WORKER: TrialUserAttributeModel,
    CONSTRAINTS: TrialSystemAttributeModel, GENES: TrialSystemAttributeModel,
}  # fmt: skip


def evaluated_plans(url: str, study_id: int, goals: Sequence[str]) -> list[dict[str, Any]]:
    """The feasible ones of the plans of trials that are `is_evaluated`, in their order.

    Each has its stage clocks as text, its ``goals``, and what is known of `RESULTS`.
    """
    found = []
    with open_database(url).connect() as connection:
        read = connection.execution_options(yield_per=_AT_ONCE).execute(_query(study_id, len(goals)))
        for part in read.mappings().partitions():
            rows = [row for row in part if None not in [row[key] for key in _NEEDED]]
            plans = _parsed(_parsed(row[PLAN] for row in rows))
            for plan, row in zip(plans, rows, strict=True):
                if all(violation <= 0.0 for violation in json.loads(row[CONSTRAINTS])):
                    plan["stage_clock_mhz"] = format_stage_clocks(plan["stage_clock_mhz"])
                    plan |= {name: json.loads(row[name] or "null") for name in RESULTS}
                    found.append(plan | {name: row[_goal(number)] for number, name in enumerate(goals)})
    return found


def _parsed(texts: Iterable[str]) -> list[Any]:
    """The values of texts in JSON, parsed as one list, so that equal keys are one string."""
    values: list[Any] = json.loads(f"[{','.join(texts)}]")
    return values


def _query(study_id: int, goals: int) -> sa.Select[Any]:
    """A row for each finished trial: its attributes as JSON by their names, and its goals; NULL where it has none.

    Each cell is looked up by an index: joins of so many tables take minutes on PostgreSQL until it has statistics of
    what is new in them.
    """
    trial = TrialModel
    query = sa.select(trial.trial_id).where(trial.study_id == study_id, trial.state == TrialState.COMPLETE)
    for key, table in (_NEEDED | dict.fromkeys(RESULTS, TrialUserAttributeModel)).items():
        cell = sa.select(table.value_json).where(table.trial_id == trial.trial_id, table.key == key)
        query = query.add_columns(cell.scalar_subquery().label(key))
    value = TrialValueModel
    for number in range(goals):
        cell = sa.select(value.value).where(value.trial_id == trial.trial_id, value.objective == number)
        query = query.add_columns(cell.scalar_subquery().label(_goal(number)))
    return query.order_by(trial.trial_id)


def _goal(number: int) -> str:
    """The column of a goal."""
    return f"goal {number}"
