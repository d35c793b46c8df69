"""Words on peak power and temperature where these were learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jointopt.report.explanation import Stage

_UNITS = {"peak_power_w": "W at the peak", "temperature_c": "°C"}


def heat_words(intervals: Mapping[str, tuple[float, float]], stages: Sequence[Stage]) -> str:
    """Those of the hottest GPU with their 90 % intervals, each before a comma; blank without intervals of them."""
    words = ""
    for name, unit in _UNITS.items():
        if ends := intervals.get(name):
            highest = max(getattr(stage, name) or 0.0 for stage in stages)
            words += f"{highest:.0f} {unit} ({ends[0]:.0f} to {ends[1]:.0f}), "
    return words
