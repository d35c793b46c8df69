"""Which plans of a proposal's document a report takes apart: the ends and the knee of its front, and other layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.report.layout_table import alike
from jointopt.report.plans import differing, plan_words
from jointopt.search.pareto import below_chord

MOST = 6
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Chosen:
    """One entry of a proposal with what it stands for."""

    name: str
    entry: Entry


def layout_key(entry: Entry) -> tuple[tuple[str, Any], ...]:
    """The layout of an entry: the same for entries that differ in clocks and power limits alone."""
    return tuple((name, entry[name]) for name in LAYOUT_COLUMNS if name in entry)


def chosen_plans(front: Sequence[Entry], reference: Entry | None, baseline: str = "") -> list[Chosen]:
    """At most `MOST` plans, by time: the reference, the fastest, the knee, the one of least energy, other layouts'."""
    rows = dict.fromkeys([0], "fastest")
    time_s, energy_j = ([entry.get(name) for entry in front] for name in OBJECTIVES)
    if None not in energy_j:
        knee = int(below_chord(np.array(time_s, np.float64), np.array(energy_j, np.float64)).argmax())
        least = int(np.argmin(energy_j))  # the slowest, unless there are objectives beside time and energy
        rows |= {least: "least energy"} if least else {}
        rows.setdefault(knee, "knee")
    shown = {layout_key(front[row]) for row in rows}
    for row, entry in enumerate(front):
        if layout_key(entry) not in shown and len(rows) < MOST - 1:
            shown.add(layout_key(entry))
            rows[row] = ""
    varied = differing(dict(layout_key(front[row])) for row in rows)
    distinguishing = {row: {name: front[row].get(name) for name in varied} for row in sorted(rows)}
    found = [
        Chosen(rows[row] or f"fastest with {plan_words(layout, varied)}", front[row])
        for row, layout in distinguishing.items()
    ]
    if reference is None or (not baseline and alike(reference, front[0])):
        return found
    usual = "reference: fastest layout, all clocks at their maximum"
    return [Chosen(f"baseline: {baseline}" if baseline else usual, reference), *found]
