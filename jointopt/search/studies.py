"""Finished searches as Optuna studies that people open: a chosen part of the plans, written in bulk.

A study here is for reading: at most some two thousand trials, because the dashboard slows down beyond that. Optuna
has no bulk insert and takes 73 trials a second on SQLite, so the rows go straight into Optuna's own tables where these
are as pinned below, and through ``Study.add_trials`` where they are not.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from jointopt.database import database_errors, open_database, without_password
from jointopt.errors import UsageError, nearest
from jointopt.schema import LAYOUT_COLUMNS, Columns, Floats, Ints
from jointopt.search.nsga2 import distributions_of, experimental_is_meant, parameters_of
from jointopt.search.pareto import OBJECTIVES, front_order, objectives, take

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

MAX_TRIALS = 2000
NEAR_SHARE = 0.5  # of the trials beyond the front: those nearest to it; the rest is a random sample
TRIALS_PER_STATEMENT = 1000
CONTENT_KEY, COMPLETE_KEY = "content", "complete"
LARGE = 1e9  # stands for an infinite violation, which JSON does not know
ATTEMPTS = 8  # at a schema or a name that another process makes at the same moment
GENES = ("layout_index", "clock_index")  # positions in one run's tables: meaningless to a reader

PINNED_COLUMNS = {
    "trials": {"trial_id", "number", "study_id", "state", "datetime_start", "datetime_complete"},
    "trial_values": {"trial_value_id", "trial_id", "objective", "value", "value_type"},
    "trial_params": {"param_id", "trial_id", "param_name", "param_value", "distribution_json"},
    "trial_user_attributes": {"trial_user_attribute_id", "trial_id", "key", "value_json"},
    "trial_system_attributes": {"trial_system_attribute_id", "trial_id", "key", "value_json"},
}


def prepare_storage(url: str) -> bool:
    """Make the storage ready for a study; False where it lives in memory, so that nothing would stay.

    Does what a later `save_study` needs: opens the database, makes its tables where it is new, and asks for the right
    to write without writing. UsageError where one of these fails.
    """
    with database_errors(url, "study storage", (optuna.exceptions.OptunaError,)):
        engine = getattr(getattr(_open(url), "_backend", None), "engine", None)
        if _in_memory(url):
            return False
        if engine is not None:
            with engine.begin() as connection:
                connection.execute(sa.text("UPDATE studies SET study_name = study_name WHERE 1 = 0"))
    return True


def _in_memory(url: str) -> bool:
    parsed = sa.engine.make_url(url)
    return parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:")


def save_study(
    plans: Columns,
    url: str,
    *,
    name: str,
    job_hash: str,
    seed: int,
    note: str = "",
    attributes: Mapping[str, Any] | None = None,
    max_trials: int = MAX_TRIALS,
    versioned: bool = True,
) -> str:
    """Write plans (a table from `Problem.describe`) as a finished study and return the study's name.

    The name is ``<name>-<first 8 of job_hash>``, or ``name`` itself where it is not ``versioned``. A changed job never
    continues an old study: if a complete study of the same job with the same trials is there already, nothing is
    written and its name is returned; where the name is taken otherwise, a suffix ``-2``, ``-3``, ... is appended.
    ``note`` (Markdown) and ``attributes`` (JSON values) belong to the study. UsageError where the storage cannot be
    opened or written.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    chosen = take(plans, choose(plans, max_trials, seed))
    trials = finished_trials(chosen)
    identity = {"job_hash": job_hash, CONTENT_KEY: _content_hash(trials)}
    with database_errors(url, "study storage", (optuna.exceptions.OptunaError,)):
        study, known = _new_study(_open(url), f"{name}-{job_hash[:8]}" if versioned else name, identity)
        if not known:
            _fill(study, trials, {**identity, "seed": seed, **(attributes or {})}, note)
    return study.study_name


def _fill(study: optuna.Study, trials: list[FrozenTrial], facts: Mapping[str, Any], note: str) -> None:
    """Everything that a new study consists of; the mark of completeness comes last."""
    with experimental_is_meant():
        study.set_metric_names(list(OBJECTIVES))
    for key, value in facts.items():
        study.set_user_attr(key, value)
    if note:
        _set_note(study, note)
    add_in_bulk(study, trials)
    study.set_user_attr(COMPLETE_KEY, True)


