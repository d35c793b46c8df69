"""The exact Pareto front of the uniform-clock space, every layout at every clock, in bounded memory.

Branch and bound that cannot change the answer: plans are left out only when a point of the running front is at most
equal to a lower bound of all of them in both objectives, or when such a bound breaks a constraint. Bounds come from two
optional promises of the problem: lower bounds per layout, and how time and energy move with the clock
(`jointopt.search.boxes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.search.boxes import may_be_feasible, may_improve, open_clocks, worth_evaluating
from jointopt.search.pareto import concat, front_order, merge
from jointopt.search.problem import LowerBound, Problem, Progress

SEED_LAYOUTS = 64
SEED_CLOCKS = 8
BLOCKS = 12  # layouts go through in about so many blocks, so that early fronts rule out later layouts
SMALLEST_BLOCK = 2048  # layouts; of smaller blocks the calls cost more than what an early front spares
STAGE_CELLS_PER_CHUNK = 4_000_000  # 32 MB of stage clocks; the evaluation holds some ten times as much
LOT = 512  # plans that wait for one another, as a pipeline of few plans takes as long to walk through as one of many


@dataclass(frozen=True)
class ExactFront:
    """The front sorted by time; the plans of the space, and those evaluated.

    ``sample``: some of the evaluated ones, promising layouts at clocks over the whole range; none without bounds.
    """

    front: Columns
    covered: int
    evaluated: int
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

    def visit(self, layout_index: Ints, clock_index: Ints, *, keep: bool = False) -> None:
        """Merge these plans into the front, in chunks; ``keep`` them all.

        Those whose bounds show them to be covered are not evaluated.
        """
        for start in range(0, len(layout_index), self.chunk_size):
            some = slice(start, start + self.chunk_size)
            layout, clock = layout_index[some], clock_index[some]
            for rows in [np.arange(len(layout))] if keep else self._worth_evaluating(layout, clock):
                batch = self.problem.plans(layout[rows], clock[rows], np.zeros(len(rows)))
                self.front = merge(self.front, batch)
                self.sample = concat([self.sample, batch]) if keep else self.sample
        self.evaluated += len(layout_index)

    def _worth_evaluating(self, layout: Ints, clock: Ints) -> Iterator[Ints]:
        """Yield indices of these plans in two lots: the best by their bounds, then what these leave of the others."""
        if self.problem.least_time_s is None:
            yield np.arange(len(layout))
            return
        clocks = self.problem.clocks_mhz[clock, None]
        bounds, left = np.stack(self.problem.bounds(layout, clocks)), np.arange(len(layout))
        for lot in range(2):
            left = left[worth_evaluating(self.problem, self.front, layout[left], clocks[left], bounds[:, left])]
            rows = np.arange(len(left)) if lot else front_order(*bounds[:, left])
            yield left[rows]
            left = np.delete(left, rows)

    def report(self, layouts_done: int) -> None:
        self.layouts_done += layouts_done
        if self.progress is not None:
            clocks = self.problem.num_clocks
            size = 0 if self.front is None else len(self.front["layout_index"])
            self.progress(self.layouts_done * clocks, self.problem.num_layouts * clocks, size)


def exact_front(problem: Problem, *, chunk_size: int = 200_000, progress: Progress | None = None) -> ExactFront:
    """The front over all layouts and all uniform clocks; exact whatever bounds the problem offers.

    ``progress(done, total, front_size)`` counts plans evaluated or ruled out. Memory grows with
    ``chunk_size`` times the largest pp, not with the size of the space.
    """
    rows = max(1, min(chunk_size, STAGE_CELLS_PER_CHUNK // problem.max_pp))
    none = np.zeros(0, dtype=np.int64)
    nothing = problem.plans(none, none, np.zeros(0))
    sweep = _Sweep(problem, rows, progress, nothing)
    _sweep_blocks(sweep)
    covered = problem.num_layouts * problem.num_clocks
    front = nothing if sweep.front is None else sweep.front
    return ExactFront(front, covered, sweep.evaluated, sweep.sample)


def _sweep_blocks(sweep: _Sweep) -> None:
    """Settle all layouts in blocks, the most promising first."""
    problem, every = sweep.problem, np.arange(sweep.problem.num_layouts)
    order, time_lb_s, energy_lb_j = _ordered(problem, every, problem.quick_bound or problem.lower_bound)
    _seed(sweep, order[:SEED_LAYOUTS])
    if problem.quick_bound is not None:
        order, time_lb_s, energy_lb_j = promising(problem, sweep.front, every)
    sweep.report(len(every) - len(order))
    block = max(1, min(sweep.chunk_size // 2, max(-(-len(order) // BLOCKS), SMALLEST_BLOCK)))
    for start in range(0, len(order), block):
        rows = slice(start, start + block)
        alive = may_improve(sweep.front, time_lb_s[rows], energy_lb_j[rows])
        if not problem.has_slope:
            _enumerate(sweep, order[rows][alive])
        else:
            _bisect(sweep, order[rows][alive], time_lb_s[rows][alive])
        sweep.report(len(order[rows]))


def promising(problem: Problem, front: Columns | None, layouts: Ints) -> tuple[Ints, Floats, Floats]:
    """Layouts whose quick bound the front does not cover, with their lower bounds, the smallest product first.

    None of those that break a constraint at every clock.
    """
    if problem.quick_bound is not None:
        layouts, *bounds = _ordered(problem, layouts, problem.quick_bound)
        layouts = layouts[may_improve(front, *bounds)]
    return _ordered(problem, layouts, problem.lower_bound)


def _ordered(problem: Problem, layouts: Ints, bound: LowerBound | None) -> tuple[Ints, Floats, Floats]:
    """Layouts that may be feasible with their bounds (-inf where none is known), the smallest product of both first."""
    if bound is None:
        unknown = np.full(len(layouts), -np.inf)
        return layouts, unknown, unknown
    time_lb_s, energy_lb_j = bound(layouts)
    left = np.flatnonzero(may_be_feasible(problem, layouts, time_lb_s, energy_lb_j))
    left = left[np.argsort((time_lb_s * energy_lb_j)[left], kind="stable")]
    return layouts[left].astype(np.int64), time_lb_s[left], energy_lb_j[left]


def _seed(sweep: _Sweep, layouts: Ints) -> None:
    """A first front from a few layouts at a few clocks, so that most others never need evaluating."""
    if sweep.problem.lower_bound is None and not sweep.problem.has_slope:
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


def _bisect(sweep: _Sweep, layouts: Ints, fastest_s: Floats) -> None:
    """Visit the clocks of each layout that are left when its range is halved; the last ones in lots."""

    def slowest(row: Ints, low: Ints, _: Ints) -> Floats:
        return sweep.problem.clocks_mhz[low, None]

    waiting = np.zeros((2, 0), np.int64)
    for found in open_clocks(sweep.problem, lambda: sweep.front, layouts, fastest_s, slowest):
        waiting = np.concatenate([waiting, np.stack(found)], axis=1)
        if waiting.shape[1] >= LOT:
            _settle(sweep, waiting)
            waiting = waiting[:, :0]
    _settle(sweep, waiting)


def _settle(sweep: _Sweep, plans: Ints) -> None:
    """Visit (layouts, clocks); of clocks that a power limit makes the same the highest comes first, and stays."""
    sweep.visit(*plans[:, np.argsort(-plans[1], kind="stable")])
