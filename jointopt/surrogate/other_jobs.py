"""A model of a cluster from its runs of other jobs, for the first runs of a new one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats
from jointopt.surrogate.own_runs import LEAST_GAIN, LEAST_RUNS, Measured, learn_own, supporting
from jointopt.surrogate.residual_gp import Kernel, Runs

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


def from_other_jobs(plans: Runs, watts: Floats, known: Measured, shared: Kernel, seed: int = 0) -> OtherJobs | None:
    """A model of ``known`` runs of other jobs on the cluster of ``plans`` (n,); None where there are few.

    ``watts`` (n,): average power of the plans by the physics. ``shared``: the kernel of all sources.
    """
    runs, residual = known.runs, known.residual
    rows = np.flatnonzero((np.abs(residual) < np.log(BROKEN)) & (runs.source == plans.source[0])).astype(np.int64)
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[:MOST])
    if len(rows) < LEAST_RUNS:
        return None
    some = known.take(rows)
    own, crossed, _ = learn_own(str(plans.source[0]), some, shared, seed)
    kept = supporting(np.arange(len(rows), dtype=np.int64), seed)
    process = own.process(shared, some.runs.take(kept), some.residual[kept]).mean(plans)
    without, error = (_apart(off, some.runs.group) for off in (some.residual, some.residual - crossed))
    better = own.knows_power and own.errors["power"] < own.errors["power physics"]
    return OtherJobs(own.time(process, plans), without, error, own.log_power(plans, watts) if better else None)


def _apart(log_ratio: Floats, group: np.ndarray[tuple[int], np.dtype[np.str_]]) -> float:
    """Mean distance from the median of each run's group."""
    middle = {name: np.median(log_ratio[group == name]) for name in np.unique(group)}
    return float(np.mean([abs(value - middle[name]) for value, name in zip(log_ratio, group, strict=True)]))