def choose(plans: Columns, count: int, seed: int) -> Ints:
    """Rows of at most ``count`` distinct plans: the front, half of the rest near it, half at random; sorted."""
    rows = _distinct(plans)
    first, second = (values[rows] for values in objectives(plans))
    feasible = np.flatnonzero(plans["violation"][rows] <= 0.0)
    front = feasible[front_order(first[feasible], second[feasible])]
    others = np.setdiff1d(np.arange(len(rows)), front)
    distance = _distance((first[front], second[front]), (first[others], second[others]))
    distance[plans["violation"][rows][others] > 0.0] = np.inf
    by_distance = others[np.argsort(distance, kind="stable")]
    front = front[np.linspace(0, len(front) - 1, min(len(front), count)).round().astype(np.int64)]
    room = count - len(front)
    near, far = np.split(by_distance, [math.ceil(room * NEAR_SHARE)])
    rng = np.random.default_rng(seed)
    sample = rng.permutation(far)[: room - len(near)]
    return np.sort(rows[np.concatenate([front, near, sample])])


def _distinct(plans: Columns) -> Ints:
    """Rows with finite objectives, the first of those tied in both: Optuna calls all of a tie best trials."""
    finite = np.flatnonzero(np.isfinite(plans[OBJECTIVES[0]]) & np.isfinite(plans[OBJECTIVES[1]]))
    violation = np.maximum(plans["violation"], 0.0)
    keys = np.column_stack([values[finite] for values in (*objectives(plans), violation)])
    _, first = np.unique(keys, axis=0, return_index=True)
    return np.sort(finite[first]).astype(np.int64)


def _distance(front: tuple[Floats, Floats], points: tuple[Floats, Floats]) -> Floats:
    """By how much the nearest front point is better, as the larger of the two relative differences."""
    nearest = np.full(len(points[0]), np.inf)
    for time_s, energy_j in zip(*front, strict=True):
        gap = np.maximum(points[0] / time_s, points[1] / energy_j) - 1.0
        nearest = np.minimum(nearest, np.abs(gap))
    return nearest


def finished_trials(plans: Columns) -> list[FrozenTrial]:
    """Finished trials with parameters, results as attributes, constraints in both forms, and spread timestamps."""
    distributions = distributions_of(plans, plans["clock_mhz"])
    end = datetime.datetime.now().replace(microsecond=0)
    count = len(plans["violation"])
    trials = []
    for row, (params, attributes) in enumerate(zip(parameters_of(plans), _attributes(plans), strict=True)):
        violation = float(np.clip(plans["violation"][row], -LARGE, LARGE))
        trial = optuna.trial.create_trial(
            values=[float(plans[name][row]) for name in OBJECTIVES],
            params=params,
            distributions=distributions,
            user_attrs=attributes,
            constraints={"violation": violation},
            system_attrs={"constraints": [violation]},  # the only form that optuna-dashboard reads
        )
        # One second each: the dashboard's timeline shows nothing for trials that start and end together.
        trial.datetime_start = end - datetime.timedelta(seconds=count - row)
        trial.datetime_complete = end - datetime.timedelta(seconds=count - row - 1)
        trials.append(trial)
    return trials


def _attributes(plans: Columns) -> list[dict[str, Any]]:
    """What is known of each plan beyond parameters and objectives, as JSON values; unknown (NaN) is left out."""
    taken = {*LAYOUT_COLUMNS, *OBJECTIVES, *GENES, "violation", "clock_mhz", "slack", "stage_clock_mhz"}
    names = [name for name, values in plans.items() if name not in taken and values.ndim == 1]
    columns = {name: plans[name].tolist() for name in names}
    rows = []
    for row, clocks in enumerate(plans["stage_clock_mhz"]):
        known = {name: values[row] for name, values in columns.items() if _is_known(values[row])}
        stages = ";".join(f"{clock:g}" for clock in clocks[np.isfinite(clocks)])
        rows.append({"stage_clock_mhz": stages, **known})
    return rows


