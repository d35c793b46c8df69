"""The answer of ``compare``: plans of one job side by side, and the parts that make their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from jointopt.physics.site import facility_energy_j
from jointopt.report import tables
from jointopt.report.explanation import Explanation
from jointopt.report.plans import differing, plan_words, shows_site
from jointopt.report.reasons import beyond, wider_lines
from jointopt.report.tables import Result, TextColumn, tidy_parts

MOST_PARTS = 3  # that a sentence names
_SMALL = 0.02  # of a total: parts that differ by less are not named
_BREAKDOWNS: tuple[tuple[str, str, str, tables.Units], ...] = (
    ("Time", "time_s", "iteration_time_s", tables.TIME_UNITS),
    ("Energy", "energy_by_part_j", "energy_j", tables.ENERGY_UNITS),
    ("Memory", "memory_gib", "peak_memory_gib", tables.MEMORY_UNITS),
)
_RATES = {
    "avg_power_w": ("W per GPU", 1.0, ".0f"), "tokens_per_s_per_gpu": ("tokens/s per GPU", 1.0, ",.0f"),
    "mfu": ("MFU %", 100.0, ".1f"), "tokens_per_j": ("tokens/J", 1.0, ".3f"), "fit_probability": ("fits", 1.0, ".2f"),
}  # fmt: skip


@dataclass(frozen=True)
class Compared(Result):
    """Plans of one job taken apart, each against the first."""

    rows = "plans"
    plans: tuple[Explanation, ...]
    # of the later plans: `surrogate.differences.against` the first, where it is known
    against_first: tuple[Mapping[str, float], ...] = ()

    def document(self) -> dict[str, Any]:
        """The documents of all plans, and the differences of the later ones from the first, by breakdown and part."""
        first = self.plans[0]
        return {
            "job": first.job.name,
            "plans": [plan.to_dict() for plan in self.plans],
            "differences": [
                {name: parts_between(getattr(first, name), getattr(other, name)) for _, name, _, _ in _BREAKDOWNS}
                | dict(against)
                for other, against in zip(self.plans[1:], self._against_first, strict=True)
            ],
        }

    @property
    def _against_first(self) -> Sequence[Mapping[str, float]]:
        return self.against_first or [{}] * (len(self.plans) - 1)

    def text(self) -> str:
        """The plans, their totals and parts in columns, then a sentence on each difference."""
        names = ascii_uppercase[: len(self.plans)]
        varied = differing([plan.plan for plan in self.plans])
        heads = [f"{name}: {plan_words(p.plan, varied)}" for name, p in zip(names, self.plans, strict=True)]
        blocks = [_totals(self.plans, names)]
        blocks += [_parts(self.plans, names, *breakdown) for breakdown in _BREAKDOWNS]
        broken = [
            f"{name} is not feasible: {' '.join(plan.against)}"
            for name, plan in zip(names, self.plans, strict=True)
            if not plan.feasible
        ]
        sentences = [
            f"{name} against A: {sentence}."
            for name, plan, against in zip(names[1:], self.plans[1:], self._against_first, strict=True)
            for sentence in differences(self.plans[0], plan, against)
        ]
        title = f"{self.plans[0].job.name}: {len(self.plans)} plans."
        wider = wider_lines(list(map(_reasons, self.plans)), names, "interval")
        last = [*sentences, *wider, *broken]
        return tables.blocks_text(tables.paragraphs([title, *heads]), *blocks, tables.paragraphs(last))


def _reasons(plan: Explanation) -> tuple[str, ...]:
    return () if plan.in_domain else plan.doubts or (beyond(plan.surrogate, plan.job),)


def parts_between(first: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """The differences of parts by name, the largest first; parts that neither has are left out."""
    names = dict.fromkeys((*first, *other))
    found = {name: other.get(name, 0.0) - first.get(name, 0.0) for name in names}
    return dict(sorted(((n, d) for n, d in found.items() if d), key=lambda item: -abs(item[1])))


def differences(first: Explanation, other: Explanation, against: Mapping[str, float] | None = None) -> list[str]:
    """A sentence for time, energy and memory of a plan against another: by how much, and which parts make it.

    ``against``: how surely, as `surrogate.differences.against` has it.
    """
    found = []
    for head, name, total, units in _BREAKDOWNS:
        before, after = getattr(first, total), getattr(other, total)
        if not (math.isfinite(before) and math.isfinite(after)):
            continue
        parts = parts_between(tidy_parts(getattr(first, name)), tidy_parts(getattr(other, name)))
        named = [
            f"{'more' if d > 0 else 'less'} {part} ({tables.quantity(abs(d), units)})"
            for part, d in parts.items()
            if abs(d) >= _SMALL * before
        ]
        change = f"{head.lower()} {100 * (after / before - 1):+z.1f} %{_how_surely(head.lower(), against or {})}"
        found.append(f"{change}{': ' if named else ''}{', '.join(named[:MOST_PARTS])}")
    return found


_BETTER = {"time": "faster", "energy": "leaner"}


def _how_surely(what: str, against: Mapping[str, float]) -> str:
    """The 90 % interval of a difference and the probability that it is an improvement; blank where not known."""
    low, high = (against.get(f"{what}_vs_first_percent{end}", math.nan) for end in ("_low", "_high"))
    if not math.isfinite(low):
        return ""
    likely = against[f"{_BETTER[what]}_probability"]
    return f" (90 % interval {low:+z.1f} to {high:+z.1f} %, {_BETTER[what]} with probability {likely:.2f})"


def _totals(plans: Sequence[Explanation], names: str) -> list[str]:
    rows = [(head, [getattr(plan, total) for plan in plans], units) for head, _, total, units in _BREAKDOWNS]
    if shows_site(job := plans[0].job) and math.isfinite(plans[0].energy_j):
        joules = [float(facility_energy_j(job.cluster, plan.iteration_time_s, plan.energy_j)) for plan in plans]
        rows.insert(2, (f"Site energy (PUE {job.cluster.pue:g})", joules, tables.ENERGY_UNITS))
    lines = {}
    for head, values, units in rows:
        column = tables.measured("", values, units)
        lines[f"{head}, {column.header}"] = column.cells
    for name, (label, factor, form) in _RATES.items():
        lines[label] = tables.fixed([_rate(plan, name, factor) for plan in plans], form)
    return _side_by_side("", lines, names)


def _rate(plan: Explanation, name: str, factor: float) -> float:
    value = plan.throughput.get(name, getattr(plan, name, math.nan))
    return factor * float(value)


def _parts(
    plans: Sequence[Explanation], names: str, head: str, name: str, total: str, units: tables.Units
) -> list[str]:
    """One breakdown of all plans, the parts that differ most first; none where the total is not known."""
    if not all(math.isfinite(getattr(plan, total)) for plan in plans):
        return []
    parts = [tidy_parts(getattr(plan, name)) for plan in plans]
    least = min(getattr(plan, total) for plan in plans)
    spread = {
        part: max(values) - min(values)
        for part in dict.fromkeys(part for each in parts for part in each)
        if any(values := [each.get(part, 0.0) for each in parts])
    }
    order = sorted(spread, key=lambda part: -spread[part])
    columns = [tables.measured("", [each.get(part, 0.0) for part in order], units, least) for each in parts]
    lines = {part: [column.cells[row] for column in columns] for row, part in enumerate(order)}
    return _side_by_side(f"{head}, {columns[0].header}", lines, names)


def _side_by_side(title: str, lines: Mapping[str, Sequence[str]], names: str) -> list[str]:
    """A line per label, a cell for each of the ``names``."""
    columns = [TextColumn(title, [f"  {label}" for label in lines], left=True)]
    columns += [TextColumn(name, [cells[at] for cells in lines.values()]) for at, name in enumerate(names)]
    return tables.lay_out(columns)
