"""The memory that a plan lacks, and the changes of it after which it would fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import LAYOUT_COLUMNS, Columns
from jointopt.core.units import GIB
from jointopt.jobs.job import Job
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import parse_plan, plan_records
from jointopt.physics.cost_model import CostModel, memory_limit_gib, with_unit
from jointopt.physics.memory import memory_parts, peak_memory_bytes
from jointopt.report.plans import odds
from jointopt.report.tables import figure
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.memory import FEASIBLE

MOST_CHANGES = 3  # that a sentence names


@dataclass(frozen=True)
class Shortage:
    """Memory per GPU that a plan lacks to be as likely to fit as not, in GiB, on its fullest GPU."""

    predicted_gib: float
    allowed_gib: float  # up to which predictions are as likely to fit as not
    probability: float  # of fitting
    changes: tuple[str, ...] = ()  # words for a plan after which it would fit, such as recompute=full
    ran_out: bool = False  # in a measured run, or it needs as much as a layout that did

    @property
    def cause(self) -> str:
        """Why it is not expected to fit."""
        if self.ran_out:
            return "the same layout, or one that needs no more, ran out of memory in a measured run"
        return f"its fullest GPU needs {self.predicted_gib:.1f} GiB, {_at_least(self.missing_gib)} GiB too many"

    @property
    def missing_gib(self) -> float:
        """GiB too many; NaN where runs alone say so."""
        missing = self.predicted_gib - self.allowed_gib
        return math.nan if self.ran_out and missing <= 0.0 else missing

    def document(self) -> dict[str, Any]:
        """The GiB that are missing, and the changes that help."""
        return {"missing_gib": self.missing_gib, "would_fit_with": list(self.changes)}

    def sentence(self) -> str:
        """The shortage in a sentence, and in another what would help."""
        needs = f"It is not expected to fit in memory (probability {odds(self.probability)}): {self.cause}."
        return needs + (f" It would fit with {', or with '.join(self.changes)}." if self.changes else "")


def _at_least(gib: float) -> str:
    """A shortage rounded up: one of nothing is none."""
    return f"{math.ceil(gib * 10.0 - 1e-9) / 10.0:.1f}"


def allowed_gib(model: JobModel) -> float:
    """Predicted memory of a GPU in GiB up to which a plan of the model's job is feasible."""
    allowed = memory_limit_gib(model.job) * model.memory.factor * model.memory.largest_load()
    stated = model.job.constraints.memory_fraction is not None
    return min(allowed, memory_limit_gib(model.job)) if stated else allowed


def shortage_of(model: JobModel, physics: CostModel, plan: Mapping[str, Any] | None = None) -> Shortage | None:
    """The shortage of the one layout of ``physics``, of a ``plan`` with the changes that help; None if it fits."""
    probability = float(model.fit_probability(physics)[0])
    if probability >= FEASIBLE:
        return None
    changes = () if plan is None else tuple(_changes(model, plan))[:MOST_CHANGES]
    ran_out = bool(model.surely_out(physics.layouts)[0])
    return Shortage(float(physics.memory_bytes[0]) / GIB, allowed_gib(model), probability, changes, ran_out)


def _changes(model: JobModel, plan: Mapping[str, Any]) -> Iterator[str]:
    """Changes of one to three columns, each after which the plan keeps every rule and is feasible."""
    for change in _candidates(plan):
        try:
            parsed = parse_plan(_changed(plan, change), model.job)
        except UsageError:  # no such plan
            continue
        physics = model.cost_model(parsed.layouts)
        record = plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0]
        if not check_plan(model.job, record) and float(model.fit_probability(physics)[0]) >= FEASIBLE:
            yield " ".join(f"{name}={value}" for name, value in change.items())


