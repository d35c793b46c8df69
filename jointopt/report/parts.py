"""Parts of a total as people expect them: none of them negative, and they still add up."""

from __future__ import annotations

from collections.abc import Mapping

_NOISE = 1e-9  # of the total: what differences of sums leave


def tidy_parts(parts: Mapping[str, float]) -> dict[str, float]:
    """The parts with rounding noise moved to the largest part, and a negative ``leakage`` counted as ``static``."""
    tidy = dict(parts)
    if "static" in tidy and tidy.get("leakage", 0.0) < 0:
        tidy["static"] += tidy.pop("leakage")
    noise = {
        name: value for name, value in tidy.items() if 0 < abs(value) < _NOISE * abs(sum(parts.values()))
    }
    if noise:
        tidy |= dict.fromkeys(noise, 0.0)
        tidy[max(tidy, key=lambda name: tidy[name])] += sum(noise.values())
    return tidy
