"""The memory that a plan lacks, and the changes of it after which it would fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.core.errors import UsageError
from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.core.units import GIB
from jointopt.jobs.plans.rules import check_plan
from jointopt.jobs.plans.text import parse_plan, plan_records
from jointopt.physics.cost_model import CostModel, memory_limit_gib
from jointopt.report.plans import odds
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
