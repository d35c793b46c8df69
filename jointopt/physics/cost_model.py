"""Predictions for plans, each a layout and one clock per stage: the one file of the physics that knows columns.

Layouts are priced once, without clocks, and grouped by pipeline depth, so that no array is padded. Shapes: L layouts, n
plans of them (``index`` (n,) says which layout each plan has), pp stages. ``g`` is the number of a group and ``rows``
are positions in it.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import DEGREES, Bools, Columns, Floats, Ints, num_gpus
from jointopt.core.units import GIB
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.defaults import completed
from jointopt.jobs.job import Job
from jointopt.jobs.kernels import KernelConstants
from jointopt.physics import bounds, clock_law, site
from jointopt.physics import costs as pc
from jointopt.physics import makespan as ms
from jointopt.physics import stage_costs as sc
from jointopt.physics.bounds import quick_bound
from jointopt.physics.cooling import (
    Cooler,
    cooler,
    kernel_limits_w,
    position_temperatures_c,
    power_limit_w,
    stages_in_exhaust,
)
from jointopt.physics.curves import Curves
from jointopt.physics.layouts import LayoutArrays, layout_pieces
from jointopt.physics.makespan import StageTimes, least_makespan_s
from jointopt.physics.memory import peak_memory_bytes
from jointopt.physics.stage_costs import of_rows, summed
from jointopt.physics.traffic import hardware

# Power limits of GPUs that were measured to draw another power than the physics predicts.


LEAST_ROOM = 0.01  # of what the highest limit leaves above idling, which every limit leaves: no clock would be slower


@dataclass(frozen=True)
class BoardPower:
    """Power that a GPU draws by its measured runs under the limit ``limit_w``, of L layouts, at c ascending clocks."""

    limit_w: float
    line: Floats  # (2, L): factor and offset in W that turn the physics' power of running kernels into the measured one
    mean_w: Floats  # (c, L): mean power over an iteration, as measured
    burst_w: Floats  # (c, L): power of running kernels, by the physics

    @property
    def cells(self) -> Floats:
        """All numbers in one array, (2 + 2c, L)."""
        return np.concatenate([self.line, self.mean_w, self.burst_w])

    @classmethod
    def of_cells(cls, limit_w: float, cells: Floats) -> BoardPower:
        """The inverse of `cells`."""
        mean_w, burst_w = np.split(cells[2:], 2)
        return cls(limit_w, cells[:2], mean_w, burst_w)

    def limit_in_physics_w(self, limit_w: Floats, rows: Ints, idle_w: float) -> Floats:
        """The power at which the physics has to cap layouts ``rows`` (n,) so that boards keep ``limit_w``, in W.

        ``limit_w`` and the result: (1, 1), (n, 1) or (n, pp). A limited GPU runs at the clock at which its measured
        power meets the limit, while kernels run and in the mean. Limits equal to ``self.limit_w`` stay, since times
        were measured under them; the result never falls as the limit rises, and lies above ``idle_w``, what a GPU draws
        in the physics whatever runs. Derived here.
        """
        if (limit_w == self.limit_w).all():
            return limit_w
        factor, offset_w = self.line[:, rows, None]
        # power of kernels at which the mean meets the limit: between clocks along a line, below the lowest in
        # proportion, and at no power above the highest
        mean_w, burst_w = self.mean_w[:, rows, None], self.burst_w[:, rows, None]
        in_mean_w = burst_w[0] * limit_w / mean_w[0]
        for k in range(len(mean_w) - 1):
            share = (limit_w - mean_w[k]) / np.maximum(mean_w[k + 1] - mean_w[k], 1e-9)
            in_mean_w = np.where(limit_w > mean_w[k], burst_w[k] + share * (burst_w[k + 1] - burst_w[k]), in_mean_w)
        in_mean_w = np.where(limit_w >= mean_w[-1], np.inf, in_mean_w)
        met_w = np.minimum((limit_w - offset_w) / factor, in_mean_w)
        below, above = np.minimum(met_w, self.limit_w), np.minimum(np.maximum(met_w, self.limit_w), limit_w)
        least_w = idle_w + LEAST_ROOM * max(self.limit_w - idle_w, 0.0)
        left_w: Floats = np.maximum(np.where(limit_w < self.limit_w, below, above), np.minimum(limit_w, least_w))
        return left_w


def hottest_idle_w(constants: PowerConstants, cooler: Cooler) -> float:
    """Watts that a GPU in the hottest air draws whatever runs, leakage included."""
    return constants.static_w + max(float(cooler.leakage_w(np.array(constants.static_w))), 0.0)


def limit_in_physics_w(physics: CostModel, rows: Ints, depth: int) -> Floats:
    """`power_limit_w` of layouts ``rows``, as `BoardPower.limit_in_physics_w` where power was measured."""
    limit_w, board = power_limit_w(physics.job.cluster, physics.layouts, rows, depth), physics.board_power
    if board is None:
        return limit_w
    return board.limit_in_physics_w(limit_w, rows, hottest_idle_w(physics.power, physics.cooler))


# Peak power and temperature of plans, by the physics or as they were measured.


HEAT = ("peak_power_w", "temperature_c")


@dataclass(frozen=True)
class HeatScale:
    """Lines, (2, n) factor and offset, from the physics' peaks and temperatures of n layouts to measured ones."""

    peak: Floats | None = None  # of peak power, offset in W; None: not measured
    rise: Floats | None = None  # of the temperature over the inlet air, offset in K; None: not measured
    overshoot: float = np.inf  # peak power over the power limit that boards allow at most


