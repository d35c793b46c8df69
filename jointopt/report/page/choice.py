"""Which plans of a proposal's document a report takes apart: the ends and the knee of its front, and other layouts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.plans.text import PLAN_KEYS
from jointopt.report.plans import differing, plan_words
from jointopt.search.pareto import OBJECTIVES, below_chord

MOST = 6
_ALIKE = 1e-3
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Chosen:
    """One entry of a proposal with what it stands for, and its row of the front (None: beside it)."""

    name: str
    entry: Entry
    row: int | None

    @property
    def plan(self) -> dict[str, Any]:
        """The plan's own columns."""
        return plan_of(self.entry)


def plan_of(entry: Entry) -> dict[str, Any]:
    """The columns of an entry that describe the plan."""
    return {name: entry[name] for name in PLAN_KEYS if name in entry}


def _layout_of(entry: Entry) -> dict[str, Any]:
    return {name: entry[name] for name in LAYOUT_COLUMNS if name in entry}


def layout_key(entry: Entry) -> tuple[Any, ...]:
    """The same for entries that differ in clocks and power limits alone."""
    return tuple(_layout_of(entry).items())


def chosen_plans(front: Sequence[Entry], reference: Entry | None, baseline: str = "") -> list[Chosen]:
    """At most `MOST` plans, by time: the reference, the fastest, the knee, the one of least energy, other layouts'."""
    rows = dict.fromkeys([0], "fastest")
    if energies := _known(front, "energy_j"):
        knee = int(below_chord(np.array(_known(front, "iteration_time_s")), np.array(energies)).argmax())
        least = int(np.argmin(energies))  # the slowest, unless there are objectives beside time and energy
        rows |= {least: "least energy"} if least else {}
        rows.setdefault(knee, "knee")
    shown = {layout_key(front[row]) for row in rows}
    for row, entry in enumerate(front):
        if layout_key(entry) not in shown and len(rows) < MOST - 1:
            shown.add(layout_key(entry))
            rows[row] = ""
    varied = differing(_layout_of(front[row]) for row in rows)
    distinguishing = {row: {name: front[row].get(name) for name in varied} for row in sorted(rows)}
    found = [
        Chosen(rows[row] or f"fastest with {plan_words(layout, varied)}", front[row], row)
        for row, layout in distinguishing.items()
    ]
    if reference is None:
        return found
    if not baseline and _alike(reference, front[0]):
        return found
    usual = "reference: fastest layout, all clocks at their maximum"
    return [Chosen(f"baseline: {baseline}" if baseline else usual, reference, None), *found]


def _alike(one: Entry, other: Entry) -> bool:
    """Whether two plans of a layout are the same but for clocks that hardly matter."""
    close = all(math.isclose(one[name] or 0.0, other[name] or 0.0, rel_tol=_ALIKE) for name in OBJECTIVES)
    return close and layout_key(one) == layout_key(other)


def _known(entries: Sequence[Entry], name: str) -> list[float]:
    """A figure of all entries; none where one lacks it."""
    values = [entry.get(name) for entry in entries]
    return [] if None in values else [float(value) for value in values if value is not None]
