"""Plans as Optuna's trials: parameters, what is known of a plan, and its constraint."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from jointopt.core.codes import Names
from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, POWER_LIMIT, Columns, Floats, Ints, decode_cells
from jointopt.jobs.plans.text import TRIAL_LAYOUT, plan_records, record_text, stage_clocks_to_text
from jointopt.runs.database import wait_out
from jointopt.search.breeding import SLACK_LEVELS
from jointopt.search.parameters import CLOCK, SLACK, VARIANT, Parameters
from jointopt.search.pareto import (
    OBJECTIVES,
    concat_plans,
    evenly_spaced,
    front_of,
    front_rows,
    is_beaten,
    objectives,
    stacked,
    take,
)
from jointopt.search.problem import Problem
from jointopt.search.studies.display import pieces, show
from jointopt.search.studies.storage import Storage, insert_trials, made_study, numbered, set_attributes, study_errors

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial


LARGE = 1e9  # stands for an infinite violation, which JSON does not know
# The attribute in which optuna-dashboard looks for constraints: a list, at most 0 where feasible. Optuna 5 reads it
# too, but optuna-dashboard 0.21 does not read what `create_trial(constraints=)` writes, one attribute for each.
CONSTRAINTS = "constraints"
PLAN = "plan"  # attribute: the plan as JSON text, as `jointopt explain --plan` takes it
WORKER = "worker"  # attribute of a trial in a shared study: who evaluates it
GENES = "jointopt:genes"  # and, of the system's: layout index, clock index, share of slack
RESULTS = ("avg_power_w", "peak_memory_gib")  # attributes beside the objectives
DOUBTS = "doubts"  # the column of plans that holds text


# Plan columns that are no parameters: Optuna's have fixed lists of values, and no list holds all of these. `PLAN` does.
UNLISTED = tuple(c.name for c in COLUMNS.values() if c.codes is not None and not isinstance(c.codes, Names))


def is_ours(trial: FrozenTrial) -> bool:
    """True of a trial that jointopt made; anyone may add others to a study with Optuna, and these are left alone."""
    return PLAN in trial.user_attrs


def is_shared(trial: FrozenTrial) -> bool:
    """True of a trial that a worker made, which says what is evaluated and by whom."""
    return is_ours(trial) and WORKER in trial.user_attrs and GENES in trial.system_attrs


def is_evaluated(trial: FrozenTrial) -> bool:
    """True of a worker's trial with its goals and constraint; without the latter another program ended it."""
    return trial.state == TrialState.COMPLETE and is_shared(trial) and CONSTRAINTS in trial.system_attrs


def distributions_of(plans: Columns) -> dict[str, BaseDistribution]:
    """One parameter per plan column: degrees on a log scale, clock_mhz in MHz, and slack as a share if there is one."""
    made: dict[str, BaseDistribution] = {}
    for name in LAYOUT_COLUMNS:
        column = COLUMNS[name]
        if name not in plans or name in UNLISTED:
            continue
        if isinstance(column.codes, Names):
            made[name] = CategoricalDistribution(column.codes.names)
        elif column.dtype == "bool":
            made[name] = CategoricalDistribution((False, True))
        else:
            low, high = decode_cells(name, (plans[name].min(), plans[name].max()))
            made[name] = IntDistribution(low, high, log=column.log)
    made["clock_mhz"] = FloatDistribution(float(plans["clock_mhz"].min()), float(plans["clock_mhz"].max()))
    limits = plans.get(POWER_LIMIT, np.zeros(0))
    if len(limits := limits[np.isfinite(limits)]):
        made[POWER_LIMIT] = FloatDistribution(float(limits.min()), float(limits.max()))
    if "slack" in plans:
        made["slack"] = FloatDistribution(0.0, 1.0)
    return made


def varying_distributions(plans: Columns) -> dict[str, BaseDistribution]:
    """`distributions_of` the columns with more than one value, since every parameter costs when it is written."""
    known = distributions_of(plans)
    return {name: kind for name, kind in known.items() if np.ptp(np.nan_to_num(plans[name]).astype(float)) > 0.0}


