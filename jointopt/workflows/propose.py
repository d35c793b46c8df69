"""``propose``: the plans of a job that no other plan beats, searched exactly, or by NSGA-II too."""

from __future__ import annotations

import hashlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import InfeasibleError, UsageError
from jointopt.core.quote import sh_word
from jointopt.core.schema import SPLIT_COLUMNS, Bools, Columns, Floats, Ints
from jointopt.core.secrets import masked
from jointopt.core.units import Z_90
from jointopt.frameworks.exported import start_command
from jointopt.jobs.catalog.recipes import recipes_for
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job
from jointopt.jobs.objectives import OBJECTIVES, distinguishing
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import PLAN_KEYS, format_plan, parse_plan, plan_records, widened
from jointopt.physics.cost_model import CostModel
from jointopt.physics.makespan import least_makespan_s, time_parts
from jointopt.physics.site import with_site
from jointopt.physics.throughput import with_rates
from jointopt.report.alternatives import AlternativePlan
from jointopt.report.doubts import unlike_recorded_runs
from jointopt.report.plans import NEAR, LayoutSummary, probability_text, short_plan
from jointopt.report.proposal import Proposal
from jointopt.report.tables import plan_entries
from jointopt.search.breeding import TRIALS
from jointopt.search.exact import ExactFront, fastest_layout, lowest_bounds
from jointopt.search.local_search import front_within_limits
from jointopt.search.pareto import below_chord, concat, front_order, front_rows, is_beaten, non_dominated, stacked, take
from jointopt.search.problem import Problem
from jointopt.surrogate.intervals import DOUBTS, RESULTS
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import NOT_TIGHT
from jointopt.workflows.answers import (
    ReferencePlan,
    accepts_paths,
    assumptions,
    check_priceable,
    model_of,
    predicted_plans,
)
from jointopt.workflows.feasible_layouts import (
    PreparedSearch,
    need_power,
    plan_at_top_clock,
    prepare_search,
    rank_at_top_clock,
    top_times,
)
from jointopt.workflows.open_settings import settings_of_proposal
from jointopt.workflows.plan_files import baseline_plan
from jointopt.workflows.remedy import remedy, shortage_of
from jointopt.workflows.search_steps import (
    LOCAL_EVALUATIONS,
    Step,
    Stopwatch,
    contributions,
    exact_step,
    joint_saving,
    once,
    search_steps,
    two_steps,
)

if TYPE_CHECKING:
    from jointopt.search.studies.storage import Storage
    from jointopt.workflows.answers import CalibrationLike, JobLike, MachineLike, TableLike


_log = logging.getLogger(__name__)
CONSTRAINED = "breaks a constraint at every clock"
_PLACES = ("layout_index", "clock_index")  # of a plan in the search space


