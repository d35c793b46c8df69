"""``propose``: the plans of a job that no other plan beats, searched exactly, or by NSGA-II too."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import Columns, Floats, Ints
from jointopt.jobs.calibration import Calibration
from jointopt.jobs.job import OBJECTIVES, Job, distinguishing
from jointopt.jobs.jobfile import dump_job
from jointopt.jobs.machine import Machine
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import parse_plan, plan_records, widened
from jointopt.physics.cost_model import CostModel
from jointopt.physics.site import with_site
from jointopt.report.layout_table import Layout
from jointopt.report.proposal import Proposal
from jointopt.report.shortage import remedy, shortage_of
from jointopt.runs.database import without_password
from jointopt.search.breeding import TRIALS
from jointopt.search.exact import ExactFront
from jointopt.search.fastest import fastest
from jointopt.search.pareto import concat, front_order, front_rows, non_dominated, stacked, take
from jointopt.search.problem import Problem
from jointopt.search.tight_limits import front_within_limits
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.against import Against
from jointopt.workflows.answers import answered, assumptions, check_priceable
from jointopt.workflows.baseline import baseline_plan
from jointopt.workflows.beside import beside
from jointopt.workflows.given import from_files
from jointopt.workflows.joint import joint_saving, two_steps
from jointopt.workflows.layouts import best_layouts
from jointopt.workflows.open_settings import of_first
from jointopt.workflows.problem import Prepared, at_top, need_power, prepared, top_times
from jointopt.workflows.search_steps import LOCAL_EVALUATIONS, Step, Stopwatch, contributions, exact_step, search_steps

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.search.studies.storage import Storage
    from jointopt.surrogate.measurements import Measurements

_log = logging.getLogger(__name__)
CONSTRAINED = "breaks a constraint at every clock"


@from_files
def propose(
    job: Job | JobModel, *, trials: int | None = None, seed: int = 0, surrogate: str = "default",
    measured: pd.DataFrame | Measurements | None = None, calibration: Calibration | None = None,
    storage: str | None = None, study: str | None = None, machine: Machine | None = None, baseline: str = "",
    allow_tight: bool = False, source: str = "",
) -> Proposal:  # fmt: skip
    """Search the joint space of ``job`` and return the plans that no other plan beats in its objectives.

    The exact front of one clock and slack comes first, then moves of single stages' clocks, then ``trials`` plans by
    NSGA-II, by all objectives: by default none where time and energy alone count and are countable. The study in
    ``storage`` (an Optuna URL) is called ``study`` (with -2 and a warning where another one is), by default by the
    job's name and version. ``baseline``: what runs today, as `baseline_plan` takes it, in place of the reference.
    ``allow_tight``: where no plan is likelier to fit in memory than not, search those that come nearest. ``source``:
    how a shell names the job, for the next command. Other options as in `JobModel.of`. With one objective the front is
    the best plan; of a GPU of unknown power energies are NaN and no study is stored. Raises InfeasibleError with
    reasons and a remedy, CatalogError where power is needed.
    """
    watch = Stopwatch()
    with watch.phase("learn", "reading what was measured"):
        model = JobModel.of(job, surrogate, measured, calibration, storage, machine)
    need_power(job := model.job)
    today = _today(model, baseline) if baseline else {}
    found = prepared(model, watch, allow_tight=allow_tight)
    problem, physics, fitting = found.problem, found.physics, found.fitting
    kept = _kept_in(storage, watch) if storage is not None and job.cluster.gpu.power is not None else None
    exact = _exact(model, found, watch)
    top = fastest(problem, np.arange(problem.num_layouts), top_times(problem, physics))
    two_step = two_steps(job, problem, top)
    searched = search_steps(problem, exact, two_step, _trials(job, found.wide, trials), seed, watch, found.wide)
    front, reference = _with_odds(searched[-1].front, fitting), _with_odds(_reference(physics, top), fitting)
    shown = answered(model, physics, concat([front, reference]))
    answer, compared = _compared(model, shown, today)
    chosen = _wanted(job, answer)
    proposal = Proposal(
        job=job, seed=seed, surrogate=model.name, informed_by=model.evidence.counts, considered=found.space.considered,
        layouts=found.space.size, feasible_layouts=problem.num_distinct, infeasible=found.dropped,
        front=take(answer, chosen), covered_plans=exact.covered,
        evaluated_plans=sum(step.evaluated for step in searched), searched=contributions(searched, job.goals),
        seconds=watch.seconds, assumed=assumptions(job), beside=beside(model, problem, physics, answer, fitting),
        joint=joint_saving(model, physics, problem, searched[-1].front, two_step),
        learned=model.shown_by_few(found.layouts), model=model, source=source,
        best_layouts=_layouts(job, found, answer, front, chosen, compared),
        **(today or {"reference_breaks": physics.broken_limits(reference)}) | {"reference": compared.reference},
    )  # fmt: skip
    proposal = replace(proposal, hangs_on=of_first(model, proposal))
    if job.cluster.gpu.power is None:
        return proposal
    described = _described(problem, front, answer, searched, fitting)
    proposal = replace(proposal, record=_record(described))
    return proposal if kept is None else _stored(proposal, described, kept, study, watch)


def _record(described: Columns) -> Columns:
    """Described plans without their places in the space."""
    return {name: values for name, values in described.items() if name not in ("layout_index", "clock_index")}


def _exact(model: JobModel, found: Prepared, watch: Stopwatch) -> ExactFront:
    """The exact front, else what only clocks of single stages keep within the constraints; InfeasibleError if none."""
    job, problem, physics, free = model.job, found.problem, found.physics, None
    exact = exact_step(job, problem, watch)
    if not len(exact.front["slack"]) and job.cluster.gpu.power is not None:
        with watch.phase("limits", "clocks of single stages that keep the constraints"):
            exact, free = front_within_limits(problem, exact, problem.unconstrained(), LOCAL_EVALUATIONS)
    if len(exact.front["slack"]):
        return exact
    dropped = found.dropped | {CONSTRAINED: problem.num_distinct}
    raise InfeasibleError(remedy(model, found.layouts, dropped, physics, free))


def _with_odds(plans: Columns, fitting: Floats) -> Columns:
    """Plans of the search with the probability that they fit."""
    return plans | {"fit_probability": fitting[plans["layout_index"]]}


def _compared(model: JobModel, shown: Columns, today: dict[str, Any]) -> tuple[Columns, Against]:
    """(the front with its differences from what it is compared with, that): today's plan, or the last one shown."""
    answer = take(shown, slice(0, -1))
    compared = Against(model, today["reference"] if today else take(shown, slice(-1, None)))
    apart, itself = compared.differences(answer)
    return answer | apart, replace(compared, reference=compared.reference | itself)


