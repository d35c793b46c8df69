"""Optuna's NSGA-II over layouts and clocks, one generation at a time through one vectorised evaluation.

Optuna keeps the study, ranks, and selects the parents. A generation bred from them is repaired to plans that exist,
freed of everything seen before, evaluated in one call, and added as finished trials. These carry results alone, which
is all that Optuna needs to select; the plan of trial number n is row n of the result.

Fronts of three and more goals have thousands of plans, nearly all of which differ little from others. Those that the
trials met are spread over all of it; a move of one gene that beats such a plan in every goal takes its place
(`improve_front`), until none does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import optuna

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.search.breeding import (
    CLOCK,
    POPULATION,
    SLACK,
    TRIALS,
    Genome,
    Seen,
    breed,
    decode_unseen,
    mix_in_local_moves,
    starting_genes,
)
from jointopt.search.local_search import LocalSearch, slack_moves
from jointopt.search.pareto import concat, evenly_spaced, front_of, is_beaten, merge, stacked, take
from jointopt.search.problem import Problem, Progress

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


LOCAL_AT = (0.3, 0.6)  # of the trials: where local moves feed into the breeding


@dataclass(frozen=True)
class SearchResult:
    """Every trial in order of evaluation, the front (sorted by time), how many plans were evaluated, Optuna's study."""

    plans: Columns
    front: Columns
    evaluated: int
    study: optuna.Study


class _Sampler(optuna.samplers.NSGAIISampler):
    """Optuna's NSGA-II, told which trials are a generation, for which it would look through all of them."""

    def __init__(self, population: int, seed: int) -> None:
        super().__init__(population_size=population, seed=seed)
        self.ends: list[int] = []  # by generation: its last trial's number plus one
        self._chosen: dict[int, list[FrozenTrial]] = {0: []}

    def get_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        begin = self.ends[generation - 1] if generation else 0
        return study.get_trials(deepcopy=False)[begin : self.ends[generation]]

    def get_parent_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        if generation not in self._chosen:
            self._chosen[generation] = self.select_parent(study, generation)
        return self._chosen[generation]


def search(
    problem: Problem, *, trials: int = TRIALS, seed: int = 0, start: Columns | None = None,
    population: int = POPULATION, local_evaluations: int = 50_000, progress: Progress | None = None,
) -> SearchResult:  # fmt: skip
    """NSGA-II for ``trials`` distinct plans, then a local search around the front; the seed decides all.

    ``start``: a front to begin with (layout_index, clock_index, slack), which is part of the final front.
    ``local_evaluations``: of the local search; 0: there is none, and half of the last trials are local moves around the
    front. ``progress(done, trials, front_size)``.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler, goals = _Sampler(population, seed), problem.goals
    study = optuna.create_study(directions=["minimize"] * len(goals), sampler=sampler)
    genome, seen, rng = Genome.of(problem), Seen(), np.random.default_rng(seed)
    local, none, done = LocalSearch(problem, genome), np.zeros(0, dtype=np.int64), 0
    plans = front = problem.evaluate_genes(none, none, np.zeros(0))
    local_at = {round(trials * share / population) for share in (LOCAL_AT if local_evaluations else ())} - {0}
    while done < trials:
        size, generation = min(population, trials - done), len(sampler.ends)
        if generation in local_at:  # points of the front after local moves, to breed on from there
            share = local_evaluations // (4 * len(LOCAL_AT))
            front = local.climb(front, plans, share) if start is None else front
            front = local.improve(front, share, per_stage=False)
            genes = genome.encode(take(front, evenly_spaced(front, size)))
            # A front smaller than a generation is repeated; repeated plans become mutants before they are evaluated.
            genes = np.resize(genes, (size, genes.shape[1])) if len(genes) else genome.random(size, rng)
        elif generation == 0:
            genes = starting_genes(genome, size, start, rng)
        else:  # children of the parents that Optuna picks by rank and crowding
            parents = np.sort([trial.number for trial in sampler.get_parent_population(study, generation)])
            genes = breed(genome, take(plans, parents), population, rng)[:size]
        if not local_evaluations:
            genes = mix_in_local_moves(genome, plans, front, seen, genes, done / trials, rng)
        new = problem.evaluate_clocks(*decode_unseen(genome, genes, seen, rng))
        if not len(new["slack"]):
            break  # nothing within reach that was not seen: the space is exhausted
        rows = zip(*(new[name].tolist() for name in ("violation", *goals)), strict=True)
        create = optuna.trial.create_trial
        study.add_trials([create(values=values, constraints={"violation": excess}) for excess, *values in rows])
        plans, front, done = concat([plans, new]), merge(front, new, goals), done + len(new["slack"])
        sampler.ends.append(done)
        if progress is not None:
            progress(done, trials, len(front["slack"]))
    if start is not None:
        front = merge(front_of(start, goals), front, goals)
    front = local.improve(front, local_evaluations, per_stage=True)
    return SearchResult(plans, front, done + local.spent, study)


# Fronts of three and more goals: moves that beat the plans of NSGA-II.

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
    plans = genome.problem.evaluate_genes(*genome.decode(genes[:: -(-len(genes) // most)]))
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