@accepts_paths
def propose(
    job: JobLike, *, trials: int | None = None, seed: int = 0, surrogate: str = "default",
    measured: TableLike | None = None, calibration: CalibrationLike | None = None,
    storage: str | None = None, study: str | None = None, machine: MachineLike | None = None, baseline: str = "",
    allow_tight: bool = False, source: str = "", all_trials: bool = False,
) -> Proposal:  # fmt: skip
    """Search the joint space of ``job`` and return the plans that no other plan beats in its objectives.

    The exact front of one clock and slack comes first, then moves of single stages' clocks, then NSGA-II by all
    objectives. With one objective the front is the best plan; of a GPU of unknown power energies are NaN and no study
    is stored.

    Parameters
    ----------
    job : Job, JobModel or path
        What to train and where; the path of a job file and the name of a shipped job stand for it too.
    trials : int, optional
        Plans for NSGA-II; by default none where time and energy alone count and are countable.
    seed : int, optional
        Of the search's random numbers.
    surrogate : str, optional
        Name of a shipped surrogate, folder that `retrain` wrote, or "none" for physics alone.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of an Optuna storage (``sqlite:///jointopt.db``) for the study, whose measured runs correct the predictions;
        none by default.
    study : str, optional
        Name of the study, by default the job's name and version; with -2 and a warning where another one has it.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.
    baseline : str, optional
        What runs today, to compare with in place of the fastest plan at the top clock: a plan as ``--plan`` takes it, a
        launch script, a config or a log.
    allow_tight : bool, optional
        Where no plan is likelier to fit in memory than not, search those that come nearest.
    source : str, optional
        How a shell names the job, for the next command.
    all_trials : bool, optional
        The study has every evaluated plan, not only the front (of a long one 200 plans) and some others.

    Returns
    -------
    Proposal
        The front by time (``iteration_time_s``, s; ``energy_j``, J of an iteration on all GPUs), and one recommended
        plan.

    Raises
    ------
    InfeasibleError
        Where no plan keeps the constraints or fits in memory, with reasons and what would help.
    CatalogError
        Where an objective or a constraint needs a power that no source states.

    Examples
    --------
    >>> proposal = jointopt.propose(jointopt.load_job("opt-350m-2x4-a100"), surrogate="none")
    >>> [proposal.recommended.plan[name] for name in ("dp", "tp", "pp")]
    [8, 1, 1]
    """
    if study is not None and not study.strip():
        raise UsageError("study is blank; expected a name, or leave it out for the job's own.")
    watch = Stopwatch()
    with watch.phase("learn", "reading what was measured"):
        model = model_of(job, surrogate, measured, calibration, storage, machine)
    need_power(job := model.job)
    today = _baseline_fields(model, baseline, storage) if baseline else {}
    found = prepare_search(model, watch, allow_tight=allow_tight)
    problem, physics, fitting = found.problem, found.physics, found.fitting
    kept = None if storage is None or job.cluster.gpu.power is None else _writable(storage, watch)
    exact = _exact_front(model, found, watch)
    top = fastest_layout(problem, np.arange(problem.num_layouts), top_times(problem, physics))
    two_step = two_steps(job, found.searched, top)
    trials = _trials(job, found.all_goals) if trials is None or job.cluster.gpu.power is None else trials
    steps = search_steps(found.searched, exact, two_step, trials, seed, watch, found.all_goals)
    two_step = two_step and once(problem, two_step)
    front, reference = steps[-1].front, _reference(found, top)
    shown = predicted_plans(model, physics, _with_fit_probability(concat([front, reference]), fitting))
    answer = take(shown, slice(0, -1))
    compared = ReferencePlan(model, today["reference"] if today else take(shown, slice(-1, None)))
    differences, of_reference = compared.differences(answer)
    chosen = _rows_by_objectives(job, answer := answer | differences)
    rows = np.intersect1d(chosen, front_rows(front, job.goals[:2])) if len(job.goals) > 2 else chosen
    proposal = Proposal(
        job=job, seed=seed, surrogate=model.name, informed_by=model.evidence.counts, considered=found.space.considered,
        layouts=found.space.size, feasible_layouts=problem.num_distinct, infeasible=found.dropped,
        front=take(answer, chosen), covered_plans=exact.covered, evaluated_plans=sum(step.evaluated for step in steps),
        searched=contributions(steps, job.goals), learned=model.shown_by_few(found.layouts), model=model, source=source,
        domain_doubts=domain_doubts(model, take(answer, chosen)), verb=_verb, seconds=watch.seconds,
        assumed=(*(found.runs.assumed if found.runs else ()), *assumptions(job)),
        beside=alternative_plans(model, problem, physics, answer, fitting),
        joint=joint_saving(model, physics, found.searched, front, two_step),
        best_layouts=best_layouts(job, found, take(answer, rows), front["layout_index"][rows], compared.with_intervals),
        **(today or {"reference_breaks": physics.broken_limits(reference)})
        | {"reference": compared.reference | of_reference},
    )  # fmt: skip
    proposal = replace(proposal, hangs_on=settings_of_proposal(model, proposal), next_command=next_command(proposal))
    if job.cluster.gpu.power is None:
        return proposal
    described = _evaluated_plans(problem, front, answer, steps, fitting)
    proposal = replace(proposal, record={name: v for name, v in described.items() if name not in _PLACES})
    return proposal if kept is None else _store_study(proposal, described, found, kept, study, all_trials, watch)


