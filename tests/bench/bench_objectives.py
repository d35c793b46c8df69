"""Three objectives, which no exact search counts: NSGA-II and III against TPE, Gaussian processes and random.

    pip install -e '.[bench]'
    python tests/bench/bench_objectives.py [--trials 200] [--seeds 3] [--also-gp] [--also-botorch] [JOB ...]

Time, energy and the peak power of a GPU over layouts, clocks, shares of slack, and power limits of 50 to 100 % of the
board's. All get the same genes, repaired in the same way to layouts that exist. Prints hypervolume in logarithms, as a
share of what all runs together reach, median of the seeds (worst in brackets), and CPU seconds.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import optuna
from bench_goals import of_genes
from pymoo.algorithms.moo.nsga2 import NSGA2, RankAndCrowdingSurvival
from pymoo.algorithms.moo.nsga3 import NSGA3
from pymoo.core.individual import Individual
from pymoo.core.population import Population
from pymoo.core.problem import Problem as PymooProblem
from pymoo.indicators.hv import HV
from pymoo.util.nds.non_dominated_sorting import NonDominatedSorting
from pymoo.util.ref_dirs import get_reference_directions

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.jobfile import shipped_job
from jointopt.physics.cost_model import CostModel
from jointopt.search.breeding import Genome
from jointopt.search.problem import Problem
from jointopt.workflows.feasible_layouts import priced_problem, search_problem

JOBS = ("llama-3-70b-4x8-h200", "mixtral-8x22b-8x8-h100")
LIMITS = np.linspace(0.5, 1.0, 6)  # shares of the board's power
POPULATION = 40
Found = tuple[Floats, Floats]  # objectives (n, 3), violations (n,)


@dataclass(frozen=True)
class Space:
    """Plans of a job under power limits: genes of the house, and one more for the limit."""

    genome: Genome
    limited: Problem
    physics: CostModel

    @classmethod
    def of(cls, name: str) -> Space:
        """The space of a shipped job."""
        job = shipped_job(name)
        problem = priced_problem(job)
        tiled = {column: np.tile(values, len(LIMITS)) for column, values in problem.layouts.items()}
        limits_w = np.repeat(LIMITS * job.cluster.power_limit_w, problem.num_layouts)
        physics = CostModel(job, tiled | {"power_limit_w": limits_w})
        limited = search_problem(job, physics, problem.clocks_mhz, np.ones(len(limits_w)))
        return cls(Genome.of(problem), limited, physics)

    @property
    def sizes(self) -> Ints:
        """Number of values per gene."""
        return np.append(self.genome.sizes, len(LIMITS))

    def evaluate(self, genes: Ints) -> Found:
        """Logarithms of time, energy and peak power of rows of genes."""
        layout, clock, slack = self.genome.decode(genes[:, :-1])
        layout = layout + genes[:, -1] * self.genome.problem.num_layouts
        clocks = self.limited.decode_clocks(layout, clock, slack)
        plans = self.limited.evaluate(layout, clocks) | self.physics.heat(layout, clocks)
        goals = [plans[name] for name in ("iteration_time_s", "energy_j", "peak_power_w")]
        return np.log(np.column_stack(goals)), np.maximum(plans["violation"], 0.0)

    def random(self, count: int, rng: np.random.Generator) -> Ints:
        """Genes of random plans."""
        return np.column_stack([self.genome.random(count, rng), rng.integers(0, len(LIMITS), count)])


Search = Callable[[Space, int, int], Found]


def stock(sampler: Callable[[int], optuna.samplers.BaseSampler]) -> Search:
    """A sampler of Optuna by ask and tell."""

    def run(space: Space, trials: int, seed: int) -> Found:
        study = optuna.create_study(directions=["minimize"] * 3, sampler=sampler(seed))
        names = {f"g{i}": optuna.distributions.IntDistribution(0, int(n) - 1) for i, n in enumerate(space.sizes)}
        goals, broken = [], []
        for _ in range(trials):
            trial = study.ask(names)
            found, violation = space.evaluate(np.array([[trial.params[name] for name in names]]))
            trial.set_constraint("violation", float(violation[0]))
            study.tell(trial, found[0].tolist())
            goals.append(found)
            broken.append(violation)
        return np.concatenate(goals), np.concatenate(broken)

    return run


def of_pymoo(make: Callable[..., NSGA2 | NSGA3]) -> Search:
    """An algorithm of pymoo with integer genes, a population at a time."""

    def run(space: Space, trials: int, seed: int) -> Found:
        algorithm = of_genes(make, space.sizes, POPULATION, seed)
        goals, broken = np.empty((0, 3)), np.empty(0)
        while len(broken) < trials:
            infills = algorithm.ask()
            found, violation = space.evaluate(np.asarray(infills.get("X")).astype(np.int64))
            infills.set("F", found, "G", violation[:, None])
            algorithm.tell(infills=infills)
            goals, broken = np.concatenate([goals, found]), np.concatenate([broken, violation])
        return goals[:trials], broken[:trials]

    return run


def house(space: Space, trials: int, seed: int) -> Found:
    """Children by the variation of `jointopt.search.breeding`, parents by NSGA-II's rank and crowding."""
    rng, survival = np.random.default_rng(seed), RankAndCrowdingSurvival()
    pymoo_problem = PymooProblem(n_var=len(space.sizes), n_obj=3, n_ieq_constr=1)
    genes, goals, broken = space.random(POPULATION, rng), np.empty((0, 3)), np.empty(0)
    parents = Population()
    while len(broken) < trials:
        found, violation = space.evaluate(genes)
        goals, broken = np.concatenate([goals, found]), np.concatenate([broken, violation])
        born = [Individual(X=x, F=f, G=np.array([g])) for x, f, g in zip(genes, found, violation, strict=True)]
        parents = survival.do(pymoo_problem, Population.merge(parents, Population.create(*born)), n_survive=POPULATION)
        genes = _children(space, np.asarray(parents.get("X"), np.int64), rng)
    return goals[:trials], broken[:trials]


