"""Local search around a front: other clocks, neighbouring layouts, single stages one clock up or down.

NSGA-II finds the regions; what is left are small moves, and those are cheap to try all at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.search.breeding import CLOCK, SLACK, Genome, Seen, best_of_combinations
from jointopt.search.exact import ExactFront, exact_front_of_profiles
from jointopt.search.pareto import concat, evenly, front_of, is_covered, merge, objectives, take
from jointopt.search.problem import Problem

ROUNDS = 12
CLIMBS = 3
SWEEP = 8  # clocks at which the best layout of each combination is tried in the end
STARTS = 128  # plans per round, evenly along the front, whose single stages are moved
PAIRED = 64  # plans per round from which two genes move at once
CLOCK_STEPS = (-4, -2, -1, 0, 1, 2, 4)
RESOLUTION = 1e-3  # relative; finer gains than this from single stages would only bloat the front


@dataclass
class LocalSearch:
    """Local moves from a front, remembering where it has already been; ``spent`` counts evaluations; deterministic."""

    problem: Problem
    genome: Genome
    spent: int = 0
    expanded: dict[bool, Seen] = field(default_factory=lambda: {False: Seen(), True: Seen()})
    swept: set[int] = field(default_factory=set)

    def improve(self, front: Columns, evaluations: int, *, per_stage: bool) -> Columns:
        """The front after local moves, until none helps or ``evaluations`` are spent; never worse anywhere.

        With clocks ``per_stage`` also moves of pipelines: nearby clocks with every share of slack, then each stage one
        clock up and down. Of those only what gains `RESOLUTION` is merged.
        """
        problem = self.problem
        stages = per_stage and problem.stage_clocks is not None and problem.max_pp > 1
        last = self.spent + evaluations
        for _ in range(ROUNDS):
            plans = take(front, self.expanded[stages].add(front["layout_index"], front["stage_clock_mhz"]))
            if self.spent >= last or not len(plans["slack"]):
                break
            for batch in self._uniform_moves(plans, last):
                front = merge(front, batch)
            if not stages:
                continue
            piped = take(plans, problem.layouts["pp"][plans["layout_index"]] > 1)
            batches = self._evaluated(slack_moves(self.genome, self.genome.encode(piped)), last)
            room = (last - self.spent) // (2 * problem.max_pp)
            if room > 0 and len(piped["slack"]):
                layout, clocks, _ = _moved_stages(problem, take(piped, evenly(piped, room)))
                batches.append(explicit(problem, layout, clocks))
                self.spent += len(layout)
            for batch in batches:
                front = merge(front, noticeable(front, batch))
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
                front, best = merge(front, batch), best_of_combinations(self.genome, concat([best, batch]))
        clocks = np.unique(np.linspace(0, self.problem.num_clocks - 1, SWEEP).round().astype(np.int64))
        for batch in self._evaluated(self._at_clocks(best["layout_index"], clocks), last):
            front = merge(front, batch)
        return front

    def _uniform_moves(self, plans: Columns, last: int) -> list[Columns]:
        """Every clock of layouts new on the front, and neighbouring layouts at the same clock."""
        genes = self.genome.encode(plans)
        genes[:, SLACK] = 0
        some = genes[evenly(plans, PAIRED)]
        near, further = self.genome.neighbours(genes), self.genome.neighbours(some, paired=True)
        new = np.array(sorted(set(plans["layout_index"].tolist()) - self.swept), dtype=np.int64)
        self.swept.update(new.tolist())
        moves = [self._at_clocks(new, np.arange(self.problem.num_clocks)), near, further]
        return self._evaluated(np.unique(np.concatenate(moves), axis=0), last)

    def _at_clocks(self, layouts: Ints, clocks: Ints) -> Ints:
        """Genes of each layout at each of the clocks, without slack."""
        layout_genes = np.repeat(self.genome.layout_genes[layouts], len(clocks), axis=0)
        clock = np.tile(clocks, len(layouts))
        return np.column_stack([layout_genes, clock, np.zeros_like(clock)])

    def _evaluated(self, genes: Ints, last: int) -> list[Columns]:
        """The plans of these genes, thinned to what may still be spent."""
        left = last - self.spent
        if left <= 0 or not len(genes):
            return []
        chosen = genes[:: -(-len(genes) // left)]
        self.spent += len(chosen)
        return [self.problem.plans(*self.genome.decode(chosen))]


def move_stages(problem: Problem, front: Columns, evaluations: int) -> tuple[Columns, int]:
    """(the front after moves of single stages by one clock of the grid, plans evaluated for it).

    All that is left to try around an exact front of one clock and slack. It ends where no move gains `RESOLUTION`, or
    after ``evaluations``; never worse anywhere.
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
        moved = take(piped, evenly(piped, min(room, STARTS)))
        layout, clocks, origin = _moved_stages(problem, moved)
        spent += len(layout)
        time_s, energy_j = problem.bounds(layout, clocks)
        if problem.has_slope:  # where no clock rose, no less than the time of the plan itself
            slower = (np.nan_to_num(clocks) <= np.nan_to_num(moved["stage_clock_mhz"][origin])).all(axis=1)
            least_s = np.where(slower, moved["iteration_time_s"][origin], 0.0)
            time_s, energy_j = problem.raised(layout, time_s, energy_j, least_s)
        left = np.flatnonzero(_may_be_noticed(front, time_s, energy_j))
        if problem.has_slope:
            least_s = _together_s(problem, layout[left], clocks[left], origin[left])
            bounds = problem.raised(layout[left], time_s[left], energy_j[left], least_s)
            left = left[_may_be_noticed(front, *bounds)]
        front = merge(front, noticeable(front, explicit(problem, layout[left], clocks[left])))
    return front, spent