def _writable(url: str, watch: Stopwatch) -> Storage | None:
    """The storage of studies, None where none stays in it; UsageError before the search where it cannot be written."""
    from jointopt.search.studies.storage import prepare_storage

    with watch.phase("open", "opening the study storage"):
        return prepare_storage(url)


def _trials(job: Job, all_goals: Problem) -> int:
    """Plans for NSGA-II by default: none where time alone counts, or where the exact front is found without them."""
    counted = all_goals.has_levels or (all_goals.is_countable and len(all_goals.goals) == 2)
    return 0 if counted or job.cluster.gpu.power is None else TRIALS


def _reference(found: PreparedSearch, layout: int) -> Columns:
    """The plan without jointopt: the fastest feasible ``layout`` at the GPU's own clock, constraints left aside."""
    plans, clocks = plan_at_top_clock(found.physics, layout)
    clocks, at = widened(clocks, int(found.physics.layouts["pp"].max())), np.array([layout])
    if found.runs is not None:
        plans |= found.runs.evaluate(at, *(plans[name] for name in OBJECTIVES), any_spares=True)
    return plans | {"layout_index": at, "stage_clock_mhz": clocks}


def _exact_front(model: JobModel, found: PreparedSearch, watch: Stopwatch) -> ExactFront:
    """The exact front, else what only clocks of single stages keep within the constraints; InfeasibleError if none."""
    job, problem, physics, free = model.job, found.searched, found.physics, None
    exact = exact_step(job, problem, watch)
    if not len(exact.front["slack"]) and job.cluster.gpu.power is not None:
        with watch.phase("limits", "clocks of single stages that keep the constraints"):
            exact, free = front_within_limits(problem, exact, problem.unconstrained(), LOCAL_EVALUATIONS)
    if len(exact.front["slack"]):
        return exact
    dropped = found.dropped | {CONSTRAINED: problem.num_distinct}
    raise InfeasibleError(remedy(model, found.layouts, dropped, physics, free))


def _with_fit_probability(plans: Columns, fitting: Floats) -> Columns:
    """Plans of the search with the probability that they fit."""
    return plans | {"fit_probability": fitting[plans["layout_index"]]}


def _baseline_fields(model: JobModel, baseline: str, storage: str | None) -> dict[str, Any]:
    """The fields of a proposal whose reference is the plan that runs today; PlanError where it cannot be priced."""
    parsed = parse_plan(baseline_plan(model.job, baseline, storage), model.job)
    record = parsed.record
    check_priceable(model.job, record, broken := check_plan(model.job, record))
    physics, only = model.cost_model(parsed.layouts), np.zeros(1, np.int64)
    values = physics.evaluate(only, parsed.stage_clock_mhz)
    plans = values | {"layout_index": only, "stage_clock_mhz": parsed.stage_clock_mhz}
    shown = predicted_plans(model, physics, plans | {"fit_probability": model.fit_probability(physics)})
    short = shortage_of(model, physics, record)
    return {
        "reference": shown | {"feasible": np.array([not broken and short is None])}, "baseline": baseline,
        "reference_breaks": (*broken, *physics.broken_limits(values), *([short.sentence()] if short else [])),
    }  # fmt: skip


def _evaluated_plans(
    problem: Problem, front: Columns, answer: Columns, searched: list[Step], fitting: Floats
) -> Columns:
    """Every plan that the search evaluated, the front first, whose intervals and doubts ``answer`` has; others: NaN."""
    seen = _with_fit_probability(concat([front, *(step.plans for step in searched)]), fitting)
    unknown = len(seen["slack"]) - len(answer["in_domain"])
    names = [name for name in answer if name.endswith(("_low", "_high")) or name == "in_domain"]
    bounds = {name: np.concatenate([answer[name], np.full(unknown, np.nan)]) for name in names}
    bounds["doubts"] = np.concatenate([answer["doubts"], np.full(unknown, "", object)])
    return problem.describe(seen | bounds)


