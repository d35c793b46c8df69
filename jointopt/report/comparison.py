"""The answer of ``compare``: plans of one job side by side, and the parts that make their differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from jointopt.physics.site import facility_energy_j
from jointopt.report import tables
from jointopt.report.doubts import unlike_recorded_runs, wider_lines
from jointopt.report.explanation import Explanation
from jointopt.report.plans import differing_columns, parts_between, plan_words, shows_site
from jointopt.report.tables import Block, Result, TextColumn, tidy_parts

MOST_PARTS = 3  # that a sentence names
_SMALL = 0.02  # of a total: parts that differ by less are not named
_BREAKDOWNS: tuple[tuple[str, str, str, tables.Units], ...] = (
    ("Time", "time_s", "iteration_time_s", tables.TIME_UNITS),
    ("Energy", "energy_by_part_j", "energy_j", tables.ENERGY_UNITS),
    ("Memory", "memory_gib", "peak_memory_gib", tables.MEMORY_UNITS),
)
_BETTER = {"time": "faster", "energy": "leaner"}
_RATES = {
    "avg_power_w": ("W per GPU", 1.0, ".0f"), "tokens_per_s_per_gpu": ("tokens/s per GPU", 1.0, ",.0f"),
    "mfu": ("MFU %", 100.0, ".1f"), "tokens_per_j": ("tokens/J", 1.0, ".3f"), "fit_probability": ("fits", 1.0, ".2f"),
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Compared(Result):
    """Plans of one job taken apart, each against the first."""

    rows = "plans"
    plans: tuple[Explanation, ...]
    # of the later plans: `surrogate.intervals.plan_differences` the first, where it is known
    against_first: tuple[Mapping[str, float], ...] = ()

    @property
    def _later(self) -> Iterator[tuple[str, Explanation, Mapping[str, float]]]:
        """Letter, plan and differences from the first of each plan but that."""
        unknown: Sequence[Mapping[str, float]] = [{}] * (len(self.plans) - 1)
        return zip(ascii_uppercase[1:], self.plans[1:], self.against_first or unknown, strict=False)

    def document(self) -> dict[str, Any]:
        """The documents of all plans, and the differences of the later ones from the first, by breakdown and part."""
        first = self.plans[0]
        return {
            "job": first.job.name,
            "plans": [plan.to_dict() for plan in self.plans],
            "differences": [
                {name: parts_between(getattr(first, name), getattr(other, name)) for _, name, _, _ in _BREAKDOWNS}
                | dict(against)
                for _, other, against in self._later
            ],
        }

    def blocks(self) -> Iterator[Block]:
        """The plans, their totals and parts in columns, then a sentence on each difference."""
        plans = dict(zip(ascii_uppercase, self.plans, strict=False))
        varied = differing_columns([plan.plan for plan in self.plans])
        yield [
            f"{self.plans[0].job.name}: {len(self.plans)} plans.",
            *(f"{name}: {plan_words(plan.plan, varied)}" for name, plan in plans.items()),
        ]
        yield [_totals(self.plans)]
        yield from ([_parts(self.plans, *breakdown)] for breakdown in _BREAKDOWNS)
        reasons = [
            () if plan.in_domain else plan.doubts or (unlike_recorded_runs(plan.surrogate, plan.job),)
            for plan in self.plans
        ]
        yield [
            *(f"{name} against A: {sentence}." for name, plan, against in self._later
              for sentence in differences(self.plans[0], plan, against)),
            *wider_lines(reasons, list(plans), "interval"),
            *(f"{name} is not feasible: {' '.join(plan.against)}" for name, plan in plans.items() if not plan.feasible),
        ]  # fmt: skip


def differences(first: Explanation, other: Explanation, against: Mapping[str, float] | None = None) -> list[str]:
    """A sentence for time, energy and memory of a plan against another: by how much, and which parts make it.

    ``against``: how surely, as `surrogate.intervals.plan_differences` has it.
    """
    found = []
    for head, name, total, units in _BREAKDOWNS:
        before, after, what = getattr(first, total), getattr(other, total), head.lower()
        if not (math.isfinite(before) and math.isfinite(after)):
            continue
        change, sure = f"{what} {100 * (after / before - 1):+z.1f} %", against or {}
        low, high = (sure.get(f"{what}_vs_first_percent{end}", math.nan) for end in ("_low", "_high"))
        if math.isfinite(low):
            better = f"{_BETTER[what]} with probability {sure[f'{_BETTER[what]}_probability']:.2f}"
            change += f" (90 % interval {low:+z.1f} to {high:+z.1f} %, {better})"
        parts = parts_between(tidy_parts(getattr(first, name)), tidy_parts(getattr(other, name)))
        named = [
            f"{'more' if d > 0 else 'less'} {part} ({tables.quantity(abs(d), units)})"
            for part, d in parts.items()
            if abs(d) >= _SMALL * before
        ]
        found.append(f"{change}{': ' if named else ''}{', '.join(named[:MOST_PARTS])}")
    return found


def _totals(plans: Sequence[Explanation]) -> list[str]:
    """Time, energy, memory and rates of the plans, and what the site draws where that belongs into an answer."""
    rows = [(head, [getattr(plan, total) for plan in plans], units) for head, _, total, units in _BREAKDOWNS]
    if shows_site(job := plans[0].job) and math.isfinite(plans[0].energy_j):
        joules = [float(facility_energy_j(job.cluster, plan.iteration_time_s, plan.energy_j)) for plan in plans]
        rows.insert(2, (f"Site energy (PUE {job.cluster.pue:g})", joules, tables.ENERGY_UNITS))
    lines: dict[str, Sequence[str]] = {}
    for head, values, units in rows:
        column = tables.unit_column("", values, units)
        lines[f"{head}, {column.header}"] = column.cells
    for name, (label, factor, form) in _RATES.items():
        rates = (float(plan.throughput.get(name, getattr(plan, name, math.nan))) for plan in plans)
        lines[label] = tables.format_values((factor * rate for rate in rates), form)
    return _side_by_side("", lines)


def _parts(plans: Sequence[Explanation], head: str, name: str, total: str, units: tables.Units) -> list[str]:
    """One breakdown of all plans, the parts that differ most first; none where the total is not known."""
    if not all(math.isfinite(getattr(plan, total)) for plan in plans):
        return []
    parts = [tidy_parts(getattr(plan, name)) for plan in plans]
    names = dict.fromkeys(part for each in parts for part in each)
    values = {part: [each.get(part, 0.0) for each in parts] for part in names}
    known = [part for part in names if any(values[part])]
    order = sorted(known, key=lambda part: min(values[part]) - max(values[part]))
    least = min(getattr(plan, total) for plan in plans)
    columns = [tables.unit_column("", [each.get(part, 0.0) for part in order], units, least) for each in parts]
    lines = {part: [column.cells[row] for column in columns] for row, part in enumerate(order)}
    return _side_by_side(f"{head}, {columns[0].header}", lines)


def _side_by_side(title: str, lines: Mapping[str, Sequence[str]]) -> list[str]:
    """A line per label, a cell for each plan under its letter."""
    columns = [TextColumn(title, [f"  {label}" for label in lines], left=True)]
    columns += map(TextColumn, ascii_uppercase, zip(*lines.values(), strict=True))
    return tables.lay_out(columns)
