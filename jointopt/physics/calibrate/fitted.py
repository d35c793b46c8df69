"""What fits of curves and of pipelines have in common: their result, and estimates as columns of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.schema import Floats, Ints
from jointopt.physics.calibrate.grouping import Key
from jointopt.physics.rank_response import RankFit
from jointopt.physics.stage_response import Estimate, StageFit

MOST_ASKED = 400  # rows that are predicted in one go
MOST_WORK = 100  # pieces of work that a calibration lists
NOT_PREDICTED = "not_predicted"
_ENDS = ("", "_low", "_high")


@dataclass(frozen=True)
class Fitted:
    """One fit, and how it explains the readings that it is of."""

    told: StageFit | RankFit
    x: Floats  # clocks of the readings over the maximum clock
    error_percent: Mapping[str, float]
    work: Sequence[str]  # names of its curves
    savings: Sequence[Mapping[str, Any]] = ()  # of its first curves, where one clock sets time and energy


def mean_error_percent(told: Estimate | Floats, measured: Floats) -> float:
    """Mean absolute relative difference."""
    value = told.value if isinstance(told, Estimate) else told
    return rounded(100.0 * float(np.abs(value / measured - 1.0).mean()))


def rounded(value: float) -> float:
    """Four digits, of large values one decimal."""
    return float(f"{value:.4g}") if value < 1e4 else round(value, 1)


def spread_evenly(index: Ints, most: int) -> Ints:
    """At most that many of the positions, evenly over all of them."""
    if len(index) <= most:
        return index
    at = np.unique(np.linspace(0, len(index) - 1, most).astype(int))
    return np.asarray(index[at])


def chunks(index: Ints) -> Iterator[Ints]:
    """The positions, at most `MOST_ASKED` at a time."""
    for start in range(0, len(index), MOST_ASKED):
        yield index[start : start + MOST_ASKED]


def tail(estimate: Estimate, count: int, scale: Any = 1.0) -> Estimate:
    """The last ``count`` of an estimate, times ``scale``: the rows that were asked for stand after the readings."""
    return Estimate(*(getattr(estimate, end)[-count:] * scale for end in ("value", "low", "high")))


def estimate_columns(estimates: Mapping[str, Estimate], index: Any) -> pd.DataFrame:
    """Value and both ends of every estimate as columns ``name``, ``name_low`` and ``name_high``."""
    columns = {}
    for name, estimate in estimates.items():
        for end, values in zip(_ENDS, (estimate.value, estimate.low, estimate.high), strict=True):
            columns[name + end] = values
    return pd.DataFrame(columns, index=index)


def unknown_work(key: Key, known: Sequence[Key]) -> str:
    """Why a row of work that no reading is of is not predicted."""
    there = "; ".join(" ".join(k) for k in known[:4])
    more = f" and {len(known) - 4} more" if len(known) > 4 else ""
    return f"no reading of {' '.join(key)}: measure it at one clock at least (measured: {there}{more})"
