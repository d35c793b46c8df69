"""Local search around a front: other clocks, neighbouring layouts, single stages one clock up or down.

NSGA-II finds the regions; what is left are small moves, and those are cheap to try all at once. Last, the two-step
answer, which moves the clocks of the fastest layout alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.search.breeding import CLOCK, SLACK, Genome, Seen, best_of_combinations
from jointopt.search.exact import ExactFront, exact_front_of_profiles
from jointopt.search.pareto import OBJECTIVES, concat, evenly_spaced, front_of, front_order, is_covered, merge, take
from jointopt.search.problem import Problem

ROUNDS = 12  # of moves from a front, at most
CLIMBS = 3  # rounds of moves within each combination of tp, pp and cp
CLIMB_CLOCKS = 8  # at which the best layout of each combination is tried in the end
STARTS = 128  # plans per round, evenly along the front, whose single stages are moved
PAIRED = 64  # plans per round from which two genes move at once
CLOCK_STEPS = (-4, -2, -1, 0, 1, 2, 4)
RESOLUTION = 1e-3  # relative; finer gains than this from single stages would only bloat the front


@dataclass
class LocalSearch:
    """Local moves from a front, without chance; it remembers the plans and layouts that it has moved from.

    ``spent``: plans evaluated. ``expanded``: plans that were moved from, without and with moves of single stages.
    ``tried_at_all_clocks``: layouts.
    """

    problem: Problem
    genome: Genome
    spent: int = 0
    expanded: dict[bool, Seen] = field(default_factory=lambda: {False: Seen(), True: Seen()})
    tried_at_all_clocks: set[int] = field(default_factory=set)

    def improve(self, front: Columns, evaluations: int, *, per_stage: bool) -> Columns:
        """The front after local moves, until none helps or ``evaluations`` are spent; no plan of it is lost or beaten.

        With ``per_stage`` also moves of pipelines: nearby clocks with every share of slack, then each stage one clock
        up and down. Of those only what gains `RESOLUTION` is merged.
        """
        problem = self.problem
        stages = per_stage and problem.stage_clocks is not None and problem.max_pp > 1
        last = self.spent + evaluations
        for _ in range(ROUNDS):
            plans = take(front, self.expanded[stages].add(front["layout_index"], front["stage_clock_mhz"]))
            if self.spent >= last or not len(plans["slack"]):
                break
            for batch in self._uniform_moves(plans, last):
                front = merge(front, batch, problem.pair)
            if not stages:
                continue
            piped = take(plans, problem.layouts["pp"][plans["layout_index"]] > 1)
            batches = self._evaluated(slack_moves(self.genome, self.genome.encode(piped)), last)
            room = (last - self.spent) // (2 * problem.max_pp)
            if room > 0 and len(piped["slack"]):
                layout, clocks, _ = _moved_stages(problem, take(piped, evenly_spaced(piped, room)))
                batches.append(plans_at_clocks(problem, layout, clocks))
                self.spent += len(layout)
            for batch in batches:
                front = merge(front, gaining_plans(front, batch, problem.pair), problem.pair)
        return front

    def climb(self, front: Columns, plans: Columns, evaluations: int) -> Columns:
        """The front after a local search from ``plans`` within each promising combination of tp, pp and cp.

        Good layouts of two combinations differ in many genes at once: other moves do not lead from one to the other.
        """
        last = self.spent + evaluations
        best = best_of_combinations(self.genome, plans)
        for _ in range(CLIMBS):
            genes = self.genome.encode(best)
            genes[:, SLACK] = 0
            moves = [self.genome.neighbours(genes), self.genome.neighbours(genes, paired=True)]
            for batch in self._evaluated(np.unique(np.concatenate(moves), axis=0), last):
                best = best_of_combinations(self.genome, concat([best, batch]))
                front = merge(front, batch, self.problem.pair)
        clocks = np.unique(np.linspace(0, self.problem.num_clocks - 1, CLIMB_CLOCKS).round().astype(np.int64))
        for batch in self._evaluated(self._at_clocks(best["layout_index"], clocks), last):
            front = merge(front, batch, self.problem.pair)
        return front

    def _uniform_moves(self, plans: Columns, last: int) -> list[Columns]:
        """Plans of layouts new on the front at every clock, and of neighbouring layouts at the same clock."""
        genes = self.genome.encode(plans)
        genes[:, SLACK] = 0
        some = genes[evenly_spaced(plans, PAIRED)]
        near, further = self.genome.neighbours(genes), self.genome.neighbours(some, paired=True)
        new = np.array(sorted(set(plans["layout_index"].tolist()) - self.tried_at_all_clocks), dtype=np.int64)
        self.tried_at_all_clocks.update(new.tolist())
        moves = [self._at_clocks(new, np.arange(self.problem.num_clocks)), near, further]
        return self._evaluated(np.unique(np.concatenate(moves), axis=0), last)

    def _at_clocks(self, layouts: Ints, clocks: Ints) -> Ints:
        """Genes of each layout at each of the clocks, without slack."""
        layout_genes = np.repeat(self.genome.layout_genes[layouts], len(clocks), axis=0)
        clock = np.tile(clocks, len(layouts))
        return np.column_stack([layout_genes, clock, np.zeros_like(clock)])

    def _evaluated(self, genes: Ints, last: int) -> list[Columns]:
        """At most one table, of the plans of every so many-th of these genes, so that ``last`` is not passed."""
        left = last - self.spent
        if left <= 0 or not len(genes):
            return []
        chosen = genes[:: -(-len(genes) // left)]
        self.spent += len(chosen)
        return [self.problem.evaluate_genes(*self.genome.decode(chosen))]


def move_stages(problem: Problem, front: Columns, evaluations: int) -> tuple[Columns, int]:
    """(the front after moves of single stages by one clock of the grid, how many plans were evaluated or bounded).

    Nothing else is left to try around an exact front of one clock and slack. It ends where no move gains `RESOLUTION`,
    or after ``evaluations``; no point of the front gets worse.
    """
    if problem.stage_clocks is None or problem.max_pp == 1:
        return front, 0
    started, spent = Seen(), 0
    for _ in range(ROUNDS):
        plans = take(front, started.add(front["layout_index"], front["stage_clock_mhz"]))
        piped = take(plans, problem.layouts["pp"][plans["layout_index"]] > 1)
        room = (evaluations - spent) // (2 * problem.max_pp)
        if room <= 0 or not len(piped["slack"]):
            break
        moved = take(piped, evenly_spaced(piped, min(room, STARTS)))
        layout, clocks, origin = _moved_stages(problem, moved)
        spent += len(layout)
        time_s, energy_j = problem.bounds(layout, clocks)
        if problem.has_slope:  # where no clock rose, no less than the time of the plan itself
            slower = (np.nan_to_num(clocks) <= np.nan_to_num(moved["stage_clock_mhz"][origin])).all(axis=1)
            least_s = np.where(slower, moved["iteration_time_s"][origin], 0.0)
            time_s, energy_j = problem.raise_bounds(layout, time_s, energy_j, least_s)
        left = np.flatnonzero(_may_gain(front, problem.pair, *problem.first_goals(layout, time_s, energy_j)))
        if problem.has_slope:
            least_s = _least_of_groups_s(problem, layout[left], clocks[left], origin[left])
            bounds = problem.raise_bounds(layout[left], time_s[left], energy_j[left], least_s)
            left = left[_may_gain(front, problem.pair, *problem.first_goals(layout[left], *bounds))]
        batch = plans_at_clocks(problem, layout[left], clocks[left])
        front = merge(front, gaining_plans(front, batch, problem.pair), problem.pair)
    return front, spent


def gaining_plans(front: Columns, batch: Columns, pair: Sequence[str] = OBJECTIVES) -> Columns:
    """Plans of the batch that no point of the front covers within `RESOLUTION`, one per step of the first goal."""
    best = front_of(batch, pair)
    best = take(best, _may_gain(front, pair, *(best[name] for name in pair)))
    step = np.floor(np.log(best[pair[0]]) / RESOLUTION)
    last_of_step = np.append(step[1:] != step[:-1], True)[: len(step)]  # by time: the last costs least energy
    return take(best, last_of_step)


def _may_gain(front: Columns, pair: Sequence[str], first: Floats, second: Floats) -> Bools:
    """Whether goals, (n,) each, gain `RESOLUTION`: no point of the front covers them with it added."""
    own_first, own_second = (front[name] for name in pair)
    return ~is_covered(own_first, own_second, first * (1.0 + RESOLUTION), second * (1.0 + RESOLUTION))


def slack_moves(genome: Genome, genes: Ints) -> Ints:
    """Genes of the same layouts at nearby clocks, each with every share of slack."""
    steps = np.array([(c, s) for c in CLOCK_STEPS for s in range(genome.sizes[SLACK])], dtype=np.int64)
    around = np.repeat(genes, len(steps), axis=0)
    around[:, CLOCK] += np.tile(steps[:, 0], len(genes))
    around[:, SLACK] = np.tile(steps[:, 1], len(genes))
    inside = (around[:, CLOCK] >= 0) & (around[:, CLOCK] < genome.sizes[CLOCK])
    return np.unique(around[inside], axis=0)


def _least_of_groups_s(problem: Problem, layout: Ints, clocks: Floats, origin: Ints) -> Floats:
    """Lower bounds of the times (n,) of moves, by evaluating groups of the moves of one plan (``origin``) as one plan.

    In a group every stage takes the highest of its clocks, and none of its moves is faster. Only the slowest stage's
    move gains much, so that groups as large as the square root of the number of moves rule out most.
    """
    _, first, count = np.unique(origin, return_index=True, return_counts=True)
    if (count <= 2).all():  # as many evaluations as moves
        return np.zeros(len(origin))
    size = np.ceil(np.sqrt(count)).astype(np.int64)
    starts = np.flatnonzero((np.arange(len(origin)) - np.repeat(first, count)) % np.repeat(size, count) == 0)
    fastest = np.fmax.reduceat(clocks, starts)
    time_s = problem.evaluate(layout[starts], fastest)["iteration_time_s"]
    return np.repeat(time_s, np.diff(starts, append=len(origin)))


def _moved_stages(problem: Problem, plans: Columns) -> tuple[Ints, Floats, Ints]:
    """(layouts (n,), clocks (n, S), rows of ``plans`` (n,)): each stage of each plan one clock up and one down."""
    clocks, count, grid = plans["stage_clock_mhz"], len(plans["slack"]), problem.clocks_mhz
    stages = clocks.shape[1]
    moved = np.repeat(clocks, 2 * stages, axis=0)
    rows = np.arange(len(moved))
    stage, up = np.tile(np.repeat(np.arange(stages), 2), count), np.tile([False, True], stages * count)
    before = moved[rows, stage]
    index = np.where(up, np.searchsorted(grid, before, side="right"), np.searchsorted(grid, before, side="left") - 1)
    moved[rows, stage] = grid[np.clip(index, 0, len(grid) - 1)]
    real = np.isfinite(before) & (index >= 0) & (index < len(grid))
    origin = np.repeat(np.arange(count), 2 * stages)[real]
    return plans["layout_index"][origin], moved[real], origin


def plans_at_clocks(problem: Problem, layout: Ints, clocks: Floats) -> Columns:
    """Plans at stage clocks (n, S), which no slack stands for: it is NaN, and ``clock_index`` that of the highest."""
    highest = np.fmax.reduce(clocks, axis=1, initial=problem.clocks_mhz[0])
    index = np.searchsorted(problem.clocks_mhz, highest).clip(0, problem.num_clocks - 1).astype(np.int64)
    return problem.evaluate_clocks(layout, index, np.full(len(layout), np.nan), clocks)


# Plans within constraints that only clocks of single stages keep, from the front without constraints.


def front_within_limits(
    problem: Problem, exact: ExactFront, free: Problem, evaluations: int
) -> tuple[ExactFront, Columns]:
    """(the ``exact`` front with plans from the front of ``free`` that keep the constraints, the front of ``free``).

    For constraints that few plans of one clock and slack keep: ``free`` is the problem without constraints. They bound
    time, energy and their ratio, so that plans that keep them lie on the front of ``free``, or behind a plan of it that
    draws more power. ``evaluations``: at most so many plans with moved stages.
    """
    profiles = exact_front_of_profiles(free)
    moved, spent = move_stages(free, profiles.front, evaluations)
    plans = problem.evaluate_again(moved)
    front = merge(exact.front, take(plans, np.flatnonzero(plans["violation"] <= 0.0)), problem.pair)
    return replace(exact, front=front, evaluated=exact.evaluated + profiles.evaluated + spent), moved


# The two-step answer, the fastest layout with its clocks tuned afterwards, and what a joint front saves against it.


@dataclass(frozen=True)
class Saving:
    """The largest share of one objective that a front saves at equal value of the other, and that value."""

    share: float
    at: float
    plan: int  # row of the front that saves it
    other: int  # row of the other front that it is saved against


def two_step_front(problem: Problem, layout: int, evaluations: int) -> Columns:
    """The front of one ``layout`` under all its power limits, searched as the joint search does all layouts.

    One clock and slack come first, then clocks of single stages, with ``evaluations`` as for `move_stages`. It is empty
    if the layout breaks a constraint at every clock. ``layout_index`` of its plans is that of ``problem``.
    """
    rows = problem.under_all_limits(layout)
    alone = problem.of_layouts(rows)
    front, _ = move_stages(alone, exact_front_of_profiles(alone).front, evaluations)
    beyond = (0, 0), (0, problem.max_pp - front["stage_clock_mhz"].shape[1])
    clocks = np.pad(front["stage_clock_mhz"], beyond, constant_values=np.nan)
    return front | {"layout_index": rows[front["layout_index"]], "stage_clock_mhz": clocks}


def energy_saving(front: Columns, other: Columns, pair: Sequence[str] = OBJECTIVES) -> Saving | None:
    """The largest share of energy that ``front`` saves in no more time than a plan of ``other``; None: no plans.

    ``pair``: the columns of time and energy.
    """
    return _saving(*(of[name] for of in (front, other) for name in pair))


def time_saving(front: Columns, other: Columns, pair: Sequence[str] = OBJECTIVES) -> Saving | None:
    """The largest share of time that ``front`` saves at no more energy than a plan of ``other``, as `energy_saving`."""
    return energy_saving(front, other, pair[::-1])


def _saving(equal: Floats, saved: Floats, other_equal: Floats, other_saved: Floats) -> Saving | None:
    if not len(equal) or not len(other_equal):
        return None
    order = front_order(equal, saved)
    left = np.searchsorted(equal[order], other_equal, side="right") - 1
    reached = np.where(left >= 0, saved[order][np.maximum(left, 0)], np.inf)
    share = np.maximum(1.0 - reached / other_saved, 0.0)  # a search that ends where gains are small may miss one
    best = int(share.argmax())
    plan = int(order[max(int(left[best]), 0)])
    return Saving(float(share[best]), float(other_equal[best]), plan, best)
