"""The search problem of a job: its layouts that fit in memory, priced by its model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from jointopt.core.errors import InfeasibleError, UsageError
from jointopt.core.schema import STAGE_LAYERS, Bools, Columns, Floats, Ints
from jointopt.core.system import free_bytes
from jointopt.core.units import GIB
from jointopt.jobs.clocks import repeat_per_limit, under_limits
from jointopt.jobs.job import Constraints, Job
from jointopt.jobs.objectives import OBJECTIVES, TIME_ALONE, objective_words
from jointopt.jobs.plans.space import Space, add_recompute_steps, enumerate_layouts
from jointopt.jobs.plans.stages import (
    Split,
    can_be_built,
    framework_split,
    heaviest_rank,
    offered_splits,
    shifted_splits,
    tail_layers,
)
from jointopt.jobs.plans.text import parameters_of_trial, uniform_stage_clocks
from jointopt.physics.cooling import above_idle_power
from jointopt.physics.cost_model import HEAT, CostModel, memory_limit_gib
from jointopt.physics.makespan import most_makespan_s
from jointopt.physics.memory import peak_memory_bytes
from jointopt.physics.training_runs import MOST_TRIES, TrainingRuns
from jointopt.report.plans import Rank
from jointopt.search.exact import fastest_layout, rank
from jointopt.search.parameters import Parameters
from jointopt.search.pareto import concat, non_dominated, take
from jointopt.search.problem import LowerBound, Problem
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import CERTAIN, FEASIBLE, NOT_TIGHT, cost_of_failing
from jointopt.workflows.remedy import remedy
from jointopt.workflows.search_steps import Stopwatch

_log = logging.getLogger(__name__)
NO_MEMORY = "does not fit in the GPU's memory"
RAN_OUT = "ran out of memory in a measured run, or holds as much"
TIGHT = "is likelier not to fit in the GPU's memory than to fit"
RISKY = "may not fit in the GPU's memory, and gains less than a failed start costs"
LEANEST = 1.1  # times the least memory of any layout: those that stand for a job that nothing comes near to fitting
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
    model: JobModel, watch: Stopwatch, least: float = FEASIBLE, *, allow_tight: bool = False,
    splits: Sequence[tuple[int, int, Split]] | None = None,
) -> tuple[Space, Columns, Floats, dict[str, int]]:  # fmt: skip
    """(space, its layouts that fit in memory, the bytes (n,) that they take by the physics, what was dropped).

    They fit with a probability of ``least`` or more. Where none does and ``allow_tight`` is set they are those that
    come nearest: at least half as likely to fit as the best and not certain to fail, or where all are, the leanest. The
    dropped ones are counted by reason; InfeasibleError where nothing is left. Behind the listed splits of the layers
    come ``splits``, (pp, vpp, split) of each; None: those that `free_splits` finds.
    """
    with watch.phase("enumerate", "enumerating layouts"):
        space = enumerate_layouts(model.job)
    limit_gib = memory_limit_gib(model.job)
    with watch.phase("memory", f"fitting {space.size:,} layouts into {limit_gib:.0f} GiB"):
        listed = space
        space, layouts, peak_bytes, dropped = _fitting_layouts(model, listed, least)
        if not len(peak_bytes) and allow_tight:
            best = model.fit_probability_of(peak_memory_bytes(model.job, listed.layouts)).max(initial=0.0)
            least = max(CERTAIN, 0.5 * best) if best >= CERTAIN else 0.0
            space, layouts, peak_bytes, dropped = _fitting_layouts(model, listed, least)
    if not len(peak_bytes):
        raise InfeasibleError(remedy(model, space.layouts, dropped))
    with watch.phase("splits", "splits of the layers over pipelines"):
        for pp, vpp, split in free_splits(model, layouts, peak_bytes) if splits is None else splits:
            pipeline: dict[str, Any] = {"pp": (pp,), "vpp": (vpp,), "stage_layers": (";".join(map(str, split)),)}
            alone = enumerate_layouts(replace(model.job, search=replace(model.job.search, **pipeline)))
            part, more, more_bytes, without = _fitting_layouts(model, alone, least)
            every = concat([space.layouts, part.layouts])
            space = replace(space, layouts=every, considered=space.considered + part.size)
            layouts, peak_bytes = concat([layouts, more]), np.concatenate([peak_bytes, more_bytes])
            for reason in {RAN_OUT, NO_MEMORY, TIGHT, NEEDLESS} & without.keys():
                dropped[reason] = dropped.get(reason, 0) + without[reason]
    if least:
        return space, layouts, peak_bytes, dropped
    leanest = np.flatnonzero(peak_bytes <= LEANEST * peak_bytes.min())
    return space, take(layouts, leanest), peak_bytes[leanest], dropped | {NO_MEMORY: len(peak_bytes) - len(leanest)}


def _fitting_layouts(model: JobModel, space: Space, least: float) -> tuple[Space, Columns, Floats, dict[str, int]]:
    """As `feasible_layouts` of a space with its listed splits, with the layouts that `add_recompute_steps` appends."""
    job, listed = model.job, space.size
    peaks: list[Floats] = []  # of the layouts, then of the steps that `add_recompute_steps` appends to them

    def fits(some: Columns) -> Floats:
        peaks.append(peak_memory_bytes(job, some))
        return np.where(model.certain_oom(some), 0.0, model.fit_probability_of(peaks[-1]))

    layouts, fitting, needed = add_recompute_steps(job, space.layouts, fits(space.layouts), fits, least)
    peak_bytes = np.concatenate(peaks)
    space = replace(space, layouts=layouts, considered=space.considered + len(needed) - listed)
    dropped, fit, tight = dict(space.dropped), fitting >= least, (fitting >= CERTAIN) & (fitting < least)
    needed |= len(job.goals) > 2  # what recomputes more takes less memory, and other power
    out = model.certain_oom(layouts)
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
    some = above_idle_power(np.array(limits), job.cluster, power).tolist()
    if all(some) or not any(some):
        return limits, {}
    runs, idle = ([w for w, one in zip(limits, some, strict=True) if one is wanted] for wanted in (True, False))
    return tuple(runs), {LIMITED.format(f"{watts:g}"): count for watts in idle}


@dataclass(frozen=True)
class PreparedSearch:
    """All that a search of a job begins with."""

    space: Space  # all layouts that keep the rules
    layouts: Columns  # those that are searched, (L,)
    dropped: dict[str, int]  # reason -> layouts dropped for it
    physics: CostModel  # that prices the layouts
    fitting: Floats  # probability that each layout fits in memory, (L,)
    problem: Problem  # by time and energy
    searched: Problem  # the same, or by those of whole runs, with each layout once per number of spares
    all_goals: Problem  # by all objectives of the job, with the number of spares that suits each plan
    runs: TrainingRuns | None  # of a job whose objectives are of whole runs

    @property
    def excess(self) -> Callable[[Columns], Columns] | None:
        """`CostModel.excess`; None where the job states no limit and every layout fits, so that no plan can break one.

        Optuna's GPSampler refuses trials without constraints beside others that have them.
        """
        limited = self.physics.job.constraints != Constraints() or self.fitting.min() < FEASIBLE
        return self.physics.excess if limited else None


def prepare_search(model: JobModel, watch: Stopwatch, *, allow_tight: bool = False) -> PreparedSearch:
    """The search problem of a job's feasible layouts, of many priced as far as is needed; InfeasibleError without any.

    ``allow_tight`` as for `feasible_layouts`.
    """
    space, layouts, peak_bytes, dropped = feasible_layouts(model, watch, allow_tight=allow_tight)
    chunks = int((layouts["pp"].astype(np.int64) * layouts["vpp"]).sum())
    needed, free = chunks * CHUNK_BYTES + space.size * LAYOUT_BYTES, free_bytes()
    if free is not None and needed > free / 2:
        _log.warning(
            "Pricing %s layouts of %s model chunks takes about %.1f GiB, more than half of the %.1f GiB of memory that "
            "are free; list fewer under search (pp, vpp, micro_batch_size) or free some.",
            f"{len(layouts['pp']):,}", f"{chunks:,}", needed / GIB, free / GIB,
        )  # fmt: skip
    with watch.phase("prepare", f"pricing {len(layouts['pp']):,} layouts"):
        limits, without = searched_limits(model.job, len(peak_bytes))
        layouts, dropped = under_limits(layouts, limits), dropped | without
        peak_bytes = repeat_per_limit(peak_bytes, len(layouts["pp"]))
        physics = model.cost_model(layouts, peak_bytes, lazily=len(peak_bytes) > PRICED_AT_ONCE)
        problem, fitting = search_problem(model.job, physics, space.clocks_mhz), model.fit_probability(physics)
        if fitting.max() < CERTAIN:  # all were asked for, although none comes near
            physics.memory_reach = math.inf
        rows = np.flatnonzero(np.resize(worth_starting(problem, physics, fitting), len(fitting)))
        if len(rows) < len(fitting):
            dropped[RISKY] = problem.num_distinct * (len(fitting) - len(rows)) // len(fitting)
            dropped |= dict.fromkeys(without, problem.num_distinct - dropped[RISKY])
            layouts, peak_bytes, fitting = take(layouts, rows), peak_bytes[rows], fitting[rows]
            physics = model.cost_model(layouts, peak_bytes, lazily=len(rows) > PRICED_AT_ONCE)
            problem = search_problem(model.job, physics, space.clocks_mhz)
    searched, runs = problem, TrainingRuns.of(model.job, problem.layouts) if model.job.is_of_run else None
    if runs is not None:
        if runs.restart_s > MOST_TRIES * runs.failure_s:
            often = f"it fails every {runs.failure_s:,.0f} s, and takes {runs.restart_s:,.0f} s to restart"
            raise InfeasibleError(f"The run does not end: {often}; make restarts faster (section reliability).")
        searched = of_runs(model.job, problem.of_layouts(np.arange(len(runs.spares)) % len(fitting)), runs)
    goals = with_goals(model.job, problem, physics)
    return PreparedSearch(space, layouts, dropped, physics, fitting, problem, searched, goals, runs)


def of_runs(job: Job, problem: Problem, runs: TrainingRuns, *, any_spares: bool = False) -> Problem:
    """The problem by the first two goals of a job of whole ``runs``; ``any_spares`` as in `TrainingRuns.evaluate`."""

    def evaluate(index: Ints, stage_clock_mhz: Floats) -> Columns:
        plans = problem.evaluate(index, stage_clock_mhz)
        return plans | runs.evaluate(index, *(plans[name] for name in OBJECTIVES), any_spares=any_spares)

    return replace(
        problem, goals=job.goals[:2], evaluate=evaluate, goals_of=partial(runs.bounds, any_spares=any_spares)
    )


def plan_of_trial(model: JobModel, params: str | Mapping[str, Any]) -> tuple[dict[str, Any], PreparedSearch]:
    """The plan that the parameters of a trial stand for (`Parameters`), a mapping or JSON, and the search of its job.

    PlanError for others.
    """
    problem = (ready := prepare_search(model, Stopwatch(quiet=True))).problem
    layout, clock, slack = (space := Parameters(problem)).decode(parameters_of_trial(params))
    return space.record(layout, problem.decode_clocks(layout, clock, slack)), ready


def worth_starting(problem: Problem, physics: CostModel, fitting: Floats) -> Bools:
    """Which layouts (the distinct ones) are searched: all that surely fit, and what is faster by more than the risk.

    A layout that may not fit counts where its time at the highest clock, times what failed starts cost
    (`cost_of_failing`), is below that of every layout that surely fits. All where none surely does, or none may fit.
    """
    fits = fitting[: problem.num_distinct]
    sure, tight = np.flatnonzero(fits >= NOT_TIGHT), np.flatnonzero((fits < NOT_TIGHT) & (fits >= FEASIBLE))
    if not len(sure) or not len(tight):
        return np.ones(len(fits), np.bool_)
    time_of, cost = top_times(problem, physics), cost_of_failing(fits)
    least_s = time_of(np.array([fastest_layout(problem, sure, time_of)]))[0]
    for bound in (problem.quick_bound, problem.lower_bound):
        if bound is not None and len(tight):
            tight = tight[bound(tight)[0] * cost[tight] < least_s]
    tight = tight[time_of(tight) * cost[tight] < least_s] if len(tight) else tight
    worth = fits >= NOT_TIGHT
    worth[tight] = True
    return worth


def priced_problem(job: Job | JobModel) -> Problem:
    """The search problem of a job's runs: layouts that may fit, priced by its model (of a job: the physics alone).

    A run decides whether they do: tight plans rank behind their time and energy (`surrogate.memory.cost_of_failing`),
    so that those that are likelier to fit are run first. Where time is all that the job
    is about, the GPU's power need not be known: energies are then NaN.
    """
    model = job if isinstance(job, JobModel) else JobModel(job)
    physics, clocks_mhz = _priced_layouts(model)
    return search_problem(model.job, physics, clocks_mhz, cost_of_failing(model.fit_probability(physics)))


def problem_of_one_run(model: JobModel) -> tuple[Problem, Problem]:
    """As `priced_problem` with time and energy of one run, and the same with all objectives of the job among its goals.

    Tight plans that are likelier not to fit are infeasible, unless there are no others. UsageError for objectives of a
    whole run.
    """
    if (job := model.job).is_of_run:
        raise UsageError(
            f"Workers search by figures of one iteration; job {job.name!r} is about {objective_words(job.objectives)} "
            "of the whole run, by which propose, scale and optuna_objective search."
        )
    physics, clocks_mhz = _priced_layouts(model)
    fitting, problem = model.fit_probability(physics), search_problem(model.job, physics, clocks_mhz)
    shortfall = min(FEASIBLE, float(fitting.max())) - fitting

    def evaluate(index: Ints, stage_clock_mhz: Floats) -> Columns:
        plans = problem.evaluate(index, stage_clock_mhz)
        return plans | {"violation": np.maximum(plans["violation"], shortfall[index])}

    narrow = replace(problem, evaluate=evaluate)
    return narrow, with_goals(job, narrow, physics)


def _priced_layouts(model: JobModel) -> tuple[CostModel, Floats]:
    """(layouts that may fit in memory, once per power limit, priced by the job's model; the search's clocks in MHz)."""
    need_power(model.job)
    space, layouts, peak_bytes, _ = feasible_layouts(model, Stopwatch(), CERTAIN)
    layouts = under_limits(layouts, searched_limits(model.job, len(peak_bytes))[0])
    return model.cost_model(layouts, repeat_per_limit(peak_bytes, len(layouts["pp"]))), space.clocks_mhz


def with_goals(job: Job, problem: Problem, physics: CostModel) -> Problem:
    """The problem with all of the job's objectives among its goals."""
    if job.is_of_run:
        problem = of_runs(job, problem, TrainingRuns.of(job, problem.layouts), any_spares=True)

    def evaluate(index: Ints, stage_clock_mhz: Floats) -> Columns:
        return problem.evaluate(index, stage_clock_mhz) | physics.heat(index, stage_clock_mhz)

    if job.goals[2:] == MEMORY_GOALS[2:]:
        return replace(problem, goals=job.goals, third_goal=physics.memory_bytes / GIB)
    needs_heat = not set(HEAT).isdisjoint(job.goals)
    return replace(problem, goals=job.goals, evaluate=evaluate if needs_heat else problem.evaluate)


