"""The ladder of a plan: the clocks and power limits of its layout that no others beat in time and power of the site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jointopt.core.errors import InfeasibleError
from jointopt.core.facts import Assumption
from jointopt.core.schema import POWER_LIMIT, Columns, Floats
from jointopt.jobs.catalog.clusters import with_host_at
from jointopt.jobs.clocks import under_limits
from jointopt.jobs.job import Job
from jointopt.jobs.plans.text import parse_plan, plan_records
from jointopt.physics.site import cluster_power_kw
from jointopt.physics.throughput import with_rates
from jointopt.physics.training_runs import TrainingRuns
from jointopt.search.breeding import SLACK_LEVELS
from jointopt.search.local_search import two_step_front
from jointopt.search.pareto import concat, concat_plans, evenly_spaced, front_order, non_dominated, stacked, take
from jointopt.search.problem import Problem
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import predicted_plans, with_power_limits
from jointopt.workflows.explain import explain
from jointopt.workflows.feasible_layouts import prepare_search, search_problem, searched_limits
from jointopt.workflows.search_steps import LOCAL_EVALUATIONS, Stopwatch, exact_step

_GOALS = ("iteration_time_s", "cluster_power_kw", "cluster_power_kw_high")


@dataclass(frozen=True)
class Ladder:
    """The rungs of one layout from the fastest down; none has another that is as fast at less power of the site.

    ``plans`` (n,): plan, results, intervals, rates and ``cluster_power_kw`` of each rung. ``own``: the same of the plan
    as it was given, one row. Below the last rung a run pauses at a checkpoint: GPUs idle, and nothing is trained.
    """

    job: Job
    plans: Columns
    own: Columns
    checkpoint_s: float  # in which the checkpoint before a pause stops the run
    restart_s: float  # from the end of a pause to the first useful step
    assumed: tuple[Assumption, ...] = ()

    @property
    def tokens_per_s(self) -> Floats:
        """Tokens/s of each rung, falling."""
        return np.asarray(self.plans["tokens_per_s"])

    @property
    def power_kw(self) -> Floats:
        """Mean power of the site in kW at each rung, falling: GPUs and hosts, times PUE, as `propose` has it."""
        return np.asarray(self.plans["cluster_power_kw"])

    @property
    def power_kw_high(self) -> Floats:
        """The power that each rung stays below with a probability of 95 %, in kW."""
        return np.asarray(self.plans["cluster_power_kw_high"])

    @property
    def idle_kw(self) -> float:
        """Power of the site in kW during a pause."""
        return idle_power_kw(self.job, self.plans)[0]

    @property
    def idle_kw_high(self) -> float:
        """The power that a pause stays below with 95 %, in kW."""
        return idle_power_kw(self.job, self.plans)[1]

    def rung_under(self, limit_kw: float) -> int | None:
        """The fastest rung whose power stays below the limit in kW with 95 %; None: only a pause does."""
        rungs = np.flatnonzero(self.power_kw_high <= limit_kw)
        return int(rungs[0]) if len(rungs) else None

    def plan(self, rung: int) -> dict[str, Any]:
        """The plan of a rung, as `exec` takes it."""
        return plan_records(self.plans, self.plans["stage_clock_mhz"], [rung])[0]


def idle_power_kw(job: Job, plans: Columns) -> tuple[float, float]:
    """Power of the site in kW while GPUs idle: its mean, and what it stays below with 95 %.

    GPUs are as unsure as in the last of the job's plans.
    """
    idle_w = job.cluster.gpu.rest_w
    high_w = idle_w * float(plans["avg_power_w_high"][-1] / plans["avg_power_w"][-1])
    sites = (job.cluster, idle_w), (with_host_at(job.cluster, "high"), high_w)
    mean_kw, high_kw = (float(cluster_power_kw(cluster, watts)) for cluster, watts in sites)
    return mean_kw, high_kw


def ladder_of(model: JobModel, plan: str | Mapping[str, Any], *, allow_tight: bool = False) -> Ladder:
    """The ladder of the layout of a plan, exact over the job's clocks and shares of slack.

    Clocks of single stages are moved beyond that. Where the plan states a power limit all rungs have it, else those of
    ``search.power_limit_w`` are tried. InfeasibleError where the plan is not feasible (with ``allow_tight`` for more
    than memory), CatalogError where the power of the GPU is not known.
    """
    if model.job.cluster.gpu.power is None:
        model.job.cluster.gpu.need("tdp_w", "predict power and energy")
    if refused := explain(model, plan).refusal(allow_tight=allow_tight):
        raise InfeasibleError(refused)
    job, parsed = model.job, parse_plan(plan, model.job)
    limits = None if POWER_LIMIT in parsed.layouts else searched_limits(job, 1)[0]
    own = _predicted(model, parsed.layouts, parsed.stage_clock_mhz)
    layouts = under_limits(parsed.layouts, limits)
    problem = search_problem(job, model.cost_model(layouts), np.array(job.search.clock_mhz))
    tried = concat([every_clock(problem), two_step_front(problem, 0, LOCAL_EVALUATIONS)])
    tried = take(tried, tried["violation"] <= 0.0)
    found = _predicted(model, take(layouts, tried["layout_index"]), tried["stage_clock_mhz"])
    every = concat(with_power_limits([found, own], job))
    rows = non_dominated(stacked(every, _GOALS))
    runs = TrainingRuns.of(job, parsed.layouts)
    saved_s = float(runs.checkpoint_s[0] + runs.write_s[0])
    return Ladder(job, take(every, rows), own, saved_s, float(runs.stated.restart_s or 0.0), runs.assumed)


def every_clock(problem: Problem) -> Columns:
    """All plans of a problem of few layouts: each at every clock and share of slack."""
    shares = np.linspace(0.0, 1.0, SLACK_LEVELS if problem.stage_clocks is not None else 1)
    layout, clock, share = np.indices((problem.num_layouts, problem.num_clocks, len(shares))).reshape(3, -1)
    return problem.evaluate_genes(layout, clock, shares[share])


def power_options(model: JobModel, most: int, *, allow_tight: bool = False) -> Columns:
    """At most so many plans of a job, the fastest first; none is as fast as another at less of the site's high end.

    Of all layouts of the front of time and energy, at every clock and with clocks of single stages moved beyond that:
    with all of `propose`'s figures.
    """
    quiet = Stopwatch(quiet=True)
    ready = prepare_search(model, quiet, allow_tight=allow_tight)
    front = exact_step(model.job, ready.problem, quiet).front
    rows = np.unique(front["layout_index"])
    problem = ready.problem.of_layouts(rows)
    moved = [two_step_front(problem, layout, LOCAL_EVALUATIONS) for layout in range(len(rows))]
    tried = concat([every_clock(problem), *moved])
    tried = concat_plans([front, tried | {"layout_index": rows[tried["layout_index"]]}])
    tried = take(tried, tried["violation"] <= 0.0)
    tried = take(tried, front_order(tried["iteration_time_s"], tried["avg_power_w"]))
    plans = predicted_plans(model, ready.physics, tried | {"fit_probability": ready.fitting[tried["layout_index"]]})
    plans = with_rates(model.job, plans)
    plans = take(plans, front_order(plans["iteration_time_s"], plans["cluster_power_kw_high"]))
    return take(plans, evenly_spaced(plans, most))


def _predicted(model: JobModel, layouts: Columns, stage_clock_mhz: Floats) -> Columns:
    """Plans (n,) with results, intervals and rates; each layout is priced once."""
    physics = model.cost_model(layouts)
    rows = np.arange(len(stage_clock_mhz))
    plans = physics.evaluate(rows, stage_clock_mhz) | {"layout_index": rows, "stage_clock_mhz": stage_clock_mhz}
    plans |= {"fit_probability": model.fit_probability(physics)[rows]}
    return with_rates(model.job, predicted_plans(model, physics, plans))