def _rows_by_objectives(job: Job, front: Columns) -> Ints:
    """Rows of the front by the job's objectives out of that of time and energy, by time: one end for one objective.

    The site's energy grows with both time and energy, so what is best in it, alone or with either, is on that front.
    """
    objectives, names = with_site(job, front), distinguishing(job.objectives)
    if len(names) > 2:
        return np.sort(non_dominated(stacked(objectives, names)))
    first, second = (objectives[name] for name in (*names, *names)[:2])
    return np.sort(front_order(first, second))


def _store_study(
    proposal: Proposal, plans: Columns, found: PreparedSearch, storage: Storage, study: str | None, all_trials: bool,
    watch: Stopwatch,
) -> Proposal:  # fmt: skip
    """The proposal with the study of its described ``plans``, and others of the whole space, written to ``storage``."""
    from jointopt.search.studies.trials import MAX_TRIALS, save_study

    job_text, goals = dump_job(proposal.job), proposal.job.goals
    if len(goals) > 2:  # plans that a front of many goals leaves out, since they hardly differ from one of it
        beaten = is_beaten(stacked(proposal.front, goals), stacked(plans, goals))
        plans = take(plans, beaten | (plans["violation"] > 0.0))
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
            problem=found.all_goals,
            excess=found.excess,
            max_trials=None if all_trials else MAX_TRIALS,
        )
    if study not in (None, name):
        _log.warning("The name %r belongs to another study; this one is stored as %r.", study, name)
    return replace(proposal, study_name=name, storage=masked(storage.url), seconds=watch.seconds)


# Plans that a proposal shows beside its front: what others published for the job, and a conventional neighbour.


# What published runs keep to (studies/recipes and the tables of docs/appendix/accuracy-by-source.md).
FEWEST_RANK_TOKENS = 2048  # of a sequence that context parallelism cuts: Llama 3's 131,072 over 16 leave 8,192
DEEPEST_PLAIN = 16  # stages of a pipeline without interleaving; MT-NLG's 35 are the exception
MOST_WITHOUT_DATA = 1000  # GPUs of a run without data parallelism


def alternative_plans(
    model: JobModel, problem: Problem, physics: CostModel, answer: Columns, fitting: Floats
) -> tuple[AlternativePlan, ...]:
    """Published plans of the job, and layouts that may be taken instead of the front's fastest plan (row 0).

    Where that is outside of what people run the fastest one inside; where it may not fit in memory the fastest one that
    surely does. ``answer``: the front by time; ``fitting`` (L,): the probability that each layout of ``physics`` fits.
    """
    found = list(_published_plans(model, problem, physics, answer))
    first = {name: answer[name][:1] for name in physics.layouts}
    reasons = tuple(reason for reason, where in unusual_layouts(model.job, first).items() if where[0])
    inside = np.flatnonzero(~np.logical_or.reduce(list(unusual_layouts(model.job, physics.layouts).values())))
    if reasons and len(inside):
        other = _fastest_of(inside, model, problem, physics, answer, fitting)
        # `behind` less what the interval of the front's first plan leaves open, 90 % one-sided; a judgement: half of
        # the interval's width (of log time) is common to all plans of a job, half is of the plan
        low, high = (float(answer[f"iteration_time_s_{end}"][0]) for end in ("low", "high"))
        own_sd = 0.5 * np.log(high / low) / (2.0 * Z_90)
        behind_low = float((1.0 + other.behind) * np.exp(-Z_90 * own_sd) - 1.0)
        found.append(replace(other, behind_low=behind_low, reasons=reasons))
    odds_of_first, sure = float(answer["fit_probability"][0]), np.flatnonzero(fitting >= NOT_TIGHT)
    if odds_of_first < NOT_TIGHT and len(sure):
        other = _fastest_of(sure, model, problem, physics, answer, fitting)
        found.append(replace(other, fitting=True, reasons=(f"probability {probability_text(odds_of_first)}",)))
    return tuple(found)


