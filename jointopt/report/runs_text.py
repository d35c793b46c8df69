"""Plans and their expected gain in the sentences on real runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from jointopt.report.clocks import short_clocks
from jointopt.report.plan_table import PLAN_COLUMNS

TERMINATED = "Ended by a signal: runs that had ended are kept, and the same command goes on."
_LINE_WIDTH = 40  # of the clocks in a line of words
_ALWAYS = ("dp", "tp", "pp", "micro_batch_size", "recompute", "zero_stage")


def differing(plans: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Plan columns in which ``plans`` (records) differ."""
    met: dict[str, set[str]] = {}
    for plan in plans:
        for name, value in plan.items():
            met.setdefault(name, set()).add(str(value))
    return frozenset(name for name, values in met.items() if len(values) > 1)


def plan_words(plan: Mapping[str, Any], differing: Collection[str]) -> str:
    """A plan in one line: the columns that distinguish most plans, and those in which it is ``differing``."""
    heads = {name: column.head for name, column in PLAN_COLUMNS.items()} | {"stage_clock_mhz": "clock"}
    shown = [name for name in heads if name in _ALWAYS or name in differing]
    return " ".join(f"{heads[name]}={_word(plan[name])}" for name in shown)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "y" if value else "n"
    if isinstance(value, list | tuple):
        return f"{short_clocks(value, _LINE_WIDTH)} MHz"
    return str(value)


def gain_words(gain: float, objectives: int, plans: str) -> str:
    """The expected gain of ``plans``: a share of the time, or of the front; NaN = not known yet."""
    if math.isnan(gain):
        return f"what {plans} bring cannot be told yet (too few runs)"
    what = "be faster by" if objectives == 1 else "widen the front by"
    return f"{plans} are expected to {what} {gain:.1%}"
