"""What to say when nothing is feasible: the commonest reasons, and the smallest change that would help."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jointopt.physics import costs as pc
from jointopt.physics.estimate import Estimator, memory_limit_gib, peak_memory_bytes
from jointopt.plans.space import enumerate_layouts
from jointopt.schema import Columns
from jointopt.spec.job import Job
from jointopt.units import GIB

_MOST_NODES = 4096


def remedy(job: Job, layouts: Columns, dropped: Mapping[str, int], physics: Estimator | None = None) -> str:
    """One message for InfeasibleError; ``layouts`` are the last ones standing (possibly none)."""
    reasons = sorted(dropped, key=lambda reason: -dropped[reason])[:3]
    said = "; ".join(f"{reason} ({dropped[reason]:,} layouts)" for reason in reasons)
    message = f"No plan of job {job.name!r} is feasible. Commonest reasons: {said}."
    if physics is not None:
        return f"{message} {_closest(physics)}"
    if len(layouts["pp"]):
        message += f" {_shortage(job, layouts)}"
    change = next(_changes_that_help(job), None)
    return f"{message} {change}" if change else message


def _shortage(job: Job, layouts: Columns) -> str:
    """By how much the leanest layout misses, and on which stage."""
    needed = peak_memory_bytes(job, layouts)
    row = int(needed.argmin())
    layout = {name: values[[row]] for name, values in layouts.items()}
    stage = int(np.sum(list(pc.memory_parts(job, layout).values()), axis=0)[0].argmax())
    missing = needed[row] / GIB - memory_limit_gib(job)
    degrees = " ".join(
        f"{name}={int(layout[name][0])}" for name in ("dp", "tp", "pp", "cp", "micro_batch_size")
    )
    return (
        f"The leanest layout ({degrees}) is out of memory by {missing:.1f} GiB per GPU on stage {stage + 1}."
    )


def _closest(physics: Estimator) -> str:
    """Which constraint the closest plan still breaks, when memory is not the trouble."""
    count = len(physics.layouts["pp"])
    top = np.full((count, int(physics.layouts["pp"].max())), physics.top_mhz)
    low = np.full_like(top, min(physics.job.search.clock_mhz))
    tries = [physics.evaluate(np.arange(count), clocks) for clocks in (top, low)]
    limits = physics.job.constraints
    words = []
    for name in ("iteration_time_s", "energy_j", "avg_power_w"):
        bound = getattr(limits, name)
        if bound is not None:
            best = min(float(t[name].min()) for t in tries)
            words.append(f"constraints.{name} is {bound:g} and the least any plan needs is about {best:.4g}")
    if limits.cluster_power_kw is not None:
        words.append(f"constraints.cluster_power_kw is {limits.cluster_power_kw:g}")
    return "Relax a constraint: " + "; ".join(words) + "."


def _changes_that_help(job: Job) -> Iterator[str]:
    """Single changes after which at least one layout fits, the cheapest first."""
    for field in dataclasses.fields(job.search):
        if field.name in ("clock_mhz", "per_stage_clocks") or getattr(job.search, field.name) is None:
            continue
        free: dict[str, Any] = {field.name: None}
        freer = dataclasses.replace(job, search=dataclasses.replace(job.search, **free))
        if _fits(freer):
            yield f"It would fit without search.{field.name}."
    if job.constraints.memory_fraction is not None:
        freer = dataclasses.replace(
            job, constraints=dataclasses.replace(job.constraints, memory_fraction=1.0)
        )
        if _fits(freer):
            yield "It would fit with constraints.memory_fraction of 1."
    nodes = job.cluster.nodes
    for more in sorted({nodes + 1, nodes + 2, *(nodes * 2**k for k in range(1, 8))}):
        if more <= _MOST_NODES and _fits(_with_nodes(job, more)):
            yield f"It would fit on {more} nodes instead of {nodes}."
    for batch in (job.training.global_batch_size + k for k in range(1, 2 * job.cluster.num_gpus)):
        training = dataclasses.replace(job.training, global_batch_size=batch)
        if _fits(dataclasses.replace(job, training=training)):
            yield f"It would fit with training.global_batch_size of {batch}."


def _with_nodes(job: Job, nodes: int) -> Job:
    return dataclasses.replace(job, cluster=dataclasses.replace(job.cluster, nodes=nodes))


def _fits(job: Job) -> bool:
    layouts = enumerate_layouts(job).layouts
    if not len(layouts["pp"]):
        return False
    return bool(peak_memory_bytes(job, layouts).min() <= memory_limit_gib(job) * GIB)
