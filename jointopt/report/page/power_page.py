"""The page of power over time or between jobs: what is decided, its figures one after the other, and the basis."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from jointopt.report.page.figures import ABOVE, Figure, bar_figure, colour, rounded_values
from jointopt.report.page.render import Page

Bars = Mapping[str, Iterable[float]]
LIMIT = "limit"


def stepped_figure(hours: Sequence[float], series: Mapping[str, Sequence[float | None]], unit: str) -> Figure:
    """Values that hold from one of ``hours`` to the next, none where they are unknown; `LIMIT` is a broken line."""
    ends = rounded_values(hour for step in itertools.pairwise(hours) for hour in step)
    data = [
        {"name": name, "x": ends, "y": rounded_values(value for value in values for _ in range(2)), "mode": "lines",
         "line": {"width": 2} | ({"color": "var(--c1)", "dash": "dash"} if name == LIMIT
                                 else {"color": colour(number + 2 * (number > 0))}),
         "hovertemplate": f"%{{x}} h: %{{y}} {unit}<extra>%{{fullData.name}}</extra>"}
        for number, (name, values) in enumerate(series.items())
    ]  # fmt: skip
    return {"data": data, "layout": {
        "height": 320, "margin": {"t": 34, "r": 16, "l": 60, "b": 44}, "legend": ABOVE,
        "showlegend": len(data) > 1, "xaxis": {"title": {"text": "hours"}, "range": [hours[0], hours[-1]]},
        "yaxis": {"title": {"text": unit}, "rangemode": "tozero"},
    }}  # fmt: skip


def compared_figure(names: Sequence[str], bars: Bars, unit: str) -> Figure:
    """Bars of each series side by side for each of ``names``."""
    return bar_figure(names, {name: [f"{value:.4g}" for value in values] for name, values in bars.items()}, unit)


def power_page(
    title: str, lead: str, decision: str, cards: Sequence[tuple[str, str, str]], figures: Mapping[str, Figure],
    text: str, assumed: Iterable[str] = (), tables: Sequence[object] = (),
) -> Page:  # fmt: skip
    """The page; ``figures`` by their headings."""
    heads = {f"part-{number}": head for number, head in enumerate(figures)}
    content = {
        "title": title, "lead": lead, "decision": decision, "cards": cards, "heads": heads, "tables": tables,
        "text": text, "assumed": list(assumed), "data": {"figures": dict(zip(heads, figures.values(), strict=True))},
    }  # fmt: skip
    return Page(content, "power_page")
