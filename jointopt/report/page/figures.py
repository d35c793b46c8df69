"""The figures of a report as Plotly reads them: mappings of data and layout; colours are names of the page's style."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jointopt.jobs.objectives import OBJECTIVES
from jointopt.physics.cooling import Cooler
from jointopt.report import tables
from jointopt.report.page.choice import ChosenPlan, Entry, PlanPicture, layout_key, mean_power_w
from jointopt.report.plans import against_first, differing_columns, plan_words

Figure = dict[str, Any]
COLOURS = 10
_ROOM = 0.06  # of the span of an axis, on either side
_DIGITS = 5
ABOVE = {"orientation": "h", "y": 1.0, "yanchor": "bottom"}


def colour(number: int) -> str:
    """The name of a colour of the page."""
    return f"var(--c{number % COLOURS})"


def rounded_values(values: Iterable[float | None]) -> list[float | None]:
    """Values with as many digits as a picture can show."""
    return [None if v is None else float(f"{v:.{_DIGITS}g}") for v in values]


def bar_figure(names: Sequence[str], values: Mapping[str, Sequence[str]], unit: str) -> Figure:
    """Bars along rows, the first on top: of each row a bar for each series, whose cells are numbers or dashes."""
    data = [
        {"name": head, "y": list(names), "x": [None if cell == "-" else float(cell) for cell in cells], "type": "bar",
         "orientation": "h", "marker": {"color": colour(number)}}
        for number, (head, cells) in enumerate(values.items())
    ]  # fmt: skip
    height = 110 + len(names) * (14 + 12 * len(values))
    return {"data": data, "layout": {
        "height": height, "margin": {"t": 30, "r": 16, "l": 60, "b": 44}, "legend": ABOVE, "barmode": "group",
        "xaxis": {"title": {"text": unit}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"}, "showlegend": len(values) > 1,
    }}  # fmt: skip


def error_bar_lengths(low: Sequence[float | None], high: Sequence[float | None]) -> list[float | None]:
    """Lengths between both, 0 where one of them is unknown."""
    both = ((b or 0.0) - (a or 0.0) for a, b in zip(low, high, strict=True))
    return rounded_values(length if math.isfinite(length) else 0.0 for length in both)


def hover_text(entry: Entry, varied: Iterable[str], head: str = "") -> str:
    """A plan and its predictions, for a hint: lines joined as HTML joins them."""
    lines = [f"<b>{head}</b>"] if head else []
    words = plan_words(entry, frozenset(varied)).split()
    lines += [" ".join(words[at : at + 8]) for at in range(0, len(words), 8)]
    for name in tables.RESULT_UNITS:
        value, low, high = (entry.get(f"{name}{end}") for end in ("", "_low", "_high"))
        between = f" ({tables.result_text(name, low)} to {tables.result_text(name, high)})" if low and high else ""
        if value is not None:
            lines.append(f"{tables.RESULT_UNITS[name][0]} {tables.result_text(name, value)}{between}")
    if (mfu := entry.get("mfu")) is not None:
        lines.append(f"{entry['tokens_per_s_per_gpu']:,.0f} tokens/s per GPU, MFU {mfu:.1%}")
    if (fits := entry.get("fit_probability")) is not None and fits < 1.0:
        lines.append(f"fits in memory with probability {fits:.2f}")
    return "<br>".join(lines)


class Axes:
    """Units of time and energy that suit a front."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.time = tables.unit_of(min(e["iteration_time_s"] for e in entries), tables.TIME_UNITS)
        self.energy = tables.unit_of(min(e["energy_j"] for e in entries), tables.ENERGY_UNITS)

    def xy(self, entries: Sequence[Entry], side: str = "") -> tuple[list[float | None], list[float | None]]:
        """Times and energies in those units."""
        units = zip(OBJECTIVES, (self.time[0], self.energy[0]), strict=True)
        x, y = (rounded_values(entry[f"{name}{side}"] / unit for entry in entries) for name, unit in units)
        return x, y