def top_times(problem: Problem, physics: CostModel) -> Callable[[Ints], Floats]:
    """Times (n,) of layouts (n,) of the problem with every clock at its highest."""

    def time_of(index: Ints) -> Floats:
        clocks = uniform_stage_clocks(physics.layouts["pp"][index], physics.top_mhz)
        return np.asarray(problem.evaluate(index, clocks)["iteration_time_s"])

    return time_of


def plan_at_top_clock(physics: CostModel, index: int) -> tuple[Columns, Floats]:
    """One plan (1,) of the layout ``index`` with every clock at its highest, and its clocks (1, pp) in MHz."""
    clocks = uniform_stage_clocks(physics.layouts["pp"][[index]], physics.top_mhz)
    return physics.evaluate(np.array([index]), clocks), clocks


def search_problem(job: Job, physics: CostModel, clocks_mhz: Floats, runs: Floats | None = None) -> Problem:
    """The search problem of the layouts of ``physics`` at these clocks.

    ``runs`` (n,): how many starts a layout takes until one fits (`cost_of_failing`), a factor on its time and energy.
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


# Free stage splits: layers per model chunk that are too many to list, searched for the pipelines that gain by them.


PIPELINES = 12  # (pp, vpp) whose splits are searched, first those that may be fastest
NEAR = 1.05  # and of those, none that by its loads may not come as near as this many times the fastest of all
PRICED = 128  # layouts of each, by their quick bounds, of which the fastest stands for all: of 8 it was 8 % behind
GAIN = 0.01  # of time or energy; less is not worth plans whose differences from others are less sure than that


def free_splits(model: JobModel, layouts: Columns, peak_bytes: Floats) -> list[tuple[int, int, Split]]:
    """(pp, vpp, split) of unlisted splits of the layers that no split, listed or not, beats in both time and energy.

    ``layouts`` (L,) with the listed splits may fit in memory, taking ``peak_bytes`` (L,). The fastest layout of each
    pipeline that may gain stands for it, and is priced with every split of `shifted_splits` whose heaviest rank is no
    heavier than with the listed ones. Empty where the job lists splits, or its framework takes no other.
    """
    job = model.job
    if job.search.stage_layers is not None or "any" not in job.training.framework.stage_splits:
        return []
    found: list[tuple[int, int, Split] | None] = []
    values: list[Floats] = []
    for layout, splits in _contenders(model, layouts, peak_bytes):
        pp, vpp = int(layout["pp"][0]), int(layout["vpp"][0])
        scores = _split_scores(model, layout, splits)
        rows = [0, *sorted(set(scores.argmin(axis=0).tolist()) - {0})]
        found += [(pp, vpp, splits[row - 1]) if row else None for row in rows]
        values += list(scores[rows] * np.where(np.array(rows) > 0, 1.0 + GAIN, 1.0)[:, None])
    return [one for row in non_dominated(np.array(values)) if (one := found[row])] if values else []


def _contenders(model: JobModel, layouts: Columns, peak_bytes: Floats) -> Iterator[tuple[Columns, list[Split]]]:
    """The fastest layout (1,) of each pipeline that may gain, the fastest first, and the splits to try in it."""
    width = int(layouts["vpp"].max()) + 1
    pipeline = layouts["pp"].astype(np.int64) * width + layouts["vpp"]
    # the lightest of each alone: thousands of splits of hundreds of chunks take 400 MB for a job of 1,000 layers
    least = {
        one: min(_candidate_splits(model.job, *divmod(one, width)).values(), default=math.inf)
        for one in np.unique(pipeline).tolist()
    }
    if math.isinf(min(least.values())):
        return
    # the `PRICED` layouts of each pipeline with the least quick bounds on time, by the physics alone
    physics = CostModel(model.job, layouts, peak_bytes=peak_bytes, lazily=True)
    bound_s = physics.quick_bound(np.arange(len(pipeline)))[0] * cost_of_failing(model.fit_probability(physics))
    order = np.lexsort([bound_s, pipeline])
    _, start = np.unique(pipeline[order], return_index=True)
    place = np.arange(len(order)) - np.repeat(start, np.diff(start, append=len(order)))
    some = take(layouts, np.sort(order[place < PRICED]))
    pipeline = some["pp"].astype(np.int64) * width + some["vpp"]
    time_s = _top_times_s(model, CostModel(model.job, some))
    best = {one: int(np.where(pipeline == one, time_s, np.inf).argmin()) for one in least}
    hope_s = {}
    for one, row in best.items():
        # the load of the heaviest rank with the best of the splits, as a share of that in the layout
        pp, vpp, code = (int(some[name][row]) for name in ("pp", "vpp", "stage_layers"))
        own = STAGE_LAYERS.numbers(code) if code else framework_split(model.job, pp, vpp)
        load = heaviest_rank(own, pp, tail_layers(model.job.model))
        hope_s[one] = time_s[row] * min(load, least[one]) / load
    for one in sorted(best, key=hope_s.__getitem__)[:PIPELINES]:
        if hope_s[one] <= NEAR * time_s.min():
            yield take(some, np.array([best[one]])), list(_candidate_splits(model.job, *divmod(one, width)))


def _candidate_splits(job: Job, pp: int, vpp: int) -> dict[Split, float]:
    """The splits of one pipeline to try, with the load of their heaviest rank: no more than with the listed ones.

    Beside an even split alone only if some are lighter there: with equal loads nothing is as fast as equal chunks.
    """
    layers, tail = job.model.num_layers, tail_layers(job.model)
    offered = offered_splits(job, pp, vpp) if pp > 1 else []
    if not offered:
        return {}
    limit = min(heaviest_rank(split or framework_split(job, pp, vpp), pp, tail) for split in offered)
    tried = {
        split: load
        for split in shifted_splits(layers, pp, vpp, math.ceil(tail) + 1)
        if (load := heaviest_rank(split, pp, tail)) <= limit + 1e-9 and split not in offered
    }
    if offered == [()] and layers % (pp * vpp) == 0 and min(tried.values(), default=limit) > limit - 1e-9:
        return {}
    return {split: load for split, load in tried.items() if can_be_built(job.training.framework, split)}


def _split_scores(model: JobModel, layout: Columns, splits: list[Split]) -> Floats:
    """Time in s and energy in J, (1 + splits, 2), of a layout (1,) as it is and with each split; equal if unknown.

    Time at the top clock; energy at the clock of the layout's own least, with all slack used where stages may.
    """
    job, count = model.job, 1 + len(splits)
    codes = np.array([int(layout["stage_layers"][0]), *map(STAGE_LAYERS.code_of, splits)])
    repeated = {name: np.repeat(values, count) for name, values in layout.items()}
    physics = CostModel(job, repeated | {"stage_layers": codes})
    time_s = _top_times_s(model, physics)
    if job.cluster.gpu.power is None:
        return np.column_stack([time_s, time_s])
    slack, grid, every = float(job.search.per_stage_clocks), len(job.search.clock_mhz), np.arange(count)

    def joules(rows: Ints, clock: Ints) -> Floats:
        return physics.evaluate(rows, physics.stage_clocks(rows, clock, np.full(len(rows), slack)))["energy_j"]

    best = int(joules(np.zeros(grid, np.int64), np.arange(grid)).argmin())
    runs = cost_of_failing(model.fit_probability(physics))
    return np.column_stack([time_s, runs * joules(every, np.full_like(every, best))])


def _top_times_s(model: JobModel, physics: CostModel) -> Floats:
    """Seconds (L,) of all layouts at the top clock by the physics alone, times what failed starts cost (the search's).

    What was learned of layouts that differ in their split is nearly the same, and takes longer.
    """
    clocks = uniform_stage_clocks(physics.layouts["pp"], physics.top_mhz)
    return cost_of_failing(model.fit_probability(physics)) * physics.iteration_time_s(np.arange(len(clocks)), clocks)


# The place of one plan's layout among all layouts of its job.


def layout_rank(model: JobModel, layout: Columns, ready: PreparedSearch | None = None) -> Rank:
    """The rank of a layout (columns of one row) at the GPU's highest clock, its time and energy beside the first's.

    Among the layouts of the search that is ``ready``, or of `prepare_search`: InfeasibleError where none is feasible.
    """
    ready = ready or prepare_search(model, Stopwatch(quiet=True))
    alone = model.cost_model(layout)
    first = fastest_layout(ready.problem, np.arange(ready.problem.num_layouts), top_times(ready.problem, ready.physics))
    own, best = plan_at_top_clock(alone, 0)[0], plan_at_top_clock(ready.physics, first)[0]
    behind, energy_behind = (float(own[name][0] / best[name][0]) - 1.0 for name in OBJECTIVES)
    place = rank_at_top_clock(ready.problem, ready.physics, alone)
    is_first = place == 1  # the very same layout, but for rounding
    return Rank(
        place, of=ready.problem.num_distinct, behind=0.0 if is_first else behind,
        energy_behind=None if not np.isfinite(energy_behind) else 0.0 if is_first else energy_behind,
    )  # fmt: skip


def rank_at_top_clock(problem: Problem, physics: CostModel, alone: CostModel) -> int | None:
    """The rank of the layout that ``alone`` prices by its time at the GPU's highest clock; None: beyond `MOST`.

    Among the ``problem``'s layouts, which ``physics`` prices.
    """
    own_s = float(plan_at_top_clock(alone, 0)[0]["iteration_time_s"][0])
    bound = problem.most_time_s  # times that those of `top_times` do not exceed, for less than these
    most = None if bound is None else lambda index: bound(index, np.full((len(index), 1), physics.top_mhz))
    return rank(problem, own_s, top_times(problem, physics), most)
