"""What would help where a plan, or every plan of a job, is not expected to fit: changes, each of which is tried."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import DEGREES, LAYOUT_COLUMNS, Columns
from jointopt.core.units import GIB
from jointopt.jobs.job import Job
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel, memory_limit_gib, with_unit
from jointopt.physics.memory import memory_parts, peak_memory_bytes
from jointopt.report.explanation import Shortage
from jointopt.report.plans import probability_text
from jointopt.report.tables import figure
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import FEASIBLE

MOST_CHANGES = 3  # that a sentence names
_MOST_NODES = 4096
_MOST_BATCHES = 64
_LORA_DIM = 16  # a usual rank of adapters
_MOST_TRIES = 500_000  # plans that are priced to say which constraint is out of reach
JobChange = tuple[
    str, Mapping[str, Any], str
]  # section of the job, its other values, and the sentence that states them


def shortage_of(model: JobModel, physics: CostModel, plan: Mapping[str, Any] | None = None) -> Shortage | None:
    """The shortage of the one layout of ``physics``, of a ``plan`` with the changes that help; None if it fits."""
    probability = float(model.fit_probability(physics)[0])
    if probability >= FEASIBLE:
        return None
    changes = [] if plan is None else list(islice(_helpful_changes(model, plan), MOST_CHANGES))
    ran_out = bool(model.certain_oom(physics.layouts)[0])
    return Shortage(float(physics.memory_bytes[0]) / GIB, allowed_gib(model), probability, changes, ran_out)


def allowed_gib(model: JobModel) -> float:
    """Predicted memory of a GPU in GiB up to which a plan of the model's job is feasible."""
    allowed = memory_limit_gib(model.job) * model.memory.factor * model.memory.largest_load()
    stated = model.job.constraints.memory_fraction is not None
    return min(allowed, memory_limit_gib(model.job)) if stated else allowed


def _helpful_changes(model: JobModel, plan: Mapping[str, Any]) -> Iterator[str]:
    """Changes of one to three columns, each after which the plan keeps every rule and is feasible."""
    decided = {"recompute": ("recompute_modules", "recompute_num_layers"), "pp": ("stage_layers",)}
    for change in _plan_changes(plan):
        without = {name for key in change for name in decided.get(key, ())}
        changed = {name: plan[name] for name in LAYOUT_COLUMNS if name in plan and name not in without} | change
        try:
            parsed = parse_plan(changed, model.job)
        except UsageError:  # no such plan
            continue
        physics = model.cost_model(parsed.layouts)
        record = parsed.record
        if not check_plan(model.job, record) and float(model.fit_probability(physics)[0]) >= FEASIBLE:
            yield " ".join(f"{name}={value}" for name, value in change.items())