def _is_known(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _content_hash(trials: list[FrozenTrial]) -> str:
    rows = [(t.params, t.values, t.user_attrs) for t in trials]
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()[:16]


def _new_study(
    storage: optuna.storages.BaseStorage, name: str, identity: Mapping[str, Any]
) -> tuple[optuna.Study, bool]:
    """(a new study of the first free name, False), or (the complete study of that identity, True)."""
    wanted = {**identity, COMPLETE_KEY: True}
    number, title = 1, name
    while True:
        try:
            study = optuna.create_study(
                storage=storage, study_name=title, directions=["minimize", "minimize"]
            )
            return study, False
        except optuna.exceptions.DuplicatedStudyError:  # there before, or made by another process just now
            taken = optuna.load_study(study_name=title, storage=storage)
        if wanted.items() <= taken.user_attrs.items():
            return taken, True
        number, title = number + 1, f"{name}-{number + 1}"


def _set_note(study: optuna.Study, body: str) -> None:
    """The study's note where optuna-dashboard looks for it, in pieces of at most 2045 characters."""
    storage, study_id = study._storage, study._study_id
    pieces = [body[start : start + 2045] for start in range(0, len(body), 2045)]
    for number, piece in enumerate(pieces):
        storage.set_study_system_attr(study_id, f"dashboard:note_str:{number}", piece)
    storage.set_study_system_attr(study_id, "dashboard:note_ver", 1)


def add_in_bulk(study: optuna.Study, trials: list[FrozenTrial]) -> bool:
    """Add finished trials to a study that has none; True if through Optuna's tables in one transaction."""
    tables = _pinned_tables(study)
    if tables is None:
        study.add_trials(trials)
        return False
    with study._storage._backend.engine.begin() as connection:  # type: ignore[attr-defined]
        for start in range(0, len(trials), TRIALS_PER_STATEMENT):
            _insert(connection, tables, study._study_id, start, trials[start : start + TRIALS_PER_STATEMENT])
    return True


def _pinned_tables(study: optuna.Study) -> Mapping[str, Any] | None:
    """Optuna's tables if they are as pinned and the database returns the ids of inserted rows, else None."""
    backend = getattr(study._storage, "_backend", None)
    dialect = getattr(getattr(backend, "engine", None), "dialect", None)
    if not getattr(dialect, "insert_executemany_returning_sort_by_parameter_order", False):
        return None
    from optuna.storages._rdb import models

    tables: Mapping[str, Any] = models.BaseModel.metadata.tables
    as_pinned = all(
        name in tables and set(tables[name].columns.keys()) == columns
        for name, columns in PINNED_COLUMNS.items()
    )
    return tables if as_pinned else None


def _insert(
    connection: Any, tables: Mapping[str, Any], study_id: int, start: int, trials: list[FrozenTrial]
) -> None:
    """One statement per table; the database gives the trial ids, so that its own counters stay right."""
    table = tables["trials"]
    statement = table.insert().returning(table.c.trial_id, sort_by_parameter_order=True)
    heads = [_head(study_id, start + row, trial) for row, trial in enumerate(trials)]
    ids = [row.trial_id for row in connection.execute(statement, heads)]
    for name, rows_of in _DETAILS.items():
        rows = [
            {"trial_id": i, **row} for i, trial in zip(ids, trials, strict=True) for row in rows_of(trial)
        ]
        if rows:
            connection.execute(tables[name].insert(), rows)


def _head(study_id: int, number: int, trial: FrozenTrial) -> dict[str, Any]:
    return {
        "study_id": study_id,
        "number": number,
        "state": trial.state,
        "datetime_start": _naive_utc(trial.datetime_start),
        "datetime_complete": _naive_utc(trial.datetime_complete),
    }


def _naive_utc(moment: datetime.datetime | None) -> datetime.datetime | None:
    """Optuna shows naive local time and stores naive UTC."""
    return None if moment is None else moment.astimezone(datetime.UTC).replace(tzinfo=None)


def _value_rows(trial: FrozenTrial) -> list[dict[str, Any]]:
    """Objective values, all finite (`choose` sees to that)."""
    return [
        {"objective": number, "value": value, "value_type": "FINITE"}
        for number, value in enumerate(trial.values)
    ]


def _param_rows(trial: FrozenTrial) -> list[dict[str, Any]]:
    return [
        {
            "param_name": name,
            "param_value": distribution.to_internal_repr(trial.params[name]),
            "distribution_json": optuna.distributions.distribution_to_json(distribution),
        }
        for name, distribution in trial.distributions.items()
    ]


def _user_rows(trial: FrozenTrial) -> list[dict[str, Any]]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in trial.user_attrs.items()]


