"""The verbs: the only place where plans, physics, search and report meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from jointopt.catalog.kernels import kernel_constants
from jointopt.errors import InfeasibleError
from jointopt.physics.breakdown import breakdown
from jointopt.physics.estimate import Estimator, memory_limit_gib, peak_memory_bytes
from jointopt.plans.check import check_plan
from jointopt.plans.parse import parse_plan, plan_records
from jointopt.plans.space import enumerate_layouts
from jointopt.remedy import remedy
from jointopt.report.results import Explanation, Proposal, Stage
from jointopt.schema import Columns, Floats, Ints
from jointopt.search.exact import ExactFront, exact_front
from jointopt.search.pareto import front_of
from jointopt.search.problem import Problem
from jointopt.spec.job import Job
from jointopt.units import GIB

if TYPE_CHECKING:
    import pandas as pd

PREDICTED = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")
Say = Callable[[str], None]
NO_MEMORY = "does not fit in the GPU's memory"
CONSTRAINED = "breaks a constraint at every clock"


class _Stopwatch:
    """Wall seconds by phase, and a word about each as it starts."""

    def __init__(self, say: Say | None) -> None:
        self.seconds: dict[str, float] = {}
        self._say = say

    @contextmanager
    def phase(self, name: str, what: str) -> Iterator[None]:
        if self._say is not None:
            self._say(what)
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)


def estimator(job: Job, layouts: Columns) -> Estimator:
    """The physics of ``job`` for these layouts."""
    return Estimator(job, kernel_constants(job.cluster.gpu), layouts)


def propose(
    job: Job, *, trials: int = 1000, seed: int = 0, storage: str | None = None, study: str | None = None,
    progress: Say | None = None,
) -> Proposal:  # fmt: skip
    """Search the joint space of ``job`` and return the plans that no other plan beats in both time and energy.

    ``trials`` plans are spent on NSGA-II after the exact front of the uniform clocks; ``storage`` is an Optuna URL.
    Raises InfeasibleError with the commonest reasons and the smallest change that would help.
    """
    watch = _Stopwatch(progress)
    with watch.phase("enumerate", "enumerating layouts"):
        space = enumerate_layouts(job)
    dropped = dict(space.dropped)
    with watch.phase("memory", f"fitting {space.size:,} layouts into {memory_limit_gib(job):.0f} GiB"):
        fits = peak_memory_bytes(job, space.layouts) <= memory_limit_gib(job) * GIB
    if not fits.all():
        dropped[NO_MEMORY] = int((~fits).sum())
    layouts = {name: values[fits] for name, values in space.layouts.items()}
    if not fits.any():
        raise InfeasibleError(remedy(job, space.layouts, dropped))
    with watch.phase("prepare", f"pricing {int(fits.sum()):,} layouts"):
        physics = estimator(job, layouts)
        problem = _problem(job, physics, space.clocks_mhz)
    with watch.phase("exact", f"exact front of {problem.num_layouts * problem.num_clocks:,} plans with one clock"):
        exact = exact_front(problem)
    if not len(exact.front["iteration_time_s"]):
        dropped[CONSTRAINED] = problem.num_layouts
        raise InfeasibleError(remedy(job, layouts, dropped, physics))
    with watch.phase("search", f"NSGA-II over {trials:,} plans with a clock per stage"):
        front, seen = _search(job, problem, exact, trials, seed)
    reference = _reference(job, physics, problem)
    proposal = Proposal(
        job=job, seed=seed, surrogate="none", considered=space.considered, layouts=space.size,
        feasible_layouts=problem.num_layouts, infeasible=dropped,
        front=_answer(job, physics, front), reference=_answer(job, physics, reference),
        covered_plans=exact.covered, evaluated_plans=exact.evaluated + len(seen["layout_index"]),
        seconds=watch.seconds, assumed=_assumptions(job),
    )  # fmt: skip
    return proposal if storage is None else _stored(proposal, problem, seen, storage, study, watch)


def _problem(job: Job, physics: Estimator, clocks_mhz: Floats) -> Problem:
    return Problem(
        layouts=physics.layouts,
        clocks_mhz=clocks_mhz,
        evaluate=physics.evaluate,
        lower_bound=physics.lower_bound,
        stage_clocks=physics.stage_clocks if job.search.per_stage_clocks else None,
        energy_slope_w=physics.energy_slope_w,
    )


def _search(job: Job, problem: Problem, exact: ExactFront, trials: int, seed: int) -> tuple[Columns, Columns]:
    """(front, everything evaluated); the exact front of the uniform clocks is part of both."""
    from jointopt.search.nsga2 import search
    from jointopt.search.pareto import concat

    result = search(problem, trials=trials, seed=seed, start=exact.front)
    seen = concat([exact.front, result.plans])
    return front_of(concat([exact.front, result.front])), seen


def _reference(job: Job, physics: Estimator, problem: Problem) -> Columns:
    """The fastest feasible plan with every clock at its maximum; without feasible ones, simply the fastest."""
    everything = np.arange(problem.num_layouts)
    top = np.full(problem.num_layouts, problem.num_clocks - 1)
    plans = problem.plans(everything, top, np.zeros(problem.num_layouts))
    rank = np.where(plans["violation"] <= 0, plans["iteration_time_s"], np.inf)
    best = int(rank.argmin()) if np.isfinite(rank.min()) else int(plans["iteration_time_s"].argmin())
    return {name: values[[best]] for name, values in plans.items()}


def _answer(job: Job, physics: Estimator, plans: Columns) -> Columns:
    """Plan and prediction columns of chosen plans, with intervals."""
    layout = plans["layout_index"]
    columns = {name: values[layout] for name, values in physics.layouts.items()}
    for name in ("iteration_time_s", "energy_j", "avg_power_w", "peak_power_w", "peak_memory_gib", "temperature_c"):
        columns[name] = plans[name]
    columns["stage_clock_mhz"] = plans["stage_clock_mhz"]
    return add_intervals(job, columns)


def _assumptions(job: Job) -> tuple[str, ...]:
    gpu = job.cluster.gpu
    power = gpu.power.assumed if gpu.power else ()
    return (*job.cluster.assumed, *power, *kernel_constants(gpu).assumed)


def predict(table: pd.DataFrame) -> pd.DataFrame:
    """The table with predicted columns (interfaces.md, section 4); rows keep their order and every column stays."""
    import pandas as pd

    from jointopt.workloads import workloads

    out: dict[str, list[object]] = {}
    parts = []
    for work in workloads(table):
        physics = estimator(work.job, work.plans)
        values = physics.evaluate(np.arange(len(work.rows)), work.stage_clock_mhz)
        columns = {f"predicted_{name}": values[name] for name in PREDICTED}
        columns["predicted_fits"] = values["peak_memory_gib"] <= memory_limit_gib(work.job)
        columns["assumed"] = np.array(work.assumed, dtype=object)
        parts.append(pd.DataFrame(columns, index=work.rows))
    predicted = pd.concat(parts).sort_index()
    predicted.index = table.index
    return pd.concat([table, predicted], axis=1)
