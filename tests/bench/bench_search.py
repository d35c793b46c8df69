"""The search against Optuna's NSGA-II, TPE and random sampling as they come, and pymoo's NSGA-II; clocks per stage.

    python tests/bench/bench_search.py [JOB ...]

All get the same genes, repaired in the same way to layouts that exist. Prints, as the median of five seeds (worst in
brackets), the hypervolume as a share of the best known front's, against a tight reference point, and the distance to
that front (IGD+ over its spans): at the same number of evaluated plans, ours from nothing and without local search;
then at the same seconds of one core, ours as `propose` does it. The best known front is that of all runs and of a long
one of ours.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import optuna

from jointopt.core.schema import Columns
from jointopt.jobs.jobfile import shipped_job
from jointopt.search.breeding import Genome
from jointopt.search.exact import exact_front_of_profiles
from jointopt.search.nsga2 import search
from jointopt.search.pareto import concat, front_of, hypervolume, nadir, objectives
from jointopt.search.problem import Problem
from jointopt.workflows.feasible_layouts import priced_problem

SEEDS = range(5)
EVALUATIONS = 520  # whole generations of 40
SECONDS = 4.0  # of one core
JOBS = ("mixtral-8x22b-8x8-h100", "gpt3-175b-128x8-a100")
More = Callable[[], bool]
Search = Callable[[Problem, int, More], Columns]


def stock(sampler: Callable[[int], optuna.samplers.BaseSampler]) -> Search:
    """A sampler of Optuna by ask and tell."""

    def run(problem: Problem, seed: int, more: More) -> Columns:
        genome = Genome.of(problem)
        study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler(seed))
        sizes = [int(size) - 1 for size in genome.sizes]
        space = {f"g{i}": optuna.distributions.IntDistribution(0, top) for i, top in enumerate(sizes)}
        rows = []
        while more():
            trial = study.ask(space)
            plan = problem.evaluate_genes(*genome.decode(np.array([[trial.params[name] for name in space]])))
            for violation in plan["violation"]:
                trial.set_constraint("violation", float(violation))
            study.tell(trial, [float(values[0]) for values in objectives(plan)])
            rows.append(plan)
        return front_of(concat(rows))

    return run


def pymoo(problem: Problem, seed: int, more: More) -> Columns:
    """pymoo's NSGA-II with integer genes, a population at a time."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem as PymooProblem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair
    from pymoo.operators.sampling.rnd import IntegerRandomSampling

    genome, rows = Genome.of(problem), []
    bounds = {"n_var": len(genome.sizes), "xl": np.zeros(len(genome.sizes)), "xu": genome.sizes - 1}
    pymoo_problem = PymooProblem(n_obj=2, n_ieq_constr=1, vtype=int, **bounds)
    whole = {"vtype": float, "repair": RoundingRepair()}
    algorithm = NSGA2(pop_size=40, sampling=IntegerRandomSampling(), crossover=SBX(prob=1.0, eta=3.0, **whole),
                      mutation=PM(prob=1.0, eta=3.0, **whole), eliminate_duplicates=True)  # fmt: skip
    algorithm.setup(pymoo_problem, termination=("n_gen", 10**6), seed=seed, verbose=False)
    while more():
        infills = algorithm.ask()
        plans = problem.evaluate_genes(*genome.decode(np.asarray(infills.get("X")).astype(np.int64)))
        for _ in range(len(plans["slack"]) - 1):
            more()  # the loop counts the first one
        infills.set("F", np.column_stack(objectives(plans)), "G", plans["violation"][:, None])
        algorithm.tell(infills=infills)
        rows.append(plans)
    return front_of(concat(rows))


def ours(problem: Problem, seed: int, more: More) -> Columns:
    return search(problem, trials=EVALUATIONS, seed=seed, local_evaluations=0).front


def proposed(problem: Problem, seed: int, more: More) -> Columns:
    exact = exact_front_of_profiles(problem).front
    return search(problem, trials=1000, seed=seed, start=exact).front


OTHERS: dict[str, Search] = {
    "Optuna NSGA-II": stock(lambda seed: optuna.samplers.NSGAIISampler(seed=seed)),
    "Optuna TPE": stock(lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=False)),
    "random": stock(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
    "pymoo NSGA-II": pymoo,
}


def counted() -> More:
    left = iter(range(EVALUATIONS))
    return lambda: next(left, None) is not None


def timed() -> More:
    end = time.process_time() + SECONDS
    return lambda: time.process_time() < end


def distance(front: Columns, best: Columns) -> float:
    """IGD+: how far the best points lie beyond the nearest found one, on average, in spans of the best front."""
    found, known = (np.column_stack(objectives(plans)) for plans in (front, best))
    worse = np.maximum((found[None, :, :] - known[:, None, :]) / np.ptp(known, axis=0), 0.0)
    return float(np.linalg.norm(worse, axis=2).min(axis=1).mean()) if len(found) else np.inf


def compare(problem: Problem, label: str, searches: dict[str, Search], budget: Callable[[], More]) -> None:
    runs, seconds = {}, {}
    for name, run in searches.items():
        start = time.process_time()
        runs[name] = [run(problem, seed, budget()) for seed in SEEDS]
        seconds[name] = (time.process_time() - start) / len(SEEDS)
    exact = exact_front_of_profiles(problem).front
    long = search(problem, trials=3000, seed=99, start=exact).front
    shared = [take_columns(front) for fronts in (*runs.values(), [exact, long]) for front in fronts]
    best = front_of(concat(shared))
    reference = nadir(*objectives(best))
    whole = hypervolume(*objectives(best), reference)
    print(f"  {label}; best known front of {len(best['energy_j'])} points")
    for name, fronts in runs.items():
        volumes = [hypervolume(*objectives(front), reference) / whole for front in fronts]
        distances = [distance(front, best) for front in fronts]
        print(f"    {name:16s} hypervolume {np.median(volumes):.4f} ({min(volumes):.4f})  distance "
              f"{np.median(distances):.4f} ({max(distances):.4f})  {seconds[name]:.2f} s", flush=True)  # fmt: skip


def take_columns(front: Columns) -> Columns:
    return {name: front[name] for name in ("iteration_time_s", "energy_j", "violation")}


def main(jobs: tuple[str, ...]) -> None:
    for name in jobs:
        problem = priced_problem(shipped_job(name))
        print(f"{name}: {problem.num_layouts:,} layouts x {problem.num_clocks} clocks, a clock per stage")
        compare(problem, f"{EVALUATIONS} evaluated plans", {"ours": ours} | OTHERS, counted)
        compare(problem, f"{SECONDS:g} s of one core", {"ours (propose)": proposed} | OTHERS, timed)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    main(tuple(sys.argv[1:]) or JOBS)
