"""Finished searches as Optuna studies that people open, and as full records.

A study for people has at most some two thousand trials, because the dashboard slows down beyond that: the front, what
is near it, and a sample. It is there as a whole or not at all, whenever a run is killed: one transaction writes it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import optuna
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from jointopt.database import database_errors
from jointopt.schema import Columns, Floats, Ints
from jointopt.search.bulk import (
    TrialRows,
    finished_rows,
    frozen_trials,
    insert_study,
    insert_trials,
    note_attributes,
    pinned_tables,
    plot_attributes,
    set_study_attributes,
)
from jointopt.search.display import front_figure, front_note, front_rows, plan_note
from jointopt.search.pareto import OBJECTIVES, front_order, objectives, take

MAX_TRIALS = 2000
NEAR_SHARE = 0.5  # of the trials beyond the front: those nearest to it; the rest is a random sample
RECORD_NOTE = "Every plan that the search evaluated; a dashboard may need a minute to open this study."
EXPLAINED = 200  # plans of the front that get a note of their own
CONTENT_KEY, COMPLETE_KEY = "content", "complete"
METRIC_NAMES_KEY = "study:metric_names"  # as Optuna's `Study.set_metric_names` does
ATTEMPTS = 8  # at a schema or a name that another process makes at the same moment


def prepare_storage(url: str) -> bool:
    """Make the storage ready for a study; False where it lives in memory, so that nothing would stay.

    Does what a later `save_study` needs: opens the database, makes its tables where it is new, and asks for the right
    to write without writing. UsageError where one of these fails.
    """
    with database_errors(url, "study storage", (optuna.exceptions.OptunaError,)):
        engine = engine_of(open_storage(url))
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
    max_trials: int | None = MAX_TRIALS,
    versioned: bool = True,
) -> str:
    """Write plans (a table from `Problem.describe`) as a finished study and return the study's name.

    The name is ``<name>-<first 8 of job_hash>``, or ``name`` itself where it is not ``versioned``. A changed job never
    continues an old study: if a complete study of the same job with the same trials is there already, nothing is
    written and its name is returned; where the name is taken otherwise, a suffix ``-2``, ``-3``, ... is appended.
    Where the plans are more than ``max_trials``, all of them go to a second study ``<name>-...-record``; None keeps
    every plan in the one study. ``note`` (Markdown) and ``attributes`` (JSON values) belong to the study; the
    note goes on with the front in words, and the front is a plot of its own. UsageError where the storage cannot be
    opened or written.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    told = {"job_hash": job_hash, "seed": seed, **(attributes or {})}
    title = f"{name}-{job_hash[:8]}" if versioned else name
    rows = choose(plans, max_trials, seed)
    with database_errors(url, "study storage", (optuna.exceptions.OptunaError,)):
        storage = open_storage(url)
        if max_trials is not None and len(plans["slack"]) > max_trials:
            record = take(plans, choose(plans, None, seed))
            _save(storage, f"{title}-record", record, told, f"{RECORD_NOTE}\n\n{note}")
        return _save(storage, title, take(plans, rows), told, note)


def _save(
    storage: optuna.storages.BaseStorage, first: str, plans: Columns, told: Mapping[str, Any], note: str
) -> str:
    """The name of the study that now holds these plans: the first free one, or one that has held them before."""
    rows = finished_rows(plans)
    identity = {"job_hash": told["job_hash"], CONTENT_KEY: _content_hash(rows), COMPLETE_KEY: True}
    for number in itertools.count(1):
        title = first if number == 1 else f"{first}-{number}"
        if _write(storage, title, rows, {**told, **identity}, plans, note):
            break
        taken = optuna.load_study(study_name=title, storage=storage).user_attrs
        if identity.items() <= taken.items():
            break
    return title


