"""A proposal for people: a table of at most about 20 plans, the reference first, and what the search did."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jointopt.core.schema import Columns, Ints
from jointopt.physics.facility import with_site
from jointopt.report.assumed import assumptions
from jointopt.report.clocks import short_clocks
from jointopt.report.informed import informed_lines
from jointopt.report.plain import length, plan_entries
from jointopt.report.results import Proposal
from jointopt.report.runs_text import PLAN_CELLS
from jointopt.report.site import asks_for_site, site_table
from jointopt.report.table import (
    ENERGY_UNITS,
    TIME_UNITS,
    WIDTH,
    TextColumn,
    lay_out,
    numbers,
    table_width,
    unit_of,
    wrapped,
)
from jointopt.spec.plans.parse import PLAN_KEYS

ROWS_FOR_PEOPLE = 20
REASONS_FOR_PEOPLE = 8
_SHORTEST_CLOCKS = 10  # "1200..1410"

Row = dict[str, Any]

_LAYOUT: tuple[tuple[str, str, Callable[[Row], str]], ...] = (
    ("dp", "dp", lambda row: str(row["dp"])),
    ("tp", "tp", lambda row: str(row["tp"])),
    ("pp", "pp", lambda row: str(row["pp"])),
    ("cp", "cp", lambda row: str(row["cp"])),
    ("ep", "ep", lambda row: str(row["ep"])),
    ("vpp", "vpp", lambda row: str(row["vpp"])),
    ("micro-batch", "mbs", PLAN_CELLS["mbs"]),
    ("sequence parallel", "sp", PLAN_CELLS["sp"]),
    ("recompute", "rc", PLAN_CELLS["rc"]),
    ("ZeRO", "ZeRO", PLAN_CELLS["ZeRO"]),
)
_SHOWN = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib")
_ALWAYS_SHOWN = ("dp", "tp", "pp", "micro-batch")


def proposal_text(proposal: Proposal, *, show_all: bool = False) -> str:
    """The table of the front (thinned unless ``show_all``) with its legend, and a summary of the search."""
    total = length(proposal.front)
    thinned = not show_all and total > ROWS_FOR_PEOPLE
    shown = plan_entries(proposal.front, spread_along(proposal.front, ROWS_FOR_PEOPLE) if thinned else None)
    reference = next(iter(plan_entries(proposal.reference)), None)
    rows = [row for row in shown if reference is None or not _same_plan(row, reference)]
    lines = [
        *_title(proposal),
        "",
        *plan_table(rows, reference),
        *_legend(rows, reference, proposal.surrogate),
        *(
            line
            for sentence in proposal.reference_breaks
            for line in wrapped(f"The = row breaks a constraint: {sentence}")
        ),
    ]
    lines += _site(proposal)
    hidden = total - len(shown)
    if hidden:
        lines.append(
            f"{hidden:,} more plans lie between these: --all prints them, --json writes them with every column."
        )
    return "\n".join([*lines, "", *_summary(proposal)])


def _same_plan(row: Row, other: Row) -> bool:
    return all(row.get(key) == other.get(key) for key in PLAN_KEYS)


def _site(proposal: Proposal) -> list[str]:
    """What the site pays for the reference, the fastest plan and the one that takes least of it, if the job asks."""
    job, front = proposal.job, proposal.front
    if not asks_for_site(job) or not np.isfinite(front["energy_j"]).any():
        return []
    least = int(with_site(job, front)["facility_energy_j"].argmin())
    rows = {"fastest": 0, "least energy": least}
    references = plan_entries(proposal.reference)
    if any(_same_plan(plan, reference) for reference in references for plan in plan_entries(front, [0])):
        del rows["fastest"]  # which the line of = is
    names = ["="] * len(references) + list(rows)
    time_s, energy_j = (
        np.concatenate([proposal.reference[name], front[name][list(rows.values())]])
        for name in ("iteration_time_s", "energy_j")
    )
    return ["", *site_table(job, names, time_s, energy_j), ""]


def spread_along(front: Columns, count: int) -> Ints:
    """Indices (at most ``count``) spread evenly along the front as it is drawn: log time against log energy.

    The two ends are always kept; ``front`` is sorted by time.
    """
    drawn = np.log([front["iteration_time_s"], front["energy_j"]])
    span = np.ptp(drawn, axis=1, keepdims=True)
    steps = np.diff(drawn / np.where(span > 0, span, 1.0), axis=1)
    travelled = np.concatenate([[0.0], np.cumsum(np.hypot(*steps))])
    wanted = np.linspace(0.0, travelled[-1], count)
    return np.unique(np.abs(travelled[:, np.newaxis] - wanted).argmin(axis=0))


def plan_table(rows: Sequence[Row], reference: Row | None, names: Sequence[str] = ()) -> list[str]:
    """Aligned lines of at most 100 characters: the reference first, then ``rows``; equal columns become one line.

    ``names`` are marks of ``rows``, where they have some.
    """
    every = [*([reference] if reference else []), *rows]
    named = [*(["="] if reference else []), *(names or [""] * len(rows))]
    marks = [mark + _mark(row) for mark, row in zip(named, every, strict=True)]
    layout = [(name, TextColumn(header, [cell(row) for row in every])) for name, header, cell in _LAYOUT]
    same = [(n, c) for n, c in layout if n not in _ALWAYS_SHOWN and len(every) > 1 and len(set(c.cells)) == 1]
    left = [
        TextColumn("", marks, left=True),
        *(column for name, column in layout if (name, column) not in same),
    ]
    right = _results(every)
    room = max(_SHORTEST_CLOCKS, WIDTH - table_width([*left, *right]) - 1)
    clocks = TextColumn("clock\nMHz", [short_clocks(row["stage_clock_mhz"], room) for row in every])
    common = ", ".join(f"{name} {_word(column.cells[0])}" for name, column in same)
    return [*(wrapped(f"All plans: {common}.") if common else []), *lay_out([*left, clocks, *right])]


def _word(cell: str) -> str:
    return {"-": "no", "y": "yes", "sel": "selective", "all": "full"}.get(cell, cell)


def _mark(row: Row) -> str:
    return "?" if row.get("in_domain") is False else ""


def _results(every: Sequence[Row]) -> list[TextColumn]:
    """Time, its half interval, energy, power, memory, and both objectives against the first row, as far as known."""
    time, energy, power, memory = (_known(every, name) for name in _SHOWN)
    second, time_unit = unit_of(min(time), TIME_UNITS)
    least_j = min(filter(math.isfinite, energy), default=math.nan)
    joule, energy_unit = unit_of(least_j, ENERGY_UNITS)
    columns = [
        TextColumn(f"time\n{time_unit}", numbers([t / second for t in time], min(time) / second)),
        TextColumn("±\n%", [_half_interval(row) for row in every]),
        TextColumn(f"energy\n{energy_unit}", numbers([e / joule for e in energy], least_j / joule)),
        TextColumn("power\nW/GPU", numbers(power, 1000.0)),
        TextColumn("mem\nGiB", [f"{gib:.1f}" if math.isfinite(gib) else "-" for gib in memory]),
        TextColumn("time\nΔ%", _against_first(time)),
        TextColumn("energy\nΔ%", _against_first(energy)),
    ]
    return [column for column in columns if set(column.cells) != {"-"}]


def _known(every: Sequence[Row], name: str) -> list[float]:
    """A column, NaN where a real run did not measure it."""
    return [math.nan if row[name] is None else float(row[name]) for row in every]


def _half_interval(row: Row) -> str:
    low, high = row.get("iteration_time_s_low"), row.get("iteration_time_s_high")
    if low is None or high is None:
        return "-"
    return f"{50 * (high - low) / row['iteration_time_s']:.0f}"


def _against_first(values: Sequence[float]) -> list[str]:
    if not math.isfinite(values[0]):
        return ["-"] * len(values)
    return ["0", *(f"{100 * (v / values[0] - 1):+.1f}" if math.isfinite(v) else "-" for v in values[1:])]


def _title(proposal: Proposal) -> list[str]:
    job, count = proposal.job, length(proposal.front)
    training, cluster = job.training, job.cluster
    plans = "1 plan that no other beats" if count == 1 else f"{count:,} plans, none beaten by another"
    return wrapped(
        f"{job.name}: {job.model.name}, {training.global_batch_size:,} sequences of {training.seq_length:,} tokens in "
        f"{training.dtype}, {training.framework.name}, on {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.id}: "
        f"{plans} in {' and '.join(_OBJECTIVE.get(name, name) for name in job.objectives)}."
    )


_OBJECTIVE = {
    "iteration_time_s": "iteration time", "energy_j": "energy", "facility_energy_j": "energy of the site",
}  # fmt: skip


def _legend(rows: Sequence[Row], reference: Row | None, surrogate: str) -> list[str]:
    if reference:
        lines = ["= the fastest plan that fits, at the GPU's maximum clock; Δ% is relative to it."]
    else:
        lines = ["Δ% is relative to the fastest plan; with all clocks at their maximum none is feasible."]
    if not all(row.get("in_domain", True) for row in (*rows, reference or {})):
        known = "the physics was checked against" if surrogate == "none" else f"{surrogate} was trained on"
        lines.append(f"? outside of what {known}: its interval (±) is wider.")
    return lines


def _summary(proposal: Proposal) -> list[str]:
    seconds = sum(proposal.seconds.values())
    lines = wrapped(
        f"Joint space: {proposal.considered:,} combinations, {proposal.layouts:,} layouts, "
        f"{proposal.feasible_layouts:,} of them feasible; {proposal.covered_plans:,} plans covered, "
        f"{proposal.evaluated_plans:,} evaluated, {seconds:.1f} s."
    )
    lines += informed_lines(proposal.informed_by)
    lines += _dropped(proposal.infeasible)
    if proposal.assumed:
        lines += assumptions(proposal.assumed)
    if proposal.storage and proposal.study_name:
        lines += [f"Study: {proposal.study_name}", f"  jointopt dashboard --storage {proposal.storage}"]
        lines.append(f"  jointopt select {proposal.study_name} --storage {proposal.storage}")
    return lines


def _dropped(infeasible: Mapping[str, int]) -> list[str]:
    """The commonest reasons, and how many combinations all others dropped."""
    common = sorted(infeasible.items(), key=lambda item: -item[1])
    shown = [(count, reason) for reason, count in common[:REASONS_FOR_PEOPLE]]
    others = sum(count for _, count in common[REASONS_FOR_PEOPLE:])
    if others:
        count = len(common) - REASONS_FOR_PEOPLE
        shown.append((others, f"for {count} other reason{'s' if count > 1 else ''}"))
    cells = [f"{count:,}" for count, _ in shown]
    width = max(map(len, cells), default=0)
    lines = [f"  {cell.rjust(width)}  {reason}" for cell, (_, reason) in zip(cells, shown, strict=True)]
    indent = " " * (width + 4)
    return (
        ["Dropped, by the first rule broken:", *(x for line in lines for x in wrapped(line, indent))]
        if lines
        else []
    )