def unmeasured_heat(index: Ints) -> HeatScale:
    """The default of `CostModel.heat_scale`: peaks and temperature were not measured, and follow mean power."""
    return HeatScale()


def unscaled_heat(physics: CostModel, index: Ints, stage_clock_mhz: Floats) -> Columns:
    """`CostModel.heat` of plans, (n,) each, by the physics alone, whatever was measured."""
    same = np.array([[1.0], [0.0]])

    def as_predicted(some: Ints) -> HeatScale:
        lines = np.repeat(same, len(some), 1)
        return HeatScale(lines, lines)

    alone = physics.corrected(np.ones_like(physics.time_factor), heat_scale=as_predicted)
    return alone.heat(index, stage_clock_mhz)


def peak_w(physics: CostModel, index: Ints, t: StageTimes) -> Floats:
    """Peak power (n, pp) in W of layouts ``index`` of one group: `CostModel.burst_w`, scaled as measured.

    Never above the power limit, or where peaks were measured `HeatScale.overshoot` times it, nor below the mean power.
    """
    g, scale = int(physics.group_of[index[0]]), physics.heat_scale(index)
    burst_w = physics.burst_w(g, physics.row_of[index], t)
    limit_w = power_limit_w(physics.job.cluster, physics.layouts, index, physics.groups[g].depth)
    most_w = np.maximum(limit_w, burst_w) if scale.peak is None else scale.overshoot * limit_w
    parts_j = physics.energy_parts(g, physics.row_of[index], t).values()
    mean_w = _scaled_mean_w(physics, index, summed(parts_j) / t.total_s[:, None])
    return np.maximum(np.minimum(scaled_burst_w(physics, index, burst_w), most_w), np.minimum(mean_w, limit_w))


def scaled_burst_w(physics: CostModel, index: Ints, burst_w: Floats) -> Floats:
    """The physics' power of running kernels, ``burst_w`` (n, pp), scaled as measured, whatever the limit."""
    line = physics.heat_scale(index).peak
    if line is None:
        if physics.board_power is None:
            return _scaled_mean_w(physics, index, burst_w)
        line = physics.board_power.line[:, index]
    return np.asarray(line[0][:, None] * burst_w + line[1][:, None])


def layout_burst_w(physics: CostModel, share: float) -> Floats:
    """Power (L,) in W of the hottest GPU of layouts while kernels run at a share of the top clock, by the physics."""
    index, out = np.arange(len(physics.layouts["pp"])), np.empty(len(physics.layouts["pp"]))
    for g, at, rows, depth in physics.blocks(index):
        t = physics.times(g, rows, np.full((len(at), depth), share * physics.top_mhz), least_makespan_s)
        out[at] = physics.burst_w(g, rows, t).max(axis=1)
    return out


def temperature_c(physics: CostModel, index: Ints, t: StageTimes) -> Floats:
    """Temperature (n, pp) in °C of the hottest GPU of each stage of layouts ``index`` of one group."""
    exhaust = physics.in_exhaust(int(physics.group_of[index[0]]), physics.row_of[index])
    return _measured_c(physics, index, physics.cooler.temperature_c(_heating_w(physics, index, t), exhaust))


def stage_positions_c(physics: CostModel, index: Ints, t: StageTimes) -> dict[str, Floats]:
    """Temperature (pp,) in °C of the stages of one layout by where a GPU sits: ``inlet`` and ``exhaust``."""
    replicas = int(physics.groups[int(physics.group_of[index[0]])].replicas[physics.row_of[index[0]]])
    watts = _heating_w(physics, index, t)[0]
    found = position_temperatures_c(physics.job.cluster, physics.cooler, watts, replicas)
    return {name: _measured_c(physics, index, celsius[None])[0] for name, celsius in found.items()}


