"""What a run's clocks and power limit must be on its GPU: the bounds that job files and plans are held to."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pandas as pd

from jointopt.catalog.gpus import load_gpu
from jointopt.errors import CatalogError
from jointopt.schema import Floats
from jointopt.tables import RULES, Rule

_TOLERANCE_MHZ = 1.0  # tools round the half steps of V100 clocks differently
_MOST_OF_TDP = 1.5  # no board is sold with half as much again as its rated power
Span = tuple[float, float]


@functools.cache
def _clock_span_mhz(name: str) -> Span:
    """(lowest, highest) clock of the GPU of that name, as far as a source states them."""
    try:
        gpu = load_gpu(name)
    except CatalogError:
        return 0.0, math.inf
    return gpu.clock_min_mhz or 0.0, gpu.clock_max_mhz or math.inf


@functools.cache
def _power_limit_span_w(name: str) -> Span:
    """(draw at rest, most) W that a power limit lies between."""
    try:
        gpu = load_gpu(name)
    except CatalogError:
        return 0.0, math.inf
    return gpu.idle_w or 0.0, _MOST_OF_TDP * (gpu.tdp_w or math.inf)


def _spans(names: pd.Series, span: Callable[[str], Span]) -> tuple[Floats, Floats]:
    """(lowest, highest) for each row's GPU, (n,) each; none where it names no GPU."""
    codes, distinct = pd.factorize(names)
    known = np.array([*(span(str(name)) for name in distinct), (0.0, math.inf)])
    return known[codes, 0], known[codes, 1]


def _outside(column: str, span: Callable[[str], Span], slack: float) -> Callable[[pd.DataFrame], pd.Series]:
    def broken(runs: pd.DataFrame) -> pd.Series:
        if runs[column].isna().all():
            return pd.Series(False, index=runs.index)
        codes, distinct = pd.factorize(runs[column])
        ends = [(min(cell), max(cell)) if isinstance(cell, tuple) else (cell, cell) for cell in distinct]
        bounds = np.array([*ends, (np.nan, np.nan)], np.float64)
        spans = np.array([span(str(name)) for name in runs["gpu"].unique()])
        if np.nanmin(bounds) >= spans[:, 0].max() and np.nanmax(bounds) <= spans[:, 1].min():
            return pd.Series(False, index=runs.index)  # without a look at a million rows
        given = bounds[codes]
        low, high = _spans(runs["gpu"], span)
        return pd.Series((given[:, 0] < low - slack) | (given[:, 1] > high + slack), index=runs.index)

    return broken


def _expected(column: str, span: Callable[[str], Span], unit: str) -> Callable[[pd.Series], str]:
    def words(run: pd.Series) -> str:
        low, high = span(str(run["gpu"]))
        return f"{column} to be from {low:g} to {high:g} {unit} on this GPU"

    return words


def _rule(column: str, span: Callable[[str], Span], unit: str, slack: float = 0.0) -> Rule:
    return Rule((column, "gpu"), _expected(column, span, unit), _outside(column, span, slack))


GPU_RULES = (
    _rule("clock_mhz", _clock_span_mhz, "MHz", _TOLERANCE_MHZ),
    _rule("stage_clock_mhz", _clock_span_mhz, "MHz", _TOLERANCE_MHZ),
    _rule("power_limit_w", _power_limit_span_w, "W"),
)
MEASUREMENT_RULES = (*RULES, *GPU_RULES)
