"""A model of a cluster from its runs of other jobs, for the first runs of a new one, and beside these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.surrogate.own_folds import FOLDS, count_distinct
from jointopt.surrogate.own_mix import LEAST_GAIN, mixed_again
from jointopt.surrogate.own_runs import LEAST_RUNS, SUPPORT, Measured, OwnRuns, crossed_process, learn_own, supporting
from jointopt.surrogate.residual_gp import Kernel, Runs, together

MOST = 2_000  # runs that are learned from: more take longer than they are worth before a run
BROKEN = 2.0  # times slower or faster than predicted: a run that went wrong


@dataclass(frozen=True)
class OtherJobs:
    """``log_factor`` (n,) on the time of plans, and how far plans of one job left out are off without and with it.

    Both are means of absolute logarithms, what all plans of a job have in common aside. ``log_power`` (n,): factor on
    their power; None where power was not measured often, or is predicted no better with it.
    """

    log_factor: Floats
    without: float
    error: float
    log_power: Floats | None = None

    @property
    def orders_better(self) -> bool:
        """Whether plans of a job left out are ordered better by it."""
        return self.error < (1.0 - LEAST_GAIN) * self.without


def sound_runs(known: Measured, source: str, most: int = MOST, seed: int = 0) -> Measured:
    """At most so many of the ``known`` runs of a source, drawn at random, without those that went wrong."""
    of_source = (np.abs(known.residual) < np.log(BROKEN)) & (known.runs.source == source)
    rows = np.flatnonzero(of_source).astype(np.int64)
    return known.take(np.sort(np.random.default_rng(seed).permutation(rows)[:most]))


def from_other_jobs(plans: Runs, watts: Floats, known: Measured, shared: Kernel, seed: int = 0) -> OtherJobs | None:
    """A model of ``known`` runs of other jobs on the cluster of ``plans`` (n,); None where there are few.

    ``watts`` (n,): average power of the plans by the physics. ``shared``: the kernel of all sources.
    """
    some = sound_runs(known, str(plans.source[0]), seed=seed)
    if count_distinct(some.runs) < LEAST_RUNS:
        return None
    own, crossed, _ = learn_own(str(plans.source[0]), some, shared, seed)
    kept = supporting(np.arange(len(some.runs), dtype=np.int64), seed)
    process = own.process(shared, some.runs.take(kept), some.residual[kept])
    without, error = (_apart(off, some.runs.group) for off in (some.residual, some.residual - crossed))
    better = own.knows_power and own.errors["power"] < own.errors["power physics"]
    return OtherJobs(
        own.mean(process, plans, some.runs), without, error, own.log_power(plans, watts) if better else None
    )


def with_own_rows(
    plans: Runs, index: Ints, residual: Floats, known: Measured | None, shared: Kernel, seed: int = 0
) -> Floats:
    """log(measured / physics) (n,) of plans by runs of plans ``index`` (m,), ``residual`` (m,), and of other jobs.

    At plans that ran it is what runs say of them of which a fifth is left out at a time, so that it can be judged there
    beside other predictions. ``known``: runs of other jobs on the cluster. By the process of all sources; from
    `LEAST_RUNS` in all on by one of the cluster's own and trees, as far as they help on jobs left out (`learn_own`).
    """
    source, runs, y = str(plans.source[0]), plans.take(index), residual
    if known is not None:
        others = sound_runs(known, source, max(SUPPORT - len(index), 0), seed)
        runs, y = together([others.runs, runs]), np.concatenate([others.residual, residual])
    blank = np.full(len(y), np.nan)
    every, own = Measured(runs, y, blank, blank, np.nan), OwnRuns(source)
    if count_distinct(runs) >= LEAST_RUNS:
        own = learn_own(source, every, shared, seed)[0]
    fold = np.random.default_rng(seed).permutation(len(y)) % FOLDS
    near, _ = crossed_process(own, shared, every, fold, seed)
    found = own.mean(own.process(shared, runs, y), plans, runs)
    found[index] = mixed_again(own.time, runs, y, near, fold, seed)[-len(index) :]
    return found


def _apart(log_ratio: Floats, group: np.ndarray[tuple[int], np.dtype[np.str_]]) -> float:
    """Mean distance from the median of each run's group."""
    middle = {name: np.median(log_ratio[group == name]) for name in np.unique(group)}
    return float(np.mean([abs(value - middle[name]) for value, name in zip(log_ratio, group, strict=True)]))
