"""Figures of a report for notebooks: the one place that imports Plotly's Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import plotly.graph_objects as go

from jointopt.core.facts import Source
from jointopt.report.page.choice import chosen_plans
from jointopt.report.page.figures import front_figure

_LETTERS = "ABCDEFGH"


def front_plot(document: Mapping[str, Any]) -> go.Figure:
    """The front of a proposal's document, as the report draws it."""
    chosen = chosen_plans(document["front"], document.get("reference"), document.get("baseline") or "")
    two_step = (document.get("joint") or {}).get("two_step_front") or []
    figure = front_figure(document["front"], list(zip(_LETTERS, chosen, strict=False)), two_step)
    return go.Figure(_coloured(figure, _colours()))


def importance_plot(importance: Mapping[str, Mapping[str, float]]) -> go.Figure:
    """A plot of how far each feature moves the time that trees predict, per source (mean size of its SHAP values)."""
    figure = go.Figure()
    for source, features in importance.items():
        names = list(features)[::-1]  # the largest on top
        percent = [100.0 * features[name] for name in names]
        figure.add_bar(x=percent, y=names, orientation="h", name=Source.parse(source).to_text(), showlegend=True)
    colours = _colours()
    figure.update_layout(
        title="What moves the time, by the trees of a cluster's own runs", xaxis_title="mean size of SHAP values, %",
        template="plotly_white", colorway=[colours[f"--c{i}"] for i in range(8)],
        legend={"orientation": "h", "y": -0.2},
    )  # fmt: skip
    return figure


def _colours() -> dict[str, str]:
    """The light colours of the page, by their names."""
    style = resources.files("jointopt.report.page").joinpath("page.css").read_text(encoding="utf-8")
    return dict(re.findall(r"(--\w+): (#\w+)", style[: style.index("}")]))


def _coloured(value: Any, colours: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _coloured(item, colours) for key, item in value.items()}
    if isinstance(value, list):
        return [_coloured(item, colours) for item in value]
    named = re.fullmatch(r"var\((--\w+)\)", value) if isinstance(value, str) else None
    return colours[named[1]] if named else value
