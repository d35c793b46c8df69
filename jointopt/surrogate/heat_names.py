"""Names of peak power and temperature as they are learned."""

from __future__ import annotations

from collections.abc import Mapping

# By their name among predictions: the temperature over the inlet air, which is what power heats. Then the column of
# tables, and what lines and cards call it.
PEAK, RISE = "peak_power_w", "temperature_rise_k"
HEAT_COLUMNS: Mapping[str, str] = {PEAK: "peak_power_w", RISE: "temperature_c"}
HEAT_NAMES: Mapping[str, str] = {PEAK: "peak power", RISE: "temperature above the air"}