def running_trials(plans: Columns, distributions: Mapping[str, BaseDistribution]) -> list[FrozenTrial]:
    """A running trial per plan of a `Problem.describe`, its columns the parameters."""
    columns: dict[str, list[Any]] = {}
    for name in distributions:
        columns[name] = decode_cells(name, plans[name]) if name in LAYOUT_COLUMNS else plans[name].tolist()
    plan_of = plan_records(plans, plans["stage_clock_mhz"], range(len(plans["clock_mhz"])))
    rows = zip(*columns.values(), strict=True) if columns else ((),) * len(plan_of)
    return [
        create_trial(
            state=TrialState.RUNNING, params=dict(zip(columns, row, strict=True)), distributions=dict(distributions),
            user_attrs={PLAN: record_text(plan)},
        )
        for plan, row in zip(plan_of, rows, strict=True)
    ]  # fmt: skip


def distributions_of_space(space: Parameters) -> dict[str, BaseDistribution]:
    """The distribution of each parameter of a job's space, over its full range."""
    steps = 1.0 / (SLACK_LEVELS - 1)
    every: dict[str, Callable[[], BaseDistribution]] = {
        TRIAL_LAYOUT: lambda: CategoricalDistribution(space.splits),
        VARIANT: lambda: IntDistribution(1, space.most_variants, log=True),
        CLOCK: lambda: _of_grid(space.problem.clocks_mhz),
        POWER_LIMIT: lambda: _of_grid(space.limits_w),
        SLACK: lambda: FloatDistribution(0.0, 1.0, step=steps),
    }
    return {name: every[name]() for name in space.names}


def _of_grid(values: Floats) -> FloatDistribution:
    """The distribution of an ascending grid; with its step where that is a whole number, else values are rounded."""
    steps = np.diff(values)
    step = float(steps[0]) if np.ptp(steps) == 0.0 and float(steps[0]).is_integer() else None
    return FloatDistribution(float(values[0]), float(values[-1]), step=step)


def finished_trials(
    plans: Columns, space: Parameters, goals: tuple[str, ...], excess: Mapping[str, Floats] | None = None
) -> list[FrozenTrial]:
    """A finished trial per plan of a `Problem.describe`; ``excess`` (n,) over each limit, as a share of it.

    What a layout is beside its split of the GPUs is among the attributes, where the plans differ in it. Where there is
    no limit, and no plan breaks one, trials have no constraints.
    """
    limited = excess is not None or bool((plans["violation"] > 0.0).any())
    varied = [name for name in LAYOUT_COLUMNS if name in plans and len(plans[name]) and np.ptp(plans[name].astype(int))]
    cells = {name: decode_cells(name, plans[name]) for name in varied}
    plan_of = plan_records(plans, plans["stage_clock_mhz"], range(len(plans["clock_mhz"])))
    trials, distributions = [], distributions_of_space(space)
    for row, (plan, params) in enumerate(zip(plan_of, space.encode(plans), strict=True)):
        came = outcome_of(plans, row, goals, excess)
        came["user_attrs"] = (
            {PLAN: record_text(plan)} | {name: cells[name][row] for name in varied} | came["user_attrs"]
        )
        came["system_attrs"] = came["system_attrs"] if limited else {}
        trials.append(create_trial(params=params, distributions=distributions, **came))
    return trials


def outcome_of(
    plans: Columns, row: int, goals: tuple[str, ...] = OBJECTIVES, excess: Mapping[str, Floats] | None = None
) -> dict[str, Any]:
    """The outcome of a plan in the fields of a trial: its goals, the `RESULTS` that are known, and its constraints."""
    known = {name: float(plans[name][row]) for name in RESULTS if name in plans}
    return {
        "values": [float(plans[name][row]) for name in goals],
        "user_attrs": {name: value for name, value in known.items() if math.isfinite(value)},
        "system_attrs": constraint_attributes(
            float(plans["violation"][row]), {name: float(values[row]) for name, values in (excess or {}).items()}
        ),
    }


def constraint_attributes(violation: float, excess: Mapping[str, float]) -> dict[str, Any]:
    """System attributes of a trial with its constraints, for Optuna's samplers and for optuna-dashboard.

    ``violation``: the largest ``excess`` over a limit.
    """
    each = {f"{CONSTRAINTS}:{name}": float(np.clip(value, -LARGE, LARGE)) for name, value in excess.items()}
    return {CONSTRAINTS: [float(np.clip(violation, -LARGE, LARGE))], **each}


# Finished searches as Optuna studies that people open: plans of the front, plans near it, and others at random.


