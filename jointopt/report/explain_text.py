"""One plan taken apart, for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from jointopt.core.schema import LAYOUT_COLUMNS
from jointopt.report.assumed import assumptions
from jointopt.report.energy_text import energy_table, held_back, stage_energy_table
from jointopt.report.informed import informed_lines
from jointopt.report.parts import tidy_parts
from jointopt.report.results import Explanation, Stage
from jointopt.report.site import asks_for_site, site_parts, site_table
from jointopt.report.table import (
    ENERGY_UNITS,
    TIME_UNITS,
    TextColumn,
    lay_out,
    numbers,
    unit_of,
    wrapped,
)


def explanation_text(explanation: Explanation) -> str:
    """Totals, the three breakdowns with percentages, the stages, and what makes the plan infeasible.

    Where nothing is known of the GPU's power, what is about energy is left out.
    """
    energy_known = math.isfinite(explanation.energy_j)
    second, time_unit = unit_of(explanation.iteration_time_s, TIME_UNITS)
    joule, energy_unit = unit_of(explanation.energy_j, ENERGY_UNITS)
    lines = [
        *_title(explanation),
        "",
        *breakdown("Time on the critical path", explanation.time_s, second, time_unit),
        "",
        *(
            [*energy_table(explanation, joule, energy_unit), "", *_site(explanation), ""]
            if energy_known
            else []
        ),
        *breakdown("Memory of the fullest GPU", explanation.memory_gib, 1.0, "GiB"),
        "",
        *stage_table(explanation.stages, (second, time_unit), (joule, energy_unit)),
        *held_back(explanation),
    ]
    by_stage = stage_energy_table(explanation.stages) if energy_known else []
    lines += ["", *by_stage] if by_stage else []
    if explanation.assumed:
        lines += ["", *assumptions(explanation.assumed)]
    return "\n".join(lines)


def _site(explanation: Explanation) -> list[str]:
    """Energy of the site, and what it costs where the job asks for that."""
    job, time_s, energy_j = explanation.job, explanation.iteration_time_s, explanation.energy_j
    parts = site_parts(job, time_s, energy_j)
    joule, unit = unit_of(sum(parts.values()), ENERGY_UNITS)
    lines = breakdown(f"Energy of the site (PUE {job.cluster.pue:g})", parts, joule, unit)
    return (
        [*lines, "", *site_table(job, ["this plan"], [time_s], [energy_j])] if asks_for_site(job) else lines
    )


def _title(explanation: Explanation) -> list[str]:
    job, cluster = explanation.job, explanation.job.cluster
    second, s = unit_of(explanation.iteration_time_s, TIME_UNITS)
    joule, j = unit_of(explanation.energy_j, ENERGY_UNITS)
    time, energy = explanation.iteration_time_s / second, explanation.energy_j / joule
    took = f"{numbers([time], time)[0]} {s}"
    if math.isfinite(energy):
        took += (
            f" and {numbers([energy], energy)[0]} {j} per iteration, {explanation.avg_power_w:.0f} W per GPU"
        )
    else:
        took += " per iteration"
    lines = [
        *wrapped(
            f"{job.name}: {job.model.name} on {cluster.nodes} x {cluster.gpus_per_node} {cluster.gpu.id}"
        ),
        *wrapped(f"Plan: {_plan(explanation.plan)}"),
        *wrapped(f"{took}, {explanation.peak_memory_gib:.1f} GiB on the fullest GPU."),
    ]
    lines += _certainty(explanation)
    if explanation.feasible:
        return [*lines, "Feasible."]
    return [
        *lines,
        "Not feasible:",
        *(line for text in explanation.violations for line in wrapped(f"- {text}")),
    ]


def _certainty(explanation: Explanation) -> list[str]:
    """How far off time and energy may be, and where that comes from."""
    if not explanation.intervals:
        return []
    said = {"time": "iteration_time_s", "energy": "energy_j"}
    ranges = [
        f"{word} {_around(explanation.intervals[name], value)}"
        for word, name in said.items()
        if math.isfinite(value := getattr(explanation, name))
    ]
    words = f"90 % interval{'s' if len(ranges) > 1 else ''}: {', '.join(ranges)}."
    if not explanation.in_domain:
        words += " No recorded runs support such a plan (cluster, model, framework or clocks)."
    return [*wrapped(words), *informed_lines(explanation.informed_by)]


def _around(interval: tuple[float, float], value: float) -> str:
    low, high = (100.0 * (bound / value - 1.0) for bound in interval)
    return f"{low:+.0f} to {high:+.0f} %"


def _plan(plan: Mapping[str, Any]) -> str:
    layout = {name: plan[name] for name in LAYOUT_COLUMNS}
    layout["sequence_parallel"] = "yes" if layout["sequence_parallel"] else "no"
    limits = plan.get("stage_power_limit_w") or [plan[name] for name in ("power_limit_w",) if name in plan]
    if limits:
        layout["power_limit_w"] = ";".join(f"{watts:g}" for watts in limits)
    return " ".join(f"{name}={value}" for name, value in layout.items())


def breakdown(title: str, parts: Mapping[str, float], factor: float, unit: str) -> list[str]:
    """One line per part, the largest first, with its share; parts of nothing are left out, the total comes last."""
    tidy = tidy_parts(parts)
    total = sum(tidy.values())
    rows = sorted(((name, value) for name, value in tidy.items() if value), key=lambda row: -row[1])
    named = [*rows, ("total", total)]
    return lay_out(
        [
            TextColumn(title, [f"  {name}" for name, _ in named], left=True),
            TextColumn(unit, numbers([value / factor for _, value in named], total / factor)),
            TextColumn("%", [f"{100 * value / total:.1f}" if total else "-" for _, value in named]),
        ],
        gap="  ",
    )


def stage_table(
    stages: Sequence[Stage], time_unit: tuple[float, str], energy_unit: tuple[float, str]
) -> list[str]:
    """One line per stage; neighbours that would print the same but for memory share one line, with its range."""
    (second, s), (joule, j) = time_unit, energy_unit
    longest, most = max(x.busy_s + x.idle_s for x in stages), max(x.energy_j for x in stages)
    columns = {
        "layers": [str(stage.num_layers) for stage in stages],
        "clock\nMHz": [f"{stage.clock_mhz:.0f}" for stage in stages],
        f"busy\n{s}": numbers([stage.busy_s / second for stage in stages], longest / second),
        f"idle\n{s}": numbers([stage.idle_s / second for stage in stages], longest / second),
        f"energy\n{j}": numbers([stage.energy_j / joule for stage in stages], most / joule),
        "power\nW/GPU": [_optional(stage.power_w, 0) for stage in stages],
        "peak\nW/GPU": [_optional(stage.peak_power_w, 0) for stage in stages],
        _MEMORY: [f"{stage.memory_gib:.1f}" for stage in stages],
        "temperature\n°C": [_optional(stage.temperature_c, 1) for stage in stages],
    }
    rows = list(zip(*(cells for head, cells in columns.items() if head != _MEMORY), strict=True))
    runs = [[i for i, _ in run] for _, run in groupby(enumerate(rows), key=lambda item: item[1])]
    names = [str(run[0] + 1) if len(run) == 1 else f"{run[0] + 1}-{run[-1] + 1}" for run in runs]
    columns[_MEMORY] = [_range([columns[_MEMORY][i] for i in run]) for run in runs]
    kept = [
        TextColumn(head, cells if head == _MEMORY else [cells[run[0]] for run in runs])
        for head, cells in columns.items()
        if set(cells) != {"-"}
    ]
    return lay_out([TextColumn("stage", names), *kept], gap="  ")


_MEMORY = "memory\nGiB"


def _range(cells: Sequence[str]) -> str:
    """One cell for a run of stages: earlier stages hold more micro-batches, and so more memory."""
    low, high = min(cells, key=float), max(cells, key=float)
    return low if low == high else f"{low}..{high}"


def _optional(value: float | None, decimals: int) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.{decimals}f}"
