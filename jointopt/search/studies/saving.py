"""Finished searches as Optuna studies that people open: plans of the front, plans near it, and others at random.

Optuna writes a trial in milliseconds, so a study is small; the whole front and proposal are in its attributes, and
every plan that a search evaluated is in the record that `jointopt propose --out` writes. On SQLite a study is one
transaction: there as a whole or not at all, whenever a run is killed. Elsewhere its attribute `complete` is written
last, and readers refuse a study without it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats, Ints, outside
from jointopt.jobs.plans.text import stage_clocks_to_text
from jointopt.runs.outages import wait_out
from jointopt.search.pareto import OBJECTIVES, evenly, front_rows, is_beaten, objectives, stacked, take
from jointopt.search.studies.display import pieces, show
from jointopt.search.studies.storage import Storage, made_study, numbered, set_attributes, study_errors
from jointopt.search.studies.trials import searched, spread_in_time, trials_of

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

MAX_TRIALS = 20  # Optuna takes some 30 SQL statements for each, 8 to 15 ms of CPU on a free core
FRONT_SHARE = 0.75  # of the trials: at most so many are the front's, evenly along it
OUTLIER = 1.0  # this much more time or energy than the nearest plan of the front
NEAR_SHARE = 0.5  # of the trials beyond the front: those nearest to it; the rest is a random sample
COMPLETE = "complete"  # attribute: a hash of what the study holds, written when all of it is there
PLANS = "jointopt:plans:"  # study attributes: the plans to choose from, as JSON in pieces
DOCUMENT = "jointopt:proposal:"  # and the whole proposal, as compressed JSON in base 64


def save_study(
    plans: Columns, storage: Storage | str, *, name: str, job_hash: str, seed: int, note: str = "",
    attributes: Mapping[str, Any] | None = None, max_trials: int = MAX_TRIALS, versioned: bool = True,
    document: Mapping[str, Any] | None = None, goals: tuple[str, ...] = OBJECTIVES,
) -> str:  # fmt: skip
    """Write plans (a table from `Problem.describe`) as a finished study in ``storage`` (or its URL); return its name.

    The name is ``<name>-<first 8 of job_hash>``, or ``name`` itself where it is not ``versioned``; where it is taken, a
    suffix ``-2``, ``-3``, ... is appended, unless that study holds the same job and trials: then nothing is written.
    Of more than ``max_trials`` plans some are chosen (`choose`). ``note`` (Markdown), ``attributes`` (JSON values) and
    ``document`` (of the whole proposal) belong to the study, whose values are the ``goals``. UsageError where the
    storage cannot be opened or written.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rows = choose(plans, max_trials, seed, goals)
    trials = trials_of(shown := take(plans, rows), searched(shown), goals=goals)
    spread_in_time(trials)
    held = repr([(trial.values, trial.params, trial.user_attrs) for trial in trials])
    facts = {"job_hash": job_hash, "seed": seed, **(attributes or {})}
    facts[COMPLETE] = hashlib.sha256(held.encode()).hexdigest()[:16]
    first = f"{name}-{job_hash[:8]}" if versioned else name
    url = storage if isinstance(storage, str) else storage.url

    def saved() -> str:
        with study_errors(url):
            to = Storage(storage) if isinstance(storage, str) else storage
            with to.alone(first):
                for title in numbered(first):
                    there = _attributes(to.rdb, title)
                    if there is None:
                        break
                    if all(there.get(key) == facts[key] for key in ("job_hash", COMPLETE)):
                        return title
                _write(to.rdb, title, plans, rows, trials, goals, note, document, facts)
                return title

    return wait_out(url, saved)


def _write(
    rdb: BaseStorage, title: str, plans: Columns, rows: Ints, trials: Sequence[FrozenTrial], goals: tuple[str, ...],
    note: str, document: Mapping[str, Any] | None, facts: Mapping[str, Any],
) -> None:  # fmt: skip
    """Make a study of some ``rows`` of the plans, its facts last."""
    shown = take(plans, rows)
    study = made_study(rdb, title, goals)
    study.add_trials(trials)
    note = f"{note}\n{_share(len(rows), len(plans['slack']))}"
    show(rdb, title, shown, note, range(len(trials)), background=plans, goals=goals)
    set_attributes(rdb, title, pieces(PLANS, json.dumps(_mapping(_choices(plans, rows, goals)))))
    if document is not None:
        set_attributes(rdb, title, pieces(DOCUMENT, compressed(document)))
    for key, value in facts.items():
        study.set_user_attr(key, value)