def _trials(job: Job, wide: Problem, given: int | None) -> int:
    """Plans for NSGA-II; none where time alone counts, or where the exact front is found without them."""
    counted = wide.has_levels or (wide.is_countable and wide.goals == OBJECTIVES)
    usual = 0 if counted else TRIALS
    return 0 if job.cluster.gpu.power is None else usual if given is None else given


def _today(model: JobModel, baseline: str) -> dict[str, Any]:
    """The fields of a proposal whose reference is the plan that runs today; PlanError where it cannot be priced."""
    parsed = parse_plan(baseline_plan(model.job, baseline), model.job)
    record = plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0]
    check_priceable(model.job, record, broken := check_plan(model.job, record))
    physics, only = model.cost_model(parsed.layouts), np.zeros(1, np.int64)
    values = physics.evaluate(only, parsed.stage_clock_mhz)
    plans = values | {"layout_index": only, "stage_clock_mhz": parsed.stage_clock_mhz}
    shown = answered(model, physics, plans | {"fit_probability": model.fit_probability(physics)})
    short = shortage_of(model, physics, record)
    return {
        "reference": shown | {"feasible": np.array([not broken and short is None])}, "baseline": baseline,
        "reference_breaks": (*broken, *physics.broken_limits(values), *([short.sentence()] if short else [])),
    }  # fmt: skip


def _described(problem: Problem, front: Columns, answer: Columns, searched: list[Step], fitting: Floats) -> Columns:
    """Every plan that the search evaluated, the front first, which ``answer`` has intervals of."""
    seen = concat([front, *(_with_odds(step.plans, fitting) for step in searched)])
    return problem.describe(seen | _bounds(answer, len(seen["slack"])))


def _kept_in(url: str, watch: Stopwatch) -> Storage | None:
    """The storage of studies, None where none stays in it; UsageError before the search where it cannot be written."""
    from jointopt.search.studies.storage import prepare_storage

    with watch.phase("open", "opening the study storage"):
        return prepare_storage(url)


def _wanted(job: Job, front: Columns) -> Ints:
    """Rows of the front by the job's objectives out of that of time and energy, by time: one end for one objective.

    The site's energy grows with both time and energy, so what is best in it, alone or with either, is on that front.
    """
    objectives, names = with_site(job, front), distinguishing(job.objectives)
    if len(names) > 2:
        return np.sort(non_dominated(stacked(objectives, names)))
    first, second = (objectives[name] for name in (*names, *names)[:2])
    return np.sort(front_order(first, second))


def _layouts(
    job: Job, found: Prepared, answer: Columns, front: Columns, chosen: Ints, compared: Against
) -> tuple[Layout, ...]:
    """The best layouts, and those of the chosen plans that are on the front of time and energy."""
    rows = chosen if job.goals == OBJECTIVES else np.intersect1d(chosen, front_rows(front))
    plans, layouts = take(answer, rows), front["layout_index"][rows]
    return best_layouts(job, found.problem, found.physics, found.fitting, plans, layouts, compared.known)


def _bounds(answer: Columns, count: int) -> Columns:
    """Intervals of the first of ``count`` plans, which are the answer; of the others they are not worked out."""
    names = [name for name in answer if name.endswith(("_low", "_high")) or name == "in_domain"]
    unknown = count - len(answer["in_domain"])
    found = {name: np.concatenate([answer[name], np.full(unknown, np.nan)]) for name in names}
    return found | {"doubts": np.concatenate([answer["doubts"], np.full(unknown, "", object)])}


def _reference(physics: CostModel, layout: int) -> Columns:
    """The plan without jointopt: the fastest feasible ``layout`` at the GPU's own clock, constraints left aside."""
    plans, clocks = at_top(physics, layout)
    clocks = widened(clocks, int(physics.layouts["pp"].max()))
    return plans | {"layout_index": np.array([layout]), "stage_clock_mhz": clocks}


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
            document=proposal.to_dict(),
            goals=proposal.job.goals,
        )
    if study not in (None, name):
        _log.warning("The name %r belongs to another study; this one is stored as %r.", study, name)
    return replace(proposal, study_name=name, storage=without_password(storage.url), seconds=watch.seconds)
