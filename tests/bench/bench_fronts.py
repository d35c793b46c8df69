"""NSGA-II against the exact front of one clock for all stages, on every shipped job; medians and worst of 5 seeds.

    python tests/bench/bench_fronts.py

Prints hypervolume and recall of the search without a start, and, with a clock per stage and the exact front as its
start, the hypervolume relative to that front and the number of exact points that are better than the answer.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from jointopt.jobfile import shipped_job, shipped_jobs
from jointopt.schema import Columns
from jointopt.search.exact import exact_front
from jointopt.search.nsga2 import search
from jointopt.search.pareto import hypervolume, is_covered, nadir, objectives, recall
from jointopt.workflow import priced_problem

SEEDS = range(5)
TRIALS = 1000


def scores(front: Columns, exact: Columns) -> tuple[float, float, int]:
    """Hypervolume ratio, recall, and exact points that nothing in ``front`` equals or beats."""
    reference = nadir(*objectives(exact))
    volume = hypervolume(*objectives(front), reference) / hypervolume(*objectives(exact), reference)
    worse = int((~is_covered(*objectives(front), *objectives(exact))).sum())
    return volume, recall(*objectives(exact), *objectives(front)), worse


def main() -> None:
    for name in shipped_jobs():
        staged = priced_problem(shipped_job(name))
        uniform = dataclasses.replace(staged, stage_clocks=None)
        exact = exact_front(uniform).front
        alone = [scores(search(uniform, trials=TRIALS, seed=s).front, exact) for s in SEEDS]
        started = [scores(search(staged, trials=TRIALS, seed=s, start=exact).front, exact) for s in SEEDS]
        plans = uniform.num_layouts * uniform.num_clocks
        print(
            f"{name:28} {plans:>9,} plans, front {len(exact['layout_index']):>3} | "
            f"no start: hypervolume {np.median([a[0] for a in alone]):.4f} ({min(a[0] for a in alone):.4f}), "
            f"recall {np.median([a[1] for a in alone]):.3f} ({min(a[1] for a in alone):.3f}) | per stage: "
            f"hypervolume {np.median([a[0] for a in started]):.4f}, points lost {max(a[2] for a in started)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