def _write(
    storage: optuna.storages.BaseStorage, title: str, rows: TrialRows, facts: Mapping[str, Any], plans: Columns,
    note: str,
) -> bool:  # fmt: skip
    """Make the study; False where the name is taken, by an older study or by another process just now."""
    engine = engine_of(storage)
    tables = pinned_tables(engine)
    if engine is None or tables is None:
        return _write_slowly(storage, title, rows, facts, plans, note)
    try:
        with engine.begin() as connection:
            study_id = insert_study(connection, tables, title, facts)
            ids = insert_trials(connection, study_id, rows)
            system_attrs = dict(shown(plans, note, ids))
            set_study_attributes(connection, tables["study_system_attributes"], study_id, system_attrs)
    except IntegrityError:
        return False
    return True


def _write_slowly(
    storage: optuna.storages.BaseStorage, title: str, rows: TrialRows, facts: Mapping[str, Any], plans: Columns,
    note: str,
) -> bool:  # fmt: skip
    """The same through what Optuna offers to everybody: not in one piece, and a trial at a time."""
    try:
        directions = [optuna.study.StudyDirection.MINIMIZE] * len(OBJECTIVES)
        study = optuna.create_study(storage=storage, study_name=title, directions=directions)
    except optuna.exceptions.DuplicatedStudyError:
        return False
    study.add_trials(frozen_trials(rows))
    ids = [trial._trial_id for trial in study.get_trials(deepcopy=False)]
    for key, value in shown(plans, note, ids):
        storage.set_study_system_attr(study._study_id, key, value)
    for key, value in facts.items():  # the mark of completeness is the last
        study.set_user_attr(key, value)
    return True


def shown(plans: Columns, note: str, trial_ids: list[int]) -> Iterator[tuple[str, Any]]:
    """What Optuna and its dashboard show of a study beside its trials."""
    yield METRIC_NAMES_KEY, list(OBJECTIVES)
    yield from note_attributes(f"{note}\n{front_note(plans)}".strip())
    yield from plot_attributes(front_figure(plans), "front")
    for row in front_rows(plans)[:EXPLAINED].tolist():
        yield from note_attributes(plan_note(plans, row), trial_ids[row])


def choose(plans: Columns, count: int | None, seed: int) -> Ints:
    """Rows of at most ``count`` distinct plans: the front, half of the rest near it, half at random; sorted.

    None: every plan with finite objectives, a full record.
    """
    if count is None:
        return _finite(plans)
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
    finite = _finite(plans)
    violation = np.maximum(plans["violation"], 0.0)
    keys = np.column_stack([values[finite] for values in (*objectives(plans), violation)])
    _, first = np.unique(keys, axis=0, return_index=True)
    return np.sort(finite[first]).astype(np.int64)


def _finite(plans: Columns) -> Ints:
    time_s, energy_j = objectives(plans)
    return np.flatnonzero(np.isfinite(time_s) & np.isfinite(energy_j)).astype(np.int64)


def _distance(front: tuple[Floats, Floats], points: tuple[Floats, Floats]) -> Floats:
    """By how much the nearest front point is better, as the larger of the two relative differences."""
    nearest = np.full(len(points[0]), np.inf)
    for time_s, energy_j in zip(*front, strict=True):
        gap = np.maximum(points[0] / time_s, points[1] / energy_j) - 1.0
        nearest = np.minimum(nearest, np.abs(gap))
    return nearest


def _content_hash(rows: TrialRows) -> str:
    told = hashlib.sha256()
    for column in (*rows.params.values(), *rows.values):
        told.update(np.asarray(column, dtype=np.float64).tobytes())
    for name, texts in rows.user_attrs.items():
        told.update(repr((name, texts)).encode())
    return told.hexdigest()[:16]


def engine_of(storage: optuna.storages.BaseStorage) -> sa.Engine | None:
    """The database under a storage; None where there is none."""
    engine: sa.Engine | None = getattr(getattr(storage, "_backend", storage), "engine", None)
    return engine


def open_storage(url: str) -> optuna.storages.BaseStorage:
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