def compressed(document: Mapping[str, Any]) -> str:
    """A document as compressed JSON in base 64."""
    return base64.b64encode(zlib.compress(json.dumps(document, separators=(",", ":")).encode())).decode()


def _attributes(storage: BaseStorage, study: str) -> dict[str, Any] | None:
    """The attributes of a study; None where there is no such study."""
    try:
        return optuna.load_study(study_name=study, storage=storage).user_attrs
    except KeyError:
        return None


def _choices(plans: Columns, rows: Ints, goals: tuple[str, ...]) -> Columns:
    """The feasible plans of these rows and of the whole front: those to choose from."""
    near = np.union1d(rows, front_rows(plans, goals))
    return take(plans, near[plans["violation"][near] <= 0.0])


def _share(shown: int, evaluated: int) -> str:
    if shown == evaluated:
        return ""
    return (
        f"These {shown} trials are plans of the front, spread evenly along it, and some of those that they beat, of "
        f"{evaluated:,} plans that were evaluated; `jointopt propose --out FOLDER` writes all of these to "
        f"FOLDER/record.csv.gz.\n"
    )


def _mapping(plans: Columns) -> dict[str, list[Any]]:
    """The plans by column, as JSON: layouts as in a table, stage clocks as text, unknown values as null."""
    columns: dict[str, list[Any]] = {}
    for name in (*(n for n in LAYOUT_COLUMNS if n in plans), *(n for n in plans if n not in _LEFT_OUT)):
        columns[name] = [None if value != value else value for value in plans[name].tolist()]
    columns |= {name: outside(name, plans[name]) for name in LAYOUT_COLUMNS if name in plans}
    columns["stage_clock_mhz"] = list(stage_clocks_to_text(plans["stage_clock_mhz"]))
    return columns


_LEFT_OUT = (*LAYOUT_COLUMNS, "stage_clock_mhz", "layout_index", "clock_index", "clock_mhz", "slack", "violation")


def choose(plans: Columns, count: int, seed: int, goals: tuple[str, ...] = OBJECTIVES) -> Ints:
    """Rows of at most ``count`` distinct plans: the front, half of the rest near it, half at random; sorted.

    Of the front at most `FRONT_SHARE` of ``count``. A feasible plan beyond it is beaten by one of those chosen, so that
    Optuna's best trials are of the front. Of the random ones those beyond `OUTLIER` come last, for one of them squeezes
    the front in every plot of the dashboard.
    """
    rows = _distinct(plans, goals)
    some = take(plans, rows)
    front = front_rows(some, goals)
    kept = front[evenly(take(some, front), math.ceil(count * FRONT_SHARE))]
    beaten = is_beaten(stacked(take(some, kept), goals), stacked(some, goals))
    others = np.setdiff1d(np.flatnonzero(beaten | (some["violation"] > 0.0)), front)
    distance = _distance(objectives(take(some, front)), objectives(take(some, others)))
    outlying = others[distance > OUTLIER]
    distance[some["violation"][others] > 0.0] = np.inf
    by_distance = others[np.argsort(distance, kind="stable")]
    room = count - len(kept)
    near, far = np.split(by_distance, [math.ceil(room * NEAR_SHARE)])
    drawn = np.random.default_rng(seed).permutation(far)
    sample = drawn[np.argsort(np.isin(drawn, outlying), kind="stable")][: room - len(near)]
    return np.sort(rows[np.concatenate([kept, near, sample])])


def _distinct(plans: Columns, goals: tuple[str, ...]) -> Ints:
    """Rows with finite goals, the first of those tied in all: Optuna calls all of a tie best trials."""
    values = stacked(plans, goals)
    finite = np.flatnonzero(np.isfinite(values).all(axis=1))
    violation = np.maximum(plans["violation"], 0.0)
    keys = np.column_stack([values[finite], violation[finite]])
    _, first = np.unique(keys, axis=0, return_index=True)
    return np.sort(finite[first]).astype(np.int64)


def _distance(front: tuple[Floats, Floats], points: tuple[Floats, Floats]) -> Floats:
    """By how much the nearest front point is better, as the larger of the two relative differences."""
    nearest = np.full(len(points[0]), np.inf)
    for time_s, energy_j in zip(*front, strict=True):
        gap = np.maximum(points[0] / time_s, points[1] / energy_j) - 1.0
        nearest = np.minimum(nearest, np.abs(gap))
    return nearest
