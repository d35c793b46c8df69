"""A clock per pipeline stage against one clock, or one power limit, for all: energy saved within a slowdown.

    OMP_NUM_THREADS=1 python tests/bench/bench_stage_clocks.py

For shipped jobs, the fastest pipeline that fits at the top clock: of all, and of plain 1F1B ones of eight stages or
more. Savings are relative to that layout at its top clock, as Perseus (SOSP'24) and EnvPipe state theirs; one clock is
the best of the grid, clocks per stage are found by slack and then by lowering or raising one stage at a time.
"""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Columns, Floats
from jointopt.core.units import GIB
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import format_plan
from jointopt.physics.cost_model import CostModel, memory_limit_gib
from jointopt.physics.memory import peak_memory_bytes
from jointopt.report.plans import short_clocks

JOBS = ("gpt3-175b-128x8-a100", "mixtral-8x22b-8x8-h100", "llama-3-70b-4x8-h200", "opt-350m-2x4-a100")
SLOWDOWNS = (0.01, 0.02, 0.05, 0.10)
STEPS = (-8, -4, -2, -1, 1, 2, 4)


def fastest(job: Job, least_pp: int, most_vpp: int) -> CostModel:
    """The physics of the layout that is fastest at the top clock, among those that fit, by stages and interleaving."""
    layouts = enumerate_layouts(job).layouts
    fits = peak_memory_bytes(job, layouts) <= memory_limit_gib(job) * GIB
    fits &= (layouts["pp"] >= least_pp) & (layouts["vpp"] <= most_vpp)
    some = {name: values[fits] for name, values in layouts.items()}
    physics = CostModel(job, some)
    best = int(physics.lower_bound(np.arange(len(some["pp"])))[0].argmin())
    return CostModel(job, {name: values[[best]] for name, values in some.items()})


def price(physics: CostModel, clocks: Floats) -> Columns:
    return physics.evaluate(np.zeros(len(clocks), np.int64), clocks)


def limited(physics: CostModel) -> Columns:
    """The layout at the top clock under one power limit for all GPUs, from half the cluster's limit up to it."""
    limits = physics.job.cluster.power_limit_w * np.linspace(0.5, 1.0, 101)
    layouts = {name: np.repeat(values, len(limits)) for name, values in physics.layouts.items()}
    capped = CostModel(physics.job, layouts | {"power_limit_w": limits})
    top = np.full((len(limits), int(physics.layouts["pp"][0])), physics.top_mhz)
    return capped.evaluate(np.arange(len(limits)), top)


def least_j(plans: Columns, most_s: float) -> float:
    return float(plans["energy_j"][plans["iteration_time_s"] <= most_s].min())


def by_slack(physics: CostModel) -> Floats:
    """Stage clocks (n, pp) that spend shares of the slack under every clock of the slowest stage."""
    clock, share = np.meshgrid(np.arange(len(physics.job.search.clock_mhz)), np.linspace(0.0, 1.0, 11))
    rows = np.zeros(clock.size, np.int64)
    return physics.stage_clocks(rows, clock.reshape(-1), share.reshape(-1))


def neighbours(at: Floats, grid: Floats) -> Floats:
    """Every plan that differs from ``at`` (pp,) in one stage by one of `STEPS`."""
    index = np.searchsorted(grid, at)
    moved = index + np.asarray(STEPS)[:, None, None] * np.eye(len(at), dtype=np.int64)
    return grid[np.clip(moved.reshape(-1, len(at)), 0, len(grid) - 1)]


def per_stage(physics: CostModel, most_s: float) -> tuple[float, Floats]:
    """Least energy within a time, and its clocks."""
    grid, clocks = np.asarray(physics.job.search.clock_mhz), by_slack(physics)
    best_j, best = float("inf"), clocks[0]
    while True:
        found = price(physics, clocks)
        energy = np.where(found["iteration_time_s"] <= most_s, found["energy_j"], np.inf)
        i = int(energy.argmin())
        if energy[i] >= best_j * (1.0 - 1e-9):
            return best_j, best
        best_j, best = float(energy[i]), clocks[i]
        clocks = neighbours(best, grid)


def show(job: Job, least_pp: int, most_vpp: int) -> None:
    physics = fastest(job, least_pp, most_vpp)
    grid, pp = np.asarray(job.search.clock_mhz), int(physics.layouts["pp"][0])
    uniform = price(physics, np.repeat(grid[:, None], pp, axis=1))
    capped = limited(physics)
    top_s, top_j = float(uniform["iteration_time_s"][-1]), float(uniform["energy_j"][-1])
    plan = format_plan(physics.layouts, np.full((1, pp), grid[-1]))
    print(f"{job.name}: {plan}\n  {top_s:.3f} s, {top_j / 1e3:,.1f} kJ at the top clock")
    for slowdown in SLOWDOWNS:
        most_s = top_s * (1.0 + slowdown)
        limit, one = (least_j(plans, most_s) for plans in (capped, uniform))
        many, clocks = per_stage(physics, most_s)
        print(
            f"  at <= {slowdown:.0%} slowdown: one limit {1 - limit / top_j:6.1%}, "
            f"one clock {1 - one / top_j:6.1%}, a clock per stage "
            f"{1 - many / top_j:6.1%} ({short_clocks(clocks.tolist(), 60)} MHz)",
            flush=True,
        )


def main() -> None:
    for name in JOBS:
        for least_pp, most_vpp in ((2, 10**6), (8, 1)):
            show(shipped_job(name), least_pp, most_vpp)


if __name__ == "__main__":
    main()
