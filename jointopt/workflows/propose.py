"""``propose``: the plans of a job that no other plan beats, searched exactly, or by NSGA-II too."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import Columns, Floats, Ints
from jointopt.core.units import GIB
from jointopt.physics.cost_model import CostModel
from jointopt.physics.facility import with_site
from jointopt.physics.limits import memory_limit_gib
from jointopt.physics.memory import peak_memory_bytes
from jointopt.report.proposal import Proposal
from jointopt.report.remedy import remedy
from jointopt.runs.database import without_password
from jointopt.search.breeding import TRIALS
from jointopt.search.fastest import fastest
from jointopt.search.leanest import leanest
from jointopt.search.pareto import concat, front_order, front_rows, take
from jointopt.search.problem import LowerBound, Problem
from jointopt.spec.calibration import Calibration
from jointopt.spec.job import TIME_ALONE, Job
from jointopt.spec.jobfile import dump_job
from jointopt.spec.machine import Machine
from jointopt.spec.plans.clocks import uniform_stage_clocks
from jointopt.spec.plans.space import Space, enumerate_layouts
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import CERTAIN, cost_of_failing
from jointopt.workflows.beside import beside
from jointopt.workflows.explain import answered, assumptions
from jointopt.workflows.search_steps import (
    Step,
    Stopwatch,
    contributions,
    exact_step,
    joint_saving,
    of_one_run,
    search_steps,
    times,
    without_gambles,
)

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.search.studies.storage import Storage
    from jointopt.surrogate.measurements import Measurements

_log = logging.getLogger(__name__)
NO_MEMORY = "does not fit in the GPU's memory"
PRICED_AT_ONCE = 2_000  # layouts; of more most are ruled out by a quick bound, and never priced
NEEDLESS = "recomputes more than it needs to fit"
_EVEN = 0.5  # probability of fitting
CONSTRAINED = "breaks a constraint at every clock"


def propose(
    job: Job | JobModel, *, trials: int | None = None, seed: int = 0, surrogate: str = "default",
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    storage: str | None = None, study: str | None = None, machine: Machine | None = None,
) -> Proposal:  # fmt: skip
    """Search the joint space of ``job`` and return the plans that no other plan beats in both time and energy.

    The exact front of one clock and slack comes first, then moves of single stages' clocks, then ``trials`` plans by
    NSGA-II: by default none where the exact front can be counted. The study in ``storage`` (an Optuna URL) is called
    ``study``, by default by the job's name and version. Other options as in `JobModel.of`. With one objective the front
    is the best plan; of a GPU of unknown power energies are NaN and no study is stored. Raises InfeasibleError with
    reasons and the smallest change that would help, CatalogError where power is needed.
    """
    watch = Stopwatch()
    with watch.phase("learn", "reading what was measured"):
        model = JobModel.of(job, surrogate, measured, calibration, storage, machine)
    job = model.job
    _need_power(job)
    space, layouts, peak_bytes, dropped = _feasible(model, watch)
    kept = _kept_in(storage, watch) if storage is not None and job.cluster.gpu.power is not None else None
    with watch.phase("prepare", f"pricing {len(layouts['pp']):,} layouts"):
        physics = model.cost_model(layouts, peak_bytes, lazily=len(peak_bytes) > PRICED_AT_ONCE)
        fitting = model.fit_probability(physics)
        problem = _problem(job, physics, space.clocks_mhz, cost_of_failing(fitting))
    exact = exact_step(job, problem, watch)
    if not len(exact.front["iteration_time_s"]):
        raise InfeasibleError(remedy(job, layouts, dropped | {CONSTRAINED: problem.num_layouts}, physics))
    wanted = (0 if problem.is_countable else TRIALS) if trials is None else trials
    searched = search_steps(problem, exact, 0 if job.cluster.gpu.power is None else wanted, seed, watch)
    front = of_one_run(searched[-1].front, fitting)
    # what only its probability kept may be beaten in one run
    rows = np.arange(len(front["slack"])) if job.cluster.gpu.power is None else front_rows(front)
    front, reference = take(front, rows), _reference(problem, physics, fitting)
    shown = answered(model, physics, concat([front, reference]))
    answer = take(shown, slice(0, -1))
    proposal = Proposal(
        job=job, seed=seed, surrogate=model.name, informed_by=model.evidence.counts, considered=space.considered,
        layouts=space.size, feasible_layouts=problem.num_layouts, infeasible=dropped,
        front=_wanted(job, answer), reference=take(shown, slice(-1, None)), covered_plans=exact.covered,
        evaluated_plans=sum(step.evaluated for step in searched), searched=contributions(searched, rows),
        seconds=watch.seconds, assumed=assumptions(job), reference_breaks=physics.broken_limits(reference),
        beside=beside(model, problem, physics, answer, fitting),
        joint=joint_saving(problem, searched[-1].front, fitting),
    )  # fmt: skip
    if job.cluster.gpu.power is None:
        return proposal
    described = _described(problem, front, answer, searched, fitting)
    record = {name: values for name, values in described.items() if name not in ("layout_index", "clock_index")}
    proposal = replace(proposal, record=record)
    return proposal if kept is None else _stored(proposal, described, kept, study, watch)


def _described(problem: Problem, front: Columns, answer: Columns, searched: list[Step], fitting: Floats) -> Columns:
    """Every plan that the search evaluated, the front first, which ``answer`` has intervals of."""
    seen = without_gambles(front, concat([front, *(of_one_run(step.plans, fitting) for step in searched)]))
    return problem.describe(seen | _bounds(answer, len(seen["slack"])))


def _kept_in(url: str, watch: Stopwatch) -> Storage | None:
    """The storage of studies, None where none stays in it; UsageError before the search where it cannot be written."""
    from jointopt.search.studies.storage import prepare_storage

    with watch.phase("open", "opening the study storage"):
        return prepare_storage(url)


def _need_power(job: Job) -> None:
    """CatalogError where the job wants energies that no source predicts; those of a job of time alone are NaN."""
    if job.cluster.gpu.power is None and job.objectives != TIME_ALONE:
        job.cluster.gpu.need("tdp_w", "predict power and energy")


def _feasible(model: JobModel, watch: Stopwatch) -> tuple[Space, Columns, Floats, dict[str, int]]:
    """(space, its layouts that may fit in memory, the bytes (n,) that they take by the physics, what was dropped).

    The dropped ones are counted by reason; InfeasibleError where nothing is left.

    Tight ones stay, unless the job states a bound or they are certain not to fit.
    """
    job = model.job
    with watch.phase("enumerate", "enumerating layouts"):
        space = enumerate_layouts(job)
    limit_gib, listed = memory_limit_gib(job), space.size
    with watch.phase("memory", f"fitting {listed:,} layouts into {limit_gib:.0f} GiB"):
        peaks: list[Floats] = []  # of the layouts, then of the steps that `leanest` appends to them

        def fits(some: Columns) -> Floats:
            peaks.append(peak_memory_bytes(job, some))
            return _fit_probability(model, peaks[-1])

        layouts, fitting, needed = leanest(job, space.layouts, fits(space.layouts), fits, CERTAIN)
        peak_bytes = np.concatenate(peaks)
    space = replace(space, layouts=layouts, considered=space.considered + len(needed) - listed)
    dropped, fit = dict(space.dropped), fitting >= CERTAIN
    for reason, count in ((NO_MEMORY, (~fit).sum()), (NEEDLESS, (fit & ~needed).sum())):
        if count:
            dropped[reason] = int(count)
    if not fit.any():
        raise InfeasibleError(remedy(job, layouts, dropped))
    kept = fit & needed
    return space, {name: values[kept] for name, values in layouts.items()}, peak_bytes[kept], dropped


def _fit_probability(model: JobModel, peak_bytes: Floats) -> Floats:
    """Probability (n,) that layouts fit in memory; 0 or 1 where the job states a bound of its own."""
    load = peak_bytes / (memory_limit_gib(model.job) * GIB)
    if model.job.constraints.memory_fraction is not None:
        return np.asarray(model.memory.factor * load <= 1.0, np.float64)
    return model.memory.fit_probability(np.log(load))


def priced_problem(job: Job | JobModel, *, once: bool = False) -> Problem:
    """The search problem of a job: its layouts that fit in memory, priced by its model (of a job: the physics alone).

    Tight plans rank behind their time and energy (`surrogate.memory.cost_of_failing`), or have those of one run
    (``once``), and then those that are likelier not to fit are infeasible, unless there are no others.
    Where time is all that the job is about, the GPU's power need not be known: energies are then NaN.
    """
    model = job if isinstance(job, JobModel) else JobModel(job)
    _need_power(model.job)
    space, layouts, peak_bytes, _ = _feasible(model, Stopwatch())
    physics = model.cost_model(layouts, peak_bytes)
    fitting = model.fit_probability(physics)
    if not once:
        return _problem(model.job, physics, space.clocks_mhz, cost_of_failing(fitting))
    problem = _problem(model.job, physics, space.clocks_mhz, np.ones(len(fitting)))
    shortfall = min(_EVEN, fitting.max()) - fitting

    def judged(index: Ints, stage_clock_mhz: Floats) -> Columns:
        plans = problem.evaluate(index, stage_clock_mhz)
        return plans | {"violation": np.maximum(plans["violation"], shortfall[index])}

    return replace(problem, evaluate=judged)


def _problem(job: Job, physics: CostModel, clocks_mhz: Floats, runs: Floats) -> Problem:
    """The search problem; a layout counts ``runs`` (n,) times: see `surrogate.memory.cost_of_failing`.

    A factor on time and energy keeps what the problem promises of both.
    """

    def evaluate(index: Ints, stage_clock_mhz: Floats) -> Columns:
        return times(physics.evaluate(index, stage_clock_mhz), runs[index])

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
        work_j=lambda index, clocks: physics.work_j(index, clocks) * runs[index],
        least_violation=least_violation,
        least_power_w=physics.least_power_w if limited else None,
    )  # fmt: skip


def _wanted(job: Job, front: Columns) -> Columns:
    """The front by the job's objectives out of that of time and energy, sorted by time: one end for one objective.

    The site's energy grows with both time and energy, so what is best in it, alone or with either, is on that front.
    """
    if len(job.objectives) > 2:
        return front
    objectives = with_site(job, front)
    first, second = (objectives[name] for name in (*job.objectives, *job.objectives)[:2])
    return take(front, np.sort(front_order(first, second)))


def _bounds(answer: Columns, count: int) -> Columns:
    """Intervals of the first of ``count`` plans, which are the answer; of the others they are not worked out."""
    names = [name for name in answer if name.endswith(("_low", "_high")) or name == "in_domain"]
    unknown = count - len(answer["in_domain"])
    return {name: np.concatenate([answer[name], np.full(unknown, np.nan)]) for name in names}


def _reference(problem: Problem, physics: CostModel, fitting: Floats) -> Columns:
    """The plan without jointopt: the fastest that fits in memory, at the GPU's own clock, constraints left aside."""
    pp = physics.layouts["pp"]
    best = np.array([fastest(problem, np.arange(len(pp)))])  # its bound is the time at that clock
    clocks = uniform_stage_clocks(pp[best], physics.top_mhz)
    clocks = np.pad(clocks, ((0, 0), (0, int(pp.max()) - clocks.shape[1])), constant_values=np.nan)
    plans = physics.evaluate(best, clocks) | {"layout_index": best, "stage_clock_mhz": clocks}
    return plans | {"fit_probability": fitting[best]}


def _stored(proposal: Proposal, plans: Columns, storage: Storage, study: str | None, watch: Stopwatch) -> Proposal:
    """The proposal with the study of its described ``plans`` written to ``storage``."""
    from jointopt.search.studies.saving import save_study

    job_text = dump_job(proposal.job)
    with watch.phase("store", "storing the study"):
        name = save_study(
            plans,
            storage,
            name=study or proposal.job.name,
            versioned=study is None,
            seed=proposal.seed,
            job_hash=hashlib.sha256(job_text.encode()).hexdigest(),
            note=f"# {proposal.job.name}\n\n```yaml\n{job_text}```\n",
            attributes={"job": job_text, "surrogate": proposal.surrogate, "space": dict(proposal.infeasible)},
        )
    return replace(proposal, study_name=name, storage=without_password(storage.url), seconds=watch.seconds)
