"""Figures of a report for notebooks: the one place that imports Plotly's Python."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from jointopt.core.errors import UsageError
from jointopt.core.facts import Source
from jointopt.report.page.choice import chosen_plans
from jointopt.report.page.figures import front_figure
from jointopt.surrogate.features import HEAT_NAMES

_QUANTITIES = {"time": "time", "power": "power"} | dict(HEAT_NAMES)
_PANEL_PX = 450


def front_plot(document: Mapping[str, Any]) -> go.Figure:
    """The front of a proposal's document, as the report draws it."""
    chosen = chosen_plans(document["front"], document.get("reference"), document.get("baseline") or "")
    two_step = (document.get("joint") or {}).get("two_step_front") or []
    lettered, colours = list(zip(ascii_uppercase, chosen, strict=False)), _colours()
    figure = front_figure(document["front"], lettered, two_step)
    named = re.sub(r"var\((--\w+)\)", lambda name: colours[name[1]], json.dumps(figure))
    return go.Figure(json.loads(named))


def importance_plot(importance: Mapping[str, Mapping[str, Mapping[str, float]]], folder: Path) -> go.Figure:
    """A plot of how far each feature moves what trees predict (mean size of its SHAP values), a panel per quantity.

    ``importance``: of features, by source and quantity, in the surrogate in ``folder``; the largest stands on top, a
    colour per source. UsageError where no trees count.
    """
    if not importance:
        raise UsageError(f"No trees count in {folder}: there is no importance to draw, and its card says why.")
    quantities = [of for of in _QUANTITIES if any(of in by for by in importance.values())]
    titles = [f"What moves the {_QUANTITIES[of]}, by the trees of a cluster's own runs" for of in quantities]
    figure, colours = make_subplots(rows=len(quantities), cols=1, subplot_titles=titles), _colours()
    named = set[str]()
    for number, (source, by_quantity) in enumerate(importance.items()):
        for of, features in by_quantity.items():
            names = list(features)[::-1]  # the largest on top
            figure.add_bar(
                x=[100.0 * features[name] for name in names], y=names, orientation="h", legendgroup=source,
                name=Source.parse(source).to_text(), showlegend=source not in named,
                marker_color=colours[f"--c{number % 8}"], row=quantities.index(of) + 1, col=1,
            )  # fmt: skip
            named.add(source)
    figure.update_layout(template="plotly_white", height=_PANEL_PX * len(quantities), legend={"orientation": "h"})
    return figure.update_xaxes(title="mean size of SHAP values, %")


def _colours() -> dict[str, str]:
    """The light colours of the page, by their names."""
    style = resources.files("jointopt.report.page").joinpath("page.css").read_text(encoding="utf-8")
    return dict(re.findall(r"(--\w+): (#\w+)", style[: style.index("}")]))