def unusual_layouts(job: Job, layouts: Columns) -> dict[str, Bools]:
    """By what it is, where layouts (n,) lie outside of what published runs keep to."""
    cp, pp, vpp, dp, tp = (layouts[name] for name in ("cp", "pp", "vpp", "dp", "tp"))
    tokens = job.training.seq_length // cp
    return {
        f"cp leaves fewer than {FEWEST_RANK_TOKENS:,} tokens of a sequence": (cp > 1) & (tokens < FEWEST_RANK_TOKENS),
        f"more than {DEEPEST_PLAIN} stages without interleaving": (pp > DEEPEST_PLAIN) & (vpp == 1),
        "no data parallelism on so many GPUs": (dp == 1) & (job.cluster.num_gpus >= MOST_WITHOUT_DATA),
        "tensor parallelism across nodes": tp > job.cluster.scale_up_gpus,
    }


def _published_plans(
    model: JobModel, problem: Problem, physics: CostModel, answer: Columns
) -> Iterator[AlternativePlan]:
    """Each published plan of the job once, priced by its model."""
    job, found = model.job, dict[str, AlternativePlan]()
    for recipe in recipes_for(job):
        with suppress(UsageError):  # of a recipe that this framework cannot even lay out
            parsed = parse_plan(recipe.plan, job)
            record = parsed.record
            first = plan_records({name: answer[name] for name in parsed.layouts}, answer["stage_clock_mhz"], [0])[0]
            same = recipe.dtype == job.training.dtype
            one = _priced_plan(
                model, problem, physics, answer, parsed.layouts, parsed.stage_clock_mhz,
                source=recipe.source.split(";")[0] + ("" if same else f", in {recipe.dtype}"),
                violations=tuple(check_plan(job, record)), published_time_s=recipe.iteration_time_s if same else None,
                reasons=tuple(f"{k} {record[k]}, not {first[k]}" for k in _MAIN_DIFFERENCES if record[k] != first[k]),
            )  # fmt: skip
            found.setdefault(one.text, one)
    yield from found.values()


# what explains most of a distance in time, the strongest first
_MAIN_DIFFERENCES = ("recompute", "vpp", "micro_batch_size", "sequence_parallel", "pp", "tp", "cp", "zero_stage")


def _fastest_of(
    some: Ints, model: JobModel, problem: Problem, physics: CostModel, answer: Columns, fitting: Floats
) -> AlternativePlan:
    """The fastest of some layouts of the space with every clock at its highest."""
    best = fastest_layout(problem, some, top_times(problem, physics))
    layout = {name: values[[best]] for name, values in physics.layouts.items()}
    values, clocks = plan_at_top_clock(physics, best)
    found = _priced_plan(model, problem, physics, answer, layout, clocks, violations=physics.broken_limits(values))
    return replace(found, fit_probability=float(fitting[best]))


def _priced_plan(
    model: JobModel, problem: Problem, physics: CostModel, answer: Columns, layout: Columns, clocks: Floats, *,
    source: str = "", **notes: Any,
) -> AlternativePlan:  # fmt: skip
    """One plan as the job's model prices it, with its rank and how far it is behind the front's fastest plan."""
    alone = model.cost_model(layout)
    of = alone.evaluate(np.zeros(1, np.int64), clocks)
    values: dict[str, Any] = {name: float(of[name][0]) for name in ("iteration_time_s", "energy_j", "peak_memory_gib")}
    return AlternativePlan(
        source=source, plan=plan_records(layout, clocks, [0])[0], text=format_plan(layout, clocks),
        **values, fit_probability=float(model.fit_probability(alone)[0]),
        rank=rank_at_top_clock(problem, physics, alone),
        behind=values["iteration_time_s"] / float(answer["iteration_time_s"][0]) - 1.0, **notes,
    )  # fmt: skip


# The best splits of a job's GPUs, on the front and behind it, each with its clocks condensed.


SHOWN = 8  # splits that a proposal keeps, and those of its front
RANKED = 96  # layouts whose splits are distinguished
CLOCKS = 16  # of the grid, that the curve of a layout beyond the front is looked for at


