"""``propose``: the plans of a job that no other plan beats, searched exactly, or by NSGA-II too."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError, UsageError
from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.core.secrets import masked
from jointopt.core.units import Z_90
from jointopt.jobs.calibration import Calibration
from jointopt.jobs.catalog.recipes import Recipe, recipes_for
from jointopt.jobs.cluster import Machine
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job
from jointopt.jobs.objectives import OBJECTIVES, distinguishing
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import format_plan, parse_plan, plan_records, widened
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import time_parts
from jointopt.physics.makespan import least_makespan_s
from jointopt.physics.site import with_site
from jointopt.physics.throughput import with_rates
from jointopt.report.layout_table import NEAR, Layout
from jointopt.report.plans import odds
from jointopt.report.proposal import Proposal
from jointopt.report.published_plans import Beside
from jointopt.report.tables import plan_entries
from jointopt.search.breeding import TRIALS
from jointopt.search.exact import ExactFront, fastest, ranked
from jointopt.search.local_search import front_within_limits
from jointopt.search.pareto import below_chord, concat, front_order, front_rows, non_dominated, stacked, take
from jointopt.search.problem import Problem
from jointopt.surrogate.intervals import RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import SURE
from jointopt.workflows.answers import Against, answered, assumptions, check_priceable, from_files
from jointopt.workflows.baseline import baseline_plan
from jointopt.workflows.feasible_layouts import Prepared, at_top, need_power, place_of, prepared, top_times
from jointopt.workflows.joint import joint_saving, two_steps
from jointopt.workflows.open_settings import of_first
from jointopt.workflows.proposal_notes import domain_doubts, next_command
from jointopt.workflows.remedy import remedy, shortage_of
from jointopt.workflows.search_steps import LOCAL_EVALUATIONS, Step, Stopwatch, contributions, exact_step, search_steps

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.report.page.choice import Reported
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
        domain_doubts=domain_doubts(model, take(answer, chosen)), report_of=_report_of,
        seconds=watch.seconds, assumed=assumptions(job), beside=beside(model, problem, physics, answer, fitting),
        joint=joint_saving(model, physics, problem, searched[-1].front, two_step),
        learned=model.shown_by_few(found.layouts), model=model, source=source,
        best_layouts=_layouts(job, found, answer, front, chosen, compared),
        **(today or {"reference_breaks": physics.broken_limits(reference)}) | {"reference": compared.reference},
    )  # fmt: skip
    proposal = replace(proposal, hangs_on=of_first(model, proposal), next_command=next_command(proposal))
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
    from jointopt.search.studies.trials import save_study

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
    return replace(proposal, study_name=name, storage=masked(storage.url), seconds=watch.seconds)


# Plans that a proposal shows beside its front: what others published for the job, and a conventional neighbour.


# What published runs keep to (studies/recipes and the tables of docs/appendix/accuracy-by-source.md).
FEWEST_RANK_TOKENS = 2048  # of a sequence that context parallelism cuts: Llama 3's 131,072 over 16 leave 8,192
DEEPEST_PLAIN = 16  # stages of a pipeline without interleaving; MT-NLG's 35 are the exception
MOST_WITHOUT_DATA = 1000  # GPUs of a run without data parallelism


def beside(
    model: JobModel, problem: Problem, physics: CostModel, answer: Columns, fitting: Floats
) -> tuple[Beside, ...]:
    """Published plans of the job, and layouts that may be taken instead of the front's fastest plan (row 0).

    Where that is outside of what people run the fastest one inside; where it may not fit in memory the fastest one that
    surely does. ``answer``: the front by time; ``fitting`` (L,): the probability that each layout of ``physics`` fits.
    """
    found = [*_published(model, problem, physics, answer)]
    for instead in (_conventional, _fitting):
        found += instead(model, problem, physics, answer, fitting)
    return tuple(found)


def outside(job: Job, layouts: Columns) -> dict[str, Bools]:
    """By what it is, where layouts (n,) lie outside of what published runs keep to."""
    cp, pp, vpp, dp, tp = (layouts[name] for name in ("cp", "pp", "vpp", "dp", "tp"))
    tokens = job.training.seq_length // cp
    return {
        f"cp leaves fewer than {FEWEST_RANK_TOKENS:,} tokens of a sequence": (cp > 1) & (tokens < FEWEST_RANK_TOKENS),
        f"more than {DEEPEST_PLAIN} stages without interleaving": (pp > DEEPEST_PLAIN) & (vpp == 1),
        "no data parallelism on so many GPUs": (dp == 1) & (job.cluster.num_gpus >= MOST_WITHOUT_DATA),
        "tensor parallelism across nodes": tp > job.cluster.scale_up_gpus,
    }


def _published(model: JobModel, problem: Problem, physics: CostModel, answer: Columns) -> Iterator[Beside]:
    found: dict[str, Beside] = {}
    for recipe in recipes_for(model.job):
        try:
            one = _of_recipe(model, problem, physics, answer, recipe)
        except UsageError:  # of a recipe that this framework cannot even lay out
            continue
        found.setdefault(one.text, one)
    yield from found.values()


def _of_recipe(model: JobModel, problem: Problem, physics: CostModel, answer: Columns, recipe: Recipe) -> Beside:
    job = model.job
    parsed = parse_plan(recipe.plan, job)
    priced = model.cost_model(parsed.layouts)
    values = priced.evaluate(np.zeros(1, np.int64), parsed.stage_clock_mhz)
    record = plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0]
    time_s, memory_gib = float(values["iteration_time_s"][0]), float(values["peak_memory_gib"][0])
    fits = float(model.fit_probability(priced)[0])
    same = recipe.dtype == job.training.dtype
    first = plan_records({name: answer[name] for name in priced.layouts}, answer["stage_clock_mhz"], [0])[0]
    return Beside(
        source=recipe.source.split(";")[0] + ("" if same else f", in {recipe.dtype}"), plan=record,
        text=format_plan(parsed.layouts, parsed.stage_clock_mhz), iteration_time_s=time_s,
        energy_j=float(values["energy_j"][0]), peak_memory_gib=memory_gib, fit_probability=fits,
        rank=place_of(problem, physics, priced), behind=time_s / float(answer["iteration_time_s"][0]) - 1.0,
        violations=tuple(check_plan(job, record)), published_time_s=recipe.iteration_time_s if same else None,
        reasons=tuple(f"{name} {record[name]}, not {first[name]}" for name in _TELLING if record[name] != first[name]),
    )  # fmt: skip


# what explains most of a distance in time, the strongest first
_TELLING = ("recompute", "vpp", "micro_batch_size", "sequence_parallel", "pp", "tp", "cp", "zero_stage")


def _conventional(
    model: JobModel, problem: Problem, physics: CostModel, answer: Columns, fitting: Floats
) -> Iterator[Beside]:
    """The fastest layout inside, where the front's first plan lies outside."""
    job = model.job
    first = {name: answer[name][:1] for name in physics.layouts}
    reasons = tuple(reason for reason, where in outside(job, first).items() if where[0])
    inside = np.flatnonzero(~np.logical_or.reduce(list(outside(job, physics.layouts).values())))
    if not reasons or not len(inside):
        return
    best = fastest(problem, inside, top_times(problem, physics))
    found = _at_top(model, problem, physics, answer, best, float(fitting[best]))
    yield replace(found, behind_low=_lower(found.behind, answer), reasons=reasons)


