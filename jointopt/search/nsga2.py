"""Optuna's NSGA-II over layouts and clocks, one generation at a time through one vectorised evaluation.

Optuna keeps the study, ranks, and selects the parents. A generation bred from them is repaired to plans that exist,
freed of everything seen before, evaluated in one call, and added as finished trials. These carry results alone, which
is all that Optuna needs to select; the plan of trial number n is row n of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import optuna

from jointopt.core.schema import Columns
from jointopt.search.breeding import (
    POPULATION,
    TRIALS,
    Genome,
    Seen,
    breed,
    decode_unseen,
    mix_in_local_moves,
    starting_genes,
)
from jointopt.search.local_search import LocalSearch
from jointopt.search.pareto import concat, evenly_spaced, front_of, merge, take
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
    plans = front = problem.plans(none, none, np.zeros(0))
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
