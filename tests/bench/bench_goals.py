"""The search of `propose` by three objectives against pymoo's NSGA-II and NSGA-III: equal plans, equal CPU seconds.

    pip install -e '.[bench]'
    python tests/bench/bench_goals.py [--seeds 3] [--goal peak_memory_gib] [JOB ...]

`propose` has the exact front by memory (`search.exact_levels`), and for other goals that of time and energy, NSGA-II
from it on, and moves (`search.many_goals`). pymoo gets as many plans, or as many CPU seconds, the exact front's
included; it has the same genes and repair, and populations of 105. Of every plan that it evaluated the front counts;
then at most as many of it as `propose` keeps. Hypervolume in logarithms as a share of what all runs together reach,
median of the seeds (worst in brackets).
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.algorithms.moo.nsga3 import NSGA3
from pymoo.core.problem import Problem as PymooProblem
from pymoo.indicators.hv import HV
from pymoo.operators.crossover.sbx import SBX
from pymoo.operators.mutation.pm import PM
from pymoo.operators.repair.rounding import RoundingRepair
from pymoo.operators.sampling.rnd import IntegerRandomSampling
from pymoo.util.ref_dirs import get_reference_directions

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.search.breeding import TRIALS, Genome
from jointopt.search.exact import exact_front_of_profiles
from jointopt.search.pareto import farthest_rows, non_dominated, stacked
from jointopt.search.problem import Problem
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.feasible_layouts import prepared
from jointopt.workflows.search_steps import Step, Stopwatch, with_all_goals

JOBS = ("opt-350m-2x4-a100", "llama-3-70b-4x8-h200", "mixtral-8x22b-8x8-h100")
GOALS = ("peak_memory_gib", "peak_power_w")
POPULATION = 105


def problem_of(name: str, goal: str) -> Problem:
    """The search problem of a shipped job with one goal beside time and energy."""
    job = replace(shipped_job(name), objectives=(*OBJECTIVES, goal))
    return prepared(JobModel(job), Stopwatch(quiet=True)).wide


def ours(problem: Problem, seed: int) -> tuple[Floats, int, float]:
    """(goals of the front, plans evaluated, CPU seconds) of the search of `propose`."""
    begin = time.process_time()
    exact = exact_front_of_profiles(replace(problem, goals=OBJECTIVES))
    steps = [Step("exact", exact.front, exact.evaluated, exact.sample)]
    steps = with_all_goals(problem, steps, 0 if problem.has_levels else TRIALS, seed, Stopwatch(quiet=True))
    evaluated = sum(step.evaluated for step in steps)
    return stacked(steps[-1].front, problem.goals), evaluated, time.process_time() - begin


def of_genes(make: Callable[..., Any], sizes: Ints, population: int, seed: int) -> Any:
    """An algorithm of pymoo with integer genes, below ``sizes`` each, for three goals and a violation."""
    bounds = {"n_var": len(sizes), "xl": np.zeros(len(sizes)), "xu": sizes - 1}
    whole = {"vtype": float, "repair": RoundingRepair()}
    algorithm = make(
        pop_size=population, sampling=IntegerRandomSampling(), crossover=SBX(prob=1.0, eta=3.0, **whole),
        mutation=PM(prob=1.0, eta=3.0, **whole), eliminate_duplicates=True,
    )  # fmt: skip
    pymoo_problem = PymooProblem(n_obj=3, n_ieq_constr=1, vtype=int, **bounds)
    algorithm.setup(pymoo_problem, termination=("n_gen", 10**6), seed=seed, verbose=False)
    return algorithm


def pymoo(problem: Problem, genome: Genome, make: Callable[..., Any], seed: int, plans: float, cpu_s: float) -> Floats:
    """Goals of every feasible plan that an algorithm evaluated within so many plans or seconds."""
    begin = time.process_time()
    algorithm = of_genes(make, genome.sizes, POPULATION, seed)
    kept, evaluated = np.empty((0, 3)), 0
    while evaluated < plans and time.process_time() - begin < cpu_s:
        infills = algorithm.ask()
        genes = np.asarray(infills.get("X")).astype(np.int64)
        found = problem.plans(*genome.decode(genes))
        values, violation = stacked(found, problem.goals), np.maximum(found["violation"], 0.0)
        infills.set("F", np.log(values), "G", violation[:, None])
        algorithm.tell(infills=infills)
        kept = np.concatenate([kept, values[violation <= 0.0]])
        evaluated += len(genes)
    return kept


def nsga3(**options: Any) -> NSGA3:
    """NSGA-III with 105 directions, as many as its population is wide."""
    return NSGA3(get_reference_directions("das-dennis", 3, n_partitions=13), **options)


def compare(name: str, goal: str, seeds: int) -> None:
    """Print the share of the volume of all runs that each search reaches."""
    problem = problem_of(name, goal)
    genome, runs = Genome.of(problem), dict[str, list[Floats]]()
    cost: list[tuple[Ints | int, float]] = []
    for seed in range(seeds):
        front, evaluated, seconds = ours(problem, seed)
        cost.append((evaluated, seconds))
        runs.setdefault("propose", []).append(front)
        for label, make in {"pymoo NSGA-II": NSGA2, "pymoo NSGA-III": nsga3}.items():
            equal = {"as many plans": (evaluated, np.inf), "as many seconds": (np.inf, seconds)}
            for budget, (plans, cpu_s) in equal.items():
                runs.setdefault(f"{label}, {budget}", []).append(pymoo(problem, genome, make, seed, plans, cpu_s))
    fronts = {label: [np.log(points[non_dominated(points)]) for points in found] for label, found in runs.items()}
    every = np.concatenate([front for found in fronts.values() for front in found])
    best = every[non_dominated(every)]
    low, high = best.min(axis=0), best.max(axis=0)
    volume = HV(ref_point=np.full(3, 1.1))
    whole = volume((best - low) / (high - low))
    plans, seconds = (np.median(values) for values in zip(*cost, strict=True))
    print(f"{name}, {goal}: {problem.num_layouts:,} layouts; propose: {plans:,.0f} plans, {seconds:.1f} s of CPU")
    most = max(map(len, fronts["propose"]))
    for label, found in fronts.items():
        shares = [
            [volume((front - low) / (high - low)) / whole for front in kept]
            for kept in (found, [front[farthest_rows(front, most)] for front in found])
        ]
        counted = f"{np.median([*map(len, found)]):7,.0f} plans"
        every, few = (f"{np.median(share):.4f} ({min(share):.4f})" for share in shares)
        print(f"  {label:32s} {counted}: {every}; at most {most:,}: {few}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="*", default=JOBS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--goal", choices=GOALS, nargs="+", default=GOALS)
    given = parser.parse_args()
    for job in given.jobs:
        for wanted in given.goal:
            compare(job, wanted, given.seeds)
