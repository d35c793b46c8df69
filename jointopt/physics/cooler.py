"""One cluster's cooling: temperature, leakage and the power at which its GPUs throttle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats
from jointopt.physics import thermal
from jointopt.spec.cluster import Cluster, PowerConstants


@dataclass(frozen=True)
class Cooler:
    """Steady state of the GPUs of one node; without a TDP there is no thermal model (NaN, no leakage).

    GPUs of the exhaust row breathe air that is ``exhaust_rise_k`` warmer than ``inlet_c``; all others the inlet's.
    """

    inlet_c: float
    resistance_k_per_w: float
    leakage_w_per_k: float
    throttle_power_w: float  # of the hottest position
    exhaust_rise_k: float = 0.0
    exhaust_share: float = 0.0  # of a node's GPUs

    def temperature_c(self, reference_power_w: Floats) -> Floats:
        """Temperature of the hottest position at a power stated for the reference temperature."""
        return self._temperature_c(reference_power_w, self.inlet_c + self.exhaust_rise_k)

    def temperature_by_position_c(self, reference_power_w: Floats) -> dict[str, Floats]:
        """Temperature by where the GPU sits: ``inlet`` and, where a node has one, ``exhaust``."""
        positions = {"inlet": self._temperature_c(reference_power_w, self.inlet_c)}
        return positions | ({"exhaust": self.temperature_c(reference_power_w)} if self.exhaust_share else {})

    @property
    def leakage_line(self) -> tuple[float, float]:
        """(a, b) of leakage = a + b x power, the mean over positions."""
        return self._line(self.mean_inlet_c)

    @property
    def hottest_leakage_line(self) -> tuple[float, float]:
        """The same of the hottest position, which decides what a power limit leaves to the kernels."""
        return self._line(self.inlet_c + self.exhaust_rise_k)

    @property
    def mean_inlet_c(self) -> float:
        return self.inlet_c + self.exhaust_share * self.exhaust_rise_k

    def leakage_w(self, reference_power_w: Floats) -> Floats:
        """Power beyond the one stated for the reference temperature (negative on cooler GPUs), mean over positions."""
        return self._leakage_w(reference_power_w, self.mean_inlet_c)

    def leakage_parts_w(self, reference_power_w: Floats) -> tuple[float, Floats]:
        """`leakage_w` as (what static power is more or less in GPUs as cool as their air, what their own heat adds)."""
        if not self.leakage_w_per_k:
            return 0.0, np.zeros(np.shape(reference_power_w))
        at_air = (self.mean_inlet_c - thermal.REFERENCE_C) * self.leakage_w_per_k
        return at_air, self.leakage_w(reference_power_w) - at_air

    def peak_leakage_w(self, reference_power_w: Floats) -> Floats:
        """`leakage_w` of the hottest position."""
        return self._leakage_w(reference_power_w, self.inlet_c + self.exhaust_rise_k)

    def _temperature_c(self, reference_power_w: Floats, air_c: float) -> Floats:
        return thermal.temperature_c(reference_power_w, air_c, self.resistance_k_per_w, self.leakage_w_per_k)

    def _leakage_w(self, reference_power_w: Floats, air_c: float) -> Floats:
        if not self.leakage_w_per_k:
            return np.zeros(np.shape(reference_power_w))
        return (self._temperature_c(reference_power_w, air_c) - thermal.REFERENCE_C) * self.leakage_w_per_k

    def _line(self, air_c: float) -> tuple[float, float]:
        at_zero, at_one = self._leakage_w(np.array([0.0, 1.0]), air_c)
        return float(at_zero), float(at_one - at_zero)


def cooler(cluster: Cluster, constants: PowerConstants) -> Cooler:
    """The cooler that holds the GPU's TDP (`thermal` names the assumptions), in the cluster's air.

    Half of a node's GPUs (rounded down) sit in the exhaust row, as on boards with two rows of four.
    """
    gpu, inlet, rise = cluster.gpu, cluster.inlet_temperature_c, cluster.exhaust_rise_k
    share = (cluster.gpus_per_node // 2) / cluster.gpus_per_node if rise else 0.0
    rise = rise if share else 0.0
    if gpu.tdp_w is None:
        return Cooler(inlet, float("nan"), 0.0, float("inf"))
    throttle_c = gpu.throttle_temperature_c or thermal.THROTTLE_C
    resistance = thermal.thermal_resistance_k_per_w(gpu.tdp_w, throttle_c)
    leakage = thermal.LEAKAGE_PER_K * constants.static_w
    throttle = thermal.throttle_power_w(throttle_c, inlet + rise, resistance, leakage)
    return Cooler(inlet, resistance, leakage, float(throttle), rise, share)
