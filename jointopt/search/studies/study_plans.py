"""Plans of a stored study, read back."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import optuna
import sqlalchemy as sa
from optuna.storages._rdb.models import TrialModel, TrialSystemAttributeModel, TrialUserAttributeModel, TrialValueModel
from optuna.trial import TrialState

from jointopt.core.errors import UsageError, nearest_hint
from jointopt.core.secrets import masked
from jointopt.jobs.plans.text import format_stage_clocks
from jointopt.runs.database import has_table, open_database
from jointopt.search.pareto import OBJECTIVES
from jointopt.search.studies.measured import KIND, MEASURED
from jointopt.search.studies.storage import on_studies, open_storage
from jointopt.search.studies.trials import COMPLETE, CONSTRAINTS, DOCUMENT, GENES, PLAN, PLANS, RESULTS, WORKER, is_ours


@on_studies
def read_study(url: str, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(feasible plans of a study of a proposal, of workers or of real runs, each as a mapping, the study's attributes).

    A mapping holds the layout, the stage clocks as text, both objectives and what else is known of the plan; of real
    runs (attribute ``kind``) what was measured. UsageError where the storage or the study is missing, or of another
    kind.
    """
    study = _known_study(url, name)
    attributes = dict(study.user_attrs)
    if attributes.get("kind") == KIND:
        return _measured_plans(study), attributes
    if "job" not in attributes or len(study.directions) < len(OBJECTIVES):
        raise UsageError(f"The study {name!r} holds no plans of jointopt; expected one that `jointopt propose` stored.")
    if "evaluate" in attributes:  # by workers, who may still be at it: what they have finished is there
        return evaluated_plans(url, study._study_id, study.metric_names or OBJECTIVES), attributes
    if not attributes.get(COMPLETE):
        raise UsageError(f"The study {name!r} was not written to its end; run `jointopt propose` again.")
    if not (text := _stored_text(url, name, PLANS)):
        raise UsageError(f"The study {name!r} is of an older jointopt; run `jointopt propose` again.")
    columns = json.loads(text)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)], attributes


@on_studies
def study_kind(url: str, name: str) -> str:
    """What a study holds: `KIND` where it is of real runs; UsageError where there is none of that name."""
    return str(_known_study(url, name).user_attrs.get("kind") or "")


def _known_study(url: str, name: str) -> optuna.Study:
    """The study of that name; nothing is made where there is no database, or none with studies."""
    if not has_table(url, "studies"):
        raise UsageError(
            f"There is no study {name!r}, for {masked(url)!r} holds none; expected a file of "
            f"`jointopt propose --out`, or a study of `jointopt propose --storage URL`."
        )
    storage = open_storage(url)
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        names = optuna.get_all_study_names(storage)  # which reads all attributes of all studies
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise UsageError(
            f"{masked(url)!r} holds no study {name!r}{nearest_hint(name, names)}; expected one of {known}."
        ) from None


@on_studies
def read_document(url: str, name: str) -> str:
    """The proposal that a study was stored with, as JSON; UsageError where there is none."""
    _known_study(url, name)
    text = _stored_text(url, name, DOCUMENT)
    if not text:
        raise UsageError(
            f"The study {name!r} holds no whole proposal: it is of workers, of real runs or of an older jointopt; run "
            f"`jointopt propose` again."
        )
    return zlib.decompress(base64.b64decode(text)).decode()


def _stored_text(url: str, name: str, prefix: str) -> str:
    """A text that a study holds in pieces."""
    storage = open_storage(url)
    stored = storage.get_study_system_attrs(storage.get_study_id_from_name(name))
    return "".join(stored[key] for number in range(len(stored)) if (key := f"{prefix}{number}") in stored)


def _measured_plans(study: optuna.Study) -> list[dict[str, Any]]:
    """The fastest run of each plan, all results that it measured."""
    best: dict[str, dict[str, Any]] = {}
    for trial in study.get_trials(deepcopy=False):
        if is_ours(trial) and trial.user_attrs.get("status") == "ok" and CONSTRAINTS in trial.system_attrs:
            run, known = trial.user_attrs, best.get(trial.user_attrs[PLAN])
            feasible = all(violation <= 0.0 for violation in trial.system_attrs[CONSTRAINTS])
            if feasible and (known is None or float(run["iteration_time_s"]) < float(known["iteration_time_s"])):
                best[run[PLAN]] = run
    names = [name for name in MEASURED if name not in ("status", "notes")]
    found = []
    for run in sorted(best.values(), key=lambda run: float(run["iteration_time_s"])):
        plan = json.loads(run[PLAN])
        clocks = {"stage_clock_mhz": format_stage_clocks(plan["stage_clock_mhz"])}
        found.append(plan | clocks | {name: run.get(name) for name in names})
    return found


# Plans that workers have finished, by one query: Optuna reads trials as objects of 40 KB each, all of a study.


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
            # attributes are JSON of JSON; parsed as one list, so that equal keys are one string
            texts = json.loads(f"[{','.join(row[PLAN] for row in rows)}]")
            for plan, row in zip(json.loads(f"[{','.join(texts)}]"), rows, strict=True):
                if all(violation <= 0.0 for violation in json.loads(row[CONSTRAINTS])):
                    plan["stage_clock_mhz"] = format_stage_clocks(plan["stage_clock_mhz"])
                    plan |= {name: json.loads(row[name] or "null") for name in RESULTS}
                    found.append(plan | {name: row[f"goal {number}"] for number, name in enumerate(goals)})
    return found


def _query(study_id: int, goals: int) -> sa.Select[Any]:
    """A row for each finished trial: its attributes as JSON by their names, and its goals; NULL where it has none.

    Each cell is looked up by an index: joins of so many tables take minutes on PostgreSQL until it has statistics of
    what is new in them.
    """
    trial, value = TrialModel, TrialValueModel
    query = sa.select(trial.trial_id).where(trial.study_id == study_id, trial.state == TrialState.COMPLETE)
    for key, table in (_NEEDED | dict.fromkeys(RESULTS, TrialUserAttributeModel)).items():
        cell = sa.select(table.value_json).where(table.trial_id == trial.trial_id, table.key == key)
        query = query.add_columns(cell.scalar_subquery().label(key))
    for number in range(goals):
        cell = sa.select(value.value).where(value.trial_id == trial.trial_id, value.objective == number)
        query = query.add_columns(cell.scalar_subquery().label(f"goal {number}"))
    return query.order_by(trial.trial_id)
