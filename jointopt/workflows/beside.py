"""Plans that a proposal shows beside its front: what others published for the job, and a conventional neighbour."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import Bools, Columns, Floats
from jointopt.core.units import Z_90
from jointopt.jobs.catalog.recipes import Recipe, recipes_for
from jointopt.jobs.job import Job
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import format_plan, parse_plan, plan_records
from jointopt.physics.cost_model import CostModel
from jointopt.report.plans import odds
from jointopt.report.published_plans import Beside
from jointopt.search.fastest import fastest
from jointopt.search.problem import Problem
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import SURE
from jointopt.workflows.problem import at_top, top_times
from jointopt.workflows.ranking import place_of

# What published runs keep to (studies/recipes and the tables of docs/accuracy.md).
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
