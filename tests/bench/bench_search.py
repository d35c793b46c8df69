"""How near NSGA-II comes to the exact front, and what it costs, on problems of the shape of the real one.

Run: python tests/bench/bench_search.py
Prints per problem size, as the median of five seeds (worst in brackets): hypervolume as a share of the exact one
against a tight reference point, and the share of the exact points that were found, for NSGA-II alone, with its
polish, and for Optuna's NSGA-II as it comes (its own crossover and mutation, the same repair, no deduplication).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import optuna

from jointopt.schema import Columns
from jointopt.search.exact import exact_front
from jointopt.search.fake import fake_problem
from jointopt.search.genome import Genome
from jointopt.search.nsga2 import search
from jointopt.search.pareto import front_of, hypervolume, is_covered, nadir, objectives, recall
from jointopt.search.problem import Problem
from jointopt.search.studies import save_study

SEEDS = range(5)
SIZES = ((8, 24, 1000), (64, 24, 1000), (64, 24, 2000), (64, 110, 1000), (64, 110, 2000), (256, 110, 2000))
Search = Callable[[Problem, int, int], Columns]


def stock(problem: Problem, trials: int, seed: int) -> Columns:
    """Optuna's sampler by ask and tell, with integer genes and the same repair."""
    genome = Genome.of(problem)
    sampler = optuna.samplers.NSGAIISampler(seed=seed)
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
    space = {f"g{i}": optuna.distributions.IntDistribution(0, int(n) - 1) for i, n in enumerate(genome.sizes)}
    rows = []
    for _ in range(trials):
        trial = study.ask(space)
        genes = np.array([[trial.params[name] for name in space]])
        plan = problem.plans(*genome.decode(genes))
        study.tell(trial, [float(values[0]) for values in objectives(plan)])
        rows.append(plan)
    return front_of({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})


SEARCHES: dict[str, Search] = {
    "Optuna as it comes": stock,
    "ours, no polish": lambda p, n, s: search(p, trials=n, seed=s, polish_evaluations=0).front,
    "ours": lambda p, n, s: search(p, trials=n, seed=s).front,
}


def against_exact(front: Columns, exact: Columns) -> tuple[float, float]:
    """Hypervolume ratio and recall."""
    reference = nadir(*objectives(exact))
    volume = hypervolume(*objectives(front), reference) / hypervolume(*objectives(exact), reference)
    return volume, recall(*objectives(exact), *objectives(front))


def one_clock_for_all() -> None:
    print("\nUnseeded, one clock for all stages")
    for num_gpus, num_clocks, trials in SIZES:
        problems = [fake_problem(seed, num_gpus, num_clocks, per_stage_clocks=False) for seed in SEEDS]
        exact = [exact_front(problem).front for problem in problems]
        print(f"  {num_gpus} GPUs, {problems[0].num_layouts} layouts x {num_clocks} clocks, {trials} trials")
        for name, run in SEARCHES.items():
            start = time.perf_counter()
            pairs = zip(problems, exact, SEEDS, strict=True)
            scores = [against_exact(run(p, trials, seed), e) for p, e, seed in pairs]
            seconds = (time.perf_counter() - start) / len(SEEDS)
            (volume, found), (least_volume, least) = np.median(scores, axis=0), np.min(scores, axis=0)
            print(
                f"    {name:20s} hypervolume {volume:.4f} ({least_volume:.4f})  "
                f"recall {found:.3f} ({least:.3f})  {seconds:.2f} s"
            )


def clocks_per_stage() -> None:
    print(
        "\nClocks per stage, 64 GPUs x 110 clocks, 1000 trials: relative to the exact front of one clock for all"
    )
    for seeded in (False, True):
        scores, worse, seconds = [], 0, 0.0
        for seed in SEEDS:
            problem = fake_problem(seed, 64, 110)
            exact = exact_front(problem).front
            start = time.perf_counter()
            front = search(problem, trials=1000, seed=seed, start=exact if seeded else None).front
            seconds += time.perf_counter() - start
            scores.append(against_exact(front, exact)[0])
            worse += int((~is_covered(*objectives(front), *objectives(exact))).sum())
        label = "from the exact front" if seeded else "unseeded"
        print(
            f"  {label:20s} hypervolume {np.median(scores):.4f} ({min(scores):.4f})  "
            f"points worse somewhere {worse}  {seconds / len(SEEDS):.2f} s"
        )


def exact_speed() -> None:
    print("\nExact front")
    for num_gpus, num_clocks in ((8, 110), (64, 110), (1024, 110)):
        problem = fake_problem(0, num_gpus, num_clocks)
        start = time.perf_counter()
        result = exact_front(problem)
        seconds = time.perf_counter() - start
        print(
            f"  {num_gpus:5d} GPUs: {result.covered:,} plans, evaluated {result.evaluated / result.covered:.1%}, "
            f"{seconds:.2f} s, front of {len(result.front['energy_j'])}"
        )


def study_speed(url: str = "sqlite:///:memory:") -> None:
    problem = fake_problem(0, 64, 110)
    plans = problem.describe(search(problem, trials=3000).plans)
    start = time.perf_counter()
    save_study(plans, url, name="bench", job_hash="0" * 8, seed=0)
    print(f"\nStudy of 2000 trials to SQLite, tables included: {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    exact_speed()
    one_clock_for_all()
    clocks_per_stage()
    study_speed()
