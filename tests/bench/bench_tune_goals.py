"""What `tune` by three objectives reaches in a few runs, beside runs drawn at random and beside a tune by two.

A simulated cluster: runs take the time of the physics times factors that it does not know, by layout and by depth, 2 %
noise. Every plan of the space has a truth, so that the front of all is known; the share of its volume counts that
the runs hold after 4, 8 and 16 of them, median of the draws (worst in brackets).

    OMP_NUM_THREADS=1 python tests/bench/bench_tune_goals.py [--seeds 8] [--budget 16] [--goal peak_memory_gib]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Floats
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.search.pareto import non_dominated, volume
from jointopt.workflows.campaign.candidates import Candidates, searched_candidates
from jointopt.workflows.tune import tune

JOB: Mapping[str, Any] = {
    "model": "llama-3-8b",
    "training": {"seq_length": 4096, "global_batch_size": 32},
    "cluster": {"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8},
}
GOALS = ("peak_memory_gib", "peak_power_w", "avg_power_w")
AFTER = (4, 8, 16)
_UNKNOWN = 0.15  # deviation of what the physics does not know, in logarithms; of power and memory a third of it


def plan_key(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """What distinguishes plans of the space, however they are written."""
    clocks = plan["stage_clock_mhz"]
    clocks = [float(clock) for clock in (clocks.split(";") if isinstance(clocks, str) else clocks)]
    return (*(str(plan[name]) for name in LAYOUT_COLUMNS), str(clocks))


class Cluster:
    """A launcher whose runs have the truth of a draw; with so large a share of runs memory is not reported."""

    name = "simulated"

    def __init__(self, candidates: Candidates, goals: tuple[str, ...], seed: int, unreported: float = 0.0) -> None:
        rng, table = np.random.default_rng(seed), candidates.rows
        self.plans, self.goals, self.unreported, self.rng = candidates, goals, unreported, rng
        self.truth: dict[str, Floats] = {}
        for goal in goals:
            size = _UNKNOWN if goal in OBJECTIVES else _UNKNOWN / 3
            factor = np.full(len(table), rng.normal(0.0, size))
            for name in ("tp", "pp", "micro_batch_size", "zero_stage"):
                values, which = np.unique(table[name], return_inverse=True)
                factor += rng.normal(0.0, size, len(values))[which]
            self.truth[goal] = np.asarray(candidates.predicted[goal], np.float64) * np.exp(factor)
        self.places = {plan_key(candidates.question(i)): i for i in range(candidates.size)}

    def candidates(self, job: Job) -> Mapping[str, Any]:
        return self.plans.rows.to_dict("list")

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        at = self.places[plan_key(plan)]
        found = {goal: float(values[at] * np.exp(self.rng.normal(0.0, 0.02))) for goal, values in self.truth.items()}
        if self.rng.random() < self.unreported:
            found.pop(self.goals[-1])
        return {"status": "ok"} | found

    def shares(self, places: list[int]) -> list[float]:
        """Share of the true front's volume that the first 4, 8 and 16 plans hold, by the truth."""
        every = np.column_stack([self.truth[goal] for goal in self.goals])
        best = every[non_dominated(every)]
        return [volume(every[places[:count]], best) / volume(best, best) for count in AFTER]


def compare(goal: str, seeds: int, budget: int, unreported: float) -> None:
    """Print the shares of a tune by three objectives, by two, and of plans drawn at random."""
    goals = (*OBJECTIVES, goal)
    job = replace(parse_job(JOB, "bench", None), objectives=goals)
    candidates, found = searched_candidates(job), dict[str, list[list[float]]]()
    for seed in range(seeds):
        for label, wanted in {"three objectives": goals, "time and energy alone": OBJECTIVES}.items():
            cluster = Cluster(candidates, goals, seed, unreported)
            runs = tune(replace(job, objectives=wanted), cluster, budget, surrogate="none").runs
            found.setdefault(label, []).append(cluster.shares([cluster.places[plan_key(run.plan)] for run in runs]))
        drawn = np.random.default_rng(seed).permutation(candidates.size)[:budget].tolist()
        found.setdefault("drawn at random", []).append(cluster.shares(drawn))
    print(f"{goal}: {candidates.size} candidates, {budget} runs, {unreported:.0%} of runs without it")
    for label, shares in found.items():
        words = [f"{np.median(part):.3f} ({min(part):.3f})" for part in np.array(shares).T]
        print(f"  {label:24s} after {', '.join(map(str, AFTER))}: {', '.join(words)}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budget", type=int, default=16)
    parser.add_argument("--goal", choices=GOALS, nargs="+", default=GOALS[:2])
    parser.add_argument("--unreported", type=float, default=0.0)
    given = parser.parse_args()
    for name in given.goal:
        compare(name, given.seeds, given.budget, given.unreported)