def _fitting(
    model: JobModel, problem: Problem, physics: CostModel, answer: Columns, fitting: Floats
) -> Iterator[Beside]:
    """The fastest layout that is not tight, where the front's first plan is."""
    odds_of_first, sure = float(answer["fit_probability"][0]), np.flatnonzero(fitting >= SURE)
    if odds_of_first >= SURE or not len(sure):
        return
    best = fastest(problem, sure, top_times(problem, physics))
    found = _at_top(model, problem, physics, answer, best, float(fitting[best]))
    yield replace(found, fitting=True, reasons=(f"probability {odds(odds_of_first)}",))


def _at_top(model: JobModel, problem: Problem, physics: CostModel, answer: Columns, index: int, fits: float) -> Beside:
    """A layout of the space with every clock at its highest, beside the front's fastest plan."""
    layout = {name: values[[index]] for name, values in physics.layouts.items()}
    values, clocks = at_top(physics, index)
    time_s = float(values["iteration_time_s"][0])
    return Beside(
        source="", plan=plan_records(layout, clocks, [0])[0], text=format_plan(layout, clocks),
        iteration_time_s=time_s, energy_j=float(values["energy_j"][0]),
        peak_memory_gib=float(values["peak_memory_gib"][0]), fit_probability=fits,
        rank=place_of(problem, physics, model.cost_model(layout)),
        behind=time_s / float(answer["iteration_time_s"][0]) - 1.0, violations=physics.broken_limits(values),
    )  # fmt: skip


