"""Finished searches as Optuna studies that people open: the front, plans near it, and a sample.

Optuna writes a trial in milliseconds, so a study is small; every plan that a search evaluated is in the record that
`jointopt propose --out` writes. On SQLite a study is one transaction: there as a whole or not at all, whenever a run is
killed. Elsewhere its attribute `complete` is written last, and readers refuse a study without it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna

from jointopt.core.schema import LAYOUT_COLUMNS, RECOMPUTE_NAMES, Columns, Floats, Ints
from jointopt.runs.database import database_errors
from jointopt.search.pareto import OBJECTIVES, front_order, objectives, take
from jointopt.search.studies.display import front_rows, pieces, show
from jointopt.search.studies.storage import Storage, made_study
from jointopt.search.studies.trials import searched, spread_in_time, trials_of
from jointopt.spec.plans.clocks import stage_clocks_to_text

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

MAX_TRIALS = 60  # Optuna takes 36 SQL statements for each, some 8 ms of CPU on a free core
NEAR_SHARE = 0.5  # of the trials beyond the front: those nearest to it; the rest is a random sample
COMPLETE = "complete"  # attribute: a hash of what the study holds, written when all of it is there
PLANS = "jointopt:plans:"  # study attributes: the plans to choose from, as JSON in pieces


def save_study(
    plans: Columns, url: str, *, name: str, job_hash: str, seed: int, note: str = "",
    attributes: Mapping[str, Any] | None = None, max_trials: int = MAX_TRIALS, versioned: bool = True,
) -> str:  # fmt: skip
    """Write plans (a table from `Problem.describe`) as a finished study and return the study's name.

    The name is ``<name>-<first 8 of job_hash>``, or ``name`` itself where it is not ``versioned``. A changed job never
    continues an old study: if a complete study of the same job with the same trials is there already, nothing is
    written and its name is returned; where the name is taken otherwise, a suffix ``-2``, ``-3``, ... is appended.
    Of more than ``max_trials`` plans some are chosen (`choose`). ``note`` (Markdown) and ``attributes`` (JSON values)
    belong to the study; the note goes on with the front in words, and the front is a plot of its own. UsageError where
    the storage cannot be opened or written.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    title = f"{name}-{job_hash[:8]}" if versioned else name
    content = _Content.of(plans, choose(plans, max_trials, seed), note)
    content.attributes.update({"job_hash": job_hash, "seed": seed, **(attributes or {})})
    with database_errors(url, "study storage", (optuna.exceptions.OptunaError,)):
        storage = Storage(url)
        with storage.alone(title):
            return _save(storage.rdb, title, content)


@dataclass(frozen=True)
class _Content:
    """A study to write: its trials, the described plans that they are, those to choose from, attributes, the note."""

    plans: Columns
    shown: Columns
    choices: Columns
    trials: list[FrozenTrial]
    attributes: dict[str, Any]
    note: str

    @classmethod
    def of(cls, plans: Columns, rows: Ints, note: str) -> _Content:
        shown = take(plans, rows)
        trials = trials_of(shown, searched(shown))
        spread_in_time(trials)
        near = np.union1d(rows, front_rows(plans))
        choices = take(plans, near[plans["violation"][near] <= 0.0])
        return cls(plans, shown, choices, trials, {}, f"{note}\n{_share(len(rows), len(plans['slack']))}")

    @property
    def hash(self) -> str:
        held = [(trial.values, trial.params, trial.user_attrs) for trial in self.trials]
        return hashlib.sha256(repr(held).encode()).hexdigest()[:16]


def _share(shown: int, evaluated: int) -> str:
    if shown == evaluated:
        return ""
    return (
        f"These {shown} trials are the front, plans near it, and a sample of the {evaluated:,} plans that were "
        f"evaluated; `jointopt propose --out FOLDER` writes all of them to FOLDER/record.csv.gz.\n"
    )


def _save(storage: BaseStorage, first: str, content: _Content) -> str:
    """The name of the study that now holds this: the first free one, or one that has held it before."""
    for number in itertools.count(1):
        title = first if number == 1 else f"{first}-{number}"
        try:
            there = optuna.load_study(study_name=title, storage=storage).user_attrs
        except KeyError:
            break
        if (there.get("job_hash"), there.get(COMPLETE)) == (content.attributes["job_hash"], content.hash):
            return title
    _write(storage, title, content)
    return title


def _write(storage: BaseStorage, title: str, content: _Content) -> None:
    study = made_study(storage, title, OBJECTIVES)
    study.add_trials(content.trials)
    show(storage, title, content.shown, content.note, range(len(content.trials)), background=content.plans)
    study_id = storage.get_study_id_from_name(title)
    for key, value in pieces(PLANS, json.dumps(_mapping(content.choices))):
        storage.set_study_system_attr(study_id, key, value)
    for key, value in {**content.attributes, COMPLETE: content.hash}.items():
        study.set_user_attr(key, value)


def _mapping(plans: Columns) -> dict[str, list[Any]]:
    """The plans by column, as JSON: recompute by name, stage clocks as text, unknown values as null."""
    columns: dict[str, list[Any]] = {}
    for name in (*LAYOUT_COLUMNS, *(name for name in plans if name not in _LEFT_OUT)):
        columns[name] = [None if value != value else value for value in plans[name].tolist()]
    columns["recompute"] = [RECOMPUTE_NAMES[code] for code in plans["recompute"]]
    columns["stage_clock_mhz"] = list(stage_clocks_to_text(plans["stage_clock_mhz"]))
    return columns


_LEFT_OUT = (
    *LAYOUT_COLUMNS,
    "stage_clock_mhz",
    "layout_index",
    "clock_index",
    "clock_mhz",
    "slack",
    "violation",
)


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
    time_s, energy_j = objectives(plans)
    finite = np.flatnonzero(np.isfinite(time_s) & np.isfinite(energy_j))
    violation = np.maximum(plans["violation"], 0.0)
    keys = np.column_stack([values[finite] for values in (time_s, energy_j, violation)])
    _, first = np.unique(keys, axis=0, return_index=True)
    return np.sort(finite[first]).astype(np.int64)


def _distance(front: tuple[Floats, Floats], points: tuple[Floats, Floats]) -> Floats:
    """By how much the nearest front point is better, as the larger of the two relative differences."""
    nearest = np.full(len(points[0]), np.inf)
    for time_s, energy_j in zip(*front, strict=True):
        gap = np.maximum(points[0] / time_s, points[1] / energy_j) - 1.0
        nearest = np.minimum(nearest, np.abs(gap))
    return nearest
