"""The best layouts of a proposal, each with its clocks condensed, and the steps from one to the next in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from jointopt.report import tables
from jointopt.report.plans import are_alike, predicted_table, rank_words

MOST_PARTS = 3  # that a step names
NEAR = 0.01  # of the time: layouts of the same degrees that are counted beside a shown one
SMALL = 0.002  # of the time: parts that differ by less are not named
PARTS = {
    "tp_comm": "tensor-parallel traffic", "cp_comm": "context-parallel traffic", "ep_comm": "all-to-alls of experts",
    "pp_comm": "sends between stages", "zero_comm": "gathers of weights", "dp_comm": "gradient traffic",
    "host": "host time", "bubble": "bubble", "optimizer": "optimizer step",
}  # fmt: skip


@dataclass(frozen=True)
class LayoutSummary:
    """One split of the GPUs: its best layout's fastest plan, its knee and its plan of least energy, as entries."""

    rank: int  # by the time of its fastest plan, among splits; 1 is the first
    plans: tuple[Mapping[str, Any], ...]  # by time, one to three
    time_s: Mapping[str, float]  # part -> seconds of the fastest of them
    on_front: int  # plans of the front that it has
    near: int  # more layouts of the same degrees, within `NEAR` of its time


@dataclass(frozen=True)
class Rank:
    """The place of a plan's layout among all feasible layouts by time at the highest clock."""

    rank: int | None  # 1 is the first; None: too far behind to be counted
    of: int
    behind: float  # share of time behind the first: 0.04 is 4 % slower
    energy_behind: float | None = None  # the same of energy; None where it is not known

    def sentence(self) -> str:
        """The rank in a sentence, with time and energy beside the first."""
        words = f"Its layout is {rank_words(self.rank, self.of)} at the highest clock"
        if self.rank != 1:
            words += f", {abs(self.behind):.1%} {'slower' if self.behind >= 0.0 else 'faster'} than the first"
            if (energy := self.energy_behind) is not None:
                words += f", at {abs(energy):.1%} {'more' if energy >= 0.0 else 'less'} energy"
        return f"{words}."


def steps_in_words(layouts: Sequence[LayoutSummary]) -> list[str]:
    """The difference of each layout's fastest plan from the one before in words; blank for the first."""
    return ([""] + [step(before, after) for before, after in pairwise(layouts)])[: len(layouts)]


def step(before: LayoutSummary, after: LayoutSummary) -> str:
    """Which parts of the time make the difference between two layouts: ``less bubble, 2.1 s; more compute, 0.4 s``."""
    least = SMALL * sum(before.time_s.values())
    words = [
        f"{'more' if seconds > 0 else 'less'} {PARTS.get(name, name)}, "
        f"{tables.quantity(abs(seconds), tables.TIME_UNITS)}"
        for name, seconds in parts_between(before.time_s, after.time_s).items()
        if abs(seconds) >= least
    ]
    return "; ".join(words[:MOST_PARTS]) or "the same parts of time, within 0.2 %"


def parts_between(first: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The differences of parts by name, the largest first; parts that neither has are left out."""
    names = dict.fromkeys((*first, *other))
    found = {name: other.get(name, 0.0) - first.get(name, 0.0) for name in names}
    return dict(sorted(((n, d) for n, d in found.items() if d), key=lambda item: -abs(item[1])))


def layout_lines(
    reference: Sequence[Mapping[str, Any]], layouts: Sequence[LayoutSummary]
) -> tuple[list[str], list[Mapping[str, Any]]]:
    """(lines of the table of layouts, the plans in it): the reference first, then up to three plans of each layout.

    Where the reference is the fastest plan of the first layout it stands once.
    """
    same = "=" if reference and layouts and are_alike(reference[0], layouts[0].plans[0]) else ""
    if same:
        layouts = [replace(layouts[0], plans=(reference[0], *layouts[0].plans[1:])), *layouts[1:]]
        reference = []
    plans, marks, repeated = list(reference), ["="] * len(reference), set[int]()
    for layout in layouts:
        first = len(plans)
        plans += layout.plans
        marks += [f"{same if not first else ''}{layout.rank}", *[""] * (len(layout.plans) - 1)]
        repeated |= set(range(first + 1, len(plans)))
    lines = predicted_table(plans, marks, repeated)
    at = len(lines) - len(plans) + len(reference)  # behind the head and the reference
    out = lines[:at]
    for layout, text in zip(layouts, steps_in_words(layouts), strict=True):
        out += lines[at : at + len(layout.plans)]
        at += len(layout.plans)
        remarks = [f"than the one above: {text}"] if text else []
        remarks += [f"{layout.near} more of these degrees within {NEAR:.0%}"] if layout.near else []
        remarks += [] if layout.on_front else ["none of it on the front"]
        out += tables.paragraphs([f"     {'; '.join(remarks)}."] if remarks else [], "       ")
    return out, plans
