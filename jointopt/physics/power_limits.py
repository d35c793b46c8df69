"""What the GPUs of a layout may draw: the cluster's limit, the plan's own, and what a cooler takes away."""

from __future__ import annotations

import numpy as np

from jointopt.core.errors import InfeasibleError
from jointopt.core.schema import Columns, Floats, Ints
from jointopt.physics.cooler import Cooler
from jointopt.spec.cluster import Cluster


def power_limit_w(cluster: Cluster, layouts: Columns, rows: Ints, depth: int) -> Floats:
    """What a GPU of each stage may draw, (1, 1), (n, 1) or (n, depth) W: the lowest of cluster and plan.

    A plan's own: ``power_limit_w`` (L,) and ``stage_power_limit_w`` (L, pp) of the layouts, NaN = none.
    """
    limit = np.full((1, 1), cluster.power_limit_w)
    if "power_limit_w" in layouts:
        limit = np.fmin(limit, layouts["power_limit_w"][rows, None])
    if "stage_power_limit_w" in layouts:
        limit = np.fmin(limit, layouts["stage_power_limit_w"][rows, :depth])
    return limit


def electrical_limit_w(limit_w: Floats, cooler: Cooler) -> Floats:
    """A limit less leakage in the hottest GPU: what kernels may draw at the reference temperature, never more."""
    at_zero, gain = cooler.hottest_leakage_line
    # fmin: a GPU whose power nobody states still has a time
    return np.asarray(np.fmin(limit_w, (limit_w - at_zero) / (1.0 + gain)))


def kernel_limit_w(limit_w: Floats, cooler: Cooler, cluster: Cluster, static_w: float) -> Floats:
    """What kernels may draw at the reference temperature within a limit and before the hottest GPU throttles.

    Raises InfeasibleError where that does not exceed the static power.
    """
    cold = np.fmin(electrical_limit_w(limit_w, cooler), cooler.throttle_power_w)
    if float(cold.min()) <= static_w:
        raise InfeasibleError(_nothing_left(float(cold.min()), cooler, cluster, static_w))
    return np.asarray(cold)


def _nothing_left(watts: float, cooler: Cooler, cluster: Cluster, static_w: float) -> str:
    idle = f"{cluster.gpu.id} draws {static_w:.4g} W whatever runs"
    if watts < cooler.throttle_power_w:
        return (
            f"A power limit of {watts:.4g} W per GPU leaves nothing to compute with: {idle}; raise "
            f"cluster.power_limit_w, or the plan's own limit, or lower cluster.inlet_temperature_c."
        )
    return (
        f"Air of {cooler.inlet_c + cooler.exhaust_rise_k:.4g} °C at the hottest GPU makes it throttle at "
        f"{watts:.4g} W, and {idle}; lower cluster.inlet_temperature_c or cluster.exhaust_rise_k."
    )
