"""Steady-state temperature of one GPU, and the power at which it throttles.

    T = T_inlet + R_th·P,    P = P_ref + leakage_w_per_k·(T − T_ref)

with P_ref the power that would be drawn at the reference temperature. Steady state only: minutes, not milliseconds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import Floats

Array = npt.NDArray[np.float64] | float

# Assumptions: no source states these for a GPU under training load.
DESIGN_INLET_C = 35.0  # air at which the cooler still holds the TDP (upper end of ASHRAE's class A2)
DESIGN_MARGIN_K = 10.0  # what is left to the throttle temperature then
REFERENCE_C = 60.0  # temperature at which the power constants hold
LEAKAGE_PER_K = 0.01  # leakage grows by this share of the static power per kelvin
THROTTLE_C = 87.0  # for a GPU whose throttle temperature the catalogue does not have

ASSUMED = (
    f"cooling: holds the TDP at {DESIGN_INLET_C:g} °C inlet air, {DESIGN_MARGIN_K:g} K below the throttle temperature "
    f"({THROTTLE_C:g} °C where the catalogue has none); leakage grows by {LEAKAGE_PER_K:.0%} of the static power per K"
)


def thermal_resistance_k_per_w(tdp_w: float, throttle_c: float) -> float:
    """R_th of a cooler sized for the TDP: the design inlet and margin of this file are assumptions."""
    return (throttle_c - DESIGN_MARGIN_K - DESIGN_INLET_C) / tdp_w


def temperature_c(
    reference_power_w: Array,
    inlet_c: Array,
    resistance_k_per_w: float,
    leakage_w_per_k: float = 0.0,
    reference_c: float = REFERENCE_C,
) -> Floats:
    """Steady temperature at a power stated for ``reference_c``; infinite where leakage outruns the cooler."""
    gain = resistance_k_per_w * leakage_w_per_k
    if gain >= 1.0:
        return np.full(np.broadcast(reference_power_w, inlet_c).shape, np.inf)
    heated = np.multiply(reference_power_w, resistance_k_per_w) + inlet_c
    return np.asarray((heated - gain * reference_c) / (1.0 - gain))


def throttle_power_w(
    throttle_c: float,
    inlet_c: Array,
    resistance_k_per_w: float,
    leakage_w_per_k: float = 0.0,
    reference_c: float = REFERENCE_C,
) -> Floats:
    """Power, stated for ``reference_c``, at which the steady temperature is the throttle's; 0 where none is.

    A hot GPU lowers its clock until it is there, so this acts as one more power limit.
    """
    drawn_w = np.subtract(throttle_c, inlet_c) / resistance_k_per_w
    return np.asarray(np.maximum(drawn_w - leakage_w_per_k * (throttle_c - reference_c), 0.0))