def _system_rows(trial: FrozenTrial) -> list[dict[str, Any]]:
    return [{"key": key, "value_json": json.dumps(value)} for key, value in trial.system_attrs.items()]


_DETAILS = {
    "trial_values": _value_rows,
    "trial_params": _param_rows,
    "trial_user_attributes": _user_rows,
    "trial_system_attributes": _system_rows,
}


def read_study(url: str, name: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(the feasible plans of a study that `save_study` wrote, each as a mapping, and the study's attributes).

    A mapping holds the layout, the stage clocks as text, both objectives and what else is known of the plan. UsageError
    where the storage or the study is missing, or where the study is another kind of study.
    """
    with database_errors(url, "study storage", (optuna.exceptions.OptunaError,)):
        study = _known_study(url, name)
        attributes = dict(study.user_attrs)
        if "job" not in attributes or len(study.directions) != len(OBJECTIVES):
            raise UsageError(
                f"The study {name!r} holds no plans of jointopt; expected one that `jointopt propose` stored."
            )
        if not attributes.get(COMPLETE_KEY):
            raise UsageError(f"The study {name!r} was not written to its end; run `jointopt propose` again.")
        trials = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        return [_plan_of(trial) for trial in trials if _is_feasible(trial)], attributes


def _known_study(url: str, name: str) -> optuna.Study:
    """The study of that name; nothing is made where there is no database, or none with studies."""
    parsed = sa.engine.make_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise UsageError(
            f"There is no database {without_password(url)!r} to look for the study {name!r} in; expected a file of "
            f"`jointopt propose --out`, or a study of `jointopt propose --storage URL`."
        )
    has_studies = sa.inspect(open_database(url)).has_table("studies")
    names = optuna.get_all_study_names(_open(url)) if has_studies else []
    if name not in names:
        known = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise UsageError(
            f"{without_password(url)!r} holds no study {name!r}{nearest(name, names)}; expected "
            f"{f'one of {known}' if names else 'a study, and it has none'}."
        )
    return optuna.load_study(study_name=name, storage=_open(url))


def _is_feasible(trial: FrozenTrial) -> bool:
    return all(violation <= 0.0 for violation in trial.system_attrs.get("constraints", ()))


def _plan_of(trial: FrozenTrial) -> dict[str, Any]:
    layout = {name: trial.params.get(name) for name in LAYOUT_COLUMNS}
    return layout | dict(zip(OBJECTIVES, trial.values, strict=True)) | trial.user_attrs


def _open(url: str) -> optuna.storages.BaseStorage:
    """The storage of a URL, its tables made where they are missing; of several processes that make them, all win."""
    attempt = 1
    while True:
        try:
            return optuna.storages.get_storage(url)
        except ValueError as error:  # for example a port that is not a number
            raise OSError(f"the URL makes no sense ({error})") from error
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError, AssertionError) as error:
            # Optuna looks whether a table or its version is there and makes it, which is not one step.
            if not _made_meanwhile(error):
                raise
            if attempt == ATTEMPTS:
                raise OSError(f"its tables are not complete ({error})") from error
        time.sleep(random.uniform(0.0, 0.1 * attempt))
        attempt += 1


def _made_meanwhile(error: BaseException) -> bool:
    """Whether another process was faster at making the tables, or holds the lock while it does."""
    cause = error.__cause__ if isinstance(error, optuna.exceptions.StorageInternalError) else error
    told = str(getattr(cause, "orig", cause)).lower()
    return isinstance(cause, (IntegrityError, AssertionError)) or "already exists" in told or "locked" in told