def noticeable(front: Columns, batch: Columns) -> Columns:
    """Plans that beat every point of the front by `RESOLUTION` in an objective, one per step of time."""
    best = front_of(batch)
    best = take(best, _may_be_noticed(front, *objectives(best)))
    step = np.floor(np.log(best["iteration_time_s"]) / RESOLUTION)
    last_of_step = np.append(step[1:] != step[:-1], True)[: len(step)]  # by time: the last costs least energy
    return take(best, last_of_step)


def _may_be_noticed(front: Columns, time_s: Floats, energy_j: Floats) -> Bools:
    """Which times and energies, (n,), no point of the front covers even with `RESOLUTION` added to them."""
    return ~is_covered(*objectives(front), time_s * (1.0 + RESOLUTION), energy_j * (1.0 + RESOLUTION))


def slack_moves(genome: Genome, genes: Ints) -> Ints:
    """Genes of the same layouts at nearby clocks, each with every share of slack."""
    steps = np.array([(c, s) for c in CLOCK_STEPS for s in range(genome.sizes[SLACK])], dtype=np.int64)
    around = np.repeat(genes, len(steps), axis=0)
    around[:, CLOCK] += np.tile(steps[:, 0], len(genes))
    around[:, SLACK] = np.tile(steps[:, 1], len(genes))
    inside = (around[:, CLOCK] >= 0) & (around[:, CLOCK] < genome.sizes[CLOCK])
    return np.unique(around[inside], axis=0)


def _together_s(problem: Problem, layout: Ints, clocks: Floats, origin: Ints) -> Floats:
    """Times (n,) that several moves of one plan made at once do not go below, in a problem with a slope.

    Only the slowest stage's move gains much, so most moves are ruled out by the square root of their number.
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
    """(layouts (n,), clocks (n, S), rows of plans): each stage of each plan one clock of the grid up and down."""
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


def explicit(problem: Problem, layout: Ints, clocks: Floats) -> Columns:
    """Plans of explicit stage clocks; their clock gene is the highest one, their slack is unknown (NaN)."""
    highest = np.fmax.reduce(clocks, axis=1, initial=problem.clocks_mhz[0])
    index = np.searchsorted(problem.clocks_mhz, highest).clip(0, problem.num_clocks - 1).astype(np.int64)
    return problem.evaluated(layout, index, np.full(len(layout), np.nan), clocks)


# Plans within constraints that only clocks of single stages keep, from the front without constraints.


def front_within_limits(
    problem: Problem, exact: ExactFront, free: Problem, evaluations: int
) -> tuple[ExactFront, Columns]:
    """(the ``exact`` front with what else keeps the constraints of ``problem``, the front of ``free``).

    For where one clock, and slack, keep few constraints or none: ``free`` is the problem without them. They bound time,
    energy and their ratio, so that what keeps them lies on its front, or behind a plan of it that draws more power.
    ``evaluations``: of plans with clocks of single stages moved, at most.
    """
    swept = exact_front_of_profiles(free)
    moved, spent = move_stages(free, swept.front, evaluations)
    plans = problem.again(moved)
    front = merge(exact.front, take(plans, np.flatnonzero(plans["violation"] <= 0.0)))
    return replace(exact, front=front, evaluated=exact.evaluated + swept.evaluated + spent), moved