def front_figure(front: Sequence[Entry], chosen: Sequence[tuple[str, ChosenPlan]], two_step: Sequence[Entry]) -> Figure:
    """Energy over time: the front by layout, the two-step answer, the chosen plans by letter, their intervals."""
    axes, varied = Axes(front), differing_columns([*front, *(c.entry for _, c in chosen)])
    data: list[Figure] = []
    for number, entries in enumerate(by_layout(front)):
        x, y = axes.xy(entries)
        layout_alone = {name: value for name, value in entries[0].items() if name != "stage_clock_mhz"}
        data.append({
            "name": plan_words(layout_alone, varied - {"stage_clock_mhz"}),
            "x": x, "y": y, "text": [hover_text(entry, varied) for entry in entries], "mode": "markers",
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {"size": 7, "symbol": number % 8, "color": colour(number)},
        })  # fmt: skip
    if two_step:
        x, y = axes.xy(two_step)
        data.append({
            "name": "two steps: the fastest layout, then its clocks", "x": x, "y": y,
            "text": [hover_text(entry, varied, "two steps") for entry in two_step],
            "mode": "lines+markers", "hovertemplate": "%{text}<extra></extra>",
            "line": {"color": "var(--muted)", "dash": "dot", "width": 1.5}, "marker": {"size": 4},
        })  # fmt: skip
    data += _chosen_plan_traces(axes, chosen, varied)
    x, y = axes.xy([*front, *(c.entry for _, c in chosen), *two_step])
    return {"data": data, "layout": {
        "xaxis": {"title": {"text": f"iteration time, {axes.time[1]}"}, "range": _axis_range(x)},
        "yaxis": {
            "title": {"text": f"energy of all GPUs for one iteration, {axes.energy[1]}"}, "range": _axis_range(y),
        },
        "legend": {"orientation": "h", "y": -0.19, "yanchor": "top"}, "height": 560,
        "margin": {"t": 16, "r": 16, "l": 70, "b": 60},
    }}  # fmt: skip


