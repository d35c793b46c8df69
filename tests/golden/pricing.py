"""The figures that the golden files hold, as tables of text: the one file here that calls jointopt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.catalog.frameworks import framework_names
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job, parse_job, shipped_jobs
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import format_plan, parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.site import with_site
from jointopt.report.results import Explanation
from jointopt.workflows.explain import explain
from jointopt.workflows.predict import predict
from jointopt.workflows.propose import propose

HERE = Path(__file__).parent
_ONE, _EVERY = "one", "every"
_LARGE_SPACES = {"gpt3-175b-128x8-a100", "llama-3-405b-2048x8-h100"}  # whose fronts take long
_TOTALS = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")
_PARTS = ("time_s", "energy_by_part_j", "memory_gib", "memory_energy_j")
_ROUNDING = 1e-9  # of a total: below this a part that is a difference is rounding


def plans() -> pd.DataFrame:
    """Time, energy, power, memory, heat and their parts of every plan of jobs.yaml, by the physics alone."""
    found = [
        {"job": name, "plan": plan} | _figures(explain(job, plan, surrogate="none"))
        for name, job, entry in _jobs(_ONE)
        for plan in entry["plans"]
    ]
    return pd.DataFrame(found)


def frameworks() -> pd.DataFrame:
    """Totals, heat and site of the plans of jobs.yaml that are priced for every framework, by the physics alone."""
    return pd.concat([_priced(name, job, entry["plans"]) for name, job, entry in _jobs(_EVERY)])


def defaults() -> pd.DataFrame:
    """The plan in full that each blank plan of jobs.yaml stands for, with every framework."""
    found = []
    for name, job, entry in _jobs(_EVERY):
        for plan in entry.get("blank_plans", ()):
            parsed = parse_plan(plan, job)
            in_full = format_plan(parsed.layouts, parsed.stage_clock_mhz)
            found.append({"job": name, "plan": plan, "plan_in_full": in_full})
    return pd.DataFrame(found)


def rows() -> pd.DataFrame:
    """What is predicted of the rows of runs.csv: by the physics alone; of Megatron-LM's rows, by the shipped surrogate
    before and after the runs of measured.csv too.
    """
    runs, measured = (pd.read_csv(HERE / name) for name in ("runs.csv", "measured.csv"))
    few = runs[runs["framework"] == "Megatron-LM"]
    answers = {
        "none": predict(runs, surrogate="none"),
        "default": predict(few, surrogate="default"),
        "default measured": predict(few, surrogate="default", measured=measured),
    }
    both = pd.concat([answer.assign(surrogate=by) for by, answer in answers.items()])
    both["not_predicted"] = both["not_predicted"].astype(bool)
    made = [name for name in both if name not in runs and name != "surrogate"]
    return both[["row", "surrogate", *made]]


def spaces() -> pd.DataFrame:
    """How many combinations each job's space considers and keeps, with totals of the kept layouts' columns."""
    jobs = {name: job for frameworks in (_EVERY, _ONE) for name, job, _ in _jobs(frameworks)}
    jobs |= {name: load_job(name) for name in shipped_jobs()}
    found = []
    for name, job in jobs.items():
        space = enumerate_layouts(job)
        columns = space.layouts | {"stage_layers": space.layouts["stage_layers"] > 0}  # whose codes are a process' own
        kept = {f"sum_{c}": int(columns[c].sum(dtype=np.int64)) for c in LAYOUT_COLUMNS}
        found.append({"job": name, "considered": space.considered, "kept": space.size} | kept)
    return pd.DataFrame(found)


def fronts() -> pd.DataFrame:
    """The exact front of shipped jobs by the physics alone: its size and its two ends, with their plans."""
    found = []
    for name in sorted({*shipped_jobs()} - _LARGE_SPACES):
        front = propose(load_job(name), trials=0, surrogate="none").front
        ends: dict[str, Any] = {"job": name, "plans": len(front["energy_j"])}
        for end, at in (("fastest", 0), ("thriftiest", -1)):
            index = range(len(front["energy_j"]))[at]
            ends[f"{end}_plan"] = format_plan(front, front["stage_clock_mhz"], index)
            ends |= {f"{end}_{total}": float(front[total][at]) for total in _TOTALS}
        found.append(ends)
    return pd.DataFrame(found)


TABLES: dict[str, Callable[[], pd.DataFrame]] = {
    "plans": plans,
    "frameworks": frameworks,
    "defaults": defaults,
    "rows": rows,
    "spaces": spaces,
    "fronts": fronts,
}


def _jobs(frameworks: str) -> Iterator[tuple[str, Job, Mapping[str, Any]]]:
    """(name, job, its entry) of jobs.yaml: of the jobs with one framework, or of the others with every one in turn."""
    for name, entry in yaml.safe_load((HERE / "jobs.yaml").read_text(encoding="utf-8")).items():
        if entry.get("frameworks", _ONE) != frameworks:
            continue
        given = {key: entry[key] for key in ("model", "cluster", "constraints") if key in entry}
        for framework in framework_names() if frameworks == _EVERY else [entry["training"]["framework"]]:
            training = entry["training"] | {"framework": framework}
            named = f"{name} {framework}" if frameworks == _EVERY else name
            yield named, parse_job({"name": named, "training": training} | given, named, HERE), entry


def _priced(name: str, job: Job, texts: Sequence[str]) -> pd.DataFrame:
    """Totals and heat of plans of one job, all priced at once."""
    parsed = [parse_plan(text, job) for text in texts]
    layouts = {c: np.concatenate([plan.layouts[c] for plan in parsed]) for c in LAYOUT_COLUMNS}
    clocks = np.full((len(parsed), int(layouts["pp"].max())), np.nan)
    for row, plan in zip(clocks, parsed, strict=True):
        row[: plan.stage_clock_mhz.size] = plan.stage_clock_mhz[0]
    physics, index = CostModel(job, layouts), np.arange(len(parsed))
    columns = physics.evaluate(index, clocks) | physics.heat(index, clocks)
    return pd.DataFrame({"job": name, "plan": texts} | with_site(job, columns))


def _figures(explanation: Explanation) -> dict[str, Any]:
    """All figures of an explanation in one row; absent and vanishing parts are blank."""
    stages = explanation.stages
    figures: dict[str, Any] = {total: getattr(explanation, total) for total in _TOTALS}
    figures |= {
        "rules_broken": len(explanation.against),
        "temperature_c": max(stage.temperature_c for stage in stages),
        "peak_power_w": max(stage.peak_power_w for stage in stages),
        "power_limit_w": min(stage.power_limit_w for stage in stages),
        "lowest_clock_mhz": min(stage.clock_mhz for stage in stages),
        "held_by": " ".join(sorted({stage.held_by for stage in stages} - {""})),
        "idle_s": sum(stage.idle_s for stage in stages),
    }
    links = {
        f"{kind}.{link}": joules
        for kind, by in explanation.communication_energy_j.items()
        for link, joules in by.items()
    }
    for group, parts in [*((name, getattr(explanation, name)) for name in _PARTS), ("link_energy_j", links)]:
        least = _ROUNDING * sum(abs(value) for value in parts.values())
        figures |= {f"{group}.{part}": value for part, value in parts.items() if abs(value) > least}
    return figures