def best_layouts(
    job: Job, found: PreparedSearch, answer: Columns, layout_index: Ints, with_intervals: Callable[[Columns], Columns]
) -> tuple[LayoutSummary, ...]:
    """The `SHOWN` fastest splits, and those of the front, by the time of their fastest plan.

    ``answer`` (n,): the front's plans as they are shown, of the layouts ``layout_index``; ``with_intervals`` adds
    intervals to other plans. A split is shown by its best layout, one of the front where there is one: with plans of
    the front, or with one clock on every stage, whose slack is used or not.
    """
    problem, physics = found.problem, found.physics
    order, time_s = lowest_bounds(problem, RANKED)
    order = np.concatenate([order, np.setdiff1d(layout_index, order)])
    cells = np.stack([physics.layouts[name][order] for name in SPLIT_COLUMNS], axis=1)
    _, first, group = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    group = np.argsort(np.argsort(first))[group.reshape(-1)]  # numbered in the order of their best layouts
    sorter = np.argsort(order)
    of_front = group[sorter[np.searchsorted(order, layout_index, sorter=sorter)]]
    ranks, layout = group[: len(time_s)], order[: len(time_s)] % problem.num_distinct  # whatever its power limit
    kept = np.union1d(np.arange(min(SHOWN, int(group.max()) + 1)), of_front)
    # of a split its fastest layout that is on the front, else its fastest
    own = [order[group == number] for number in kept.tolist()]
    best = [int(next((one for one in layout_index.tolist() if one in some), some[0])) for some in own]
    families = [problem.under_all_limits(layout) for layout in best]
    sweeps = _clock_sweep(problem, physics, found.fitting, np.concatenate(families))
    curves = _curves(job, sweeps, families, answer, layout_index, with_intervals)
    shown = []
    for row, number in enumerate(kept.tolist()):
        if not curves[row]:
            continue
        times, of_split = time_s[ranks == number], layout[ranks == number]
        near = of_split[times <= (1.0 + NEAR) * times.min(initial=np.inf)]
        shown.append(
            LayoutSummary(
                rank=number + 1, plans=curves[row], time_s=time_parts_of(physics, best[row], curves[row][0]),
                on_front=int((of_front == number).sum()), near=max(len(np.unique(near)) - 1, 0),
            )
        )  # fmt: skip
    # what the fastest plans really take differs a little from the bounds that splits are ranked by
    shown.sort(key=lambda layout: float(layout.plans[0]["iteration_time_s"]))
    places = np.maximum.accumulate([place if place <= SHOWN else one.rank for place, one in enumerate(shown, 1)])
    return tuple(replace(one, rank=int(place)) for place, one in zip(places, shown, strict=True))


def _curves(
    job: Job, sweeps: tuple[Columns, Ints], families: list[Ints], answer: Columns, layout_index: Ints,
    with_intervals: Callable[[Columns], Columns],
) -> list[tuple[Mapping[str, Any], ...]]:  # fmt: skip
    """Of each layout under all its limits: the fastest plan, the knee, the least energy, if any is feasible."""
    priced, of = sweeps
    on_front, beyond, ends = [], [], []
    for family in families:
        own = take(answer, np.flatnonzero(np.isin(layout_index, family)))
        swept = np.flatnonzero(np.isin(of, family))
        count, rows = len(own["pp"]), ends_and_knee(concat([own, take(priced, swept)]))
        on_front.append(plan_entries(with_rates(job, take(own, rows[rows < count]))) if count else [])
        beyond.append(swept[rows[rows >= count] - count])
        ends.append(len(beyond[-1]))
    swept = np.concatenate(beyond)
    others = plan_entries(with_rates(job, with_intervals(take(priced, swept)))) if len(swept) else []
    parts = np.split(np.arange(len(others)), np.cumsum(ends)[:-1])
    return [
        tuple(sorted((*found, *(others[row] for row in part)), key=lambda one: one["iteration_time_s"]))
        for found, part in zip(on_front, parts, strict=True)
    ]