def by_layout(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Entries that differ in clocks alone, together; layouts in the order of their first entry."""
    found: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault(layout_key(entry), []).append(entry)
    return list(found.values())


def _chosen_plan_traces(axes: Axes, chosen: Sequence[tuple[str, ChosenPlan]], varied: frozenset[str]) -> list[Figure]:
    """The chosen plans by letter, and their intervals."""
    entries = [c.entry for _, c in chosen]
    x, y = axes.xy(entries)
    hints = [hover_text(c.entry, varied, f"{letter}: {c.name}") for letter, c in chosen]
    found: list[Figure] = [{
        "name": "chosen plans", "x": x, "y": y, "text": [letter for letter, _ in chosen], "customdata": hints,
        "mode": "markers+text", "textposition": "top center", "hovertemplate": "%{customdata}<extra></extra>",
        "textfont": {"size": 15, "color": "var(--ink)"},
        "marker": {"size": 13, "symbol": "circle-open", "color": "var(--ink)", "line": {"width": 2}},
    }]  # fmt: skip
    known = [one for entry in entries if (one := _against_reference(entry)) is not None]
    if known:
        ends = {side: axes.xy(known, side) for side in ("", "_low", "_high")}
        errors = {
            f"error_{axis}": {
                "type": "data", "symmetric": False, "color": "var(--muted)", "thickness": 1,
                "array": error_bar_lengths(ends[""][i], ends["_high"][i]),
                "arrayminus": error_bar_lengths(ends["_low"][i], ends[""][i]),
            }
            for i, axis in enumerate("xy")
        }  # fmt: skip
        found.append({
            "name": "90 % intervals of differences", "meta": "intervals", "x": ends[""][0], "y": ends[""][1],
            "mode": "markers",
            "marker": {"size": 4, "color": "var(--muted)"}, "hoverinfo": "skip", **errors,
        })  # fmt: skip
    return found


def _against_reference(entry: Entry) -> dict[str, Any] | None:
    """Time and energy of a plan with the 90 % intervals of how they differ from the reference; None for that itself."""
    found: dict[str, Any] = {}
    for name, quantity in zip(OBJECTIVES, ("time", "energy"), strict=True):
        percent, low, high = against_first(entry, quantity)
        if not low < high:
            return None
        base = entry[name] / (1.0 + percent / 100.0)
        found |= {name: entry[name], f"{name}_low": base * (1.0 + low / 100.0)}
        found[f"{name}_high"] = base * (1.0 + high / 100.0)
    return found


def _axis_range(values: Sequence[float | None]) -> list[float]:
    """Ends of an axis with room around the values."""
    known = [v for v in values if v is not None]
    low, high = min(known), max(known)
    room = _ROOM * (high - low or high)
    return [low - room, high + 1.8 * room]  # letters stand above their plans


def part_figure(plans: Sequence[PlanPicture], breakdown: str, units: tables.Units) -> Figure:
    """One breakdown of all plans as bars side by side in one line each, the largest parts first."""
    parts = {plan.letter: plan.totals[breakdown] for plan in plans}
    factor, unit = tables.unit_of(max(sum(each.values()) for each in parts.values()), units)
    names = dict.fromkeys(name for each in parts.values() for name, value in each.items() if value > 0.0)
    order = sorted(names, key=lambda name: -max(each.get(name, 0.0) for each in parts.values()))
    labels = list(parts)[::-1]
    data = [
        {
            "type": "bar", "orientation": "h", "name": name.replace("_", " "), "y": labels,
            "x": rounded_values(max(parts[letter].get(name, 0.0), 0.0) / factor for letter in labels),
            "marker": {"color": colour(number)},
            "hovertemplate": f"%{{y}}: %{{x}} {unit}<extra>%{{fullData.name}}</extra>",
        }
        for number, name in enumerate(order)
    ]  # fmt: skip
    return {"data": data, "layout": {
        "barmode": "stack", "height": 120 + 34 * len(labels), "margin": {"t": 8, "r": 16, "l": 34, "b": 44},
        "xaxis": {"title": {"text": unit}}, "yaxis": {"type": "category"},
        "legend": {"traceorder": "normal", "font": {"size": 11}},
    }}  # fmt: skip


def stage_figure(plan: PlanPicture) -> Figure:
    """Clock of every stage, and what a GPU of it draws while it runs and over the whole iteration."""
    stages = [str(i + 1) for i in range(len(plan.runs_w))]
    clock, held = plan.parts.clock_mhz.tolist(), plan.parts.held_by
    hints = [f"held by {why.replace('_', ' ')}" if why else "" for why in held]
    data: list[Figure] = [
        {"name": "clock", "y": stages, "x": rounded_values(clock), "text": hints, "mode": "markers",
         "marker": {"color": "var(--c0)", "size": 9}, "hovertemplate": "stage %{y}: %{x} MHz %{text}<extra></extra>"},
    ]  # fmt: skip
    watts = {
        "while it runs": plan.runs_w, "over the iteration": plan.parts.stage_power_w, "while it waits": plan.waits_w,
    }  # fmt: skip
    data += [
        {"name": name, "x": rounded_values(values.tolist()), "y": stages, "xaxis": "x2", "mode": "markers",
         "marker": {"color": colour(number + 1), "symbol": number, "size": 8},
         "hovertemplate": "stage %{y}: %{x} W<extra>%{fullData.name}</extra>"}
        for number, (name, values) in enumerate(watts.items())
    ]  # fmt: skip
    return {"data": data, "layout": {
        "height": max(190, min(600, 120 + 20 * len(stages))), "margin": {"t": 30, "r": 16, "l": 50, "b": 44},
        "xaxis": {"domain": [0.0, 0.47], "title": {"text": "clock, MHz"}, "range": _axis_range(clock)},
        "xaxis2": {"domain": [0.53, 1.0], "title": {"text": "W per GPU"}, "rangemode": "tozero"},
        "yaxis": {"type": "category", "autorange": "reversed", "title": {"text": "stage"}, "categoryarray": stages},
        "legend": ABOVE,
    }}  # fmt: skip


def power_figure(plan: PlanPicture) -> Figure:
    """Mean power of a GPU over the iteration."""
    edges, watts = mean_power_w(plan)
    factor, unit = tables.unit_of(plan.timeline.iteration_s, tables.TIME_UNITS)
    data = [{
        "x": rounded_values((edges[:-1] / factor).tolist()), "y": rounded_values(watts.tolist()), "mode": "lines",
        "fill": "tozeroy",
        "line": {"color": "var(--c1)", "width": 1, "shape": "hv"},
        "hovertemplate": f"%{{x}} {unit}: %{{y}} W per GPU<extra></extra>",
    }]  # fmt: skip
    return {"data": data, "layout": {
        "height": 170, "margin": {"t": 8, "r": 16, "l": 60, "b": 40}, "showlegend": False,
        "xaxis": {"title": {"text": f"time, {unit}"}, "range": [0.0, plan.timeline.iteration_s / factor]},
        "yaxis": {"title": {"text": "W per GPU"}, "rangemode": "tozero"},
    }}  # fmt: skip


def heat_figure(plan: PlanPicture, cooler: Cooler, throttle_c: float) -> Figure | None:
    """Temperature of the GPUs of each stage by where they sit; None for one stage and without a model of heat."""
    positions: Mapping[str, Any] = plan.parts.stage_position_c
    stages = list(range(1, len(plan.runs_w) + 1))
    data: list[Figure] = [
        {"name": f"{name} GPUs", "x": stages, "y": rounded_values(values.tolist()), "mode": "lines+markers",
         "line": {"color": colour(number + 1)}, "hovertemplate": "stage %{x}: %{y} °C<extra>%{fullData.name}</extra>"}
        for number, (name, values) in enumerate(positions.items())
    ]  # fmt: skip
    if len(stages) < 2 or all(value is None or value != value for trace in data for value in trace["y"]):
        return None
    ends = [stages[0] - 0.5, stages[-1] + 0.5]
    data.append({"name": "throttles", "x": ends, "y": [throttle_c] * 2, "mode": "lines",
                 "line": {"color": "var(--bad)", "dash": "dash"}, "hoverinfo": "name+y"})  # fmt: skip
    return {"data": data, "layout": {
        "height": 280, "margin": {"t": 30, "r": 16, "l": 60, "b": 44}, "legend": ABOVE,
        "xaxis": {"title": {"text": "stage"}, "range": ends, "dtick": max(1, len(stages) // 16)},
        "yaxis": {"title": {"text": "°C"}, "range": [cooler.inlet_c, throttle_c + 5.0]},
    }}  # fmt: skip
