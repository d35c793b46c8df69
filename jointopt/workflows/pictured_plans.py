"""The page of a proposal: its chosen plans taken apart by the model of its job, and what starts each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from jointopt.core.errors import JointOptError
from jointopt.frameworks.exported import exported
from jointopt.frameworks.intent import intent_of
from jointopt.frameworks.targets import TARGETS, program_of
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job
from jointopt.jobs.plans.text import PLAN_KEYS, format_plan, parse_plan
from jointopt.physics.explain.parts import breakdown
from jointopt.physics.explain.timeline import stage_power_w, timeline
from jointopt.report.page.choice import PlanPicture, Reported, chosen_plans
from jointopt.report.page.content import content
from jointopt.report.page.render import Page
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.remedy import shortage_of


def report_of(document: Mapping[str, Any], model: JobModel) -> Reported:
    """The report of a proposal's document, by the model of its job; each chosen plan is priced once."""
    job, plans = model.job, list[PlanPicture]()
    chosen = chosen_plans(document["front"], document.get("reference"), document.get("baseline") or "")
    for letter, one in zip(ascii_uppercase, chosen, strict=False):
        plan = {name: one.entry[name] for name in PLAN_KEYS if name in one.entry}
        parsed = parse_plan(plan, job)
        physics, clocks = model.cost_model(parsed.layouts), parsed.stage_clock_mhz[0]
        parts = breakdown(physics, 0, clocks)
        runs_w, waits_w = stage_power_w(physics, 0, parts)
        text = format_plan(parsed.layouts, parsed.stage_clock_mhz)
        short = shortage_of(model, physics)
        started = _started(job, plan, [short.sentence()] if short else [])
        plans.append(PlanPicture(letter, one, text, parts, timeline(physics, 0, clocks), runs_w, waits_w, started))
    shown = content(job, document, plans, physics.cooler, dump_job(job), max(map(_drift, plans)))
    return Reported(Page(shown, "proposal"), plans)


def _started(job: Job, plan: Mapping[str, Any], tight: Sequence[str]) -> dict[str, Any]:
    """The words that start a plan in its job's framework, or why nothing does; ``tight``: that it may not fit."""
    target = ""
    try:
        wanted = program_of(intent_of(job, plan))
        target = next(name for name, target in TARGETS.items() if target is wanted)
        found = exported(job, plan, target)
    except JointOptError as error:
        return {"target": target or job.training.framework.name, "text": "", "refused": str(error), "notes": ()}
    return {"target": target, "text": found.text(), "refused": "", "notes": (*found.export.notes, *tight)}


def _drift(plan: PlanPicture) -> float:
    """Share by which the time priced now differs from the proposal's."""
    return abs(sum(plan.parts.time_s.values()) / float(plan.chosen.entry["iteration_time_s"]) - 1.0)
