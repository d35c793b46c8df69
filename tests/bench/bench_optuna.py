"""Samplers of Optuna on `jointopt.optuna_objective`: are their plans legal, how far do they come, and with `enqueue`.

    python -m tests.bench.bench_optuna [--job llama-3-70b-4x8-h200] [--trials 200] [--seeds 3] [--samplers TPE,NSGA-II]

Of each sampler: plans that keep the framework's rules and fit, the hypervolume below the front's nadir as a share of
that of `propose` (mean over seeds; of one objective, the least value as a multiple of the front's), and seconds of CPU.
CMA-ES searches one objective, energy; GP needs torch, CMA-ES needs cmaes.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

import numpy as np
import optuna

import jointopt
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import parse_plan
from jointopt.search.pareto import OBJECTIVES, hypervolume, nadir, stacked

SAMPLERS = {
    "TPE": optuna.samplers.TPESampler, "GP": optuna.samplers.GPSampler, "NSGA-II": optuna.samplers.NSGAIISampler,
    "NSGA-III": optuna.samplers.NSGAIIISampler, "random": optuna.samplers.RandomSampler,
    "CMA-ES": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
}  # fmt: skip


def is_legal(job: jointopt.jobs.job.Job, trial: optuna.trial.FrozenTrial) -> bool:
    """Whether the plan of a trial breaks no rule and is explained with the values that the trial has."""
    plan = json.loads(trial.user_attrs["plan"])
    found = jointopt.explain(job, plan)
    known = (found.energy_j,) if len(trial.values) == 1 else (found.iteration_time_s, found.energy_j)
    return not check_plan(job, parse_plan(plan, job).record) and found.feasible and np.allclose(trial.values, known)


def compare(name: str, trials: int, seeds: int, samplers: list[str]) -> None:
    """Print a line per sampler, begun from nothing and from the enqueued front."""
    job = jointopt.load_job(name)
    proposal = jointopt.propose(job)
    front = stacked(proposal.front, OBJECTIVES)
    reference = nadir(*front.T)
    whole = hypervolume(*front.T, reference)
    print(f"{name}: {len(front)} plans on the front, {trials} trials, {seeds} seeds")
    for label in samplers:
        single = label == "CMA-ES"
        own = replace(job, objectives=("energy_j",)) if single else job
        objective = jointopt.optuna_objective(own)
        for enqueued in (False, True):
            reached, legal, start = [], [], time.process_time()
            for seed in range(seeds):
                study = optuna.create_study(directions=["minimize"] * (2 - single), sampler=SAMPLERS[label](seed=seed))
                count = jointopt.enqueue(study, proposal) if enqueued else 0
                study.optimize(objective, n_trials=max(trials, count))
                values = np.array([trial.values for trial in study.trials])
                best = values.min() / front[:, 1].min() if single else hypervolume(*values.T, reference) / whole
                reached.append(best)
                legal += [is_legal(own, trial) for trial in study.trials[:30]]
            cpu_s, begun = (time.process_time() - start) / seeds, "from the front" if enqueued else "from nothing"
            print(f"{label:9s} {begun:14s} {sum(legal)} of {len(legal)} legal, {np.mean(reached):.3f} "
                  f"({min(reached):.3f} to {max(reached):.3f}), {cpu_s:.1f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", default="llama-3-70b-4x8-h200")
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samplers", default=",".join(SAMPLERS))
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    compare(given.job, given.trials, given.seeds, given.samplers.split(","))