def _plan_changes(plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Changes that take less memory, those that cost least first."""
    micro, dp, tp, pp = (int(plan[name]) for name in ("micro_batch_size", "dp", "tp", "pp"))
    if micro > 1:
        yield from ({"micro_batch_size": size} for size in dict.fromkeys((micro // 2, 1)))
    yield from ({"zero_stage": stage} for stage in range(int(plan["zero_stage"]) + 1, 4))
    yield from ({"recompute": level} for level in ("selective", "full") if level != plan["recompute"])
    if dp % 2 == 0:
        yield {"dp": dp // 2, "tp": 2 * tp}
        yield {"dp": dp // 2, "pp": 2 * pp}
    yield {"offload": "optimizer"}
    for level in (plan["recompute"], "full"):
        yield from ({"micro_batch_size": 1, "recompute": level, "zero_stage": stage} for stage in range(4))


def remedy(
    model: JobModel, layouts: Columns, dropped: Mapping[str, int], physics: CostModel | None = None,
    plans: Columns | None = None,
) -> str:  # fmt: skip
    """One message for InfeasibleError; ``layouts`` are the last ones standing (possibly none).

    ``dropped`` counts layouts by reason, in order; the last reason is what dropped ``layouts``. ``plans``: those of the
    front without constraints, which show how far these must be relaxed.
    """
    job = model.job
    reasons = sorted(dropped, key=lambda reason: -dropped[reason])
    if len(layouts["pp"]):
        reasons.sort(key=lambda reason: reason != list(dropped)[-1])
    common = "; ".join(f"{reason} ({dropped[reason]:,} layouts)" for reason in reasons[:3])
    message = f"No plan of job {job.name!r} is feasible. Commonest reasons: {common}."
    if physics is not None:
        return f"{message} {_unmet_constraints(physics, plans)}"
    if len(layouts["pp"]):
        needed = peak_memory_bytes(job, layouts)
        leanest = {name: values[[needed.argmin()]] for name, values in layouts.items()}
        stage = int(np.sum(list(memory_parts(job, leanest).values()), axis=0)[0].argmax())
        degrees = " ".join(f"{name}={leanest[name][0]}" for name in (*DEGREES, "micro_batch_size"))
        short = shortage_of(model, model.cost_model(leanest))
        if short is not None and short.ran_out:
            message += f" Of the leanest layout ({degrees}), {short.cause}."
        elif short is not None:
            message += (
                f" The leanest layout ({degrees}) is out of memory by {short.missing_gib:.1f} GiB per GPU on stage "
                f"{stage + 1}: it needs {short.predicted_gib:.1f} GiB and fits with probability "
                f"{probability_text(short.probability)}."
            )
    helps: list[str] = []
    for tries in _job_changes(model, bool(len(layouts["pp"]))):
        fitting = (text for section, values, text in tries if not section or _fits(model, section, values))
        helps += islice(fitting, 1)
    return " ".join([message, *helps[:MOST_CHANGES]])


def _unmet_constraints(physics: CostModel, plans: Columns | None) -> str:
    """Constraints that no plan meets; where each can be met alone, the least that the others leave of each."""
    # all layouts at a few uniform clocks, the highest and the lowest among them
    count, grid = len(physics.layouts["pp"]), np.asarray(physics.job.search.clock_mhz)
    steps = int(np.clip(_MOST_TRIES // count, 3, 12))
    clocks = np.unique(grid[np.linspace(0, len(grid) - 1, steps).round().astype(int)])
    wide = np.repeat(clocks, count)[:, None] + np.zeros(int(physics.layouts["pp"].max()))
    tried = physics.evaluate(np.tile(np.arange(count), len(clocks)), wide)
    if plans is not None:
        tried = {name: np.concatenate([values, plans[name]]) for name, values in tried.items()}
    limits = physics.limits(tried)
    short = {name: float(found.min()) for name, (found, bound) in limits.items() if found.min() > bound}
    if short:
        words = [
            f"constraints.{name} is {with_unit(name, figure(limits[name][1]))} and no plan needs less than about "
            f"{with_unit(name, _rounded_up(least))}"
            for name, least in short.items()
        ]
        return f"Relax a constraint: {'; '.join(words)}."
    words = []
    for name, (found, _) in limits.items():
        others = np.all([values <= bound for n, (values, bound) in limits.items() if n != name], axis=0)
        if others.any():
            words.append(f"constraints.{name} to about {with_unit(name, _rounded_up(float(found[others].min())))}")
    return f"Each constraint can be met alone, not all together: relax {', or '.join(words) or 'several'}."


def _rounded_up(value: float) -> str:
    """Rounded up to the four digits that are shown, so that the bound is met; as people write it into a job file."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return figure(math.ceil(value / unit) * unit).replace(",", "")


def _job_changes(model: JobModel, short_of_memory: bool) -> Iterator[Iterable[JobChange]]:
    """By kind, the cheapest first, changes of the job that may help, in the order in which they are tried.

    A change without a section needs no trial.
    """
    job, training, search, nodes = model.job, model.job.training, model.job.search, model.job.cluster.nodes
    framework, batch = training.framework, training.global_batch_size
    narrow = replace(framework, frozen_dtype="bf16")
    if training.frozen and narrow != framework:
        yield [("training", {"framework": narrow}, "It would fit with frozen weights in bf16, which "
                f"{framework.name} holds in {framework.frozen_dtype}.")]  # fmt: skip
    fixed = [name for name in LAYOUT_COLUMNS if getattr(search, name) is not None]
    yield [("search", dict.fromkeys(names), f"It would fit without {' and '.join(f'search.{n}' for n in names)}.")
           for names in [*([name] for name in fixed), fixed] if names]  # fmt: skip
    if job.constraints.memory_fraction is not None:
        load = max(model.memory.factor, 1.0 / model.memory.largest_load())
        fraction = math.ceil(100.0 * load * _least_gib(job) / job.cluster.gpu.memory_gib) / 100.0
        if fraction <= 1.0:
            yield [("", {}, f"It would fit with constraints.memory_fraction of {fraction:g}.")]
    on_nodes = "It would fit on {} nodes instead of " + f"{nodes}."
    doublings = (nodes * 2**k // 2 for k in range(2, 9))  # with one number in between
    more = {nodes + k for k in range(1, 5)}.union(*({n, n + n // 2} for n in doublings))
    yield (("cluster", {"nodes": n}, on_nodes.format(n)) for n in sorted(more) if n <= _MOST_NODES)
    if short_of_memory:
        yield [("search", {"offload": ("none", what)}, f"It would fit with the {what} in host memory "
                f"(search.offload: [none, {what}]).") for what in ("optimizer", "activations")
               if search.offload is None]  # fmt: skip
        adapters = f"Adapters (LoRA) beside frozen weights would fit (training.lora_dim: {_LORA_DIM})."
        yield [] if training.frozen else [("training", {"lora_dim": _LORA_DIM}, adapters)]
    else:
        yield (("training", {"global_batch_size": n}, f"It would fit with training.global_batch_size of {n}.")
               for n in range(batch + 1, batch + _MOST_BATCHES + 1))  # fmt: skip
        fewer = [2**k for k in reversed(range((nodes - 1).bit_length()))]
        yield [("cluster", {"nodes": n}, on_nodes.format(n)) for n in fewer]


def _least_gib(job: Job) -> float:
    """Memory of the fullest GPU of the layout that needs least; infinite where there is no layout."""
    return float(peak_memory_bytes(job, enumerate_layouts(job).layouts).min(initial=math.inf)) / GIB


def _fits(model: JobModel, section: str, values: Mapping[str, Any]) -> bool:
    """Whether a layout of the job is feasible with other values in one of its sections."""
    job = replace(model.job, **{section: replace(getattr(model.job, section), **values)})
    likely = replace(model, job=job).fit_probability_of(np.array([GIB * _least_gib(job)]))
    return bool((likely >= FEASIBLE).all())