def _changed(plan: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The plan's layout after a change, without what the changed columns decide."""
    decided = {"recompute": ("recompute_modules", "recompute_num_layers"), "pp": ("stage_layers",)}
    without = {name for key in change for name in decided.get(key, ())}
    return {name: plan[name] for name in LAYOUT_COLUMNS if name in plan and name not in without} | dict(change)


def _candidates(plan: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Changes that take less memory, those that cost least first."""
    micro, dp, tp, pp = (int(plan[name]) for name in ("micro_batch_size", "dp", "tp", "pp"))
    if micro > 1:
        yield {"micro_batch_size": micro // 2}
        yield {"micro_batch_size": 1}
    yield from ({"zero_stage": stage} for stage in range(int(plan["zero_stage"]) + 1, 4))
    yield from ({"recompute": level} for level in ("selective", "full") if level != plan["recompute"])
    if dp % 2 == 0:
        yield {"dp": dp // 2, "tp": 2 * tp}
        yield {"dp": dp // 2, "pp": 2 * pp}
    yield {"offload": "optimizer"}
    for level in (plan["recompute"], "full"):
        yield from ({"micro_batch_size": 1, "recompute": level, "zero_stage": stage} for stage in range(4))


# Why nothing is feasible: the commonest reasons, and the smallest change that would help.


_MOST_NODES = 4096
_MOST_BATCHES = 64
_LORA_DIM = 16  # a usual rank of adapters
_MOST_TRIES = 500_000  # plans that are priced to say which constraint is out of reach


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
        return f"{message} {_closest(physics, plans)}"
    if len(layouts["pp"]):
        needed = peak_memory_bytes(job, layouts)
        leanest = {name: values[[needed.argmin()]] for name, values in layouts.items()}
        stage = int(np.sum(list(memory_parts(job, leanest).values()), axis=0)[0].argmax())
        degrees = " ".join(f"{name}={leanest[name][0]}" for name in ("dp", "tp", "pp", "cp", "micro_batch_size"))
        short = shortage_of(model, model.cost_model(leanest))
        if short is not None and short.ran_out:
            message += f" Of the leanest layout ({degrees}), {short.cause}."
        elif short is not None:
            message += (
                f" The leanest layout ({degrees}) is out of memory by {short.missing_gib:.1f} GiB per GPU on stage "
                f"{stage + 1}: it needs {short.predicted_gib:.1f} GiB and fits with probability "
                f"{odds(short.probability)}."
            )
    helps = [next(some, "") for some in _changes_that_help(model, bool(len(layouts["pp"])))]
    return " ".join([message, *[text for text in helps if text][:MOST_CHANGES]])


def _closest(physics: CostModel, plans: Columns | None) -> str:
    """Constraints that no plan meets; where each can be met alone, the least that the others leave of each."""
    tried = _ladder(physics)
    if plans is not None:
        tried = {name: np.concatenate([values, plans[name]]) for name, values in tried.items()}
    limits = physics.limits(tried)
    short = {name: float(found.min()) for name, (found, bound) in limits.items() if found.min() > bound}
    if short:
        words = [
            f"constraints.{name} is {with_unit(name, figure(limits[name][1]))} and no plan needs less than about "
            f"{with_unit(name, _up(least))}"
            for name, least in short.items()
        ]
        return f"Relax a constraint: {'; '.join(words)}."
    words = []
    for name, (found, _) in limits.items():
        others = np.all([values <= bound for n, (values, bound) in limits.items() if n != name], axis=0)
        if others.any():
            words.append(f"constraints.{name} to about {with_unit(name, _up(float(found[others].min())))}")
    return f"Each constraint can be met alone, not all together: relax {', or '.join(words) or 'several'}."


def _up(value: float) -> str:
    """Rounded up to the four digits that are shown, so that the bound is met; as people write it into a job file."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return figure(math.ceil(value / unit) * unit).replace(",", "")


def _ladder(physics: CostModel) -> Columns:
    """Predictions of all layouts at a few uniform clocks, the highest and the lowest among them."""
    count = len(physics.layouts["pp"])
    grid = np.asarray(physics.job.search.clock_mhz)
    steps = int(np.clip(_MOST_TRIES // count, 3, 12))
    clocks = np.unique(grid[np.linspace(0, len(grid) - 1, steps).round().astype(int)])
    index = np.tile(np.arange(count), len(clocks))
    wide = np.repeat(clocks, count)[:, None] + np.zeros(int(physics.layouts["pp"].max()))
    return physics.evaluate(index, wide)


def _changes_that_help(model: JobModel, short_of_memory: bool) -> list[Iterator[str]]:
    """By kind, changes after which at least one layout is feasible, the cheapest first."""
    of_shape = _of_batch(model), _of_nodes(model, _fewer(model.job.cluster.nodes))
    of_memory = _of_host_memory(model), _of_adapters(model)
    more = _of_nodes(model, _more(model.job.cluster.nodes))
    found = [_of_frozen(model), _of_search(model), _of_fraction(model), more]
    return [*found, *(of_memory if short_of_memory else of_shape)]


def _of_frozen(model: JobModel) -> Iterator[str]:
    framework = model.job.training.framework
    narrow = replace(framework, frozen_dtype="bf16")
    if model.job.training.frozen and narrow != framework and _fits(model, "training", framework=narrow):
        yield f"It would fit with frozen weights in bf16, which {framework.name} holds in {framework.frozen_dtype}."


def _of_search(model: JobModel) -> Iterator[str]:
    fixed = [name for name in LAYOUT_COLUMNS if getattr(model.job.search, name) is not None]
    for names in [*([name] for name in fixed), fixed]:
        if names and _fits(model, "search", **dict.fromkeys(names)):
            yield f"It would fit without {' and '.join(f'search.{name}' for name in names)}."


def _of_fraction(model: JobModel) -> Iterator[str]:
    if model.job.constraints.memory_fraction is not None:
        least_gib, load = _least_gib(model.job), max(model.memory.factor, 1.0 / model.memory.largest_load())
        fraction = math.ceil(100.0 * load * least_gib / model.job.cluster.gpu.memory_gib) / 100.0
        if fraction <= 1.0:
            yield f"It would fit with constraints.memory_fraction of {fraction:g}."


def _of_nodes(model: JobModel, numbers: Iterable[int]) -> Iterator[str]:
    for number in numbers:
        if _fits(model, "cluster", nodes=number):
            yield f"It would fit on {number} nodes instead of {model.job.cluster.nodes}."


def _of_batch(model: JobModel) -> Iterator[str]:
    batch = model.job.training.global_batch_size
    for larger in range(batch + 1, batch + _MOST_BATCHES + 1):
        if _fits(model, "training", global_batch_size=larger):
            yield f"It would fit with training.global_batch_size of {larger}."


def _of_host_memory(model: JobModel) -> Iterator[str]:
    if model.job.search.offload is None:
        for what in ("optimizer", "activations"):
            if _fits(model, "search", offload=("none", what)):
                yield f"It would fit with the {what} in host memory (search.offload: [none, {what}])."


def _of_adapters(model: JobModel) -> Iterator[str]:
    if not model.job.training.frozen and _fits(model, "training", lora_dim=_LORA_DIM):
        yield f"Adapters (LoRA) beside frozen weights would fit (training.lora_dim: {_LORA_DIM})."


def _more(nodes: int) -> list[int]:
    """Numbers of nodes above, ascending: the next ones, then doublings with one in between."""
    doublings = (nodes * 2**k // 2 for k in range(2, 9))
    found = {nodes + k for k in range(1, 5)}.union(*({n, n + n // 2} for n in doublings))
    return sorted(number for number in found if number <= _MOST_NODES)


def _fewer(nodes: int) -> list[int]:
    """Powers of two below a number of nodes, descending."""
    return [2**k for k in reversed(range((nodes - 1).bit_length()))]


def _least_gib(job: Job) -> float:
    return float(peak_memory_bytes(job, enumerate_layouts(job).layouts).min(initial=math.inf)) / GIB


def _fits(model: JobModel, section: str, **changes: Any) -> bool:
    """Whether a layout of the job is feasible with other values in one of its sections."""
    job = replace(model.job, **{section: replace(getattr(model.job, section), **changes)})
    changed = replace(model, job=job)
    return bool((changed.fit_probability_of(np.array([GIB * _least_gib(job)])) >= FEASIBLE).all())