MAX_TRIALS = 266  # optuna-dashboard draws a few hundred at once; of thousands it takes most of a minute
FRONT_SHARE = 0.75  # of the trials: at most so many, 200, are the front's, evenly along it
OUTLIER = 1.0  # this much more time or energy than the nearest plan of the front
NEAR_SHARE = 0.5  # of the trials beyond the front: those nearest to it; the rest is a random sample
COMPLETE = "complete"  # attribute: a hash of what the study holds, written when all of it is there
PLANS = "jointopt:plans:"  # study attributes: the plans to choose from, as JSON in pieces
DOCUMENT = "jointopt:proposal:"  # and the whole proposal, as compressed JSON in base 64


def save_study(
    plans: Columns, storage: Storage | str, *, problem: Problem, name: str, job_hash: str, seed: int, note: str = "",
    attributes: Mapping[str, Any] | None = None, max_trials: int | None = MAX_TRIALS, versioned: bool = True,
    document: Mapping[str, Any] | None = None, excess: Callable[[Columns], Columns] | None = None,
) -> str:  # fmt: skip
    """Write plans (`Problem.describe`) as a finished study of the ``problem`` in ``storage`` (or its URL).

    Its name, which is returned, is ``<name>-<first 8 of job_hash>``, or ``name`` itself where it is not ``versioned``;
    where it is taken, a suffix ``-2``, ``-3``, ... is appended, unless that study holds the same job and trials: then
    nothing is written. Of the plans and others all over the space (`Parameters.sample`) at most ``max_trials`` are
    chosen (`choose_rows`; None: all). ``note`` (Markdown), ``attributes`` (JSON values) and ``document`` (of the whole
    proposal) belong to the study; ``excess(plans)`` over each limit are constraints. Trials are numbered towards the
    front, so that the dashboard's history shows how the best values fall. UsageError where the storage cannot be
    opened or written.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space, goals = Parameters(problem), problem.goals
    sample = problem.describe(space.sample(seed))
    beaten = is_beaten(stacked(front_of(plans, goals), goals), stacked(sample, goals))
    sample = take(sample, beaten | (sample["violation"] > 0.0))
    unknown = {name: np.full(len(sample["slack"]), "" if name == DOUBTS else np.nan) for name in plans}
    plans = concat_plans([plans, unknown | sample])
    count = len(plans["slack"]) if max_trials is None else max_trials
    rows = choose_rows(plans, count, seed, goals, len(sample["slack"]))
    on_front, product = np.isin(rows, front_rows(plans, goals)), np.prod(objectives(take(plans, rows)), axis=0)
    shown = take(plans, rows := rows[np.lexsort((-product, on_front))])
    trials = finished_trials(shown, space, goals, None if excess is None else excess(shown))
    # a second after one another, up to now: the timeline of the dashboard shows nothing of shorter ones
    end, second = datetime.datetime.now().replace(microsecond=0), datetime.timedelta(seconds=1)
    for before, trial in enumerate(reversed(trials)):
        trial.datetime_complete = end - before * second
        trial.datetime_start = trial.datetime_complete - second
    held = repr([(trial.values, trial.params, trial.user_attrs) for trial in trials])
    facts = {"job_hash": job_hash, "seed": seed, **(attributes or {})}
    facts[COMPLETE] = hashlib.sha256(held.encode()).hexdigest()[:16]
    first = f"{name}-{job_hash[:8]}" if versioned else name
    url = storage if isinstance(storage, str) else storage.url

    def saved() -> str:
        with study_errors(url):
            to = Storage(storage) if isinstance(storage, str) else storage
            with to.exclusive_turn(first):
                for title in numbered(first):
                    try:
                        there = optuna.load_study(study_name=title, storage=to.rdb).user_attrs
                    except KeyError:  # no such study
                        break
                    if all(there.get(key) == facts[key] for key in ("job_hash", COMPLETE)):
                        return title
                _write(to.rdb, title, plans, rows, trials, goals, note, document, facts)
                return title

    return wait_out(url, saved)


def _write(
    rdb: RDBStorage, title: str, plans: Columns, rows: Ints, trials: Sequence[FrozenTrial], goals: tuple[str, ...],
    note: str, document: Mapping[str, Any] | None, facts: Mapping[str, Any],
) -> None:  # fmt: skip
    """Make a study of some ``rows`` of the plans, its facts last."""
    study, evaluated = made_study(rdb, title, goals), len(plans["slack"])
    insert_trials(rdb, study._study_id, trials)
    share = (
        f"These {len(rows)} trials are plans of the front, of a long one spread evenly along it, and some of those "
        f"that they beat, of {evaluated:,} plans that were evaluated; `jointopt propose --all-trials` stores all of "
        f"them, and `--out FOLDER` writes them to FOLDER/record.csv.gz.\n"
    )
    note = f"{note}\n{share if len(rows) < evaluated else ''}"
    show(rdb, title, take(plans, rows), note, range(len(trials)), background=plans, goals=goals)
    near = np.union1d(rows, front_rows(plans, goals))  # to choose from, with the whole front
    choices = take(plans, near[plans["violation"][near] <= 0.0])
    set_attributes(rdb, title, pieces(PLANS, json.dumps(_mapping(choices))))
    if document is not None:
        text = zlib.compress(json.dumps(document, separators=(",", ":")).encode())
        set_attributes(rdb, title, pieces(DOCUMENT, base64.b64encode(text).decode()))
    for key, value in facts.items():
        study.set_user_attr(key, value)


# columns of a plan that `_mapping` writes in another form, or not at all
_NOT_CHOICES = (*LAYOUT_COLUMNS, "stage_clock_mhz", "layout_index", "clock_index", "clock_mhz", "slack", "violation")


def _mapping(plans: Columns) -> dict[str, list[Any]]:
    """The plans by column, as JSON: layouts as in a table, stage clocks as text, unknown values as null."""
    columns: dict[str, list[Any]] = {}
    for name in (*(n for n in LAYOUT_COLUMNS if n in plans), *(n for n in plans if n not in _NOT_CHOICES)):
        columns[name] = [None if value != value else value for value in plans[name].tolist()]
    columns |= {name: decode_cells(name, plans[name]) for name in LAYOUT_COLUMNS if name in plans}
    columns["stage_clock_mhz"] = list(stage_clocks_to_text(plans["stage_clock_mhz"]))
    return columns


def choose_rows(
    plans: Columns, count: int, seed: int, goals: tuple[str, ...] = OBJECTIVES, even: int = 0
) -> Ints:  # fmt: skip
    """At most ``count`` rows of distinct plans, ascending: of the front, the nearest to it, and a random sample.

    The front has at most `FRONT_SHARE` of the rows, plans near it `NEAR_SHARE` of the others. Every feasible plan that
    is not of the front is beaten by a chosen one of the front, so that Optuna's best trials are of the front. The
    sample begins with the last ``even`` plans, which are drawn from all over the space, so that importances are of it;
    plans beyond `OUTLIER` come last, for one of them squeezes the front in every plot of the dashboard.
    """
    # of those tied in all goals the first: Optuna calls all of a tie best trials
    values = stacked(plans, goals)
    finite = np.flatnonzero(np.isfinite(values).all(axis=1))
    keys = np.column_stack([values[finite], np.maximum(plans["violation"], 0.0)[finite]])
    rows = np.sort(finite[np.unique(keys, axis=0, return_index=True)[1]]).astype(np.int64)
    some = take(plans, rows)
    front = front_rows(some, goals)
    kept = front[evenly_spaced(take(some, front), math.ceil(count * FRONT_SHARE))]
    beaten = is_beaten(stacked(take(some, kept), goals), stacked(some, goals))
    others = np.setdiff1d(np.flatnonzero(beaten | (some["violation"] > 0.0)), front)
    # by how much the nearest point of the front is better, as the larger of the two relative differences
    own, distance = objectives(take(some, others)), np.full(len(others), np.inf)
    for time_s, energy_j in zip(*objectives(take(some, front)), strict=True):
        gap = np.maximum(own[0] / time_s, own[1] / energy_j) - 1.0
        distance = np.minimum(distance, np.abs(gap))
    outlying = others[distance > OUTLIER]
    distance[some["violation"][others] > 0.0] = np.inf
    by_distance = others[np.argsort(distance, kind="stable")]
    room = count - len(kept)
    near, far = np.split(by_distance, [math.ceil(room * NEAR_SHARE)])
    drawn = np.random.default_rng(seed).permutation(far)
    last = rows[drawn] < len(plans["violation"]) - even
    sample = drawn[np.lexsort((last, np.isin(drawn, outlying)))][: room - len(near)]
    return np.sort(rows[np.concatenate([kept, near, sample])])
