"""Fronts of three and more goals: NSGA-II, and then moves that beat its plans.

Such fronts have thousands of plans, nearly all of which differ little from others. Those that NSGA-II's trials met are
spread over all of it; a move of one gene that beats such a plan in every goal takes its place, until none does.
"""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.search.breeding import CLOCK, SLACK, TRIALS, Genome, Seen
from jointopt.search.local_search import slack_moves
from jointopt.search.nsga2 import SearchResult, search
from jointopt.search.pareto import concat, evenly, front_of, is_beaten, stacked, take
from jointopt.search.problem import Problem, Progress

ROUNDS = 12
EVALUATIONS = 100_000  # of moves
NEAR = 0.001  # of a goal: plans that gain no more than that are as good as one
NEAR_OF_MANY = 0.01  # the same of four goals and more, of which a front of all that differ has no end
MOST = 800  # plans of a front, above which none joins it
PAIRED = 400  # plans of a round from which two genes move at once


def search_goals(
    problem: Problem, *, trials: int = TRIALS, seed: int = 0, start: Columns | None = None,
    moves: int = EVALUATIONS, progress: Progress | None = None,
) -> SearchResult:  # fmt: skip
    """NSGA-II for ``trials`` plans by all goals from a ``start``, then so many ``moves`` at most; the seed decides."""
    found = search(problem, trials=trials, seed=seed, start=start, local_evaluations=0, progress=progress)
    front, evaluated = sharpened(problem, found.front, moves)
    return SearchResult(found.plans, front, found.evaluated + evaluated, found.study)


def sharpened(problem: Problem, front: Columns, evaluations: int = EVALUATIONS) -> tuple[Columns, int]:
    """(the front after moves of one gene, or two, plans evaluated); no plan of it is beaten by what was tried.

    A plan of the front is replaced by the move that beats it in every goal.
    """
    genome, started, spent, few = Genome.of(problem), Seen(), 0, len(problem.goals) <= 3
    near = NEAR if few else NEAR_OF_MANY
    for _ in range(ROUNDS):
        plans = take(front, started.add(front["layout_index"], front["stage_clock_mhz"]))
        if spent >= evaluations or not len(plans["slack"]):
            break
        genes = genome.encode(plans)
        moves = [slack_moves(genome, genes), genome.neighbours(genes)]
        moves.append(genome.neighbours(genes[evenly(plans, PAIRED)], paired=True))
        batch = _some(genome, np.unique(np.concatenate(moves), axis=0), evaluations - spent)
        spent += len(batch["slack"])
        front = _replaced(problem, front, batch, near)
    if evaluations > spent:
        batch = _some(genome, _swept(genome, front), evaluations - spent)
        front = _replaced(problem, front, batch, 0.0 if few else near)
        spent += len(batch["slack"])
    return front, spent


def _swept(genome: Genome, front: Columns) -> Ints:
    """Genes of the front's layouts at every clock with every share of slack; one without a pipeline has no slack."""
    layouts = np.unique(front["layout_index"])
    levels = np.where(genome.problem.layouts["pp"][layouts] > 1, genome.sizes[SLACK], 1)
    each = np.repeat(layouts, levels)
    level = np.arange(len(each)) - np.repeat(np.cumsum(levels) - levels, levels)
    clocks = np.arange(genome.sizes[CLOCK])
    layout_genes = genome.layout_genes[np.repeat(each, len(clocks))]
    return np.column_stack([layout_genes, np.tile(clocks, len(each)), np.repeat(level, len(clocks))])


def _some(genome: Genome, genes: Ints, most: int) -> Columns:
    """The feasible plans of at most so many of the genes."""
    plans = genome.problem.plans(*genome.decode(genes[:: -(-len(genes) // most)]))
    return take(plans, plans["violation"] <= 0.0)


def _replaced(problem: Problem, front: Columns, batch: Columns, near: float) -> Columns:
    """The front with each plan that some of the ``batch`` beat replaced by the one of least product of goals.

    Of the batch those that are no plan's neighbours (within ``near``) join it.
    """
    own, moved = (np.log(stacked(plans, problem.goals)) for plans in (front, batch))
    order = np.argsort(moved.sum(axis=1), kind="stable")
    places = [_first_that_beats(moved[order], one) for one in own]
    kept = np.array([place is None for place in places])
    chosen = np.unique(order[[place for place in places if place is not None]])
    mixed = np.random.default_rng(0).permutation(order)  # in the order of products one part of the front would fill it
    known = np.concatenate([own[kept], moved[chosen]])
    joined = np.concatenate([chosen, _apart(known, moved, mixed, MOST - len(known), near)]).astype(np.int64)
    return front_of(concat([take(front, kept), take(batch, joined)]), problem.goals)


def _first_that_beats(moved: Floats, one: Floats) -> int | None:
    beats = np.all(moved <= one, axis=1)
    place = int(beats.argmax())
    return place if beats[place] and np.any(moved[place] < one) else None


def _apart(known: Floats, moved: Floats, order: Ints, most: int, near: float) -> Ints:
    """Rows of ``moved``, by this order, that are better than each other and all ``known`` by ``near`` in some goal."""
    left, chosen = order[~is_beaten(known, moved[order] + near)], list[int]()
    while len(left) and len(chosen) < most:
        chosen.append(int(left[0]))
        left = left[np.any(moved[left] + near < moved[left[0]], axis=1)]
    return np.array(chosen, np.int64)