def _scaled_mean_w(physics: CostModel, index: Ints, watts: Floats) -> Floats:
    """Watts (n, pp), scaled as mean power is."""
    return np.asarray(physics.power_scale(index[:, None], watts) * watts)


def _heating_w(physics: CostModel, index: Ints, t: StageTimes) -> Floats:
    """Mean power (n, pp) in W that heats GPUs, at the reference temperature.

    As measured, but the physics' own where `HeatScale.rise` corrects the temperature.
    """
    parts_j = physics.cold_parts(int(physics.group_of[index[0]]), physics.row_of[index], t).values()
    mean_w = np.asarray(summed(parts_j) / t.total_s[:, None])
    return mean_w if physics.heat_scale(index).rise is not None else _scaled_mean_w(physics, index, mean_w)


def _measured_c(physics: CostModel, index: Ints, celsius: Floats) -> Floats:
    """Temperatures (n, pp) in °C, their rise over the air scaled as measured."""
    rise, air_c = physics.heat_scale(index).rise, physics.job.cluster.inlet_temperature_c
    return celsius if rise is None else air_c + rise[0][:, None] * (celsius - air_c) + rise[1][:, None]


PREDICTIONS = ("iteration_time_s", "energy_j", "avg_power_w", "peak_memory_gib", "violation")
_PRICED_CELLS = 1_000_000  # layouts x stages priced in one pass
_WARMINGS = 3  # rounds in which hot GPUs' clocks and the rest that these leave settle, each from the cool side
_CELLS = 32_768  # plans x stages evaluated in one pass: each array then takes 256 KiB of the cache