def _clock_sweep(problem: Problem, physics: CostModel, fitting: Floats, layouts: Ints) -> tuple[Columns, Ints]:
    """(plans of layouts at `CLOCKS` clocks with and without slack, their layouts)."""
    clocks = np.unique(np.linspace(0, problem.num_clocks - 1, CLOCKS).round().astype(np.int64))
    shares = (0.0, 1.0) if problem.stage_clocks is not None else (0.0,)
    layout, clock, slack = (axis.reshape(-1) for axis in np.meshgrid(layouts, clocks, shares, indexing="ij"))
    stage_clocks = problem.decode_clocks(layout, clock, slack)
    values = physics.evaluate(layout, stage_clocks)
    feasible = np.flatnonzero(values["violation"] <= 0.0)
    plans: Columns = {name: values[layout] for name, values in physics.layouts.items()}
    plans |= {name: values[name] for name in RESULTS}
    plans |= {"stage_clock_mhz": stage_clocks, "fit_probability": fitting[layout]}
    return take(plans, feasible), layout[feasible]


def ends_and_knee(plans: Columns, pair: Sequence[str] = OBJECTIVES) -> Ints:
    """Rows of the fastest plan, the knee and the one of least energy, by time; the fastest where energy is unknown.

    ``pair``: the columns of time and energy.
    """
    time_s, energy_j = (plans[name] for name in pair)
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
    known_s, of = np.array([float(plan["iteration_time_s"])]), np.array([layout])
    curves, stretch = physics.time_curves, float(physics.time_factor[layout])
    if curves is not None:
        stretch = float(np.exp(np.log(known_s) - curves.inverse.at(of, np.log(known_s)))[0])
    # the schedule need not be walked through again: its length is what the rest of the known time leaves
    t = physics.times(g, rows, np.asarray(plan["stage_clock_mhz"])[None], least_makespan_s)
    total_s = known_s / stretch
    t = replace(t, makespan_s=t.makespan_s + total_s - t.total_s, total_s=total_s)
    return {name: stretch * float(seconds[0]) for name, seconds in time_parts(physics.groups[g], rows, t).items()}


# What a proposal and its plans can be asked for, by the module that it is in; imported then.
_VERBS = {"report_of": "page", "export": "export", "explain": "explain", "compare": "compare", "select_from": "select"}


def _verb(name: str) -> Callable[..., Any]:
    """A verb of `_VERBS`."""
    found: Callable[..., Any] = getattr(importlib.import_module(f"jointopt.workflows.{_VERBS[name]}"), name)
    return found


# What a proposal says beside its plans: where they were not checked, and the command that comes next.


def domain_doubts(model: JobModel, front: Columns) -> tuple[str, ...]:
    """An assumed range of clocks, then why plans are outside of what was checked, each with its number of plans."""
    clocks = [model.job.assumed_clocks] if model.job.assumed_clocks else []
    unsupported = np.asarray(front["in_domain"]) == False  # noqa: E712  an array of objects has blanks too
    found = {DOUBTS[name]: of & unsupported for name, of in model.doubts(front).items()}
    found[unlike_recorded_runs(model.name, model.job)] = unsupported & ~np.logical_or.reduce(list(found.values()))
    counts = {why: int(of.sum()) for why, of in found.items()}
    return (*clocks, *(f"{why} ({count:,} plan{'s' * (count != 1)})" for why, count in counts.items() if count))


def next_command(proposal: Proposal) -> dict[str, str] | None:
    """The command that starts the recommended plan, as `start_command` has it; None where no shell named the job."""
    front, source = proposal.front, proposal.source
    if not source or not len(front["pp"]):
        return None
    row = proposal.decision.row
    plan = {name: value for name, value in plan_entries(front, [row])[0].items() if name in PLAN_KEYS}
    wanted = f"--plan {sh_word(short_plan(front, row))}" + " --allow-tight" * (not proposal.feasible)
    return start_command(proposal.job, plan, source, wanted)
