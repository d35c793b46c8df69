"""SM clocks of pipeline stages: arrays (n, max pp), NaN beyond a plan's pp, and their text in tables."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import PlanError
from jointopt.core.schema import Floats, Ints


def uniform_stage_clocks(pp: Ints, clock_mhz: float | Floats) -> Floats:
    """One clock on all stages of each plan: (n, max pp) from pp (n,) and a clock or clocks (n,), in MHz."""
    pp = np.asarray(pp)
    clocks = np.broadcast_to(np.asarray(clock_mhz, np.float64), pp.shape)
    stage = np.arange(int(pp.max(initial=0)))
    return np.where(stage < pp[:, np.newaxis], clocks[:, np.newaxis], np.nan)


def widened(stage_clock_mhz: Floats, width: int) -> Floats:
    """Stage clocks (n, S) as (n, width), NaN behind the last stage."""
    return np.pad(stage_clock_mhz, ((0, 0), (0, width - stage_clock_mhz.shape[1])), constant_values=np.nan)


def parse_stage_clocks(text: object, where: str = "stage_clock_mhz") -> list[float]:
    """``1410;1395`` (or one number, or a list of numbers) as floats in MHz; a blank cell is an empty list.

    A run of equal clocks may be written as tables print it, ``1800×7,1860`` or ``1800x7,1860``.
    """
    if isinstance(text, list | tuple):
        parts: Sequence[object] = text
    elif text is None or text != text or not str(text).strip():  # NaN is pandas' blank
        return []
    else:
        parts = re.split("[;,]", str(text))
    return [clock for part in parts for clock in _run(part, where)]


def format_stage_clocks(clocks_mhz: Iterable[float]) -> str:
    """``1410;1395`` from the clocks of one plan; NaN (beyond pp) is left out."""
    return ";".join(plain_number(clock) for clock in clocks_mhz if clock == clock)


def stage_clocks_to_text(stage_clock_mhz: npt.ArrayLike) -> list[str]:
    """The column of clock texts for a table, one per row of (n, S)."""
    return [format_stage_clocks(row) for row in np.asarray(stage_clock_mhz, np.float64).tolist()]


def plain_number(value: float) -> str:
    """The shortest decimal that reads back as ``value``, whole numbers without a point."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def number_in(value: object) -> float:
    """The number that a value or its text is; NaN for a bool and for other text."""
    try:
        return math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        return math.nan


def _run(part: object, where: str) -> list[float]:
    """One clock, or as many as a part such as ``1800×7`` states."""
    run = re.fullmatch(r"\s*([0-9.]+)\s*[×xX*]\s*([1-9][0-9]{0,4})\s*", part) if isinstance(part, str) else None
    one, count = (run[1], int(run[2])) if run else (part, 1)
    clock = number_in(one)
    if not 0 < clock < 1e6:
        raise PlanError(f"{where} must be MHz such as 1410, or 1410;1395 with one per stage; got {one!r}.")
    return [clock] * count