def _lower(behind: float, answer: Columns) -> float:
    """``behind`` less what the interval of the front's first plan leaves open, 90 % one-sided.

    A judgement: half of the interval's width (of log time) is common to all plans of a job, half is of the plan.
    """
    low, high = (float(answer[f"iteration_time_s_{end}"][0]) for end in ("low", "high"))
    own_sd = 0.5 * np.log(high / low) / (2.0 * Z_90)
    return float((1.0 + behind) * np.exp(-Z_90 * own_sd) - 1.0)


# The best splits of a job's GPUs, on the front and behind it, each with its clocks condensed.


SHOWN = 8  # splits that a proposal keeps, and those of its front
RANKED = 96  # layouts whose splits are distinguished
CLOCKS = 16  # of the grid, that the curve of a layout beyond the front is looked for at
SPLIT = ("dp", "tp", "pp", "cp", "ep", "etp", "dp_replicate")  # columns that state how the GPUs are split


def best_layouts(
    job: Job, problem: Problem, physics: CostModel, fitting: Floats, answer: Columns, layout_index: Ints,
    known: Callable[[Columns], Columns],
) -> tuple[Layout, ...]:  # fmt: skip
    """The `SHOWN` fastest splits, and those of the front, by the time of their fastest plan.

    ``fitting`` (L,): the probability that each layout fits. ``answer``: the front's plans as they are shown,
    ``layout_index`` (n,) their layouts; ``known`` gives of others what is known beside their results. Of a split
    its best layout stands, on the front if one is; its plans are those of the front, or of one clock on every stage,
    with or without slack used.
    """
    order, time_s = ranked(problem, RANKED)
    order = np.concatenate([order, np.setdiff1d(layout_index, order)])
    cells = np.stack([physics.layouts[name][order] for name in SPLIT], axis=1)
    _, first, group = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    group = np.argsort(np.argsort(first))[group.reshape(-1)]  # numbered in the order of their best layouts
    of_front = _places(order, layout_index, group)
    ranks, layout = group[: len(time_s)], order[: len(time_s)] % problem.num_distinct  # whatever its power limit
    kept = np.union1d(np.arange(min(SHOWN, int(group.max()) + 1)), of_front)
    best = [_best(order, group, number, layout_index) for number in kept.tolist()]
    families = [problem.under_all_limits(layout) for layout in best]
    sweeps = _priced(problem, physics, fitting, np.concatenate(families))
    curves = _curves(job, sweeps, families, answer, layout_index, known)
    found = [
        Layout(
            rank=number + 1, plans=curves[row], time_s=time_parts_of(physics, best[row], curves[row][0]),
            on_front=int((of_front == number).sum()), near=_near(time_s, ranks == number, layout),
        )
        for row, number in enumerate(kept.tolist())
        if curves[row]
    ]  # fmt: skip
    # what the fastest plans really take differs a little from the bounds that splits are ranked by
    found.sort(key=lambda layout: float(layout.plans[0]["iteration_time_s"]))
    places = np.maximum.accumulate([place if place <= SHOWN else one.rank for place, one in enumerate(found, 1)])
    return tuple(replace(one, rank=int(place)) for place, one in zip(places, found, strict=True))


def _places(order: Ints, layouts: Ints, group: Ints) -> Ints:
    """The group of each of the layouts."""
    sorter = np.argsort(order)
    return group[sorter[np.searchsorted(order, layouts, sorter=sorter)]]


def _best(order: Ints, group: Ints, number: int, on_front: Ints) -> int:
    """The fastest layout of a split that is on the front, else its fastest."""
    own = order[group == number]
    return int(next((layout for layout in on_front.tolist() if layout in own), own[0]))


