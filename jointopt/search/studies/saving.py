"""Finished searches as Optuna studies that people open, and as full records.

A study for people has at most some two thousand trials, because the dashboard slows down beyond that: the front, what
is near it, and a sample. It is there as a whole or not at all, whenever a run is killed: one transaction writes it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna
from sqlalchemy.exc import IntegrityError

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.runs.database import database_errors
from jointopt.search.pareto import OBJECTIVES, front_order, objectives, take
from jointopt.search.studies.bulk import (
    TrialRows,
    finished_rows,
    frozen_trials,
    insert_study,
    insert_trials,
    pinned_tables,
    set_study_attributes,
)
from jointopt.search.studies.display import shown
from jointopt.search.studies.storage import engine_of, open_storage

MAX_TRIALS = 2000
NEAR_SHARE = 0.5  # of the trials beyond the front: those nearest to it; the rest is a random sample
RECORD_NOTE = "Every plan that the search evaluated; a dashboard may need a minute to open this study."
CONTENT_KEY, COMPLETE_KEY = "content", "complete"


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
            _save(storage, f"{title}-record", _Content.of(record, told, f"{RECORD_NOTE}\n\n{note}"))
        return _save(storage, title, _Content.of(take(plans, rows), told, note))


@dataclass(frozen=True)
class _Content:
    """What a study holds: described plans, the same as trials, attributes, and what its note begins with."""

    plans: Columns
    rows: TrialRows
    attributes: Mapping[str, Any]
    note: str

    @classmethod
    def of(cls, plans: Columns, told: Mapping[str, Any], note: str) -> _Content:
        rows = finished_rows(plans)
        return cls(plans, rows, {**told, CONTENT_KEY: _content_hash(rows), COMPLETE_KEY: True}, note)

    def is_of(self, attributes: Mapping[str, Any]) -> bool:
        """Whether a study with these attributes holds the same, as a whole."""
        identity = ("job_hash", CONTENT_KEY, COMPLETE_KEY)
        return all(key in attributes and attributes[key] == self.attributes[key] for key in identity)

    def shown(self, trial_ids: list[int]) -> dict[str, Any]:
        return dict(shown(self.plans, self.note, trial_ids))


def _save(storage: optuna.storages.BaseStorage, first: str, content: _Content) -> str:
    """The name of the study that now holds this: the first free one, or one that has held it before."""
    for number in itertools.count(1):
        title = first if number == 1 else f"{first}-{number}"
        if _write(storage, title, content):
            break
        if content.is_of(optuna.load_study(study_name=title, storage=storage).user_attrs):
            break
    return title


def _write(storage: optuna.storages.BaseStorage, title: str, content: _Content) -> bool:
    """Make the study; False where the name is taken, by an older study or by another process just now."""
    engine = engine_of(storage)
    tables = pinned_tables(engine)
    if engine is None or tables is None:
        return _write_slowly(storage, title, content)
    try:
        with engine.begin() as connection:
            study_id = insert_study(connection, tables, title, content.attributes)
            ids = insert_trials(connection, study_id, content.rows)
            table = tables["study_system_attributes"]
            set_study_attributes(connection, table, study_id, content.shown(ids))
    except IntegrityError:
        return False
    return True


def _write_slowly(storage: optuna.storages.BaseStorage, title: str, content: _Content) -> bool:
    """The same through what Optuna offers to everybody: not in one piece, and a trial at a time."""
    try:
        directions = [optuna.study.StudyDirection.MINIMIZE] * len(OBJECTIVES)
        study = optuna.create_study(storage=storage, study_name=title, directions=directions)
    except optuna.exceptions.DuplicatedStudyError:
        return False
    study.add_trials(frozen_trials(content.rows))
    ids = [trial._trial_id for trial in study.get_trials(deepcopy=False)]
    study_id = storage.get_study_id_from_name(title)
    for key, value in content.shown(ids).items():
        storage.set_study_system_attr(study_id, key, value)
    for key, value in content.attributes.items():  # the mark of completeness is the last
        study.set_user_attr(key, value)
    return True


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
