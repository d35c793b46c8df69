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
from jointopt.search.pareto import concat, evenly_spaced, front_of, is_beaten, stacked, take
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
    """`search` for ``trials`` plans by all goals, then `improve_front` with at most ``moves`` evaluated plans."""
    found = search(problem, trials=trials, seed=seed, start=start, local_evaluations=0, progress=progress)
    front, evaluated = improve_front(problem, found.front, moves)
    return SearchResult(found.plans, front, found.evaluated + evaluated, found.study)


def improve_front(problem: Problem, front: Columns, evaluations: int = EVALUATIONS) -> tuple[Columns, int]:
    """(the front, each plan replaced by moves of one gene or two that beat it in every goal, plans evaluated)."""
    genome, started, spent, few = Genome.of(problem), Seen(), 0, len(problem.goals) <= 3
    near = NEAR if few else NEAR_OF_MANY
    for _ in range(ROUNDS):
        plans = take(front, started.add(front["layout_index"], front["stage_clock_mhz"]))
        if spent >= evaluations or not len(plans["slack"]):
            break
        genes = genome.encode(plans)
        moves = [slack_moves(genome, genes), genome.neighbours(genes)]
        moves.append(genome.neighbours(genes[evenly_spaced(plans, PAIRED)], paired=True))
        batch = _evaluate_some(genome, np.unique(np.concatenate(moves), axis=0), evaluations - spent)
        spent += len(batch["slack"])
        front = _replace_beaten(problem, front, batch, near)
    if evaluations > spent:
        batch = _evaluate_some(genome, _every_clock_and_slack(genome, front), evaluations - spent)
        front = _replace_beaten(problem, front, batch, 0.0 if few else near)
        spent += len(batch["slack"])
    return front, spent


def _every_clock_and_slack(genome: Genome, front: Columns) -> Ints:
    """Genes of the front's layouts at every clock with every share of slack, which only pipelines have."""
    layouts = np.unique(front["layout_index"])
    levels = np.where(genome.problem.layouts["pp"][layouts] > 1, genome.sizes[SLACK], 1)
    each = np.repeat(layouts, levels)
    level = np.arange(len(each)) - np.repeat(np.cumsum(levels) - levels, levels)
    clocks = np.arange(genome.sizes[CLOCK])
    layout_genes = genome.layout_genes[np.repeat(each, len(clocks))]
    return np.column_stack([layout_genes, np.tile(clocks, len(each)), np.repeat(level, len(clocks))])


def _evaluate_some(genome: Genome, genes: Ints, most: int) -> Columns:
    """The feasible plans of at most about ``most`` of the genes, every so many-th."""
    plans = genome.problem.plans(*genome.decode(genes[:: -(-len(genes) // most)]))
    return take(plans, plans["violation"] <= 0.0)


def _replace_beaten(problem: Problem, front: Columns, batch: Columns, near: float) -> Columns:
    """The front, each plan replaced by the one of the ``batch`` that beats it and has the least product of goals.

    Plans of the batch that gain more than ``near``, a relative step, on every other plan in some goal join it.
    """
    own, moved = (np.log(stacked(plans, problem.goals)) for plans in (front, batch))
    order = np.argsort(moved.sum(axis=1), kind="stable")
    places = [_first_that_beats(moved[order], one) for one in own]
    kept = np.array([place is None for place in places])
    chosen = np.unique(order[[place for place in places if place is not None]])
    mixed = np.random.default_rng(0).permutation(order)  # in the order of products one part of the front would fill it
    known = np.concatenate([own[kept], moved[chosen]])
    joined = np.concatenate([chosen, _distinct_rows(known, moved, mixed, MOST - len(known), near)]).astype(np.int64)
    return front_of(concat([take(front, kept), take(batch, joined)]), problem.goals)


def _first_that_beats(moved: Floats, one: Floats) -> int | None:
    """The first row of ``moved`` (n, k) that beats the point ``one`` (k,); None: none does."""
    beats = np.all(moved <= one, axis=1)
    place = int(beats.argmax())
    return place if beats[place] and np.any(moved[place] < one) else None


def _distinct_rows(known: Floats, moved: Floats, order: Ints, most: int, near: float) -> Ints:
    """At most ``most`` rows of ``moved`` (n, k), taken in this order, each better by ``near`` in some goal than others.

    The others are the ``known`` points (f, k) and the rows taken before.
    """
    left, chosen = order[~is_beaten(known, moved[order] + near)], list[int]()
    while len(left) and len(chosen) < most:
        chosen.append(int(left[0]))
        left = left[np.any(moved[left] + near < moved[left[0]], axis=1)]
    return np.array(chosen, np.int64)
