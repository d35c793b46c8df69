"""Words on peak power and temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jointopt.report import table

if TYPE_CHECKING:
    from jointopt.report.stage import Stage

_UNITS = {"peak_power_w": "W at the peak", "temperature_c": "°C"}


def heat_words(intervals: Mapping[str, tuple[float, float]], stages: Sequence[Stage]) -> str:
    """Peak power and temperature of the hottest GPU with 90 % intervals, each with a comma; blank without these."""
    words = ""
    for name, unit in _UNITS.items():
        if ends := intervals.get(name):
            highest = max(getattr(stage, name) or 0.0 for stage in stages)
            words += f"{highest:.0f} {unit} ({ends[0]:.0f} to {ends[1]:.0f}), "
    return words


def warming_words(found: Mapping[str, float]) -> str:
    """A sentence on temperature within an iteration; blank where it is not known."""
    if not found:
        return ""
    swing = between(f"{found['trough_c']:.1f}", f"{found['peak_c']:.1f}")
    words = f"The hottest GPU is at {swing} °C within an iteration, some {found['settles_s']:.0f} s after the start"
    late = f"; without pauses it would throttle after {found['throttles_s']:.0f} s" if "throttles_s" in found else ""
    return f"{words}{late}."


def between(low: str, high: str) -> str:
    """A range of two figures, or one where they are alike."""
    return table.span(low, high, " to ")