def _near(time_s: Floats, own: Bools, layout: Ints) -> int:
    """Number of layouts of the ``own`` rows (n,) within `NEAR` of the fastest, which is not counted itself."""
    times = time_s[own]
    return len(np.unique(layout[own][times <= (1.0 + NEAR) * times.min()])) - 1 if len(times) else 0


def _curves(
    job: Job, sweeps: tuple[Columns, Ints], families: list[Ints], answer: Columns, layout_index: Ints,
    known: Callable[[Columns], Columns],
) -> list[tuple[Mapping[str, Any], ...]]:  # fmt: skip
    """Of each layout under all its limits: the fastest plan, the knee, the least energy, if any is feasible."""
    priced, of = sweeps
    on_front, beyond, ends = [], [], []
    for family in families:
        own = take(answer, np.flatnonzero(np.isin(layout_index, family)))
        swept = np.flatnonzero(np.isin(of, family))
        count, rows = len(own["pp"]), _condensed(concat([own, take(priced, swept)]))
        on_front.append(_entries(job, take(own, rows[rows < count])))
        beyond.append(swept[rows[rows >= count] - count])
        ends.append(len(beyond[-1]))
    others = _entries(job, known(take(priced, np.concatenate(beyond))))
    parts = np.split(np.arange(len(others)), np.cumsum(ends)[:-1])
    return [
        tuple(sorted((*found, *(others[row] for row in part)), key=lambda one: one["iteration_time_s"]))
        for found, part in zip(on_front, parts, strict=True)
    ]


def _entries(job: Job, plans: Columns) -> list[dict[str, Any]]:
    return plan_entries(with_rates(job, plans)) if len(plans["pp"]) else []


def _priced(problem: Problem, physics: CostModel, fitting: Floats, layouts: Ints) -> tuple[Columns, Ints]:
    """(plans of layouts at `CLOCKS` clocks with and without slack, their layouts)."""
    clocks = np.unique(np.linspace(0, problem.num_clocks - 1, CLOCKS).round().astype(np.int64))
    shares = (0.0, 1.0) if problem.stage_clocks is not None else (0.0,)
    layout, clock, slack = (axis.reshape(-1) for axis in np.meshgrid(layouts, clocks, shares, indexing="ij"))
    stage_clocks = problem.decode_clocks(layout, clock, slack)
    values = physics.evaluate(layout, stage_clocks)
    feasible = np.flatnonzero(values["violation"] <= 0.0)
    plans: Columns = {name: values[layout] for name, values in physics.layouts.items()}
    plans |= {name: values[name] for name in RESULTS} | {
        "stage_clock_mhz": stage_clocks,
        "fit_probability": fitting[layout],
    }
    return take(plans, feasible), layout[feasible]


def _condensed(plans: Columns) -> Ints:
    """Of plans the fastest, the knee and the one of least energy, by time; the fastest where energy is not known."""
    time_s, energy_j = plans["iteration_time_s"], plans["energy_j"]
    if not np.isfinite(energy_j).all():
        return np.argsort(time_s, kind="stable")[:1]
    front = front_order(time_s, energy_j)
    if not len(front):
        return front
    knee = int(below_chord(time_s[front], energy_j[front]).argmax())
    return np.asarray(front[np.unique([0, knee, len(front) - 1])])


def time_parts_of(physics: CostModel, layout: int, plan: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a plan by part, which add up to its time."""
    g, rows = int(physics.group_of[layout]), physics.row_of[[layout]]
    stretch = float(physics.time_factor[layout])
    # the schedule need not be walked through again: its length is what the rest of the known time leaves
    t = physics.times(g, rows, np.asarray(plan["stage_clock_mhz"])[None], least_makespan_s)
    total_s = np.array([float(plan["iteration_time_s"]) / stretch])
    t = replace(t, makespan_s=t.makespan_s + total_s - t.total_s, total_s=total_s)
    return {name: stretch * float(seconds[0]) for name, seconds in time_parts(physics.groups[g], rows, t).items()}


def _report_of(document: Mapping[str, Any], model: JobModel) -> Reported:
    """The report of a proposal's document."""
    from jointopt.workflows.page import report_of  # imports what draws pages

    return report_of(document, model)
