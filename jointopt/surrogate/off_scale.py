"""Measured times so far from the physics that their unit is in doubt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jointopt.core.errors import TableError
from jointopt.core.schema import Floats
from jointopt.surrogate.dataset import price, timed_runs

if TYPE_CHECKING:
    import pandas as pd

DOUBTED, REFUSED = 5.0, 50.0  # median measured over predicted time of a source, or its inverse
_QUESTION = "is iteration_time_s in seconds, and of one iteration?"


def off_scale(log_ratio: Floats, source: np.ndarray[Any, Any]) -> dict[str, float]:
    """Median measured over predicted time of each source that is beyond `DOUBTED` either way.

    ``log_ratio``: log(measured / predicted) of every run, (n,), NaN where unknown; ``source``: its source, (n,).
    """
    known = np.isfinite(log_ratio)
    found = {str(name): np.median(log_ratio[known & (source == name)]) for name in np.unique(source[known])}
    return {name: float(np.exp(value)) for name, value in found.items() if abs(value) > np.log(DOUBTED)}


def doubts(found: dict[str, float], predicted: str = "what the physics says") -> list[str]:
    """One sentence for each source that is `off_scale`."""
    return [
        f"Measured runs{_named(name)} take {_times(v)} {predicted}: {_QUESTION}" for name, v in found.items()
    ]


def checked_scale(log_ratio: Floats, source: np.ndarray[Any, Any]) -> list[str]:
    """`doubts` of runs that are to be learned from; TableError for a source beyond `REFUSED`."""
    found = off_scale(log_ratio, source)
    for name, value in found.items():
        if max(value, 1 / value) > REFUSED:
            raise TableError(
                f"Nothing can be learned from the measured runs{_named(name)}: they take {_times(value)} what the "
                f"physics says; expected less than {REFUSED:g} times either way. {_QUESTION.capitalize()} Correct the "
                "column, or leave these runs out."
            )
    return doubts(found)


def scale_of(measured: pd.DataFrame) -> list[str]:
    """`checked_scale` of a measurement table; nothing where no row can be priced, which is told elsewhere."""
    timed = timed_runs(measured)
    try:
        priced = price(timed)
    except TableError:
        return []
    return checked_scale(
        priced.residual(timed["iteration_time_s"].to_numpy(float)[priced.rows]), priced.runs.source
    )


def _named(source: str) -> str:
    """What a source key says, for people."""
    parts = source.split("|")
    words = [*parts[:-1], f"{parts[-1]} GPUs a node"] if len(parts) > 1 else parts
    told = ", ".join(dict.fromkeys(word for word in words if word))
    return f" ({told})" if told else ""


def _times(value: float) -> str:
    return f"{value:,.3g} times" if value < 1000 else f"{value:,.0f} times"
