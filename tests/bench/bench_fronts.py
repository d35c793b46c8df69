"""NSGA-II against the exact fronts of every shipped job, with 2,000 evaluated plans in all; median and worst of 5.

    python -m tests.bench.bench_fronts

The search knows nothing beforehand and gets no local search. Prints, for one clock on all stages and for stages that
use their slack, the size of the space, what the exact search evaluated of it, the points of its front, and the
hypervolume (of a tight reference point) and recall that NSGA-II reaches; then what `propose` gains with everything on:
the exact front as a start, and a local search that moves single stages.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jointopt.core.schema import Columns
from jointopt.jobs.jobfile import shipped_job, shipped_jobs
from jointopt.search.exact import exact_front_of_profiles
from jointopt.search.nsga2 import search
from jointopt.search.pareto import hypervolume, is_covered, nadir, objectives
from jointopt.search.problem import Problem
from jointopt.workflows.feasible_layouts import priced_problem
from tests.fake_problem import recall

SEEDS = range(5)
TRIALS = 2000


def scores(front: Columns, exact: Columns) -> tuple[float, float, int]:
    """Hypervolume ratio, recall, and exact points that nothing in ``front`` equals or beats."""
    reference = nadir(*objectives(exact))
    volume = hypervolume(*objectives(front), reference) / hypervolume(*objectives(exact), reference)
    worse = int((~is_covered(*objectives(front), *objectives(exact))).sum())
    return volume, recall(*objectives(exact), *objectives(front)), worse


def alone(problem: Problem) -> tuple[str, Columns]:
    """The figures of NSGA-II without a start, and the exact front."""
    exact = exact_front_of_profiles(problem)
    found = [search(problem, trials=TRIALS, seed=seed, local_evaluations=0) for seed in SEEDS]
    assert all(result.evaluated <= TRIALS for result in found)
    (volume, part), (least, least_part) = (
        take([scores(result.front, exact.front)[:2] for result in found], axis=0) for take in (np.median, np.min)
    )
    text = (
        f"{exact.covered:>11,} plans, {exact.evaluated:>6,} evaluated, front {len(exact.front['slack']):>3}, "
        f"hypervolume {volume:.5f} ({least:.5f}), recall {part:.3f} ({least_part:.3f})"
    )
    return text, exact.front


def main() -> None:
    for name in shipped_jobs():
        staged = priced_problem(shipped_job(name))
        text, _ = alone(dataclasses.replace(staged, stage_clocks=None))
        print(f"{name:28} one clock {text}", flush=True)
        text, exact = alone(staged)
        print(f"{'':28} slack     {text}", flush=True)
        started = [scores(search(staged, trials=1000, seed=s, start=exact).front, exact) for s in SEEDS]
        volume, lost = np.median([one[0] for one in started]), max(one[2] for one in started)
        print(f"{'':28} propose   hypervolume {volume:.5f}, exact points lost {lost}", flush=True)


if __name__ == "__main__":
    main()
