"""The exact Pareto front of the uniform-clock space, every layout at every clock, in bounded memory.

Branch and bound that cannot change the answer: plans are left out only when a point of the running front is at most
equal to a lower bound of all of them in both objectives. Bounds come from two optional promises of the problem: lower
bounds per layout, and how time and energy move with the clock (`Problem.energy_slope_w`). With the second, the clocks
between two evaluated ones are bounded by a box,

    time >= time(high),  energy >= energy(low) - slope * (time(low) - time(high)),

and a layout's clock range is halved only where its box is not covered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.search.pareto import concat, is_covered, merge, objectives
from jointopt.search.problem import LowerBound, Problem, Progress

SEED_LAYOUTS = 64
SEED_CLOCKS = 8
BLOCKS = 12  # layouts go through in about so many blocks, so that early fronts rule out later layouts
SMALLEST_BLOCK = 2048  # layouts; of smaller blocks the calls cost more than what an early front spares
STAGE_CELLS_PER_CHUNK = 4_000_000  # 32 MB of stage clocks; the evaluation holds some ten times as much
ROUNDING = 1e-9  # relative; a bound computed in another order may exceed the truth by rounding


@dataclass(frozen=True)
class ExactFront:
    """The front sorted by time; the plans of the space, those evaluated, and those ruled out by bounds.

    ``sample``: some of the evaluated ones, promising layouts at clocks over the whole range; none without bounds.
    """

    front: Columns
    covered: int
    evaluated: int
    pruned: int
    sample: Columns


@dataclass
class _Sweep:
    """The running front, and the count of what has been settled."""

    problem: Problem
    chunk_size: int
    progress: Progress | None
    sample: Columns
    front: Columns | None = None
    evaluated: int = 0
    layouts_done: int = 0

    def visit(self, layout_index: Ints, clock_index: Ints, *, keep: bool = False) -> tuple[Floats, Floats]:
        """Merge these plans into the front, in chunks, ``keep`` them all; return bounds of their times and energies.

        Those that ``problem.bound`` already shows to be covered are not evaluated.
        """
        values = np.empty((2, len(layout_index)))
        for start in range(0, len(layout_index), self.chunk_size):
            rows = np.arange(start, min(start + self.chunk_size, len(layout_index)))
            if self.problem.bound is not None and not keep:
                stage_clocks = self.problem.uniform_clocks(layout_index[rows], clock_index[rows])
                values[:, rows] = self.problem.bounds(layout_index[rows], stage_clocks)
                rows = rows[may_improve(self.front, *values[:, rows])]
            batch = self.problem.plans(layout_index[rows], clock_index[rows], np.zeros(len(rows)))
            values[:, rows] = objectives(batch)
            self.front = merge(self.front, batch)
            self.sample = concat([self.sample, batch]) if keep else self.sample
        self.evaluated += len(layout_index)
        return values[0], values[1]

    def report(self, layouts_done: int) -> None:
        self.layouts_done += layouts_done
        if self.progress is not None:
            clocks = self.problem.num_clocks
            size = 0 if self.front is None else len(self.front["layout_index"])
            self.progress(self.layouts_done * clocks, self.problem.num_layouts * clocks, size)


def may_improve(front: Columns | None, time_lb_s: Floats, energy_lb_j: Floats) -> Ints:
    """Indices of the bounds that the front does not cover, by more than rounding."""
    if front is None:
        return np.arange(len(time_lb_s))
    low = 1.0 - ROUNDING
    return np.flatnonzero(~is_covered(*objectives(front), time_lb_s * low, energy_lb_j * low))


def exact_front(problem: Problem, *, chunk_size: int = 200_000, progress: Progress | None = None) -> ExactFront:
    """The front over all layouts and all uniform clocks; exact whatever bounds the problem offers.

    ``progress(done, total, front_size)`` counts plans evaluated or ruled out. Memory grows with
    ``chunk_size`` times the largest pp, not with the size of the space.
    """
    rows = max(1, min(chunk_size, STAGE_CELLS_PER_CHUNK // problem.max_pp))
    none = np.zeros(0, dtype=np.int64)
    nothing = problem.plans(none, none, np.zeros(0))
    sweep = _Sweep(problem, rows, progress, nothing)
    swept = _sweep_blocks(sweep)
    covered = problem.num_layouts * problem.num_clocks
    front = nothing if sweep.front is None else sweep.front
    return ExactFront(front, covered, sweep.evaluated, covered - swept, sweep.sample)


def _sweep_blocks(sweep: _Sweep) -> int:
    """Settle all layouts in blocks, the most promising first; returns the plans that this evaluated."""
    problem, every = sweep.problem, np.arange(sweep.problem.num_layouts)
    order, time_lb_s, energy_lb_j = _ordered(every, problem.quick_bound or problem.lower_bound)
    _seed(sweep, order[:SEED_LAYOUTS])
    after_seed = sweep.evaluated
    if problem.quick_bound is not None:
        order, time_lb_s, energy_lb_j = promising(problem, sweep.front, every)
        sweep.report(len(every) - len(order))
    block = max(1, min(sweep.chunk_size // 2, max(-(-len(order) // BLOCKS), SMALLEST_BLOCK)))
    for start in range(0, len(order), block):
        rows = slice(start, start + block)
        alive = order[rows][may_improve(sweep.front, time_lb_s[rows], energy_lb_j[rows])]
        if sweep.problem.energy_slope_w is None:
            _enumerate(sweep, alive)
        else:
            _bisect(sweep, alive, sweep.problem.energy_slope_w)
        sweep.report(len(order[rows]))
    return sweep.evaluated - after_seed


def promising(problem: Problem, front: Columns | None, layouts: Ints) -> tuple[Ints, Floats, Floats]:
    """Layouts whose quick bound the front does not cover, with their lower bounds, the smallest product first."""
    if problem.quick_bound is not None:
        layouts = layouts[may_improve(front, *problem.quick_bound(layouts))]
    return _ordered(layouts, problem.lower_bound)


def _ordered(layouts: Ints, bound: LowerBound | None) -> tuple[Ints, Floats, Floats]:
    """The layouts with their bounds (-inf where none is known), the smallest product of both first."""
    if bound is None:
        unknown = np.full(len(layouts), -np.inf)
        return layouts, unknown, unknown
    time_lb_s, energy_lb_j = bound(layouts)
    order = np.argsort(time_lb_s * energy_lb_j, kind="stable")
    return layouts[order].astype(np.int64), time_lb_s[order], energy_lb_j[order]


def _seed(sweep: _Sweep, layouts: Ints) -> None:
    """A first front from a few layouts at a few clocks, so that most others never need evaluating."""
    if sweep.problem.lower_bound is None and sweep.problem.energy_slope_w is None:
        return
    clocks = np.unique(np.linspace(0, sweep.problem.num_clocks - 1, SEED_CLOCKS).round().astype(np.int64))
    sweep.visit(np.repeat(layouts, len(clocks)), np.tile(clocks, len(layouts)), keep=True)


def _enumerate(sweep: _Sweep, layouts: Ints) -> None:
    """Every clock of these layouts, in slices that fit a chunk."""
    clocks = np.arange(sweep.problem.num_clocks, dtype=np.int64)
    step = max(1, sweep.chunk_size // len(clocks))
    for start in range(0, len(layouts), step):
        some = layouts[start : start + step]
        sweep.visit(np.repeat(some, len(clocks)), np.tile(clocks, len(some)))


def _bisect(sweep: _Sweep, layouts: Ints, slope_w: float) -> None:
    """Both ends of the clock range, then halves of those ranges whose box the front does not cover."""
    top = sweep.problem.num_clocks - 1
    low, high = np.zeros(len(layouts), dtype=np.int64), np.full(len(layouts), top)
    time_high, energy_high = sweep.visit(layouts, high)
    time_low, energy_low = (time_high, energy_high) if top == 0 else sweep.visit(layouts, low)
    ends_low, ends_high = np.stack([time_low, energy_low]), np.stack([time_high, energy_high])
    while True:
        box_j = ends_low[1] - slope_w * (ends_low[0] - ends_high[0])
        split = may_improve(sweep.front, ends_high[0], box_j)
        split = split[high[split] - low[split] >= 2]
        if len(split) == 0:
            return
        layouts, low, high = layouts[split], low[split], high[split]
        middle = (low + high) // 2
        ends_middle = np.stack(sweep.visit(layouts, middle))
        layouts = np.concatenate([layouts, layouts])
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        ends_low, ends_high = (
            np.concatenate([ends_low[:, split], ends_middle], axis=1),
            np.concatenate([ends_middle, ends_high[:, split]], axis=1),
        )
