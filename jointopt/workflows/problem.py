"""The search problem of a job: its layouts that fit in memory, priced by its model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.errors import InfeasibleError
from jointopt.core.memory import free_bytes
from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.core.units import GIB
from jointopt.jobs.clocks import repeated, under_limits
from jointopt.jobs.job import OBJECTIVES, TIME_ALONE, Job
from jointopt.jobs.plans.space import Space, enumerate_layouts
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cooling import leave_power
from jointopt.physics.cost_model import CostModel, memory_limit_gib
from jointopt.physics.makespan import most_makespan_s
from jointopt.physics.memory import peak_memory_bytes
from jointopt.report.shortage import remedy
from jointopt.search.fastest import fastest
from jointopt.search.leanest import leanest
from jointopt.search.pareto import concat, take
from jointopt.search.problem import LowerBound, Problem
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import CERTAIN, FEASIBLE, SURE, cost_of_failing
from jointopt.workflows.free_splits import free_splits
from jointopt.workflows.search_steps import Stopwatch

_log = logging.getLogger(__name__)
NO_MEMORY = "does not fit in the GPU's memory"
RAN_OUT = "ran out of memory in a measured run, or holds as much"
TIGHT = "is likelier not to fit in the GPU's memory than to fit"
RISKY = "may not fit in the GPU's memory, and gains less than a failed start costs"
CHUNK_BYTES, LAYOUT_BYTES = 32, 600  # of memory, per chunk of a feasible layout and per listed one, as measured
PRICED_AT_ONCE = 2_000  # layouts; of more most are ruled out by a quick bound, and never priced
LIMITED = "power limit of {} W, which a GPU draws whatever runs"
NEEDLESS = "recomputes more than it needs to fit"
MEMORY_GOALS = (*OBJECTIVES, "peak_memory_gib")


def need_power(job: Job) -> None:
    """CatalogError where the job wants energies that no source predicts; those of a job of time alone are NaN."""
    if job.cluster.gpu.power is None and job.objectives != TIME_ALONE:
        job.cluster.gpu.need("tdp_w", "predict power and energy")


def feasible_layouts(
    model: JobModel, watch: Stopwatch, least: float = FEASIBLE, *, allow_tight: bool = False
) -> tuple[Space, Columns, Floats, dict[str, int]]:
    """(space, its layouts that fit in memory, the bytes (n,) that they take by the physics, what was dropped).

    They fit with a probability of ``least`` or more. Where none does and ``allow_tight`` is set they are those that
    come nearest: at least half as likely to fit as the best, and not certain to fail. The dropped ones are counted by
    reason; InfeasibleError where nothing is left. Splits of the layers that `free_splits` finds come behind the listed
    ones.
    """
    with watch.phase("enumerate", "enumerating layouts"):
        space = enumerate_layouts(model.job)
    limit_gib = memory_limit_gib(model.job)
    with watch.phase("memory", f"fitting {space.size:,} layouts into {limit_gib:.0f} GiB"):
        listed = space
        space, layouts, peak_bytes, dropped = _fitting(model, listed, least)
        if not len(peak_bytes) and allow_tight:
            best = model.fit_probability_of(peak_memory_bytes(model.job, listed.layouts)).max(initial=0.0)
            least = max(CERTAIN, 0.5 * best)
            space, layouts, peak_bytes, dropped = _fitting(model, listed, least)
    if not len(peak_bytes):
        raise InfeasibleError(remedy(model, space.layouts, dropped))
    with watch.phase("splits", "splits of the layers over pipelines"):
        for free in free_splits(model, layouts, peak_bytes):
            part, more, more_bytes, without = _fitting(model, enumerate_layouts(free.alone(model.job)), least)
            every = concat([space.layouts, part.layouts])
            space = replace(space, layouts=every, considered=space.considered + part.size)
            layouts, peak_bytes = concat([layouts, more]), np.concatenate([peak_bytes, more_bytes])
            for reason in {RAN_OUT, NO_MEMORY, TIGHT, NEEDLESS} & without.keys():
                dropped[reason] = dropped.get(reason, 0) + without[reason]
    return space, layouts, peak_bytes, dropped


def _fitting(model: JobModel, space: Space, least: float) -> tuple[Space, Columns, Floats, dict[str, int]]:
    """As `feasible_layouts` of a space with its listed splits, the layouts that `leanest` appends included."""
    job, listed = model.job, space.size
    peaks: list[Floats] = []  # of the layouts, then of the steps that `leanest` appends to them

    def fits(some: Columns) -> Floats:
        peaks.append(peak_memory_bytes(job, some))
        return np.where(model.surely_out(some), 0.0, model.fit_probability_of(peaks[-1]))

    layouts, fitting, needed = leanest(job, space.layouts, fits(space.layouts), fits, least)
    peak_bytes = np.concatenate(peaks)
    space = replace(space, layouts=layouts, considered=space.considered + len(needed) - listed)
    dropped, fit, tight = dict(space.dropped), fitting >= least, (fitting >= CERTAIN) & (fitting < least)
    needed |= job.goals != OBJECTIVES  # what recomputes more takes less memory, and other power
    out = model.surely_out(layouts)
    for reason, of in ((RAN_OUT, out), (NO_MEMORY, ~(fit | tight | out)), (TIGHT, tight), (NEEDLESS, fit & ~needed)):
        if of.any():
            dropped[reason] = int(of.sum())
    kept = fit & needed
    return space, {name: values[kept] for name, values in layouts.items()}, peak_bytes[kept], dropped


def searched_limits(job: Job, count: int) -> tuple[tuple[float, ...] | None, dict[str, int]]:
    """(power limits of the search under which something runs, ``count`` layouts dropped for each other, by reason).

    Where nothing runs under any of them they stay, for the sentence that refuses them.
    """
    limits, power = job.search.power_limit_w, job.cluster.gpu.power
    if limits is None or power is None:
        return limits, {}
    some = leave_power(np.array(limits), job.cluster, power).tolist()
    if all(some) or not any(some):
        return limits, {}
    runs, idle = ([w for w, one in zip(limits, some, strict=True) if one is wanted] for wanted in (True, False))
    return tuple(runs), {LIMITED.format(f"{watts:g}"): count for watts in idle}


@dataclass(frozen=True)
class Prepared:
    """The search problem of a job, what it was made of, and the layouts dropped before, by reason."""

    space: Space
    layouts: Columns
    dropped: dict[str, int]
    physics: CostModel
    fitting: Floats  # probability that each layout fits
    problem: Problem
    wide: Problem  # with all objectives of the job among its goals


def prepared(model: JobModel, watch: Stopwatch, *, allow_tight: bool = False) -> Prepared:
    """The search problem of a job's feasible layouts, of many priced as far as is needed; InfeasibleError without any.

    ``allow_tight`` as for `feasible_layouts`.
    """
    space, layouts, peak_bytes, dropped = feasible_layouts(model, watch, allow_tight=allow_tight)
    _state_memory(space, layouts)
    with watch.phase("prepare", f"pricing {len(layouts['pp']):,} layouts"):
        limits, without = searched_limits(model.job, len(peak_bytes))
        layouts, dropped = under_limits(layouts, limits), dropped | without
        peak_bytes = repeated(peak_bytes, len(layouts["pp"]))
        physics = model.cost_model(layouts, peak_bytes, lazily=len(peak_bytes) > PRICED_AT_ONCE)
        problem, fitting = search_problem(model.job, physics, space.clocks_mhz), model.fit_probability(physics)
        rows = np.flatnonzero(np.resize(worth_starting(problem, physics, fitting), len(fitting)))
        if len(rows) < len(fitting):
            dropped[RISKY] = problem.num_distinct * (len(fitting) - len(rows)) // len(fitting)
            dropped |= dict.fromkeys(without, problem.num_distinct - dropped[RISKY])
            layouts, peak_bytes, fitting = take(layouts, rows), peak_bytes[rows], fitting[rows]
            physics = model.cost_model(layouts, peak_bytes, lazily=len(rows) > PRICED_AT_ONCE)
            problem = search_problem(model.job, physics, space.clocks_mhz)
    return Prepared(space, layouts, dropped, physics, fitting, problem, with_goals(model.job, problem, physics))


def _state_memory(space: Space, layouts: Columns) -> None:
    """Warn before layouts are priced where that takes more than half of the memory that is free."""
    chunks = int((layouts["pp"].astype(np.int64) * layouts["vpp"]).sum())
    needed, free = chunks * CHUNK_BYTES + space.size * LAYOUT_BYTES, free_bytes()
    if free is not None and needed > free / 2:
        _log.warning(
            "Pricing %s layouts of %s model chunks takes about %.1f GiB, more than half of the %.1f GiB of memory that "
            "are free; list fewer under search (pp, vpp, micro_batch_size) or free some.",
            f"{len(layouts['pp']):,}", f"{chunks:,}", needed / GIB, free / GIB,
        )  # fmt: skip


def worth_starting(problem: Problem, physics: CostModel, fitting: Floats) -> Bools:
    """Which layouts (the distinct ones) are searched: all that surely fit, and what is faster by more than the risk.

    A layout that may not fit counts where its time at the highest clock, times what failed starts cost
    (`cost_of_failing`), is below that of every layout that surely fits. All where none surely does, or none may fit.
    """
    fits = fitting[: problem.num_distinct]
    sure, tight = np.flatnonzero(fits >= SURE), np.flatnonzero((fits < SURE) & (fits >= FEASIBLE))
    if not len(sure) or not len(tight):
        return np.ones(len(fits), np.bool_)
    time_of, cost = top_times(problem, physics), cost_of_failing(fits)
    least_s = time_of(np.array([fastest(problem, sure, time_of)]))[0]
    for bound in (problem.quick_bound, problem.lower_bound):
        if bound is not None and len(tight):
            tight = tight[bound(tight)[0] * cost[tight] < least_s]
    tight = tight[time_of(tight) * cost[tight] < least_s] if len(tight) else tight
    worth = fits >= SURE
    worth[tight] = True
    return worth


def priced_problem(job: Job | JobModel) -> Problem:
    """The search problem of a job's runs: layouts that may fit, priced by its model (of a job: the physics alone).

    A run decides whether they do: tight plans rank behind their time and energy (`surrogate.memory.cost_of_failing`),
    so that those that are likelier to fit are run first. Where time is all that the job
    is about, the GPU's power need not be known: energies are then NaN.
    """
    model = job if isinstance(job, JobModel) else JobModel(job)
    physics, clocks_mhz = _priced(model)
    return search_problem(model.job, physics, clocks_mhz, cost_of_failing(model.fit_probability(physics)))


def problem_of_one_run(model: JobModel) -> tuple[Problem, Problem]:
    """As `priced_problem` with time and energy of one run, and the same with all objectives of the job among its goals.

    Tight plans that are likelier not to fit are infeasible, unless there are no others.
    """
    physics, clocks_mhz = _priced(model)
    fitting = model.fit_probability(physics)
    narrow = likely_to_fit(search_problem(model.job, physics, clocks_mhz), fitting)
    return narrow, with_goals(model.job, narrow, physics)


def least_odds(fitting: Floats) -> float:
    """The probability of fitting from which on a layout counts as likely to fit: even odds, or the best there is."""
    return min(FEASIBLE, float(fitting.max()))


def likely_to_fit(problem: Problem, fitting: Floats) -> Problem:
    """The problem where layouts likelier not to fit are infeasible, unless there are no others."""
    shortfall = least_odds(fitting) - fitting

    def judged(index: Ints, stage_clock_mhz: Floats) -> Columns:
        plans = problem.evaluate(index, stage_clock_mhz)
        return plans | {"violation": np.maximum(plans["violation"], shortfall[index])}

    return replace(problem, evaluate=judged)


def _priced(model: JobModel) -> tuple[CostModel, Floats]:
    """Layouts of a job that may fit in memory, as often as it has power limits, priced by its model; and the clocks."""
    need_power(model.job)
    space, layouts, peak_bytes, _ = feasible_layouts(model, Stopwatch(), CERTAIN)
    layouts = under_limits(layouts, searched_limits(model.job, len(peak_bytes))[0])
    return model.cost_model(layouts, repeated(peak_bytes, len(layouts["pp"]))), space.clocks_mhz


def with_goals(job: Job, problem: Problem, physics: CostModel) -> Problem:
    """The problem with the job's objectives beyond time and energy among its goals."""

    def evaluate(index: Ints, stage_clock_mhz: Floats) -> Columns:
        return problem.evaluate(index, stage_clock_mhz) | physics.heat(index, stage_clock_mhz)

    if job.goals == MEMORY_GOALS:
        return replace(problem, goals=job.goals, third_goal=physics.memory_bytes / GIB)
    return replace(problem, goals=job.goals, evaluate=evaluate if "peak_power_w" in job.goals else problem.evaluate)


