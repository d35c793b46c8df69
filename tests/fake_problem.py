"""A small analytic problem that stands in for physics when a search is tested, and how much of a front is found."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats, Ints
from jointopt.search.pareto import front_order, is_covered
from jointopt.search.problem import Problem

CLOCK_BOUND_SHARE = 0.8  # of a stage's work; the rest waits for memory and does not feel the clock
STATIC_W, DYNAMIC_W, KNEE = 120.0, 300.0, 0.6  # watts per GPU; voltage is flat below KNEE times the top clock
MICRO_BATCHES = 256


def layouts_of(num_gpus: int) -> Columns:
    """Every layout of ``num_gpus`` (a power of two) in canonical form; experts are left out (ep = 1)."""
    degrees = [2**i for i in range(num_gpus.bit_length())]
    rows = [
        (num_gpus // (tp * pp * cp), tp, pp, cp, 1, vpp, mbs, sp, recompute, zero)
        for tp, pp, cp in itertools.product(degrees[:4], degrees, degrees[:3])
        if tp * pp * cp <= num_gpus
        for vpp in ((1, 2, 4) if pp > 1 else (1,))
        for mbs, sp in itertools.product((1, 2, 4, 8), (False, True) if tp > 1 else (False,))
        for recompute, zero in itertools.product((0, 1, 2), (0, 1, 3))
        if num_gpus // (tp * pp * cp) * mbs <= MICRO_BATCHES
    ]
    table = np.array(rows, dtype=np.int64)
    columns: Columns = {name: table[:, i] for i, name in enumerate(LAYOUT_COLUMNS[: table.shape[1]])}
    return columns | {"sequence_parallel": columns["sequence_parallel"].astype(bool)}


@dataclass(frozen=True)
class FakePhysics:
    """Stage loads (n, S) in seconds per micro-batch at the top clock, and what else makes time and energy."""

    layouts: Columns
    clocks_mhz: Floats
    load_s: Floats
    micro_batches: Floats
    other_s: Floats
    watts: Floats  # dynamic power at the top clock: the faster kernels of a layout draw more
    time_limit_s: float

    def evaluate(self, layout_index: Ints, stage_clock_mhz: Floats) -> Columns:
        """Time of a 1F1B pipeline with unequal stages, energy with a voltage knee, and a limit on time."""
        busy = np.nan_to_num(self._stage_time_s(layout_index, stage_clock_mhz))
        count, pp = self.micro_batches[layout_index], self.layouts["pp"][layout_index]
        time_s = (count - 1) * busy.max(axis=1) + busy.sum(axis=1) + self.other_s[layout_index]
        dynamic_j = self.watts[layout_index] * np.nansum(self._power(stage_clock_mhz) * busy, axis=1) * count
        energy_j = self._gpus() * (STATIC_W * time_s + dynamic_j / pp)
        return {"iteration_time_s": time_s, "energy_j": energy_j, "violation": time_s - self.time_limit_s}

    def lower_bound(self, layout_index: Ints) -> tuple[Floats, Floats]:
        """Time at the top clock; energy of that time plus the least dynamic energy of any clock."""
        top = self.clocks_mhz[np.full(len(layout_index), len(self.clocks_mhz) - 1)]
        busy = np.nan_to_num(self.load_s[layout_index])
        count, pp = self.micro_batches[layout_index], self.layouts["pp"][layout_index]
        time_s = self.evaluate(layout_index, np.where(busy > 0, top[:, None], np.nan))["iteration_time_s"]
        least = float(np.min(self._power(self.clocks_mhz) * self._slowdown(self.clocks_mhz)))
        dynamic_j = self.watts[layout_index] * least * busy.sum(axis=1) * count
        return time_s, (1.0 - 1e-12) * self._gpus() * (STATIC_W * time_s + dynamic_j / pp)

    def stage_clocks(self, layout_index: Ints, clock_index: Ints, slack: Floats) -> Floats:
        """Other stages slow down by a share of what keeps them below the bottleneck."""
        clock = self.clocks_mhz[clock_index][:, None]
        load = self.load_s[layout_index]
        allowed = np.nanmax(load, axis=1, keepdims=True) / load * self._slowdown(clock)
        top = self.clocks_mhz[-1]
        slowest = CLOCK_BOUND_SHARE * top / (allowed - (1.0 - CLOCK_BOUND_SHARE))
        wanted = clock - slack[:, None] * (clock - np.minimum(slowest, clock))
        grid = np.searchsorted(self.clocks_mhz, np.nan_to_num(wanted) - 1e-9)
        return np.where(np.isnan(load), np.nan, self.clocks_mhz[grid.clip(0, len(self.clocks_mhz) - 1)])

    def _gpus(self) -> int:
        return math.prod(int(self.layouts[name][0]) for name in ("dp", "tp", "pp", "cp"))

    def _slowdown(self, clock_mhz: Floats) -> Floats:
        slowdown: Floats = CLOCK_BOUND_SHARE * self.clocks_mhz[-1] / clock_mhz + (1.0 - CLOCK_BOUND_SHARE)
        return slowdown

    def _stage_time_s(self, layout_index: Ints, stage_clock_mhz: Floats) -> Floats:
        stages = stage_clock_mhz.shape[1]  # 1: one clock for all
        return self.load_s[layout_index, : stages if stages > 1 else None] * self._slowdown(stage_clock_mhz)

    def _power(self, clock_mhz: Floats) -> Floats:
        share = clock_mhz / self.clocks_mhz[-1]
        power: Floats = share * np.maximum(share, KNEE) ** 2
        return power


def fake_problem(
    seed: int = 0,
    num_gpus: int = 64,
    num_clocks: int = 24,
    *,
    per_stage_clocks: bool = True,
    feasible_share: float = 1.0,
    drop: float = 0.3,
) -> Problem:
    """Layouts that differ smoothly in their degrees, with random unevenness; a share ``drop`` does not exist.

    ``feasible_share``: the share of layouts that meet the time limit at the top clock.
    """
    rng = np.random.default_rng(seed)
    layouts = layouts_of(num_gpus)
    keep = rng.random(len(layouts["pp"])) >= drop
    keep[0] = True
    layouts = {name: values[keep] for name, values in layouts.items()}
    clocks = np.linspace(600.0, 1980.0, num_clocks)
    physics = _physics(layouts, clocks, rng, np.inf)
    limit = float(np.quantile(physics.lower_bound(np.arange(len(layouts["pp"])))[0], feasible_share))
    if feasible_share < 1.0:
        physics = replace(physics, time_limit_s=limit)
    stage_clocks = physics.stage_clocks if per_stage_clocks else None
    return Problem(layouts, clocks, physics.evaluate, physics.lower_bound, stage_clocks, STATIC_W * num_gpus)


def _physics(layouts: Columns, clocks: Floats, rng: np.random.Generator, limit: float) -> FakePhysics:
    dp, tp, pp, cp, mbs = (layouts[n].astype(float) for n in ("dp", "tp", "pp", "cp", "micro_batch_size"))
    taste = rng.uniform(0.5, 1.5, 8)
    recompute = np.array([1.0, 1.05, 1.33])[layouts["recompute"]]
    overhead = 0.04 * taste[1] * np.log2(tp) ** 1.5 + 0.05 * taste[2] * np.log2(cp) + 0.4 * taste[3] / mbs
    overhead = overhead - 0.02 * layouts["sequence_parallel"] + rng.uniform(0.0, 0.02, len(dp))
    count = np.maximum(1.0, MICRO_BATCHES / dp / mbs)
    stages = np.arange(int(pp.max()))[None, :]
    last = (stages == pp[:, None] - 1) & (pp[:, None] > 1)
    uneven = 1.0 + 0.2 * rng.random((1, int(pp.max()))) + 0.2 * last
    load = (MICRO_BATCHES / dp / tp / pp / cp * recompute * (1 + overhead) / count)[:, None] * uneven
    load = np.where(stages < pp[:, None], load, np.nan)
    sharded = np.array([1.0, 0.7, 0.9])[np.searchsorted([0, 1, 3], layouts["zero_stage"])]
    other = 0.1 * taste[4] * np.log2(dp) * sharded
    other = other - 0.05 * taste[5] * np.log2(layouts["vpp"])
    hunger = 0.15 * taste[6] * np.log2(mbs) / (1.0 + 0.3 * np.log2(tp))
    hunger = hunger + 0.1 * taste[7] * np.log2(dp) - 0.1 * np.log2(cp)
    return FakePhysics(layouts, clocks, load, count, other, DYNAMIC_W * np.exp(hunger), limit)


def recall(exact_first: Floats, exact_second: Floats, first: Floats, second: Floats, tolerance: float = 1e-9) -> float:
    """Share of the exact front's points that a given point equals or beats, within a tolerance."""
    if len(exact_first) == 0:
        return 1.0
    order = front_order(first, second)
    scale = 1.0 + tolerance
    return float(np.mean(is_covered(first[order], second[order], exact_first * scale, exact_second * scale)))


def loosely(problem, rng):
    """The problem with bounds of its plans: up to a tenth below their times, and their work."""

    def least_time_s(layout, clocks):
        return (1.0 - rng.uniform(0.0, 0.1, len(layout))) * problem.evaluate(layout, clocks)["iteration_time_s"]

    return replace(problem, least_time_s=least_time_s, work_j=problem.work)
