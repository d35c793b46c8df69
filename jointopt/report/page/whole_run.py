"""The pictures of a whole run: where its calendar time goes, the course of one run, and what would shorten it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jointopt.core.schema import Floats
from jointopt.report import tables
from jointopt.report.page.figures import ABOVE, Figure, colour, rounded_values

_MOST_POINTS = 400  # of a line
_EVENTS = 12  # of a run that are drawn one by one
_SEGMENTS = {  # what happens between two events, in its order: the parts and their colour
    "restart and waits": (("restart", "idle"), "var(--c3)"),
    "training": (("useful", "checkpoint", "degraded"), "var(--c0)"),
    "work that is lost": (("work",), "var(--c1)"),
}  # fmt: skip
_LEAST = 5e-5  # of the time: smaller parts are not drawn


def waterfall_figure(time_s: float, lost: Mapping[str, float]) -> Figure:
    """From the calendar time to useful training: what each part of ``lost``, shares by name, takes."""
    factor, unit = tables.unit_of(time_s, tables.RUN_TIME_UNITS)
    parts = {name: share for name, share in lost.items() if share >= _LEAST}
    useful = 1.0 - sum(lost.values())
    shares = [1.0, *(-share for share in parts.values()), useful]
    least = max(1.0 - 1.15 * (1.0 - useful), 0.0)  # what all have in common is cut off, so that small parts are seen
    ends = [least * time_s / factor, (1.12 - 0.12 * least) * time_s / factor]
    return {"data": [{
        "type": "waterfall", "orientation": "v", "x": ["calendar time", *parts, "useful training"],
        "measure": ["absolute", *["relative"] * len(parts), "total"],
        "y": rounded_values(share * time_s / factor for share in shares),
        "text": [f"{100 * abs(share):.2f} %" for share in shares], "textposition": "outside", "cliponaxis": False,
        "hovertemplate": f"%{{x}}: %{{y}} {unit}<extra></extra>",
        "decreasing": {"marker": {"color": "var(--c1)"}}, "totals": {"marker": {"color": "var(--c0)"}},
        "connector": {"line": {"color": "var(--line)"}},
    }], "layout": {
        "height": 380, "margin": {"t": 30, "r": 16, "l": 60, "b": 90}, "showlegend": False,
        "yaxis": {"title": {"text": f"{unit} (from {least:.0%} of all)"}, "range": ends},
        "xaxis": {"tickangle": -30},
    }}  # fmt: skip


def course_figure(course: Mapping[str, Floats], names: Mapping[str, str]) -> Figure:
    """What one run has lost so far, by part, over its calendar time; ``names`` of the parts."""
    end_s = float(course["time"][-1])
    factor, unit = tables.unit_of(end_s, tables.RUN_TIME_UNITS)
    parts = {name: course[name] for name in names if name != "useful" and course[name][-1] >= _LEAST * end_s}
    lost_s = float(sum(values[-1] for values in parts.values()))
    lost_factor, lost_unit = tables.unit_of(lost_s, tables.RUN_TIME_UNITS)
    shown = np.unique(np.linspace(0, len(course["time"]) - 1, _MOST_POINTS).astype(np.int64))
    x = rounded_values((course["time"][shown] / factor).tolist())
    return {"data": [
        {"name": names[name], "x": x, "y": rounded_values((values[shown] / lost_factor).tolist()), "mode": "lines",
         "stackgroup": "lost", "line": {"color": colour(number + 1), "width": 1, "shape": "hv"},
         "hovertemplate": f"%{{x}} {unit}: %{{y}} {lost_unit}<extra>%{{fullData.name}}</extra>"}
        for number, (name, values) in enumerate(parts.items())
    ], "layout": {
        "height": 340, "margin": {"t": 30, "r": 16, "l": 60, "b": 44}, "legend": ABOVE,
        "xaxis": {"title": {"text": f"calendar time, {unit}"}, "range": [0.0, end_s / factor]},
        "yaxis": {"title": {"text": f"lost so far, {lost_unit}"}, "rangemode": "tozero"},
    }}  # fmt: skip


def events_figure(course: Mapping[str, Floats]) -> Figure:
    """The first events of one run one after the other: how long it restarts, trains, and what of that is lost."""
    times = course["time"][: _EVENTS + 1]
    factor, unit = tables.unit_of(float(times[-1]), tables.RUN_TIME_UNITS)
    data, begins = [], times[:-1] / factor
    for name, (parts, shade) in _SEGMENTS.items():
        lengths = np.diff(sum(course[part][: _EVENTS + 1] for part in parts)) / factor
        data.append({
            "type": "bar", "orientation": "h", "name": name, "y": [""] * len(begins), "base": begins.tolist(),
            "x": rounded_values(lengths.tolist()), "marker": {"color": shade},
            "hovertemplate": f"%{{x}} {unit}<extra>%{{fullData.name}}</extra>",
        })  # fmt: skip
        begins = begins + lengths
    return {"data": data, "layout": {
        "barmode": "overlay", "height": 170, "margin": {"t": 34, "r": 16, "l": 16, "b": 44}, "legend": ABOVE,
        "xaxis": {"title": {"text": f"calendar time, {unit}"}, "range": [0.0, float(times[-1]) / factor]},
    }}  # fmt: skip


def worth_figure(saved_s: Mapping[str, float]) -> Figure:
    """The calendar time that each change would save."""
    factor, unit = tables.unit_of(max(saved_s.values()), tables.RUN_TIME_UNITS)
    order = sorted(saved_s, key=lambda name: saved_s[name])
    return {"data": [{
        "type": "bar", "orientation": "h", "y": order, "x": rounded_values(saved_s[name] / factor for name in order),
        "marker": {"color": "var(--c2)"}, "hovertemplate": f"%{{y}}: %{{x}} {unit}<extra></extra>",
    }], "layout": {
        "height": 110 + 34 * len(order), "margin": {"t": 8, "r": 16, "l": 16, "b": 44}, "showlegend": False,
        "xaxis": {"title": {"text": f"{unit} saved"}},
        "yaxis": {"type": "category", "automargin": True},
    }}  # fmt: skip