def _children(space: Space, parents: Ints, rng: np.random.Generator) -> Ints:
    mothers, fathers = (parents[rng.integers(0, len(parents), POPULATION)] for _ in range(2))
    bred = space.genome.mutate(space.genome.cross(mothers[:, :-1], fathers[:, :-1], rng), rng)
    limit = np.where(rng.random(POPULATION) < 0.5, mothers[:, -1], fathers[:, -1])
    limit += np.where(rng.random(POPULATION) < 0.2, rng.choice((-1, 1), POPULATION), 0)
    return np.column_stack([bred, np.clip(limit, 0, len(LIMITS) - 1)])


def nsga3(**options: object) -> NSGA3:
    return NSGA3(get_reference_directions("das-dennis", 3, n_partitions=7), **options)


SEARCHES: dict[str, Search] = {
    "NSGA-II, own variation": house,
    "pymoo NSGA-II": of_pymoo(NSGA2),
    "pymoo NSGA-III": of_pymoo(nsga3),
    "Optuna NSGA-II": stock(lambda seed: optuna.samplers.NSGAIISampler(population_size=POPULATION, seed=seed)),
    "Optuna NSGA-III": stock(lambda seed: optuna.samplers.NSGAIIISampler(population_size=POPULATION, seed=seed)),
    "Optuna TPE": stock(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "random": stock(lambda seed: optuna.samplers.RandomSampler(seed=seed)),
}


def botorch(seed: int) -> optuna.samplers.BaseSampler:
    """BoTorch's qLogEHVI, which Optuna's own integration takes for three objectives under a constraint."""
    from optuna_integration import BoTorchSampler

    return BoTorchSampler(seed=seed)


# these need torch, and seconds for each plan
GAUSSIAN = {"Optuna GPSampler": stock(lambda seed: optuna.samplers.GPSampler(seed=seed))}
BOTORCH = {"BoTorch qLogEHVI": stock(botorch)}


def feasible(found: Found) -> Floats:
    """Objectives of the plans that keep the constraints."""
    return np.asarray(found[0][found[1] <= 0.0])


def compare(name: str, trials: int, seeds: int, searches: dict[str, Search]) -> None:
    """Print how much of the volume of all runs together each search reaches."""
    space, runs, seconds = Space.of(name), dict[str, list[Floats]](), {}
    for label, search in searches.items():
        start = time.process_time()
        runs[label] = [feasible(search(space, trials, seed)) for seed in range(seeds)]
        seconds[label] = (time.process_time() - start) / seeds
    every = np.concatenate([points for found in runs.values() for points in found])
    best = every[NonDominatedSorting().do(every, only_non_dominated_front=True)]
    low, high = best.min(axis=0), best.max(axis=0)
    volume = HV(ref_point=np.ones(3))
    whole = volume((every - low) / (high - low))
    print(f"{name}: {space.genome.problem.num_layouts:,} layouts, {trials} plans")
    for label, found in runs.items():
        share = [volume((points - low) / (high - low)) / whole for points in found]
        print(f"  {label:24s} {np.median(share):.3f} ({min(share):.3f})  {seconds[label]:.1f} s", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="*", default=JOBS)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--also-gp", action="store_true")
    parser.add_argument("--also-botorch", action="store_true")
    given = parser.parse_args()
    for job in given.jobs:
        more = (GAUSSIAN if given.also_gp else {}) | (BOTORCH if given.also_botorch else {})
        compare(job, given.trials, given.seeds, SEARCHES | more)