class CostModel:
    """Physics of one job, layouts priced once. ``layouts`` are rows that `evaluate` refers to by index.

    ``constants``: by default those that the catalogue has of the job's GPU. ``peak_bytes`` (L,): known
    `peak_memory_bytes` of the layouts. ``lazily``: a layout is priced when something reads its price, which a search
    that rules most of them out by `quick_bound` never does. ``common``: what models of other jobs share with this one.
    ``board_power``: measured power, by which power limits then hold."""

    def __init__(
        self, job: Job, layouts: Columns, constants: KernelConstants | None = None, peak_bytes: Floats | None = None,
        *, lazily: bool = False, common: pc.SharedCosts | None = None, board_power: BoardPower | None = None,
    ) -> None:  # fmt: skip
        self.job, self._peak_bytes, self.board_power = job, peak_bytes, board_power
        self.heat_scale: Callable[[Ints], HeatScale] = unmeasured_heat
        self.layouts = layouts = completed(job, layouts)
        self.hardware = hardware(job, constants or kernel_constants(job.cluster.gpu))
        self.power = job.cluster.gpu.power or _UNKNOWN_POWER  # energy is then NaN, time is not
        self.cooler = cooler(job.cluster, self.power)
        # per group (1, 1), (L, 1) or (L, pp): what kernels may draw at the reference temperature
        self.limits_w: list[Floats] = []
        self.distinct: list[sc.PricedGroup] = []  # by group
        self._energy_terms: dict[int, dict[str, Floats]] = {}  # by group, of those whose energy was queried
        self.time_factor = np.ones(len(layouts["pp"]))  # (L,), see `corrected`
        self.memory_factor, self.power_factor = 1.0, np.ones(len(layouts["pp"]))
        self.power_offset_w = np.zeros(len(layouts["pp"]))
        self.time_curves: Curves | None = None  # of logarithms of seconds
        self.power_curves: Curves | None = None  # of W of a GPU
        self.memory_reach = 1.0  # predicted memory may exceed the limit by this factor
        self.group_of = np.full(len(layouts["pp"]), -1)  # -1: not priced yet
        self.row_of = np.zeros(len(layouts["pp"]), np.int64)
        self._floors: dict[int, tuple[Floats, Floats]] = {}  # by group, see `lower_bound`
        if common is None and not lazily and len(self.group_of) * int(layouts["pp"].max(initial=1)) <= _PRICED_CELLS:
            common = pc.SharedCosts(self.hardware, self.shapes)
        self.common = common
        if common is not None:
            self.hardware = replace(self.hardware, cache=common.collectives)
            if common.hardware.kernels == self.hardware.kernels:
                self.shapes = common.shapes
        if not lazily:
            self._price(np.arange(len(layouts["pp"])))

    def _price(self, index: Ints) -> None:
        """Price the layouts ``index`` that have no price yet.

        Fewer layouts priced before are priced again together with these, since each group costs the same whenever
        plans are evaluated, however few layouts it has.
        """
        priced, wanted = self.group_of >= 0, np.zeros(len(self.group_of), np.bool_)
        wanted[index] = True
        if not (count := np.count_nonzero(wanted & ~priced)):
            return
        wanted = wanted | priced if np.count_nonzero(priced) < count else wanted & ~priced
        for rows, costs in self.priced_pieces(np.flatnonzero(wanted)):
            self.add_groups(rows, costs)

    def priced_pieces(self, index: Ints) -> Iterator[tuple[Ints, sc.StageCosts]]:
        """Costs without power limits of the layouts ``index``, in pieces: (the layouts of the piece, their costs)."""
        for at, part in layout_pieces(
            {name: values[index] for name, values in self.layouts.items()}, _PRICED_CELLS, _CELLS
        ):
            rows, laid = index[at], None
            if self.common:
                known = self.common.laid  # worked out for the first job
                laid = known[rows.tobytes()] = known.get(rows.tobytes()) or pc.LayoutParts.of(self.job, part)
            yield rows, pc.differing_costs(self.job, self.hardware, part, self.shapes.of_layouts(rows), laid)

    def add_groups(self, rows: Ints, costs: sc.StageCosts) -> None:
        """Append ``costs`` of the layouts ``rows`` as groups, with the clocks that their power limits leave."""
        cluster, lowest_mhz = self.job.cluster, self.job.cluster.gpu.clock_min_mhz or 0.1 * self.top_mhz
        for at, group in costs.by_depth():
            g, of = len(self.distinct), rows[at]
            self.group_of[of], self.row_of[of] = g, np.arange(len(of))
            limit_w, cycle = limit_in_physics_w(self, of, group.depth), None
            hot = self.cooler.throttle_power_w < limit_w.max()
            for turn in range(1 + _WARMINGS * hot):
                if turn:
                    t = self.times(g, np.arange(len(of)), np.full((1, 1), self.top_mhz))
                    cycle = bounds.duty_cycle(self.groups[g], t, self.power.wait_w)
                kernel_w = kernel_limits_w(limit_w, cluster, self.power, group.replicas, group.depth, cycle)
                held = group if kernel_w.shape[1] == 1 else group.of_all_ranks()
                ceiling, duty = bounds.clock_ceilings(held, self.power, kernel_w, self.top_mhz, lowest_mhz)
                self.limits_w[g:], self.distinct[g:] = [kernel_w], [sc.PricedGroup(sc.with_pauses(held, duty), ceiling)]

    @property
    def groups(self) -> list[sc.StageCosts]:
        """Costs by group, of all ranks."""
        return [group.of_all_ranks for group in self.distinct]

    @property
    def ceilings(self) -> list[Floats]:
        """Clocks in MHz that stages reach within their power limits, (L, pp) by group."""
        return [group.ceiling_of_all_ranks for group in self.distinct]

    @functools.cached_property
    def shapes(self) -> pc.ShapeCosts:
        """Kernels of the layouts by their distinct shapes."""
        return pc.ShapeCosts.of(self.job, self.hardware, LayoutArrays(self.job, self.layouts))

    def corrected(
        self, time_factor: Floats, memory_factor: float = 1.0, power_factor: Floats | float = 1.0,
        power_offset_w: Floats | float = 0.0, heat_scale: Callable[[Ints], HeatScale] = unmeasured_heat,
        time_curves: Curves | None = None, power_curves: Curves | None = None,
    ) -> CostModel:  # fmt: skip
        """The same physics with the time of each layout multiplied by ``time_factor`` (L,), and so its energy.

        One factor at every clock, so that bounds scale with it and power stays what it was. ``memory_factor``
        multiplies the memory of every layout, ``power_factor`` power and energy; each GPU adds ``power_offset_w``:
        both of each layout (L,), or one of all. ``heat_scale``: measured peaks and temperature,
        of the layouts that are requested. ``time_curves``: from the logarithm of the physics' time to that of the
        corrected one, nowhere less than by ``time_factor``; ``power_curves``: the same of power in W, nowhere below its
        line. Both rise, so that bounds hold: a plan whose stages differ in clock is corrected as one of one clock that
        takes, or draws, as much.
        """
        out = copy.copy(self)
        out.heat_scale = heat_scale
        out.time_factor = np.asarray(time_factor, dtype=np.float64)
        out.time_curves, out.power_curves = time_curves, power_curves
        out.memory_factor, shape = memory_factor, out.time_factor.shape
        out.power_factor, out.power_offset_w = (np.full(shape, value) for value in (power_factor, power_offset_w))
        out.__dict__.pop("memory_bytes", None)
        return out

    @property
    def top_mhz(self) -> float:
        """The clock at which the constants were measured; 1.0 where the GPU's clocks are unknown."""
        return self.job.cluster.gpu.clock_max_mhz or 1.0

    def evaluate(self, index: Ints, stage_clock_mhz: Floats, makespan: ms.Makespan = ms.makespan_s) -> Columns:
        """Predictions (n,) for plans: layout rows ``index`` (n,), clocks in MHz (n, >= pp), or (n, 1) for all stages.

        Columns as in `PREDICTIONS`; ``violation`` is the largest relative excess over a constraint, <= 0 if feasible.
        ``makespan``: as for `times`.
        """
        index = np.asarray(index)
        out = {name: np.empty(len(index)) for name in PREDICTIONS}
        for g, at, rows, depth in self.blocks(index):
            clock = self.reached_mhz(g, rows, stage_clock_mhz[at, :depth])
            time_s = self.times(g, rows, clock, makespan).total_s
            gpu_s = time_s * self.groups[g].replicas[rows] * depth
            # recorded runs need not fill their last node, so the cluster may have more GPUs than the plan
            energy = self._work_j(g, rows, clock) + bounds.energy_slope_w(self.power, self.cooler, 1) * gpu_s
            out["iteration_time_s"][at], out["energy_j"][at], out["avg_power_w"][at] = time_s, energy, energy / gpu_s
        stretch, scale = self.stretch(index, out["iteration_time_s"]), self.power_scale(index, out["avg_power_w"])
        out["iteration_time_s"] *= stretch
        out["energy_j"] *= stretch * scale
        out["avg_power_w"] *= scale
        out["peak_memory_gib"] = self.memory_bytes[index] / GIB
        return out | {"violation": self.violation(out)}

    def stretch(self, index: Ints, time_s: Floats) -> Floats:
        """Corrected over predicted time, (n,), of layouts ``index`` for which the physics has ``time_s``."""
        if self.time_curves is None:
            return self.time_factor[index]
        logs = np.log(time_s)
        return np.asarray(np.exp(self.time_curves.at(index, logs) - logs))

    def power_scale(self, index: Ints, watts: Floats) -> Floats:
        """Corrected over predicted power, of layouts ``index`` whose GPUs draw ``watts`` in the physics."""
        if self.power_curves is None:
            return np.asarray(self.power_factor[index] + self.power_offset_w[index] / watts)
        return np.asarray(self.power_curves.at(index, watts) / watts)

    def least_time_s(self, index: Ints, stage_clock_mhz: Floats, makespan: ms.Makespan = ms.least_makespan_s) -> Floats:
        """Seconds (n,) that the time of `evaluate` is not below, fast: the same but where chunks of a rank differ."""
        out = np.empty(len(index))
        for g, at, rows, depth in self.blocks(index):
            costs, clock_mhz = self.distinct[g].costs, stage_clock_mhz[at, :depth]
            if clock_mhz.shape[1] > 1 or costs.kind is None:
                out[at] = self.times(g, rows, clock_mhz, makespan).total_s
                continue
            # at one clock from the ranks that differ alone
            clock = np.minimum(clock_mhz, of_rows(self.distinct[g].ceiling_mhz, rows))
            passes = sc.passes_s(costs, self.job, rows, self.top_mhz / clock)[:2]
            out[at] = ms.iteration_totals_s(costs, self.job, rows, passes, makespan(costs.pipelines, rows, *passes))[-1]
        return np.asarray(out * self.stretch(index, out))

    def work_j(self, index: Ints, stage_clock_mhz: Floats) -> Floats:
        """Energy (n,) in J of `evaluate` less `energy_slope_w` times its time: known without the time."""
        out = np.empty(len(index))
        for g, at, rows, depth in self.blocks(index):
            out[at] = self._work_j(g, rows, self.reached_mhz(g, rows, stage_clock_mhz[at, :depth]))
        return out * self.time_factor[index] * self.power_factor[index]

    def least_power_w(self, index: Ints, stage_clock_mhz: Floats) -> Floats:
        """Lower bound (n,) in W of the average power of plans whose clocks are all at least these."""
        out = np.empty(len(index))
        for g, at, rows, depth in self.blocks(index):
            clock = self.reached_mhz(g, rows, stage_clock_mhz[at, :depth])
            work = self._work_j(g, rows, clock) / (self.groups[g].replicas[rows] * depth)
            most_s, least_s = self.times(g, rows, clock, ms.most_makespan_s).total_s, self._floor(g)[0][rows]
            out[at] = bounds.energy_slope_w(self.power, self.cooler, 1) + work / np.where(work > 0.0, most_s, least_s)
        return out * self.power_factor[index] + self.power_offset_w[index]

    def blocks(self, index: Ints) -> Iterator[tuple[int, Ints, Ints, int]]:
        """(group, positions in ``index``, rows in the group, pipeline depth), in pieces that stay in the cache."""
        for g, members in self._by_group(index):
            depth = self.distinct[g].costs.depth
            size = max(256, _CELLS // depth)
            for start in range(0, len(members), size):
                at = members[start : start + size]
                yield g, at, self.row_of[index[at]], depth

    def _by_group(self, index: Ints) -> Iterator[tuple[int, Ints]]:
        """(group, positions in ``index`` of its layouts)."""
        self._price(index)
        group_of = self.group_of[index]
        for g in np.flatnonzero(np.bincount(group_of)).tolist():
            yield g, np.flatnonzero(group_of == g)

    @functools.cached_property
    def memory_bytes(self) -> Floats:
        """Memory of the heaviest rank of every layout, (L,) bytes."""
        known = self._peak_bytes
        return self.memory_factor * (peak_memory_bytes(self.job, self.layouts) if known is None else known)

    def iteration_time_s(self, index: Ints, stage_clock_mhz: Floats) -> Floats:
        """The time in s of `evaluate` alone, (n,), without energy and memory."""
        out = np.empty(len(index))
        for g, at, rows, depth in self.blocks(index):
            out[at] = self.times(g, rows, stage_clock_mhz[at, :depth]).total_s
        return np.asarray(out * self.stretch(index, out))

    def lower_bound(self, index: Ints) -> tuple[Floats, Floats]:
        """Lower bounds over all clocks of time in s and energy in J, (n,) each, of layouts ``index``."""
        time, energy = np.empty(len(index)), np.empty(len(index))
        for g, at in self._by_group(index):
            time[at], energy[at] = (values[self.row_of[index[at]]] for values in self._floor(g))
        return self._with_corrections(index, time, energy)

    def _with_corrections(self, index: Ints, time_s: Floats, energy_j: Floats) -> tuple[Floats, Floats]:
        """Time and energy of layouts ``index``, corrected as `corrected` says, (n,) each; bounds stay bounds."""
        factor = self.time_factor[index]
        ranks = num_gpus({name: self.layouts[name][index] for name in DEGREES})
        offset_j = self.power_offset_w[index] * ranks * time_s
        return time_s * self.stretch(index, time_s), (self.power_factor[index] * energy_j + offset_j) * factor

    def energy_terms(self, g: int) -> dict[str, Floats]:
        """Energy of the layouts of group ``g`` by how it follows the clock."""
        if g not in self._energy_terms:
            self._energy_terms[g] = sc.energy_terms(self.groups[g], self.power)
        return self._energy_terms[g]

    def _floor(self, g: int) -> tuple[Floats, Floats]:
        """`lower_bound` of all layouts of group ``g``, uncorrected."""
        if g not in self._floors:
            costs, terms = self.groups[g], self.energy_terms(g)
            rows = np.arange(len(costs.num_micro_batches))
            top = np.full((len(rows), costs.depth), self.top_mhz)
            fastest_s = self.times(g, rows, top, ms.least_makespan_s).total_s
            of_pipelines = terms["clocked_j"].sum(axis=1), terms["fixed_j"], fastest_s * costs.depth
            floor_j = costs.replicas * bounds.pipeline_floor_j(*of_pipelines, self.power, self.cooler)
            self._floors[g] = fastest_s, floor_j
        return self._floors[g]

    def quick_bound(self, index: Ints) -> tuple[Floats, Floats]:
        """A looser and faster `lower_bound`, (n,) each; the same where all layouts are priced."""
        if (self.group_of >= 0).all():
            return self.lower_bound(index)
        time, energy = self._quick
        return self._with_corrections(index, time[index], energy[index])

    @functools.cached_property
    def _quick(self) -> tuple[Floats, Floats]:
        return quick_bound(self.job, self.hardware, self.layouts, self.power, self.cooler)

    @property
    def energy_slope_w(self) -> Floats:
        """`bounds.energy_slope_w` of all GPUs, in W, as corrected, of every layout (L,)."""
        gpus = self.job.cluster.num_gpus
        return self.power_factor * bounds.energy_slope_w(self.power, self.cooler, gpus) + self.power_offset_w * gpus

    def stage_clocks(self, index: Ints, clock_index: Ints, share: Floats) -> Floats:
        """Clocks (n, deepest pp) in MHz of the stages of plans.

        ``clock_index`` (n,): the slowest stage's clock on the job's grid; ``share`` (n,): how much of their slack the
        other stages spend, 0 to 1.
        """
        out = np.full((len(index), int(self.layouts["pp"][index].max(initial=1))), np.nan)
        grid = np.asarray(self.job.search.clock_mhz)
        for g, at in self._by_group(index):
            costs, ceiling, rows = self.distinct[g].costs, self.distinct[g].ceiling_mhz, self.row_of[index[at]]
            overlap = costs.dp_overlap(self.job, rows)
            clocks = bounds.stage_clocks_mhz(
                costs, ceiling, rows, grid[clock_index[at]], share[at], grid, self.top_mhz, overlap
            )
            out[at, : costs.depth] = costs.pipelines.of_all_ranks(clocks, rows)
        return out

    def times(self, g: int, rows: Ints, clock_mhz: Floats, makespan: ms.Makespan = ms.makespan_s) -> ms.StageTimes:
        """All times of plans of group ``g`` at clocks (n, pp); ``makespan``: the exact one, or a faster bound."""
        costs, clock = self.groups[g], self.reached_mhz(g, rows, clock_mhz)
        stages = sc.passes_s(costs, self.job, rows, self.top_mhz / clock)
        seconds = makespan(costs.pipelines, rows, *stages[:2])
        return ms.StageTimes(
            clock, *stages, seconds, *ms.iteration_totals_s(costs, self.job, rows, stages[:2], seconds)
        )

    def reached_mhz(self, g: int, rows: Ints, clock_mhz: Floats) -> Floats:
        """Clocks (n, pp) that stages of group ``g`` reach within their power limits, of clocks (n, pp) or (n, 1)."""
        return np.minimum(clock_mhz, self.ceilings[g].take(rows, 0))

    def energy_parts(self, g: int, rows: Ints, t: ms.StageTimes) -> dict[str, Floats]:
        """Joules per rank of each stage by part, (n, pp); they add up to the rank's energy.

        ``static`` is that of a GPU as cool as the air; ``leakage`` is what its own heat adds.
        """
        parts = self.cold_parts(g, rows, t)
        total = np.broadcast_to(t.total_s[:, None], parts["static"].shape)
        leaks_w = self.cooler.mean_leakage_w
        at_air_w = leaks_w / self.cooler.slowing
        return parts | {"static": parts["static"] + at_air_w * total, "leakage": (leaks_w - at_air_w) * total}

    def cold_parts(self, g: int, rows: Ints, t: ms.StageTimes) -> dict[str, Floats]:
        """Joules per rank of each stage by part at the reference temperature, (n, pp)."""
        costs = self.groups[g]
        batches, waiting = costs.num_micro_batches[rows][:, None], costs.waiting_sm_s[rows] * self.top_mhz / t.clock_mhz
        hbm = batches * costs.hbm_bytes[rows] + costs.iteration_hbm_bytes[rows]
        link = batches * costs.link_j[rows] + costs.iteration_link_j[rows]
        busy = batches * (t.kernel_s - waiting + costs.collective_sm_s[rows]) + costs.optimizer_s[rows]
        total = np.broadcast_to(t.total_s[:, None], busy.shape)
        return clock_law.energy_parts_j(
            self.power, t.clock_mhz, self.top_mhz, total, busy, batches * costs.flops[rows], hbm, link
        )

    def _work_j(self, g: int, rows: Ints, clock_mhz: Floats) -> Floats:
        """`work_j` (n,) of rows of group ``g`` at clocks (n, pp), uncorrected."""
        terms, k = self.energy_terms(g), self.power
        x = clock_mhz / self.top_mhz
        v2 = clock_law.squared_voltage(x, 1.0, k.knee_fraction, k.voltage_ratio)
        busy = np.einsum("ij,ij->i", terms["sm_s"].take(rows, 0), 1.0 / x) + terms["other_s"][rows]
        x *= terms["active_j"].take(rows, 0)
        x += terms["clocked_j"].take(rows, 0)
        work = np.einsum("ij,ij->i", x, v2) + terms["fixed_j"][rows] - max(k.wait_w - k.static_w, 0.0) * busy
        return np.asarray(work * self.groups[g].replicas[rows])

    def heat(self, index: Ints, stage_clock_mhz: Floats) -> Columns:
        """``peak_power_w`` and ``temperature_c`` (n,) of the hottest stage: for chosen plans, not inside a search."""
        out = {name: np.empty(len(index)) for name in HEAT}
        for g, at, rows, depth in self.blocks(index):
            t = self.times(g, rows, stage_clock_mhz[at, :depth])
            out["temperature_c"][at] = temperature_c(self, index[at], t).max(axis=1)
            out["peak_power_w"][at] = peak_w(self, index[at], t).max(axis=1)
        return out

    def burst_w(self, g: int, rows: Ints, t: ms.StageTimes) -> Floats:
        """Power of the hottest GPU while a micro-batch's kernels run, leakage included, (n, pp), within the limit."""
        costs, limit_w = self.groups[g], self.limits_w[g]
        work = t.kernel_s, costs.flops[rows], costs.hbm_bytes[rows]
        burst = clock_law.busy_power_w(self.power, t.clock_mhz, self.top_mhz, *work)
        exhaust = self.in_exhaust(g, rows)
        held = self.cooler.reached_w(limit_w if len(limit_w) == 1 else limit_w[rows], exhaust)
        return np.asarray(np.minimum(burst + self.cooler.air_leakage_w(exhaust), held))

    def in_exhaust(self, g: int, rows: Ints) -> Bools:
        """`stages_in_exhaust` of plans of group ``g``."""
        return stages_in_exhaust(self.job.cluster, self.groups[g].replicas[rows], self.groups[g].depth)

    def least_violation(self, index: Ints, time_s: Floats, energy_j: Floats, power_w: Floats) -> Floats:
        """Lower bound (n,) of the violation of plans of layouts ``index``, from lower bounds of their predictions."""
        out = {"iteration_time_s": time_s, "energy_j": energy_j, "peak_memory_gib": self.memory_bytes[index] / GIB}
        idle_w = self.power_factor[index] * bounds.idle_power_w(self.power, self.cooler) + self.power_offset_w[index]
        return self.violation(out | {"avg_power_w": np.maximum(power_w, idle_w)})

    def violation(self, out: Columns) -> Floats:
        """The largest relative excess of predictions over a constraint, (n,)."""
        return np.asarray(np.maximum.reduce(list(self.excess(out).values())))

    def excess(self, out: Columns) -> Columns:
        """By how much predictions exceed each constraint, (n,), as a share of it; at most 0 where they keep it."""
        return {name: values / bound - 1.0 for name, (values, bound) in self.limits(out).items()}

    def limits(self, out: Columns) -> dict[str, tuple[Floats, float]]:
        """Bounded predictions: predicted values (n,) and the bound, by the constraint's name.

        Memory may exceed its limit by the factor ``memory_reach``.
        """
        memory = out["peak_memory_gib"], self.memory_reach * memory_limit_gib(self.job)
        return {"memory (GiB)": memory, **stated_limits(self.job, out)}

    def broken_limits(self, out: Columns) -> tuple[str, ...]:
        """One sentence for each stated constraint that the first plan of ``out`` breaks; memory is not here."""
        found = ((name, values[0], bound) for name, (values, bound) in stated_limits(self.job, out).items())
        broken = [(name, *(with_unit(name, f"{x:.4g}") for x in both)) for name, *both in found if both[0] > both[1]]
        return tuple(f"{name} is {value}, over the limit of {most}." for name, value, most in broken)


_NAN = float("nan")
_UNKNOWN_POWER = PowerConstants(_NAN, _NAN, _NAN, _NAN, _NAN, knee_fraction=1.0, voltage_ratio=1.0)


# The constraints of a job on what is predicted of its plans.


# constraint: the results that its value is worked out from, and how
_VALUES: dict[str, tuple[tuple[str, ...], Callable[..., Floats]]] = {
    **{name: ((name,), lambda _, values: values) for name in ("iteration_time_s", "energy_j", "avg_power_w")},
    "facility_energy_j": (("iteration_time_s", "energy_j"), site.facility_energy_j),
    "cluster_power_kw": (("avg_power_w",), site.cluster_power_kw),
}
UNITS = {
    "iteration_time_s": "s",
    "energy_j": "J",
    "avg_power_w": "W",
    "facility_energy_j": "J",
    "cluster_power_kw": "kW",
}


def with_unit(name: str, figure: str) -> str:
    """A figure of the constraint of that name with its unit."""
    return f"{figure} {UNITS[name]}" if name in UNITS else figure


def memory_limit_gib(job: Job) -> float:
    """Memory in GiB that a run may use per GPU: the job's fraction, else the framework's."""
    fraction = job.constraints.memory_fraction or job.training.framework.memory_fraction
    return fraction * job.cluster.gpu.memory_gib


def stated_limits(job: Job, out: Columns) -> dict[str, tuple[Floats, float]]:
    """(values (n,), bound) of every constraint that the job states, by name, memory aside.

    ``out`` needs the `constrained_results`; each value grows with them.
    """
    found = {}
    for name, (columns, formula) in _VALUES.items():
        bound = getattr(job.constraints, name)
        if bound is not None:
            found[name] = formula(job.cluster, *(out[column] for column in columns)), bound
    return found


def constrained_results(job: Job) -> tuple[str, ...]:
    """Names of the predictions that the job's constraints need, memory aside."""
    named = (columns for name, (columns, _) in _VALUES.items() if getattr(job.constraints, name) is not None)
    return tuple(dict.fromkeys(column for columns in named for column in columns))
