"""The verbs: the only place where plans, physics, search and report meet."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError, PlanError
from jointopt.core.schema import Columns, Floats
from jointopt.core.units import GIB
from jointopt.physics import thermal
from jointopt.physics.breakdown import Breakdown, breakdown
from jointopt.physics.estimate import Estimator, memory_limit_gib, peak_memory_bytes
from jointopt.physics.facility import with_site
from jointopt.report.remedy import remedy
from jointopt.report.results import Explanation, Proposal, Stage
from jointopt.runs.database import without_password
from jointopt.search.exact import ExactFront
from jointopt.search.exact_stages import exact_front_of_profiles
from jointopt.search.pareto import front_of, front_order, take
from jointopt.search.problem import Problem
from jointopt.spec.catalog.kernels import kernel_constants
from jointopt.spec.job import TIME_ALONE, Job
from jointopt.spec.jobfile import dump_job
from jointopt.spec.plans.check import check_plan
from jointopt.spec.plans.clocks import uniform_stage_clocks
from jointopt.spec.plans.parse import parse_plan, plan_assumptions, plan_records
from jointopt.spec.plans.space import Space, enumerate_layouts
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import Informed, inform_from

if TYPE_CHECKING:
    import pandas as pd

Say = Callable[[str], None]
NO_MEMORY = "does not fit in the GPU's memory"
SECONDS_BETWEEN_TICKS = 1.0
CONSTRAINED = "breaks a constraint at every clock"


class _Stopwatch:
    """Wall seconds by phase, and a word about each as it starts."""

    def __init__(self, say: Say | None) -> None:
        self.seconds: dict[str, float] = {}
        self._say = say
        self._said = time.perf_counter()

    @contextmanager
    def phase(self, name: str, what: str) -> Iterator[None]:
        if self._say is not None:
            self._say(what)
            self._said = time.perf_counter()
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 3)

    def tick(self, done: int, total: int, front_size: int) -> None:
        """How far a search has come, told about once a second."""
        if self._say is not None and time.perf_counter() - self._said >= SECONDS_BETWEEN_TICKS:
            self._say(f"{done:,} of {total:,} plans, {front_size:,} on the front")
            self._said = time.perf_counter()


def estimator(job: Job, layouts: Columns) -> Estimator:
    """The physics of ``job`` for these layouts."""
    return Estimator(job, kernel_constants(job.cluster.gpu), layouts)


def propose(
    job: Job, *, trials: int = 1000, seed: int = 0, surrogate: str = "default", measured: pd.DataFrame | None = None,
    storage: str | None = None, study: str | None = None, progress: Say | None = None,
) -> Proposal:  # fmt: skip
    """Search the joint space of ``job`` and return the plans that no other plan beats in both time and energy.

    ``trials`` plans go to NSGA-II after the exact front of what can be counted; ``storage`` is an Optuna URL; the
    stored study is called ``study`` (by default the job's name and version; a name that is taken gets a suffix).
    ``surrogate`` is a shipped one's name, a folder, or none; runs on the same kind of cluster, in ``measured`` and in
    the measurements of ``storage``, move its predictions.
    With one objective the front is the one best plan. Where nobody states the GPU's power, that is the fastest, no
    energy is told and no study is stored. Raises InfeasibleError with the commonest reasons and the
    smallest change that would help, CatalogError where energy of a GPU is wanted whose power nobody states.
    """
    watch = _Stopwatch(progress)
    _need_power(job)
    with watch.phase("learn", "reading what was measured"):
        informed = inform_from(job, surrogate, measured, storage)
    space, layouts, dropped = _feasible(job, watch, informed.memory_factor)
    kept = storage is not None and job.cluster.gpu.power is not None and _can_keep(storage, watch)
    with watch.phase("prepare", f"pricing {len(layouts['pp']):,} layouts"):
        physics = informed.correct(estimator(job, layouts))
        problem = _problem(job, physics, space.clocks_mhz)
    exact = _exact(job, problem, watch)
    if not len(exact.front["iteration_time_s"]):
        raise InfeasibleError(remedy(job, layouts, dropped | {CONSTRAINED: problem.num_layouts}, physics))
    front, seen = exact.front, take(exact.front, np.zeros(0, np.int64))
    if job.cluster.gpu.power is not None:
        with watch.phase("search", f"NSGA-II over {trials:,} plans with a clock per stage"):
            front, seen = _search(problem, exact, trials, seed, watch)
    reference, answer = _reference(physics), _answer(informed, physics, front)
    proposal = Proposal(
        job=job, seed=seed, surrogate=surrogate, informed_by=informed.told, considered=space.considered,
        layouts=space.size, feasible_layouts=problem.num_layouts, infeasible=dropped,
        front=_wanted(job, answer), reference=_answer(informed, physics, reference),
        covered_plans=exact.covered, evaluated_plans=exact.evaluated + len(seen["layout_index"]),
        seconds=watch.seconds, assumed=_assumptions(job), reference_breaks=physics.broken_limits(reference),
    )  # fmt: skip
    if not (storage and kept):
        return proposal
    return _stored(proposal, problem, seen | _bounds(answer, len(seen["slack"])), storage, study, watch)


def _can_keep(storage: str, watch: _Stopwatch) -> bool:
    """Whether studies stay in ``storage``; UsageError before the search where none can be written after it."""
    from jointopt.search.studies.storage import prepare_storage

    with watch.phase("open", "opening the study storage"):
        return prepare_storage(storage)


def _need_power(job: Job) -> None:
    """CatalogError where the job wants energies that nobody can predict; those of a job of time alone are NaN."""
    if job.cluster.gpu.power is None and job.objectives != TIME_ALONE:
        job.cluster.gpu.need("tdp_w", "predict power and energy")


def _feasible(
    job: Job, watch: _Stopwatch, memory_factor: float = 1.0
) -> tuple[Space, Columns, dict[str, int]]:
    """(space, its layouts that fit in memory, what was dropped and why); InfeasibleError where nothing is left."""
    with watch.phase("enumerate", "enumerating layouts"):
        space = enumerate_layouts(job)
    limit_gib = memory_limit_gib(job)
    with watch.phase("memory", f"fitting {space.size:,} layouts into {limit_gib:.0f} GiB"):
        fits = memory_factor * peak_memory_bytes(job, space.layouts) <= limit_gib * GIB
    dropped = dict(space.dropped)
    if not fits.all():
        dropped[NO_MEMORY] = int((~fits).sum())
    if not fits.any():
        raise InfeasibleError(remedy(job, space.layouts, dropped))
    return space, {name: values[fits] for name, values in space.layouts.items()}, dropped


def priced_problem(job: Job) -> Problem:
    """The search problem of a job: its layouts that fit in memory, answered for by the physics.

    Where time is all that the job is about, the GPU's power need not be known: energies are then NaN.
    """
    _need_power(job)
    space, layouts, _ = _feasible(job, _Stopwatch(None))
    return _problem(job, estimator(job, layouts), space.clocks_mhz)


def _problem(job: Job, physics: Estimator, clocks_mhz: Floats) -> Problem:
    return Problem(
        layouts=physics.layouts,
        clocks_mhz=clocks_mhz,
        evaluate=physics.evaluate,
        lower_bound=physics.lower_bound,
        stage_clocks=physics.stage_clocks if job.search.per_stage_clocks else None,
        energy_slope_w=physics.energy_slope_w,
    )


def _wanted(job: Job, front: Columns) -> Columns:
    """What the job's objectives leave of the front of time and energy, sorted by time: one end for one objective.

    The site's energy grows with both time and energy, so what is best in it, alone or with either, is on that front.
    """
    if len(job.objectives) > 2:
        return front
    objectives = with_site(job, front)
    first, second = (objectives[name] for name in (*job.objectives, *job.objectives)[:2])
    return take(front, np.sort(front_order(first, second)))


def _exact(job: Job, problem: Problem, watch: _Stopwatch) -> ExactFront:
    """The exact front of what can be counted; of time alone, the fastest plan, where energies are not known."""
    count = problem.num_layouts * problem.num_clocks
    if job.cluster.gpu.power is None:
        with watch.phase("exact", f"the fastest of {count:,} plans"):
            return _fastest(problem)
    with watch.phase("exact", f"exact front of {count:,} plans with one clock, and with slack used"):
        return exact_front_of_profiles(problem)


def _fastest(problem: Problem) -> ExactFront:
    """The fastest feasible plan as a front of one; no lower clock is ever faster."""
    layouts = np.arange(problem.num_layouts)
    plans = problem.plans(layouts, np.full_like(layouts, problem.num_clocks - 1), np.zeros(len(layouts)))
    feasible = np.flatnonzero(plans["violation"] <= 0.0)
    best = feasible[plans["iteration_time_s"][feasible].argsort(kind="stable")[:1]]
    covered = problem.num_layouts * problem.num_clocks
    return ExactFront(take(plans, best), covered, len(layouts), covered - len(layouts))


def _bounds(answer: Columns, count: int) -> Columns:
    """Intervals of the first of ``count`` plans, which are the answer; of the others they are not worked out."""
    names = [name for name in answer if name.endswith(("_low", "_high")) or name == "in_domain"]
    unknown = count - len(answer["in_domain"])
    return {name: np.concatenate([answer[name], np.full(unknown, np.nan)]) for name in names}


def _search(
    problem: Problem, exact: ExactFront, trials: int, seed: int, watch: _Stopwatch
) -> tuple[Columns, Columns]:
    """(front, everything evaluated); the exact front of what can be counted is part of both."""
    from jointopt.search.nsga2 import search
    from jointopt.search.pareto import concat

    result = search(problem, trials=trials, seed=seed, start=exact.front, progress=watch.tick)
    front = front_of(concat([exact.front, result.front]))
    return front, concat([front, result.plans])


def _reference(physics: Estimator) -> Columns:
    """What a job does without jointopt: the fastest plan that fits in memory, at the GPU's own clock.

    Constraints and the clocks to search do not matter here; savings are relative to this row.
    """
    pp = physics.layouts["pp"]
    everything, clocks = np.arange(len(pp)), uniform_stage_clocks(pp, physics.top_mhz)
    plans = physics.evaluate(everything, clocks) | {"layout_index": everything, "stage_clock_mhz": clocks}
    best = int(plans["iteration_time_s"].argmin())
    return {name: values[[best]] for name, values in plans.items()}


def _answer(informed: Informed, physics: Estimator, plans: Columns) -> Columns:
    """Plan and prediction columns of chosen plans, with intervals."""
    layout = plans["layout_index"]
    columns = {name: values[layout] for name, values in physics.layouts.items()}
    columns |= {name: plans[name] for name in RESULTS}
    columns |= physics.heat(layout, plans["stage_clock_mhz"])
    columns["stage_clock_mhz"] = plans["stage_clock_mhz"]
    return informed.with_intervals(columns)


def _assumptions(job: Job) -> tuple[str, ...]:
    gpu = job.cluster.gpu
    power: tuple[object, ...] = gpu.power.assumed if gpu.power else ()
    if job.training.dtype == "fp32" and not job.training.framework.tf32:
        power = (*power, "dtype: fp32 products run on FP32 cores, as PyTorch does unless TF32 is allowed")
    return tuple(map(str, (*job.cluster.assumed, *power, *kernel_constants(gpu).assumed, thermal.ASSUMED)))


def explain(
    job: Job, plan: str, *, surrogate: str = "default", measured: pd.DataFrame | None = None,
    storage: str | None = None,
) -> Explanation:  # fmt: skip
    """Time, energy and memory of one plan taken apart, and why it is or is not feasible.

    ``surrogate``, ``measured`` and ``storage`` move the prediction as they do in `propose`.
    Raises PlanError for text that is no plan, or a plan that the physics cannot price (degrees, batch).
    """
    parsed = parse_plan(plan, job)
    record = plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0]
    broken = check_plan(job, record)
    _check_priceable(job, record, broken)
    informed = inform_from(job, surrogate, measured, storage)
    physics = informed.correct(estimator(job, parsed.layouts))
    only, clocks = np.zeros(1, np.int64), parsed.stage_clock_mhz
    values = physics.evaluate(only, clocks)
    answer = _answer(informed, physics, values | {"layout_index": only, "stage_clock_mhz": clocks})
    parts = breakdown(physics, 0, parsed.stage_clock_mhz[0])
    violations = (*broken, *physics.broken_limits(values))
    return Explanation(
        job=job, plan=record, feasible=not violations, violations=violations,
        iteration_time_s=float(values["iteration_time_s"][0]), energy_j=float(values["energy_j"][0]),
        avg_power_w=float(values["avg_power_w"][0]), peak_memory_gib=float(values["peak_memory_gib"][0]),
        time_s=parts.time_s, energy_by_part_j=parts.energy_j,
        memory_gib={name: value / GIB for name, value in parts.memory_bytes.items()},
        stages=_stages(parts), memory_energy_j=parts.memory_energy_j,
        communication_energy_j=parts.communication_energy_j,
        assumed=(*map(str, plan_assumptions(parsed)), *_assumptions(job)),
        intervals={name: (float(answer[f"{name}_low"][0]), float(answer[f"{name}_high"][0])) for name in RESULTS},
        in_domain=bool(answer["in_domain"][0]), surrogate=surrogate, informed_by=informed.told,
    )  # fmt: skip


def _stages(parts: Breakdown) -> tuple[Stage, ...]:
    columns = (
        parts.clock_mhz, parts.busy_s, parts.idle_s, parts.stage_energy_j, parts.stage_memory_bytes / GIB,
        parts.layers, parts.stage_power_w, parts.stage_temperature_c,
        parts.stage_peak_power_w, parts.stage_power_limit_w,
    )  # fmt: skip
    return tuple(
        Stage(
            clock, busy, idle, energy, memory, int(layers), watts, celsius, parts.gpus_per_stage, peak, limit,
            parts.held_by[i],
            {name: float(joules[i]) for name, joules in parts.stage_energy_parts_j.items()},
            {name: float(degrees[i]) for name, degrees in parts.stage_position_c.items()},
        )
        for i, (clock, busy, idle, energy, memory, layers, watts, celsius, peak, limit) in enumerate(
            zip(*(c.tolist() for c in columns), strict=True)
        )
    )  # fmt: skip


def _check_priceable(job: Job, record: Mapping[str, Any], broken: list[str]) -> None:
    """Some broken rules leave nothing to compute; the others are reported beside the numbers."""
    gpus = record["dp"] * record["tp"] * record["pp"] * record["cp"]
    batch = job.training.global_batch_size % (record["dp"] * record["micro_batch_size"])
    if broken and (gpus != job.cluster.num_gpus or batch or record["pp"] > job.model.num_layers):
        raise PlanError(f"The plan cannot be priced for job {job.name!r}: {' '.join(broken)}")


def _stored(
    proposal: Proposal, problem: Problem, seen: Columns, storage: str, study: str | None, watch: _Stopwatch
) -> Proposal:
    """The proposal with its study written to ``storage``, an Optuna URL."""
    from jointopt.search.studies.saving import save_study

    job_text = dump_job(proposal.job)
    with watch.phase("store", "storing the study"):
        name = save_study(
            problem.describe(seen),
            storage,
            name=study or proposal.job.name,
            versioned=study is None,
            job_hash=hashlib.sha256(job_text.encode()).hexdigest(),
            seed=proposal.seed,
            note=f"# {proposal.job.name}\n\n```yaml\n{job_text}```\n",
            attributes={"job": job_text, "surrogate": proposal.surrogate, "space": dict(proposal.infeasible)},
        )
    return replace(proposal, study_name=name, storage=without_password(storage), seconds=watch.seconds)
