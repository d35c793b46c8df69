"""``report``: a proposal as one HTML file, its chosen plans taken apart pass by pass."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import JointOptError
from jointopt.frameworks.exported import exported
from jointopt.frameworks.intent import intent_of
from jointopt.frameworks.targets import TARGETS, program_of
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import dump_job, parse_job
from jointopt.jobs.plans.text import PLAN_KEYS, format_plan, parse_plan
from jointopt.physics.explain.parts import breakdown
from jointopt.physics.explain.timeline import stage_power_w, timeline
from jointopt.physics.site import with_site
from jointopt.report.decision import recommended_entry
from jointopt.report.page.choice import PlanPicture, ProposalReport, chosen_plans
from jointopt.report.page.content import content
from jointopt.report.page.render import Page
from jointopt.surrogate.files import holds_surrogate, load
from jointopt.surrogate.job_model import JobModel
from jointopt.workflows.answers import accepts_paths, model_of
from jointopt.workflows.remedy import shortage_of
from jointopt.workflows.stored_plans import PROPOSAL, stored_proposal

if TYPE_CHECKING:
    from jointopt.workflows.answers import CalibrationLike, MachineLike, TableLike


@accepts_paths
def page(
    source: str, *, surrogate: str | None = None, studies: str | None = None,
    measured: TableLike | None = None, calibration: CalibrationLike | None = None,
    storage: str | None = None, machine: MachineLike | None = None, pue: float | None = None,
) -> ProposalReport:  # fmt: skip
    """The report of a stored proposal, whose plans are priced by the surrogate that it names, unless another is given.

    Parameters
    ----------
    source : str
        A file or folder of ``propose --out``, or the name of a study of ``studies``.
    surrogate : str, optional
        In place of the one that the proposal names.
    studies : str, optional
        URL of the Optuna storage that has the study.
    measured : DataFrame, Measurements or path, optional
        Runs measured on the same cluster, which correct the predictions.
    calibration : Calibration or path, optional
        Clock response of the GPU, as ``jointopt calibrate`` writes it.
    storage : str, optional
        URL of the database whose measured runs correct the predictions too; none by default.
    machine : Machine or path, optional
        Links, products and memory of the nodes, as ``jointopt doctor --probe`` measures them.
    pue : float, optional
        Power usage effectiveness of the site, energy at its meter over that of the nodes, in place of the job's.

    Returns
    -------
    ProposalReport
        ``.write("report.html")`` writes one HTML file that needs no network.

    Raises
    ------
    UsageError
        Where nothing is proposed.
    """
    document = stored_proposal(source, studies)
    job = parse_job(document["job_file"], document["job"], Path()).on_site(pue)
    if pue is not None:
        document |= {"front": [with_site_costs(job, entry) for entry in document["front"]]}
        document |= {"reference": with_site_costs(job, document["reference"])} if document.get("reference") else {}
    named = surrogate or str(document["surrogate"])
    return report_of(document, model_of(job, named, measured, calibration, storage, machine))


def surrogate_page(source: str) -> Page | None:
    """The page of `retrain` of the surrogate in the folder ``source``, by its card; None where none is there."""
    folder = Path(source)
    if not folder.is_dir() or (folder / PROPOSAL).exists() or not holds_surrogate(folder):
        return None
    from jointopt.report.scores import Retrained

    card = (found := load(folder)).card
    learned, groups = card.get("learned_from", {}), card.get("error_per_group", {})
    return Retrained.of_errors(card["error"], folder, found.importance, learned, groups).report()


def with_site_costs(job: Job, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of a document with what the site draws and pays for it, as the job states its site."""
    sides = [end for end in ("", "_low", "_high") if f"iteration_time_s{end}" in entry]
    names = [f"{name}{end}" for name in ("iteration_time_s", "energy_j", "avg_power_w") for end in sides]
    paid = with_site(job, {name: np.array([entry[name]], np.float64) for name in names})  # a null is NaN
    known = {name: float(values[0]) for name, values in paid.items() if name not in names}
    return dict(entry) | {name: value if math.isfinite(value) else None for name, value in known.items()}


def report_of(document: Mapping[str, Any], model: JobModel) -> ProposalReport:
    """The report of a proposal's document, by the model of its job; each chosen plan is priced once."""
    job, plans = model.job, list[PlanPicture]()
    recommended = recommended_entry(job, document["front"])[0]
    chosen = chosen_plans(document["front"], document.get("reference"), document.get("baseline") or "", recommended)
    for letter, one in zip(ascii_uppercase, chosen, strict=False):
        plan = {name: one.entry[name] for name in PLAN_KEYS if name in one.entry}
        parsed = parse_plan(plan, job)
        physics, clocks = model.cost_model(parsed.layouts), parsed.stage_clock_mhz[0]
        parts = breakdown(physics, 0, clocks)
        runs_w, waits_w = stage_power_w(physics, 0, parts)
        text = format_plan(parsed.layouts, parsed.stage_clock_mhz)
        short = shortage_of(model, physics)
        started = _start_words(job, plan, [short.sentence()] if short else [])
        plans.append(PlanPicture(letter, one, text, parts, timeline(physics, 0, clocks), runs_w, waits_w, started))
    shown = content(job, document, plans, physics.cooler, dump_job(job), max(map(_drift, plans)))
    return ProposalReport(Page(shown, "proposal"), plans)


def _start_words(job: Job, plan: Mapping[str, Any], tight: Sequence[str]) -> dict[str, Any]:
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
