"""Plans per second of the physics on one core: random layouts of GPT-3 175B on 1,024 A100s, a clock per stage.

    OMP_NUM_THREADS=1 python tests/bench/bench_physics.py

Pricing every feasible layout counts once; then random plans, each a layout and up to 16 stage clocks of its own, and
what power, energy, memory and constraints add to their time alone (least of the rounds, taken in turns).
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.physics.cost_model import CostModel, memory_limit_gib
from jointopt.physics.memory import peak_memory_bytes

PLANS = 400_000
ROUNDS = 5


def seconds_of(price: Callable[[Ints, Floats], object], index: Ints, clocks: Floats) -> float:
    start = time.perf_counter()
    price(index, clocks)
    return time.perf_counter() - start


def main() -> None:
    job = shipped_job("gpt3-175b-128x8-a100")
    space = enumerate_layouts(job)
    fits = peak_memory_bytes(job, space.layouts) <= memory_limit_gib(job) * 2**30
    shallow = space.layouts["pp"] <= 16
    layouts = {name: values[fits & shallow] for name, values in space.layouts.items()}
    start = time.perf_counter()
    physics = CostModel(job, layouts)
    pricing_s = time.perf_counter() - start
    count = len(layouts["pp"])
    print(f"pricing {count:,} layouts: {pricing_s:.2f} s, {count / pricing_s:,.0f} layouts/s")
    rng = np.random.default_rng(0)
    for name, rows in (("all depths up to 16", np.arange(count)), ("16 stages", np.flatnonzero(layouts["pp"] == 16))):
        index = rng.choice(rows, PLANS)
        clocks = rng.choice(np.asarray(job.search.clock_mhz), (PLANS, 16))
        seconds, time_alone = [], []
        for _ in range(ROUNDS):
            time_alone.append(seconds_of(physics.iteration_time_s, index, clocks))
            seconds.append(seconds_of(physics.evaluate, index, clocks))
        middle, added = statistics.median(seconds), min(seconds) / min(time_alone) - 1
        print(
            f"{name}: {PLANS / middle:,.0f} plans/s (median of {ROUNDS}), {1e6 * middle / PLANS:.2f} µs/plan; "
            f"time alone {1e6 * min(time_alone) / PLANS:.2f} µs/plan, energy and the rest add {added:.0%}"
        )
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")


if __name__ == "__main__":
    main()
