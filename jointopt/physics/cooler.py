"""One cluster's cooling: temperature, leakage and the power at which its GPUs throttle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.physics import thermal
from jointopt.schema import Floats
from jointopt.spec.cluster import Cluster, PowerConstants


@dataclass(frozen=True)
class Cooler:
    """Steady state of one GPU; without a TDP there is no thermal model (NaN, no leakage)."""

    inlet_c: float
    resistance_k_per_w: float
    leakage_w_per_k: float
    throttle_power_w: float

    def temperature_c(self, reference_power_w: Floats) -> Floats:
        """Temperature at a power stated for the reference temperature."""
        return thermal.temperature_c(
            reference_power_w, self.inlet_c, self.resistance_k_per_w, self.leakage_w_per_k
        )

    @property
    def leakage_line(self) -> tuple[float, float]:
        """(a, b) of leakage = a + b x power."""
        at_zero, at_one = self.leakage_w(np.array([0.0, 1.0]))
        return float(at_zero), float(at_one - at_zero)

    def leakage_w(self, reference_power_w: Floats) -> Floats:
        """Power beyond the one stated for the reference temperature (negative on a cooler GPU)."""
        if not self.leakage_w_per_k:
            return np.zeros(np.shape(reference_power_w))
        return (self.temperature_c(reference_power_w) - thermal.REFERENCE_C) * self.leakage_w_per_k


def cooler(cluster: Cluster, constants: PowerConstants) -> Cooler:
    """The cooler that holds the GPU's TDP (`thermal` names the assumptions), at the cluster's inlet temperature."""
    gpu = cluster.gpu
    if gpu.tdp_w is None:
        return Cooler(cluster.inlet_temperature_c, float("nan"), 0.0, float("inf"))
    throttle_c = gpu.throttle_temperature_c or thermal.THROTTLE_C
    resistance = thermal.thermal_resistance_k_per_w(gpu.tdp_w, throttle_c)
    leakage = thermal.LEAKAGE_PER_K * constants.static_w
    throttle = thermal.throttle_power_w(throttle_c, cluster.inlet_temperature_c, resistance, leakage)
    return Cooler(cluster.inlet_temperature_c, resistance, leakage, float(throttle))
