"""Clocks of the ranks that wait for a slow one, as low as the time of its iteration allows (``watch --rebalance``).

What Perseus calls extrinsic bloat (Chung et al. 2024, arXiv:2312.06902): replicas that finish before the slow one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jointopt.core.schema import Bools, Floats
from jointopt.jobs.plans.text import parse_plan
from jointopt.report.slow_ranks import Rebalanced
from jointopt.surrogate.job_model import JobModel

_BISECTIONS = 40
_LATER = 0.0015  # of the time, by which an iteration may last longer: else stages of the slow replica keep their clocks

Evaluate = Callable[[Floats], tuple[Floats, Floats]]  # stage clocks (n, pp) -> seconds and joules of an iteration, (n,)


def rebalance(model: JobModel, plan: str | Mapping[str, Any], stage: int, replica: int, longer: float) -> Rebalanced:
    """The clocks of least energy where a rank of ``stage`` in ``replica`` makes iterations longer by that share.

    The slow rank is priced as a GPU at the clock that explains it, and is left at its own.
    """
    job, parsed = model.job, parse_plan(plan, model.job)
    physics, dp, now = model.cost_model(parsed.layouts), int(parsed.layouts["dp"][0]), parsed.stage_clock_mhz[0]

    def evaluate(clocks: Floats) -> tuple[Floats, Floats]:
        found = physics.evaluate(np.zeros(len(clocks), np.int64), clocks)
        return found["iteration_time_s"], found["energy_j"]

    grid = np.sort(np.asarray(job.search.clock_mhz, np.float64))
    slow = _as_slow(evaluate, now, stage, float(evaluate(now[None])[0][0]) * (1.0 + longer), grid[0])
    wait_w = _wait_w(model)

    def both(of_others: Floats, of_slow: Floats) -> tuple[float, float]:
        """Seconds and joules of all replicas, which wait for the last; each is priced as if all were like it."""
        seconds, joules = evaluate(np.stack([of_others, of_slow]))
        parts = joules + (seconds.max() - seconds) * wait_w
        return float(seconds.max()), float(((dp - 1) * parts[0] + parts[1]) / dp)

    before_s, before_j = both(now, slow)
    limit_s = before_s * (1.0 + _LATER)
    others = least_energy(evaluate, now, grid, limit_s, np.ones(len(now), np.bool_), wait_w)
    rest = least_energy(evaluate, slow, grid, limit_s, np.arange(len(now)) != stage, wait_w)
    after_s, after_j = both(others, rest)
    rest[stage] = now[stage]
    clocks = tuple(others.tolist()) if dp > 1 else (), tuple(rest.tolist())
    return Rebalanced(*clocks, stage, replica, after_j, before_j, after_s, before_s)


def least_energy(evaluate: Evaluate, start: Floats, grid: Floats, limit_s: float, free: Bools, wait_w: float) -> Floats:
    """Clocks (pp,) of least energy, waiting to ``limit_s`` included, among those that last no longer.

    Descent over one and two stages at a time from ``start`` and from every clock of the ``grid`` for all ``free``
    stages (pp,).
    """
    starts = np.where(free, grid[:, None], start)
    tried = np.concatenate([start[None], starts])
    best: Floats = tried[_cheapest(evaluate, tried, limit_s, wait_w)]
    while True:
        tried = np.concatenate([best[None], _neighbours(best, grid, free)])
        found = _cheapest(evaluate, tried, limit_s, wait_w)
        if found == 0:
            return best
        best = tried[found]


def _neighbours(clocks: Floats, grid: Floats, free: Bools) -> Floats:
    """Clocks (n, pp) with one free stage at any clock of the grid, or one a step up and another a step down."""
    stages = np.flatnonzero(free)
    one = np.repeat(clocks[None], len(stages) * len(grid), axis=0)
    one[np.arange(len(one)), np.repeat(stages, len(grid))] = np.tile(grid, len(stages))
    at = np.clip(np.searchsorted(grid, clocks), 0, len(grid) - 1)
    up, down = grid[np.minimum(at + 1, len(grid) - 1)], grid[np.maximum(at - 1, 0)]
    pairs = [(i, j) for i in stages.tolist() for j in stages.tolist() if i != j]
    two = np.repeat(clocks[None], len(pairs), axis=0)
    for row, (i, j) in enumerate(pairs):
        two[row, i], two[row, j] = up[i], down[j]
    return np.concatenate([one, two])


def _cheapest(evaluate: Evaluate, tried: Floats, limit_s: float, wait_w: float) -> int:
    seconds, joules = evaluate(tried)
    whole = np.where(seconds <= limit_s, joules + (limit_s - seconds) * wait_w, np.inf)
    return int(whole.argmin())


def _as_slow(evaluate: Evaluate, clocks: Floats, stage: int, limit_s: float, lowest_mhz: float) -> Floats:
    """The clocks with that of ``stage`` so low that an iteration takes ``limit_s``, by bisection."""
    low, high = 0.2 * lowest_mhz, float(clocks[stage])
    tried = clocks.copy()
    for _ in range(_BISECTIONS):
        tried[stage] = (low + high) / 2.0
        low, high = (tried[stage], high) if evaluate(tried[None])[0][0] > limit_s else (low, tried[stage])
    tried[stage] = high
    return tried


def _wait_w(model: JobModel) -> float:
    """What all GPUs together draw while they wait, in W."""
    cluster = model.job.cluster
    if cluster.gpu.power is None:
        cluster.gpu.need("tdp_w", "predict power and energy")
    return cluster.gpu.power.wait_w * cluster.num_gpus if cluster.gpu.power else 0.0
