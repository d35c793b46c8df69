"""The exact Pareto front of the uniform-clock space, every layout at every clock, in bounded memory.

Branch and bound that cannot change the answer: plans are left out only when a point of the running front is at most
equal to a lower bound of all of them in both objectives, or when such a bound breaks a constraint. Bounds come from two
optional promises of the problem: lower bounds per layout, and how time and energy move with the clock
(`open_clocks`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.search.breeding import SLACK_LEVELS, Seen
from jointopt.search.pareto import concat, front_of, front_order, is_beaten, is_covered, merge, stacked
from jointopt.search.problem import LowerBound, Problem, Progress, StageClocks

SEED_LAYOUTS = 64  # of lowest bounds, at `SEED_CLOCKS` clocks each: the first front, which rules out most others
SEED_CLOCKS = 8
BLOCKS = 12  # layouts go through in about so many blocks, so that early fronts rule out later layouts
SMALLEST_BLOCK = 2048  # layouts; of smaller blocks the calls cost more than what an early front spares
STAGE_CELLS_PER_CHUNK = 4_000_000  # 32 MB of stage clocks; the evaluation holds some ten times as much
LOT = 512  # plans that wait for one another, as a pipeline of few plans takes as long to walk through as one of many


@dataclass(frozen=True)
class ExactFront:
    """The front sorted by time, how many plans the space has (``covered``), and how many were ``evaluated``.

    ``sample``: some of the evaluated plans: layouts of low bounds at clocks over the whole range; none without bounds.
    """

    front: Columns
    covered: int
    evaluated: int
    sample: Columns


@dataclass
class _Sweep:
    """The running front of uniform clocks, and how many plans were evaluated or bounded for it."""

    problem: Problem
    chunk_size: int
    front: Columns
    sample: Columns
    evaluated: int = 0

    def visit(self, layout_index: Ints, clock_index: Ints, *, keep: bool = False) -> None:
        """Merge these plans into the front, in chunks, all but those whose bounds the front covers.

        ``keep``: evaluate all of them, and add them to the sample.
        """
        for start in range(0, len(layout_index), self.chunk_size):
            some = slice(start, start + self.chunk_size)
            layout, clock = layout_index[some], clock_index[some]
            for rows in [np.arange(len(layout))] if keep else self._worth_evaluating(layout, clock):
                batch = self.problem.evaluate_genes(layout[rows], clock[rows], np.zeros(len(rows)))
                self.front = merge(self.front, batch, self.problem.pair)
                self.sample = concat([self.sample, batch]) if keep else self.sample
        self.evaluated += len(layout_index)

    def _worth_evaluating(self, layout: Ints, clock: Ints) -> Iterator[Ints]:
        """Yield indices of plans to evaluate: the front of their bounds, then those that this does not rule out."""
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

    def visit_every_clock(self, layouts: Ints, fastest_s: Floats) -> None:
        """Visit every clock of layouts, whose plans take at least ``fastest_s``, that the front does not rule out."""
        grid = self.problem.clocks_mhz
        if not self.problem.has_slope:
            step = max(1, self.chunk_size // len(grid))
            for start in range(0, len(layouts), step):
                some = layouts[start : start + step]
                self.visit(np.repeat(some, len(grid)), np.tile(np.arange(len(grid)), len(some)))
            return
        found = open_clocks(self.problem, lambda: self.front, layouts, fastest_s, lambda _, low, __: grid[low, None])
        waiting = none = np.zeros((2, 0), np.int64)
        for plans in itertools.chain(found, [None]):
            waiting = waiting if plans is None else np.concatenate([waiting, np.stack(plans)], axis=1)
            if plans is None or waiting.shape[1] >= LOT:
                # of clocks that a power limit makes the same the highest comes first, and stays
                self.visit(*waiting[:, np.argsort(-waiting[1], kind="stable")])
                waiting = none


def exact_front(problem: Problem, *, chunk_size: int = 200_000, progress: Progress | None = None) -> ExactFront:
    """The front over all layouts and all uniform clocks; exact whatever bounds the problem offers.

    ``progress(done, total, front_size)`` counts plans evaluated or ruled out. ``chunk_size``: plans evaluated at once;
    memory grows with it times the largest pp, not with the size of the space.
    """
    none, every = np.zeros(0, dtype=np.int64), np.arange(problem.num_layouts)
    nothing = problem.evaluate_genes(none, none, np.zeros(0))
    rows = max(1, min(chunk_size, STAGE_CELLS_PER_CHUNK // problem.max_pp))
    sweep, covered = _Sweep(problem, rows, nothing, nothing), len(every) * problem.num_clocks

    def report(layouts_done: int) -> None:
        if progress is not None:
            progress(layouts_done * problem.num_clocks, covered, len(sweep.front["slack"]))

    order, time_lb_s, energy_lb_j = _ordered(problem, every, problem.quick_bound or problem.lower_bound)
    if problem.lower_bound is not None or problem.has_slope:
        # a first front from a few layouts at a few clocks, so that most others never need evaluating
        clocks = np.unique(np.linspace(0, problem.num_clocks - 1, SEED_CLOCKS).round().astype(np.int64))
        first = order[:SEED_LAYOUTS]
        sweep.visit(np.repeat(first, len(clocks)), np.tile(clocks, len(first)), keep=True)
    if problem.quick_bound is not None:
        order, time_lb_s, energy_lb_j = promising_layouts(problem, sweep.front, every)
    ruled_out = len(every) - len(order)
    report(ruled_out)
    block = max(1, min(rows // 2, max(-(-len(order) // BLOCKS), SMALLEST_BLOCK)))
    for start in range(0, len(order), block):
        some = slice(start, start + block)
        alive = may_improve(problem, sweep.front, order[some], time_lb_s[some], energy_lb_j[some])
        sweep.visit_every_clock(order[some][alive], time_lb_s[some][alive])
        report(ruled_out + min(start + block, len(order)))
    return ExactFront(sweep.front, covered, sweep.evaluated, sweep.sample)


def promising_layouts(problem: Problem, front: Columns | None, layouts: Ints) -> tuple[Ints, Floats, Floats]:
    """(layouts that may have a plan on the front, their lower bounds of time and of energy), lowest product first.

    Left out are layouts whose quick bound the front covers, and those that break a constraint at every clock.
    """
    if problem.quick_bound is not None:
        layouts, *bounds = _ordered(problem, layouts, problem.quick_bound)
        layouts = layouts[may_improve(problem, front, layouts, *bounds)]
    return _ordered(problem, layouts, problem.lower_bound)


def _ordered(problem: Problem, layouts: Ints, bound: LowerBound | None) -> tuple[Ints, Floats, Floats]:
    """(layouts that may be feasible, their bounds of time and of energy, -inf: unknown), lowest product first."""
    if bound is None:
        unknown = np.full(len(layouts), -np.inf)
        return layouts, unknown, unknown
    time_lb_s, energy_lb_j = bound(layouts)
    left = np.flatnonzero(may_be_feasible(problem, layouts, time_lb_s, energy_lb_j))
    left = left[np.argsort((time_lb_s * energy_lb_j)[left], kind="stable")]
    return layouts[left].astype(np.int64), time_lb_s[left], energy_lb_j[left]


# The exact Pareto front where stages may use their slack: every layout, bottleneck clock and share of slack.


MOST_AT_ONCE = 512  # layouts at one clock, whose shares of slack are evaluated before the front rules others out
LITTLE = 0.3  # share of slack up to which plans are evaluated before those with more
SLACKS = np.linspace(0.0, 1.0, SLACK_LEVELS)[1:]


@dataclass
class _ProfileSweep:
    """The running front of clocks and slack, and how many plans were evaluated or bounded for it.

    For three goals a sweep is of one level: layouts of about the same third goal. Then ``front`` stays that of earlier
    levels, which rules plans out, and ``found`` grows to the level's own front of all goals; else it is None.
    """

    problem: Problem
    stage_clocks: StageClocks
    front: Columns
    found: Columns | None = None
    evaluated: int = 0

    def add(self, batch: Columns) -> None:
        """Merge evaluated plans into the front, of a level into ``found``."""
        if self.found is None:
            self.front = merge(self.front, batch, self.problem.pair)
        else:
            self.found = front_of(concat([self.found, batch]), self.problem.goals)

    def rows_to_evaluate(self, layouts: Ints, clocks: Floats, bounds: Floats) -> Ints:
        """As `worth_evaluating`, without plans that ``found`` beats."""
        left = worth_evaluating(self.problem, self.front, layouts, clocks, bounds)
        if self.found is None:
            return left
        third = np.asarray(self.problem.third_goal)[layouts[left]]
        first = self.problem.first_goals(layouts[left], *bounds[:, left])
        least = np.stack([*np.multiply(first, 1.0 - ROUNDING), third], axis=1)
        return left[~is_beaten(stacked(self.found, self.problem.goals), least)]

    def visit_uniform(self, layouts: Ints, fastest_s: Floats) -> None:
        """Visit uniform clocks of layouts whose plans take at least ``fastest_s``, the highest clock first."""
        problem, grid = self.problem, self.problem.clocks_mhz
        found = open_clocks(problem, lambda: self.front, layouts, fastest_s, lambda _, low, __: grid[low, None])
        layout, clock = np.concatenate([np.stack(pair) for pair in found], axis=1)
        order = np.argsort(-clock, kind="stable")
        layout, clock = layout[order], clock[order]
        clocks_mhz = grid[clock, None]
        left = self.rows_to_evaluate(layout, clocks_mhz, np.stack(problem.bounds(layout, clocks_mhz)))
        self.add(problem.evaluate_genes(layout[left], clock[left], np.zeros(len(left))))
        self.evaluated += len(layout)

    def visit_profiles(self, layouts: Ints, time_lb_s: Floats, energy_lb_j: Floats) -> None:
        """Visit every clock and share of slack of pipelines (n,), with lower bounds of their times and energies."""
        left = may_improve(self.problem, self.front, layouts, time_lb_s, energy_lb_j)
        depth_of = self.problem.layouts["pp"][layouts[left]]
        for depth in np.unique(depth_of).tolist():
            some = left[depth_of == depth]
            step = max(1, STAGE_CELLS_PER_CHUNK // (depth * self.problem.num_clocks))
            for start in range(0, len(some), step):
                rows = some[start : start + step]
                rows = rows[may_improve(self.problem, self.front, layouts[rows], time_lb_s[rows], energy_lb_j[rows])]
                if len(rows):
                    self._visit_depth(layouts[rows], time_lb_s[rows])

    def _visit_depth(self, layouts: Ints, fastest_s: Floats) -> None:
        """As `visit_profiles`, of layouts with one pp."""
        clocks, depth = self.problem.num_clocks, int(self.problem.layouts["pp"][layouts[0]])
        every = np.repeat(layouts, clocks), np.tile(np.arange(clocks), len(layouts))
        relaxed = self.stage_clocks(*every, np.ones(len(layouts) * clocks))[:, :depth].reshape(-1, clocks, depth)
        place, least = _least_by_range(relaxed)
        found = open_clocks(
            self.problem, lambda: self.front, layouts, fastest_s, lambda row, low, high: least[place[low, high], row]
        )
        layout, clock = np.concatenate([np.stack(pair) for pair in found], axis=1)
        for start in range(0, len(layout), MOST_AT_ONCE):
            some = slice(start, start + MOST_AT_ONCE)
            self._evaluate(layout[some], clock[some])

    def _evaluate(self, layouts: Ints, clocks: Ints) -> None:
        """Merge all shares of slack of layouts (n,) at one bottleneck clock each into the front.

        Three lots, each evaluated but for what earlier ones rule out: the front of the bounds; `LITTLE` slack, whose
        times bound those of more; the rest.
        """
        of = np.repeat(np.arange(len(layouts)), len(SLACKS))
        layout, clock, slack = layouts[of], clocks[of], np.tile(SLACKS, len(layouts))
        clocks_mhz = self.problem.decode_clocks(layout, clock, slack)
        left = Seen().add(layout, clocks_mhz)  # several shares may decode to the same clocks
        bounds, least_s = np.empty((2, len(of))), np.zeros(len(layouts))
        bounds[:, left] = self.problem.bounds(layout[left], clocks_mhz[left])
        self.evaluated += len(left)
        for lot in range(3):
            left = left[self.rows_to_evaluate(layout[left], clocks_mhz[left], bounds[:, left])]
            rows = [front_order(*bounds[:, left]), np.flatnonzero(slack[left] <= LITTLE), np.arange(len(left))][lot]
            some, left = left[rows], np.delete(left, rows)
            batch = self.problem.evaluate_clocks(layout[some], clock[some], slack[some], clocks_mhz[some])
            self.add(batch)
            little = slack[some] <= LITTLE
            np.maximum.at(least_s, of[some[little]], batch["iteration_time_s"][little])
            known_s = np.where(slack[left] > LITTLE, least_s[of[left]], 0.0)
            bounds[:, left] = self.problem.raise_bounds(layout[left], bounds[0, left], bounds[1, left], known_s)


def _least_by_range(clocks: Floats) -> tuple[Ints, Floats]:
    """The least of ``clocks`` (n, C, S) in every range of C that halving leads to, as `open_clocks` halves it.

    Returned are ``place`` (C, C) and ``least`` (ranges, n, S): of the range low to high it is least[place[low, high]].
    """
    count = clocks.shape[1]
    place, least = np.zeros((count, count), np.int64), np.empty((2 * count - 1, len(clocks), clocks.shape[2]))
    ranges = [(0, count - 1)]
    for low, high in ranges:  # which grows
        middle = (low + high) // 2
        ranges += [(low, middle), (middle + 1, high)] * (low < high)
    for at, (low, high) in reversed(list(enumerate(ranges))):
        place[low, high], middle = at, (low + high) // 2
        if low == high:
            least[at] = clocks[:, low]
        else:
            np.minimum(least[place[low, middle]], least[place[middle + 1, high]], out=least[at])
    return place, least


def exact_front_of_profiles(problem: Problem) -> ExactFront:
    """The front over all layouts, bottleneck clocks and shares of slack (multiples of 0.1); memory is bounded.

    ``covered`` counts the plans of that space. Without ``stage_clocks`` or ``energy_slope_w`` it is the front of the
    uniform clocks.
    """
    uniform = exact_front(problem)
    if problem.stage_clocks is None or not problem.has_slope or not problem.num_layouts:
        return uniform
    sweep = _ProfileSweep(problem, problem.stage_clocks, uniform.front)
    pipelines = np.flatnonzero(problem.layouts["pp"] > 1).astype(np.int64)
    sweep.visit_profiles(*promising_layouts(problem, sweep.front, pipelines))
    covered = uniform.covered + len(pipelines) * problem.num_clocks * len(SLACKS)
    return ExactFront(sweep.front, covered, uniform.evaluated + sweep.evaluated, uniform.sample)


# The exact Pareto front of time, energy and a third goal that the layout alone decides, such as memory.


SMALLEST_LEVEL = 64  # layouts; of fewer the calls cost more than the front of earlier levels spares
LEVELS = 256  # at most so many of about equal size


def exact_front_of_levels(problem: Problem, *, progress: Progress | None = None) -> tuple[Columns, int]:
    """(the front of three goals over layouts, clocks and shares of slack, how many plans were evaluated or bounded).

    ``problem.has_levels`` must hold. ``progress`` is as for `exact_front`.
    """
    none = np.zeros(0, np.int64)
    nothing = problem.evaluate_genes(none, none, np.zeros(0))
    parts, evaluated, front = [nothing], 0, nothing
    order = np.argsort(np.asarray(problem.third_goal), kind="stable").astype(np.int64)
    size = max(SMALLEST_LEVEL, -(-len(order) // LEVELS))
    for start in range(0, len(order), size):
        level = _ProfileSweep(problem, problem.stage_clocks or problem.decode_clocks, front, nothing)
        layouts, *bounds = promising_layouts(problem, front, order[start : start + size])
        left = may_improve(problem, front, layouts, *bounds)
        if len(left):
            level.visit_uniform(layouts[left], bounds[0][left])
        if len(left) and problem.stage_clocks is not None:
            left = left[problem.layouts["pp"][layouts[left]] > 1]
            level.visit_profiles(layouts[left], *(values[left] for values in bounds))
        evaluated += level.evaluated
        if level.found is not None and len(level.found["slack"]):
            parts.append(level.found)
            front = merge(front, level.found, problem.pair)
        if progress is not None:
            done = min(start + size, len(order))
            progress(done * problem.num_clocks, problem.num_layouts * problem.num_clocks, len(front["slack"]))
    return front_of(concat(parts), problem.goals), evaluated


# Branch and bound over boxes: a layout and a range of clocks, halved until the front covers it or one clock is left.


ROUNDING = 1e-9  # relative; a bound computed in another order may exceed the truth by rounding

Slowest = Callable[[Ints, Ints, Ints], Floats]  # rows, the range's lowest and highest clock index


def may_improve(problem: Problem, front: Columns | None, layouts: Ints, time_lb_s: Floats, energy_lb_j: Floats) -> Ints:
    """Indices of plans of layouts (n,) whose goals the front does not cover by more than rounding.

    They come from lower bounds of time and energy, (n,) each.
    """
    if front is None:
        return np.arange(len(time_lb_s))
    first, second = (values * (1.0 - ROUNDING) for values in problem.first_goals(layouts, time_lb_s, energy_lb_j))
    own_first, own_second = (front[name] for name in problem.pair)
    return np.flatnonzero(~is_covered(own_first, own_second, first, second))


def may_be_feasible(
    problem: Problem, layouts: Ints, time_lb_s: Floats, energy_lb_j: Floats, power_lb_w: Floats | float = 0.0
) -> Bools:
    """Whether plans of layouts with these lower bounds of time, energy and power may keep the constraints, (n,)."""
    if problem.least_violation is None:
        return np.ones(len(layouts), np.bool_)
    power_w = np.broadcast_to(power_lb_w, len(layouts))
    return np.asarray(~(problem.least_violation(layouts, time_lb_s, energy_lb_j, power_w) > ROUNDING))


def worth_evaluating(problem: Problem, front: Columns | None, layouts: Ints, clocks: Floats, bounds: Floats) -> Ints:
    """Indices of plans at stage clocks (n, S) that may be feasible and improve the front.

    ``bounds`` (2, n): lower bounds of their time and energy.
    """
    left = may_improve(problem, front, layouts, *bounds)
    power_w = 0.0 if problem.least_power_w is None else problem.least_power_w(layouts[left], clocks[left])
    time_s, energy_j = bounds[:, left]
    return left[may_be_feasible(problem, layouts[left], time_s, energy_j, power_w)]


def open_clocks(
    problem: Problem, front: Callable[[], Columns | None], layouts: Ints, fastest_s: Floats, slowest: Slowest
) -> Iterator[tuple[Ints, Ints]]:
    """Yield (layouts, clock indices) that may hold a plan that ``front()``, asked at every step, does not cover.

    A range of clocks is halved until the front covers its bounds or one clock is left. ``fastest_s`` (n,): lower bound
    of the time of each layout's plans. ``slowest(rows, low, high)``: lower bounds (n, S) of the stage clocks of the
    layouts in ``rows``, at clock indices ``low`` to ``high``. The problem has a slope.
    """

    def bounds(row: Ints, low: Ints, high: Ints) -> Floats:
        """Work and power, (2, n), that plans of these clocks are not below."""
        clocks = slowest(row, low, high)
        power = np.zeros(len(row)) if problem.least_power_w is None else problem.least_power_w(layouts[row], clocks)
        return np.stack([problem.work(layouts[row], clocks), power])

    rows = np.arange(len(layouts))
    boxes = np.stack([rows, np.zeros_like(rows), np.full_like(rows, problem.num_clocks - 1)])
    time_s, least = fastest_s, bounds(*boxes)
    while True:
        energy_j = least[0] + problem.slope_w(layouts[boxes[0]]) * time_s
        left = may_improve(problem, front(), layouts[boxes[0]], time_s, energy_j)
        left = left[may_be_feasible(problem, layouts[boxes[0, left]], time_s[left], energy_j[left], least[1, left])]
        single = boxes[1, left] == boxes[2, left]
        yield layouts[boxes[0, left[single]]], boxes[1, left[single]]
        left = left[~single]
        if not len(left):
            return
        row, low, high = boxes[:, left]
        middle = (low + high) // 2
        middle_s = problem.least_time(layouts[row], problem.clocks_mhz[middle, None])
        boxes = np.concatenate([[row, low, middle], [row, middle + 1, high]], axis=1)
        time_s = np.concatenate([middle_s, time_s[left]])
        least = np.concatenate([least[:, left], bounds(row, middle + 1, high)], axis=1)


# The fastest layouts by the lower bounds of their times, which are worked out only where quick bounds leave it open.


TimeOf = Callable[[Ints], Floats]  # layouts (n,) -> times (n,) that are not below the problem's bounds
FEW = 64  # layouts, those of lowest quick bound, whose bounds `fastest_layout` works out first
MOST = 1000  # layouts that a plan is ranked among; those behind are as good as last


def fastest_layout(problem: Problem, layouts: Ints, time_of: TimeOf | None = None) -> int:
    """The one of ``layouts`` with the least time by ``time_of``, else the least lower bound; the first of equal ones.

    The problem has bounds, and ``time_of`` is not below them, so that it is asked of few layouts.
    """
    bound, quick_bound = _bounds(problem)
    of = time_of or (lambda some: bound(some)[0])
    quick_s, _ = quick_bound(layouts)
    few = layouts[np.argsort(quick_s, kind="stable")[:FEW]]
    known_s = of(few[bound(few)[0].argmin()][None])[0]
    left = layouts[quick_s * (1.0 - ROUNDING) <= known_s]
    left = left[bound(left)[0] * (1.0 - ROUNDING) <= known_s]
    return int(left[of(left).argmin()])


def lowest_bounds(problem: Problem, most: int) -> tuple[Ints, Floats]:
    """The at most ``most`` layouts with the lowest lower bounds of time, and these bounds in s, ascending.

    The problem has bounds. They are worked out in the order of the quick ones, twice as many each time, until no other
    layout can be among the lowest.
    """
    bound, quick_bound = _bounds(problem)
    quick_s, _ = quick_bound(np.arange(problem.num_layouts))
    order = np.argsort(quick_s, kind="stable")
    left, least_s, count = order, np.empty(0), most
    while len(left):
        least_s = np.concatenate([least_s, bound(left[:count])[0]])
        left, count = left[count:], 2 * count
        if len(least_s) >= most:
            left = left[quick_s[left] * (1.0 - ROUNDING) <= np.partition(least_s, most - 1)[most - 1]]
    known = order[: len(least_s)]
    best = np.lexsort([known, least_s])[:most]
    return known[best], least_s[best]


def count_faster(
    problem: Problem, time_s: float, most: int = MOST, time_of: TimeOf | None = None, at_most: TimeOf | None = None
) -> int | None:
    """Number of layouts whose time by ``time_of``, else its lower bound, is below ``time_s``; None: more than ``most``.

    A layout counts once, under its highest power limit: none is faster under a lower one. ``at_most``: upper bounds of
    ``time_of`` that cost less. The problem has bounds.
    """
    bound, quick_bound = _bounds(problem)
    layouts = np.arange(problem.num_distinct)
    quick_s, _ = quick_bound(layouts)
    left = np.flatnonzero(quick_s * (1.0 - ROUNDING) < time_s)
    left = left[np.argsort(quick_s[left], kind="stable")]
    found = 0
    for start in range(0, len(left), most):
        some = layouts[left[start : start + most]]
        some = some[bound(some)[0] < time_s]
        surely = np.full(len(some), time_of is None) if at_most is None else at_most(some) < time_s
        found += int(np.count_nonzero(surely))
        if time_of is not None and found <= most and not surely.all():
            found += int(np.count_nonzero(time_of(some[~surely]) < time_s))
        if found > most:
            return None
    return found


def rank(problem: Problem, time_s: float, time_of: TimeOf | None = None, at_most: TimeOf | None = None) -> int | None:
    """The rank, from 1, that a layout of time ``time_s`` has among all by `count_faster`; None: beyond `MOST`."""
    sooner_s = time_s * (1.0 - 1e-9)  # none is faster than itself
    faster = count_faster(problem, sooner_s, time_of=time_of, at_most=at_most)
    return None if faster is None else 1 + faster


def _bounds(problem: Problem) -> tuple[LowerBound, LowerBound]:
    bound = problem.lower_bound
    if bound is None:
        raise ValueError("a problem without lower bounds")
    return bound, problem.quick_bound or bound
