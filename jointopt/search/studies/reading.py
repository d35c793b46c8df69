"""Plans of a stored study, read back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import optuna

from jointopt.core.errors import UsageError, nearest
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.runs.database import database_errors, has_table, without_password
from jointopt.search.pareto import OBJECTIVES
from jointopt.search.studies.measured import KIND
from jointopt.search.studies.measured import RESULTS as MEASURED
from jointopt.search.studies.storage import open_storage
from jointopt.spec.plans.clocks import plain_number

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


def read_study(url: str, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(feasible plans of a study that `save_study` or workers wrote, each as a mapping, and the study's attributes).

    A mapping holds the layout, the stage clocks as text, both objectives and what else is known of the plan. Of real
    runs (attribute ``kind``) it holds what was measured, for those that succeeded and kept the job's bounds. UsageError
    where the storage or the study is missing, or where the study is another kind of study.
    """
    with database_errors(url, "study storage", (optuna.exceptions.OptunaError,)):
        study = _known_study(url, name)
        attributes = dict(study.user_attrs)
        if attributes.get("kind") == KIND:
            return _measured_plans(study), attributes
        if "job" not in attributes or len(study.directions) != len(OBJECTIVES):
            raise UsageError(
                f"The study {name!r} holds no plans of jointopt; expected one that `jointopt propose` stored."
            )
        shared = (
            "evaluate" in attributes
        )  # by workers, who may still be at it: what they have finished is there
        if not (shared or attributes.get("complete")):
            raise UsageError(f"The study {name!r} was not written to its end; run `jointopt propose` again.")
        trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        return [_plan_of(trial) for trial in trials if _is_feasible(trial)], attributes


def _known_study(url: str, name: str) -> optuna.Study:
    """The study of that name; nothing is made where there is no database, or none with studies."""
    if not has_table(url, "studies"):
        raise UsageError(
            f"There is no study {name!r}, for {without_password(url)!r} holds none; expected a file of "
            f"`jointopt propose --out`, or a study of `jointopt propose --storage URL`."
        )
    storage = open_storage(url)
    names = optuna.get_all_study_names(storage)
    if name not in names:
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise UsageError(
            f"{without_password(url)!r} holds no study {name!r}{nearest(name, names)}; expected one of {known}."
        )
    return optuna.load_study(study_name=name, storage=storage)


def _measured_plans(study: optuna.Study) -> list[dict[str, Any]]:
    """The fastest run of each plan, all results that it measured."""
    runs = [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.user_attrs.get("status") == "ok" and _is_feasible(trial)
    ]
    runs.sort(key=lambda trial: float(trial.user_attrs["iteration_time_s"]))
    best: dict[str, FrozenTrial] = {}
    for trial in runs:
        best.setdefault(trial.user_attrs["plan"], trial)
    return [_measured_plan(json.loads(plan), trial) for plan, trial in best.items()]


def _measured_plan(plan: dict[str, Any], trial: FrozenTrial) -> dict[str, Any]:
    clocks = ";".join(map(plain_number, plan["stage_clock_mhz"]))
    measured = {name: trial.user_attrs.get(name) for name in MEASURED if name not in ("status", "notes")}
    return {**plan, "stage_clock_mhz": clocks, **measured}


def _is_feasible(trial: FrozenTrial) -> bool:
    return all(violation <= 0.0 for violation in trial.system_attrs.get("constraints", ()))


def _plan_of(trial: FrozenTrial) -> dict[str, Any]:
    layout = {name: trial.params.get(name) for name in LAYOUT_COLUMNS}
    return layout | dict(zip(OBJECTIVES, trial.values, strict=True)) | trial.user_attrs
