"""Cost per plan of the pipeline formulas, and their deviation from the replayed schedule.

Run: python tests/bench/bench_pipeline.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.physics.makespan import chunked_time_s, regular_makespan_s
from jointopt.physics.schedule import Pass, replay

PLANS = 100_000
MAX_PP = 16
MIXES = {"1, 2, 4, 8, 16": [1, 2, 4, 8, 16], "2": [2], "4": [4], "8": [8], "16": [16]}


def microseconds_per_plan(call: Callable[[], object], repeats: int = 5) -> float:
    """Best of a few runs: the machine is shared."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds) / PLANS * 1e6


def random_times(rng: np.random.Generator, shape: tuple[int, ...], spread: float) -> tuple[Floats, Floats]:
    """Forwards in [1, spread], backwards twice that, each drawn on its own."""
    return rng.uniform(1.0, spread, shape), 2.0 * rng.uniform(1.0, spread, shape)


def print_cost(rng: np.random.Generator) -> None:
    f, b = random_times(rng, (PLANS, MAX_PP), 2.0)
    print(f"us/plan, {PLANS} plans, m = pp * (1..16)")
    for name, pps in MIXES.items():
        pp: Ints = rng.choice(pps, PLANS)
        m = pp * rng.integers(1, 17, PLANS)
        interleaved = np.where(pp > 1, rng.choice([2, 4], PLANS), 1)
        for label, vpp in (("1F1B", np.ones_like(pp)), ("interleaved", interleaved)):
            cost = microseconds_per_plan(lambda v=vpp, p=pp, n=m: regular_makespan_s(f, b, p, v, n))  # type: ignore[misc]
            print(f"  pp {name:16s} {label:12s} {cost:6.3f}")
    for p, v, groups in ((4, 3, 8), (8, 2, 16), (8, 4, 4), (16, 8, 1), (16, 8, 8), (64, 2, 1)):
        times = random_times(rng, (v, p, 2000), 1.5)
        start = time.perf_counter()
        chunked_time_s(*times, groups * p)
        print(f"  pp {p}, vpp {v}, m {groups * p}, chunks unequal {(time.perf_counter() - start) / 2000 * 1e6:6.1f}")


def largest_deviation(rng: np.random.Generator, spread: float, vpps: tuple[int, ...]) -> tuple[int, float, float]:
    """Plans tried, and the lowest and highest relative deviation of the closed form from the replay."""
    plans, low, high = 0, 0.0, 0.0
    for pp in (2, 3, 4, 5, 8, 12, 16):
        for vpp in vpps:
            for m in (pp, 2 * pp, 3 * pp, 8 * pp) if vpp > 1 else (1, pp - 1, pp, pp + 1, 4 * pp):
                if m * vpp * pp > 4000:
                    continue
                f, b = random_times(rng, (500, pp), spread)

                def duration_s(rank: int, op: Pass, f: Floats = f, b: Floats = b, vpp: int = vpp) -> Floats:
                    return (b if op.backward else f)[:, rank] / vpp

                exact = np.max(list(replay(pp, vpp, m, duration_s).values()), axis=0)
                closed = regular_makespan_s(f, b, *(np.full(500, x) for x in (pp, vpp, m)))
                deviation = closed / exact - 1.0
                plans, low, high = plans + 500, min(low, deviation.min()), max(high, deviation.max())
    return plans, low, high


def main() -> None:
    rng = np.random.default_rng(0)
    print_cost(rng)
    print("closed form against the replayed schedule: relative deviation, lowest and highest")
    for spread in (1.05, 2.0, 10.0):
        for label, vpps in (("1F1B", (1,)), ("interleaved", (2, 3, 4, 8))):
            plans, low, high = largest_deviation(rng, spread, vpps)
            print(f"  imbalance up to {spread:5.2f}x {label:12s} {plans:6d} plans {low:9.1e} {high:9.1e}")


if __name__ == "__main__":
    main()
