"""The answer of ``compare``: plans of one job side by side, and the parts that make their differences."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import numpy as np

from jointopt.jobs.objectives import OBJECTIVES
from jointopt.physics.site import facility_energy_j
from jointopt.report import tables
from jointopt.report.decision import (
    LINES,
    SETTINGS,
    WIDTH,
    command_lines,
    job_words,
    narrow_lines,
    plan_warnings,
    recommended_row,
    result_words,
)
from jointopt.report.doubts import settings_lines, unlike_recorded_runs, wider_lines
from jointopt.report.explanation import Explanation
from jointopt.report.plans import (
    COMPARED,
    better_words,
    difference_column,
    differing_columns,
    parts_between,
    plan_words,
    shows_site,
)
from jointopt.report.tables import Block, Result, TextColumn, tidy_parts
from jointopt.surrogate.intervals import RESULTS

MOST_PARTS = 3  # that a sentence names
_FEW = 5  # plans of which a short answer has room for more than what makes the difference in time
_BESIDE = 9  # lines of a short answer beside others: the best plan, heads of its tables, and blank ones
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
    next_command: Mapping[str, str] | None = None  # that starts the best plan, a note; None: source unknown

    @functools.cached_property
    def best(self) -> tuple[int, str]:
        """The place of the best plan, of those that are feasible if any is, and why that one."""
        some = [at for at, plan in enumerate(self.plans) if plan.feasible] or [*range(len(self.plans))]
        names = (*OBJECTIVES, "fit_probability")
        row, why = recommended_row(
            self.plans[0].job, {name: np.array([getattr(self.plans[at], name) for at in some]) for name in names}
        )
        return some[row], why if len(some) > 1 else "the only one that is feasible"

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

    def blocks(self, *, brief: bool = False) -> Iterator[Block]:
        """The plans, their totals and parts in columns, then a sentence on each difference.

        ``brief``: the best of them, what each takes against the first, what that hangs on, and what starts the best.
        """
        if brief:
            yield from _short_answer(self)
            return
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


def _short_answer(found: Compared) -> Iterator[list[str]]:
    """The best plan, the table of all, which parts make the difference, what its time hangs on, what starts it."""
    (row, why), job = found.best, found.plans[0].job
    plan, letter = found.plans[row], ascii_uppercase[row]
    entry = _entries(found)[row] | {"mfu": plan.throughput.get("mfu")}
    doubts = () if plan.in_domain else plan.doubts or (unlike_recorded_runs(plan.surrogate, job),)
    head = [
        f"{job_words(job)}.",
        *plan_warnings(job, entry, doubts),
        f"Best of {len(found.plans)} plans: {letter}, {why}",
    ]
    first = [line for sentence in head for line in narrow_lines(sentence)]
    varied = differing_columns([one.plan for one in found.plans])
    yield [*first, *narrow_lines(plan_words(plan.plan, varied), "  "), *narrow_lines(result_words(job, entry), "  ")]
    against = f"{letter} against A"
    of = (found.plans[0], plan, found.against_first[row - 1] if found.against_first and row else None)
    if not row:
        other = min(range(1, len(found.plans)), key=lambda at: found.plans[at].iteration_time_s)
        against = f"{ascii_uppercase[other]} against A"
        of = (plan, found.plans[other], found.against_first[other - 1] if found.against_first else None)
    told = differences(*of)[: 2 if len(found.plans) <= _FEW else 1]
    reasons = [line for text in told for line in narrow_lines(f"{against}: {text}.")]
    left_out = ", ".join(name for name, one in zip(ascii_uppercase, found.plans, strict=False) if not one.feasible)
    short = narrow_lines(f"Not feasible (-v says why): {left_out}.") if left_out else []
    last = command_lines(found.next_command) or ["Every part: -v."]
    yield [*_short_table(found, row), *short]
    room = LINES - len([*first, *reasons, *short, *last]) - len(found.plans) - _BESIDE
    yield [*reasons, *settings_lines(plan.hangs_on, max(1, min(SETTINGS, room)), whose="Its", width=WIDTH)]
    yield last


def _entries(found: Compared) -> list[dict[str, Any]]:
    """The plans as entries of a front, with how they differ from the first."""
    same = {f"{name}_vs_first_percent": 0.0 for name in COMPARED}
    against = (same, *found.against_first) if found.against_first else [{}] * len(found.plans)
    return [
        {name: getattr(plan, name) for name in (*RESULTS, "fit_probability")} | dict(of)
        | {f"iteration_time_s_{end}": value for end, value in
           zip(("low", "high"), plan.intervals.get("iteration_time_s", ()), strict=False)}
        for plan, of in zip(found.plans, against, strict=True)
    ]  # fmt: skip


def _short_table(found: Compared, best: int) -> list[str]:
    """A line per plan: = the best; time and energy against the first."""
    entries = _entries(found)
    columns = [
        TextColumn("", ["=" * (at == best) for at in range(len(entries))], left=True),
        TextColumn("", ascii_uppercase[: len(entries)], left=True),
        tables.figure_column("iteration_time_s", entries),
        tables.figure_column("energy_j", entries),
        *(difference_column(name, entries, entries[:1] * len(entries), entries, itself="0") for name in COMPARED),
        TextColumn("better\nt|E %", better_words(entries)),
        tables.figure_column("peak_memory_gib", entries),
        TextColumn("fits", tables.format_values([entry["fit_probability"] for entry in entries], ".2f")),
    ]
    return tables.lay_out(tables.fit_columns(tables.known_columns(columns), WIDTH))


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