def top_times(problem: Problem, physics: CostModel) -> Callable[[Ints], Floats]:
    """Times (n,) of layouts (n,) of the problem with every clock at its highest."""

    def time_of(index: Ints) -> Floats:
        clocks = uniform_stage_clocks(physics.layouts["pp"][index], physics.top_mhz)
        return np.asarray(problem.evaluate(index, clocks)["iteration_time_s"])

    return time_of


def most_top_times(problem: Problem, physics: CostModel) -> Callable[[Ints], Floats] | None:
    """Times (n,) of layouts (n,) that those of `top_times` do not exceed, for less than these; None: no faster."""
    if (of_plans := problem.most_time_s) is None:
        return None
    return lambda index: of_plans(index, np.full((len(index), 1), physics.top_mhz))


def at_top(physics: CostModel, index: int) -> tuple[Columns, Floats]:
    """One plan (1,) of the layout ``index`` with every clock at its highest, and its clocks (1, pp) in MHz."""
    clocks = uniform_stage_clocks(physics.layouts["pp"][[index]], physics.top_mhz)
    return physics.evaluate(np.array([index]), clocks), clocks


def search_problem(job: Job, physics: CostModel, clocks_mhz: Floats, runs: Floats | None = None) -> Problem:
    """The search problem; where ``runs`` (n,) are given a layout counts so many times (`cost_of_failing`).

    A factor on time and energy keeps what the problem promises of both.
    """
    runs = np.ones(len(physics.layouts["pp"])) if runs is None else runs

    def evaluate(index: Ints, stage_clock_mhz: Floats) -> Columns:
        plans = physics.evaluate(index, stage_clock_mhz)
        return plans | {name: plans[name] * runs[index] for name in OBJECTIVES}

    def bound(of_layouts: LowerBound) -> LowerBound:
        def of_runs(index: Ints) -> tuple[Floats, Floats]:
            time_s, energy_j = of_layouts(index)
            return time_s * runs[index], energy_j * runs[index]

        return of_runs

    def least_violation(index: Ints, time_s: Floats, energy_j: Floats, power_w: Floats) -> Floats:
        return physics.least_violation(index, time_s / runs[index], energy_j / runs[index], power_w)

    limited = job.constraints.avg_power_w is not None or job.constraints.cluster_power_kw is not None
    return Problem(
        layouts=physics.layouts, clocks_mhz=clocks_mhz, evaluate=evaluate, lower_bound=bound(physics.lower_bound),
        stage_clocks=physics.stage_clocks if job.search.per_stage_clocks else None,
        energy_slope_w=physics.energy_slope_w, quick_bound=bound(physics.quick_bound),
        least_time_s=lambda index, clocks: physics.least_time_s(index, clocks) * runs[index],
        most_time_s=lambda index, clocks: physics.least_time_s(index, clocks, most_makespan_s) * runs[index],
        work_j=lambda index, clocks: physics.work_j(index, clocks) * runs[index],
        least_violation=least_violation,
        least_power_w=physics.least_power_w if limited else None,
    )  # fmt: skip
