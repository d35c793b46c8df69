"""One plan against every rule of the joint space, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jointopt.spec.job import Job
from jointopt.spec.plans.rules import layout_rules, plan_columns, plan_figures


def check_plan(job: Job, plan: Mapping[str, Any]) -> list[str]:
    """Sentences that name the rules that ``plan`` breaks for ``job``; empty for a point of the job's space.

    ``plan`` has the layout columns as Python scalars, ``recompute`` by name. Non-canonical plans are reported
    too; `jointopt.spec.plans.parse.parse_plan` gives canonical ones. Memory and other constraints are not looked
    at here.
    """
    columns = plan_columns(plan)
    broken = [rule for rule in layout_rules(job) if rule.sentence and rule.broken(columns).item()]
    broken.sort(key=lambda rule: rule.of_search)
    figures = {**plan, **plan_figures(job, plan)}
    sentences = [rule.sentence.format(**figures) for rule in broken]
    return [*sentences, *_power(job, plan)]


def _power(job: Job, plan: Mapping[str, Any]) -> Iterator[str]:
    most, given = job.cluster.power_limit_w, {"power_limit_w": [plan.get("power_limit_w")]}
    for key, limits in (given | {"stage_power_limit_w": plan.get("stage_power_limit_w", [])}).items():
        if any(watts is not None and watts > most for watts in limits):
            yield f"{key} is above the {most:g} W that a GPU of the cluster may draw (cluster.power_limit_w)."
