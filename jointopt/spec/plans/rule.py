"""One rule that layouts keep, and the parts that rules are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jointopt.core.schema import MODULES, RECOMPUTE_CODES, Bools, Columns, inside
from jointopt.spec.job import Job, Training

SEARCHED, DUPLICATE = "outside the job's search", "is the same plan"  # in reasons that call for no change
SEARCH = "search."  # begins the names of the rules that the job itself sets


@dataclass(frozen=True)
class Rule:
    """One rule of the joint space.

    ``counted`` or ``sentence`` is empty where another rule covers that use.
    """

    name: str
    columns: tuple[str, ...]
    broken: Callable[[Columns], Any]  # takes the columns as arrays that broadcast; true where they break the rule
    counted: str = ""  # reason by which dropped combinations are counted
    sentence: str = ""  # what one plan is refused with: a format of its columns and of `rules._plan_figures`

    @property
    def of_search(self) -> bool:
        """Whether it is the job's own search that the rule holds plans to."""
        return self.name.startswith(SEARCH)

    @property
    def of_starting(self) -> bool:
        """Whether a plan that breaks the rule cannot be started; else the rule keeps it out of the space alone."""
        return not self.of_search and bool(self.sentence) and DUPLICATE not in self.counted


# where a choice has an effect depends on these columns
_EFFECT = {
    "sequence_parallel": ("tp",), "zero_stage": ("dp", "cp"), "dp_replicate": ("zero_stage",), "schedule": ("pp",),
    "stage_layers": ("pp", "vpp"), "recompute_modules": ("recompute",), "recompute_num_layers": ("recompute",),
    "recompute": ("recompute_modules",),
}  # fmt: skip


def searched(job: Job, column: str, where: Callable[[Columns], Any] | None = None) -> tuple[Rule, ...]:
    """The rule of a column whose values the job lists, ``where`` it has an effect; none where it lists none."""
    listed: tuple[Any, ...] | None = getattr(job.search, column)
    if listed is None:
        return ()
    values = [int(inside(column, [value])[0]) for value in listed]
    if column == "recompute":
        values = recompute_codes(job.training, listed)
    if column == "recompute_modules" and MODULES.bit("core_attn") in values:
        values.append(0)  # what a blank means
    outside = not_in(column, values, where)
    columns = _EFFECT.get(column, ())
    names = ", ".join(map(str, listed))
    sentence = f"{column} {{{column}}} is outside the job's search.{column} ({names})."
    return (Rule(SEARCH + column, (*columns, column), outside, f"{SEARCHED}.{column}", sentence),)


def not_in(column: str, values: list[int], where: Callable[[Columns], Any] | None = None) -> Callable[[Columns], Any]:
    """A test of whether the column's value is none of ``values``, ``where`` that matters."""

    def broken(c: Columns) -> Bools:
        outside = ~np.isin(c[column], values)
        return outside if where is None else np.asarray(outside & where(c))

    return broken


def recompute_codes(training: Training, names: tuple[str, ...]) -> list[int]:
    """Codes of recompute modes; selective that drops nothing but scores, of which there are none, is none."""
    codes = {RECOMPUTE_CODES[name] for name in names}
    if training.selective_is_none and "selective" in names:
        codes.add(RECOMPUTE_CODES["none"])
    return sorted(codes)


def literal(text: str) -> str:
    """Text within a format that stands for itself."""
    return text.replace("{", "{{").replace("}", "}}")
