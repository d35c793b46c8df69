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

    Both are means of absolute logarithms, what all plans of a job have in common aside.
    """

    log_factor: Floats
    without: float
    error: float

    @property
    def orders_better(self) -> bool:
        """Whether plans of a job left out are ordered better by it."""
        return self.error < (1.0 - LEAST_GAIN) * self.without


def from_other_jobs(plans: Runs, runs: Runs, residual: Floats, shared: Kernel, seed: int = 0) -> OtherJobs | None:
    """A model of ``runs`` of other jobs on the plans' cluster, with residuals (n,); None where there are few.

    ``shared``: the kernel of all sources.
    """
    rows = np.flatnonzero((np.abs(residual) < np.log(BROKEN)) & (runs.source == plans.source[0])).astype(np.int64)
    rows = np.sort(np.random.default_rng(seed).permutation(rows)[:MOST])
    if len(rows) < LEAST_RUNS:
        return None
    known, seen, blank = runs.take(rows), residual[rows], np.full(len(rows), np.nan)
    own, crossed, _ = learn_own(str(plans.source[0]), Measured(known, seen, blank, blank, np.nan), shared, seed)
    kept = supporting(np.arange(len(rows), dtype=np.int64), seed)
    process = own.process(shared, known.take(kept), seen[kept]).mean(plans)
    errors = (_apart(seen, known.group), _apart(seen - crossed, known.group))
    return OtherJobs(own.time(process, plans), *errors)


def _apart(log_ratio: Floats, group: np.ndarray[tuple[int], np.dtype[np.str_]]) -> float:
    """Mean distance from the median of each run's group."""
    middle = {name: np.median(log_ratio[group == name]) for name in np.unique(group)}
    return float(np.mean([abs(value - middle[name]) for value, name in zip(log_ratio, group, strict=True)]))
