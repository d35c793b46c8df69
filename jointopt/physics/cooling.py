"""Temperature and leakage of a cluster's GPUs, and what they may draw before a limit or throttling.

No source states a thermal resistance or the leakage of a GPU under training load: the constants here are assumptions.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import InfeasibleError
from jointopt.core.facts import Assumption
from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.jobs.cluster import Cluster, Gpu, PowerConstants

Array = npt.NDArray[np.float64] | float
# (share of an iteration in which kernels run, (L, pp); its seconds, (L, 1); watts of a GPU that waits)
DutyCycle = tuple[Floats, Floats, float]

DESIGN_INLET_C = 35.0  # air at which the cooler still holds the TDP (upper end of ASHRAE's class A2)
DESIGN_MARGIN_K = 10.0  # what is left to the throttle temperature then
# Air in which the power constants hold, at any power: they were fitted to boards as warm as their work made them (with
# a GPU's own heat counted once more, A40 pipelines were 5 to 9 % low). No source states it: that of clusters by default
REFERENCE_AIR_C = 22.5
REFERENCE_C = 60.0  # of GPUs near their rated power in such air, beyond which limits and throttling count leakage
LEAKAGE_PER_K = 0.01  # leakage grows by this share of the static power per kelvin
THROTTLE_C = 87.0  # for a GPU whose throttle temperature the catalogue does not have
# Resistance times heat capacity of GPU and heat sink. 14 s is HotSpot's heat sink (140.4 J/K, 0.1 K/W: Skadron et al.
# 2003, its hotspot.config); 75 s is a quarter of the five minutes after which air-cooled systems are steady to 2 %
# (mlcommons/training_policies issue 265). No source has one measured under training: between the two, by ratio.
TIME_CONSTANT_S = 30.0

_HOLDS = f"holds the TDP at {DESIGN_INLET_C:g} °C inlet air, {DESIGN_MARGIN_K:g} K below the throttle temperature"
ASSUMED = Assumption(
    "cooling", None,
    f"cooling: {_HOLDS} ({THROTTLE_C:g} °C where the catalogue has none); leakage grows by {LEAKAGE_PER_K:.0%} of the "
    "static power per K", "cooling", _HOLDS,
)  # fmt: skip


def thermal_resistance_k_per_w(tdp_w: float, throttle_c: float) -> float:
    """R_th in K/W of a cooler sized for the TDP, from the design inlet and margin assumed here."""
    return (throttle_c - DESIGN_MARGIN_K - DESIGN_INLET_C) / tdp_w


def temperature_c(
    reference_power_w: Array, inlet_c: Array, resistance_k_per_w: float, leakage_w_per_k: float = 0.0
) -> Floats:
    """Steady temperature in °C at a power stated for the reference; infinite where leakage outruns the cooler.

    Derived here from T = T_inlet + R_th·P and P = P_ref + leakage·(T − T_ref), leakage linear in T.
    """
    gain = resistance_k_per_w * leakage_w_per_k
    if gain >= 1.0:
        return np.full(np.broadcast(reference_power_w, inlet_c).shape, np.inf)
    heated = np.multiply(reference_power_w, resistance_k_per_w) + inlet_c
    return np.asarray((heated - gain * REFERENCE_C) / (1.0 - gain))


def throttle_power_w(
    throttle_c: float, inlet_c: Array, resistance_k_per_w: float, leakage_w_per_k: float = 0.0
) -> Floats:
    """Power in W, stated for the reference, at which the steady temperature is the throttle's; 0 where none is.

    `temperature_c` solved for power. A hot GPU lowers its clock until it is there (NVML: "SW thermal slowdown").
    """
    drawn_w = np.subtract(throttle_c, inlet_c) / resistance_k_per_w
    return np.asarray(np.maximum(drawn_w - leakage_w_per_k * (throttle_c - REFERENCE_C), 0.0))


def peak_share(busy_share: Array, iteration_s: Array, time_constant_s: Array) -> Floats:
    """Share of the step from waiting to running power that the hottest moment shows, in [busy_share, 1].

    Derived here: a first-order response to power that runs for ``busy_share`` of every iteration at a stretch (as hot
    as pauses can leave it) and waits for the rest, (1 - e^(-d·T/τ)) / (1 - e^(-T/τ)): the mean where iterations are
    short beside τ, the power of the kernels where they are long.
    """
    turns = np.maximum(np.divide(iteration_s, time_constant_s), 1e-9)
    return np.asarray(np.expm1(-np.multiply(busy_share, turns)) / np.expm1(-turns))


def burst_limit_w(cooler: Cooler, busy_share: Array, iteration_s: Array, wait_w: float) -> Floats:
    """Power in W that kernels may draw so that no moment of an iteration is above the throttle temperature.

    ``busy_share``: of the iteration, in which kernels run; ``wait_w``: what a GPU draws for the rest. By `peak_share`;
    no more than as if kernels lasted where waiting alone is that hot.
    """
    share = peak_share(busy_share, iteration_s, cooler.time_constant_s)
    room_w = cooler.throttle_power_w - wait_w
    return np.asarray(wait_w + room_w / (share if room_w > 0.0 else 1.0))


@dataclass(frozen=True)
class Cooler:
    """Steady state of the GPUs of one node; without a TDP there is no thermal model (NaN, no leakage).

    GPUs of the exhaust row breathe air that is ``exhaust_rise_k`` warmer than ``inlet_c``; all others the inlet's.
    ``exhaust``: whether GPUs sit in the exhaust row; the hottest ones do. Powers are in W at the reference temperature.
    """

    inlet_c: float
    resistance_k_per_w: float
    leakage_w_per_k: float
    throttle_power_w: float  # of the hottest position
    exhaust_rise_k: float = 0.0
    exhaust_share: float = 0.0  # of a node's GPUs

    @property
    def slowing(self) -> float:
        """Factor on steps of temperature and on the time that they take, as leakage follows temperature."""
        return 1.0 / (1.0 - self.resistance_k_per_w * self.leakage_w_per_k) if self.leakage_w_per_k else 1.0

    @property
    def time_constant_s(self) -> float:
        """Seconds in which 63 % of a step are there."""
        return TIME_CONSTANT_S * self.slowing

    @property
    def hottest_inlet_c(self) -> float:
        """Air in °C of the hottest position."""
        return self.inlet_c + self.exhaust_rise_k

    def temperature_c(self, reference_power_w: Floats, exhaust: Bools | bool = True) -> Floats:
        """Temperature in °C of GPUs by their power at the reference temperature."""
        air_c = np.where(exhaust, self.hottest_inlet_c, self.inlet_c)
        return temperature_c(reference_power_w, air_c, self.resistance_k_per_w, self.leakage_w_per_k)

    def leakage_w(self, reference_power_w: Floats, exhaust: Bools | bool = True) -> Floats:
        """Leakage in W beyond that of the reference temperature, of GPUs by their power there, as limits count it."""
        if not self.leakage_w_per_k:
            return np.zeros(np.shape(reference_power_w))
        return (self.temperature_c(reference_power_w, exhaust) - REFERENCE_C) * self.leakage_w_per_k

    def air_leakage_w(self, exhaust: Bools | Array = True) -> Floats:
        """Leakage in W beyond that in the reference air (negative in cooler air): linear in the air's temperature.

        The same at any power, as leakage is linear in the GPU's. ``exhaust`` may be a share of GPUs.
        """
        warmer_k = self.inlet_c + np.multiply(exhaust, self.exhaust_rise_k) - REFERENCE_AIR_C
        return np.asarray(warmer_k * self.leakage_w_per_k * self.slowing)

    @property
    def mean_leakage_w(self) -> float:
        """`air_leakage_w`, the mean over positions."""
        return float(self.air_leakage_w(self.exhaust_share))

    def reached_w(self, kernel_limit_w: Floats, exhaust: Bools | bool = True) -> Floats:
        """Power in W of GPUs whose kernels draw as much as `kernel_limit_w` allows.

        A cool one leaks less than limits count on, which is not given to its kernels.
        """
        leaks_w = np.maximum(self.leakage_w(kernel_limit_w, exhaust), self.air_leakage_w(exhaust))
        return np.asarray(kernel_limit_w + np.maximum(leaks_w, 0.0))


def throttle_c(gpu: Gpu) -> float:
    """Temperature in °C at which a GPU throttles, assumed where the catalogue has none."""
    return gpu.throttle_temperature_c or THROTTLE_C


def cooler(cluster: Cluster, constants: PowerConstants) -> Cooler:
    """The cooler that holds the GPU's TDP, in the cluster's air.

    Half of a node's GPUs (rounded down) sit in the exhaust row, as on boards with two rows of four, unless the cluster
    says which.
    """
    gpu, inlet, rise = cluster.gpu, cluster.inlet_temperature_c, cluster.exhaust_rise_k
    behind = cluster.gpus_per_node // 2 if cluster.exhaust_ranks is None else len(cluster.exhaust_ranks)
    share = behind / cluster.gpus_per_node if rise else 0.0
    rise = rise if share else 0.0
    if gpu.tdp_w is None:
        return Cooler(inlet, float("nan"), 0.0, float("inf"))
    resistance = thermal_resistance_k_per_w(gpu.tdp_w, throttle_c(gpu))
    leakage = LEAKAGE_PER_K * constants.static_w
    throttle = throttle_power_w(throttle_c(gpu), inlet + rise, resistance, leakage)
    return Cooler(inlet, resistance, leakage, float(throttle), rise, share)


def stages_in_exhaust(cluster: Cluster, gpus_per_stage: Ints, depth: int) -> Bools:
    """Whether a rank of a stage sits in the exhaust row, (L, depth), or (1, 1) where any rank may be there.

    Ranks are numbered through the nodes as in `jobs.plans.placement`: a stage has ``gpus_per_stage`` (L,) in turn. All
    ranks of a stage wait for its hottest one.
    """
    if cluster.exhaust_ranks is None or not cluster.exhaust_rise_k:
        return np.ones((1, 1), bool)
    return _stages_with(cluster.exhaust_ranks, cluster.gpus_per_node, gpus_per_stage, depth)


def _stages_with(ranks: Collection[int], per_node: int, gpus_per_stage: Ints, depth: int) -> Bools:
    """Whether a stage has one of these local ranks, (L, depth)."""
    size = gpus_per_stage[:, None, None]
    after = (np.array(sorted(ranks)) - size * np.arange(depth)[:, None]) % per_node
    return np.asarray((after < size).any(axis=2))


def position_temperatures_c(
    cluster: Cluster, cooler: Cooler, reference_power_w: Floats, gpus_per_stage: int
) -> dict[str, Floats]:
    """Temperature in °C of the stages of one plan, (pp,), at the ``inlet`` and, where a node has one, ``exhaust``.

    NaN in a row that has no rank of a stage.
    """
    rows = {"inlet": False} | ({"exhaust": True} if cooler.exhaust_share else {})
    found = {name: cooler.temperature_c(reference_power_w, row) for name, row in rows.items()}
    if cluster.exhaust_ranks is None or "exhaust" not in found:
        return found
    behind = set(cluster.exhaust_ranks)
    ranks = {"inlet": set(range(cluster.gpus_per_node)) - behind, "exhaust": behind}
    size, depth = np.array([gpus_per_stage]), len(reference_power_w)
    there = {name: _stages_with(of, cluster.gpus_per_node, size, depth)[0] for name, of in ranks.items()}
    return {name: np.where(there[name], celsius, np.nan) for name, celsius in found.items()}


def kernel_limits_w(
    limit_w: Floats, cluster: Cluster, constants: PowerConstants, gpus_per_stage: Ints, depth: int,
    duty: DutyCycle | None = None,
) -> Floats:  # fmt: skip
    """`kernel_limit_w` of the stages by the air that their hottest rank breathes, as wide as limits differ."""
    exhaust = stages_in_exhaust(cluster, gpus_per_stage, depth)
    hottest = kernel_limit_w(limit_w, cooler(cluster, constants), cluster, constants.static_w, duty)
    if exhaust.all():
        return hottest
    inlet = cooler(replace(cluster, exhaust_rise_k=0.0), constants)
    return np.where(exhaust, hottest, kernel_limit_w(limit_w, inlet, cluster, constants.static_w, duty))


def power_limit_w(cluster: Cluster, layouts: Columns, rows: Ints, depth: int) -> Floats:
    """Power limit of a GPU of each stage, (1, 1), (n, 1) or (n, depth) W: the lowest of cluster and plan.

    As NVML sets it (``nvmlDeviceSetPowerManagementLimit``), whole board, HBM included.
    A plan's own: ``power_limit_w`` (L,) and ``stage_power_limit_w`` (L, pp) of the layouts, NaN = none.
    """
    limit = np.full((1, 1), cluster.power_limit_w)
    if "power_limit_w" in layouts:
        limit = np.fmin(limit, layouts["power_limit_w"][rows, None])
    if "stage_power_limit_w" in layouts:
        limit = np.fmin(limit, layouts["stage_power_limit_w"][rows, :depth])
    return limit


def electrical_limit_w(limit_w: Floats, cooler: Cooler) -> Floats:
    """Power in W that kernels may draw at the reference temperature: the limit less leakage of the hottest GPU.

    Leakage, a line a + b·P of the power P, solved for it (derived here), or what the hottest GPU's air adds.
    """
    at_zero, at_one = cooler.leakage_w(np.array([0.0, 1.0]))
    left_w = np.minimum((limit_w - at_zero) / (1.0 + at_one - at_zero), limit_w - cooler.air_leakage_w())
    # fmin: a GPU of unknown power still has a time
    return np.asarray(np.fmin(limit_w, left_w))


def above_idle_power(limits_w: Floats, cluster: Cluster, constants: PowerConstants) -> Bools:
    """Whether limits (n,) in W exceed what a GPU in the hottest air draws whatever runs."""
    return np.asarray(electrical_limit_w(limits_w, cooler(cluster, constants)) > constants.static_w)


def kernel_limit_w(
    limit_w: Floats, cooler: Cooler, cluster: Cluster, static_w: float, duty: DutyCycle | None = None
) -> Floats:
    """Power in W that kernels may draw, at the reference temperature, within a limit and before a GPU throttles.

    ``duty``: of the kernels; None: as if they ran for ever. Raises InfeasibleError where that
    does not exceed the static power.
    """
    throttle_w = cooler.throttle_power_w if duty is None else burst_limit_w(cooler, *duty)
    cold = np.fmin(electrical_limit_w(limit_w, cooler), throttle_w)
    watts, idle = float(cold.min()), f"{cluster.gpu.id} draws {static_w:.4g} W whatever runs"
    if watts <= static_w and watts < cooler.throttle_power_w:
        raise InfeasibleError(
            f"A power limit of {watts:.4g} W per GPU leaves nothing to compute with: {idle}; raise it "
            f"(cluster.power_limit_w, search.power_limit_w, or the plan's own), or lower cluster.inlet_temperature_c."
        )
    if watts <= static_w:
        raise InfeasibleError(
            f"Air of {cooler.hottest_inlet_c:.4g} °C at the hottest GPU makes it throttle at "
            f"{watts:.4g} W, and {idle}; lower cluster.inlet_temperature_c or cluster.exhaust_rise_k."
        )
    return np.asarray(cold)
