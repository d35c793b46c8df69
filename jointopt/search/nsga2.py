"""Optuna's NSGA-II over layouts and clocks, one generation at a time through one vectorised evaluation.

Optuna keeps the study, ranks, and selects the parents. A generation bred from them is repaired to plans that exist,
freed of everything seen before, evaluated in one call, and added as finished trials. These carry results alone, which
is all that Optuna needs to select; the plan of trial number n is row n of the result.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import optuna

from jointopt.core.schema import Columns, Ints
from jointopt.search.breeding import POPULATION, TRIALS, Genome, Seen, breed, first, half_local, unseen
from jointopt.search.local_search import LocalSearch
from jointopt.search.pareto import concat, evenly, front_of, merge, take
from jointopt.search.problem import Problem, Progress

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

LOCAL_AT = (0.3, 0.6)  # of the trials: where local moves feed into the breeding


@dataclass(frozen=True)
class SearchResult:
    """Every trial in order of evaluation, the front (sorted by time), and what was spent."""

    plans: Columns
    front: Columns
    evaluated: int
    study: optuna.Study


class _Sampler(optuna.samplers.NSGAIISampler):
    """Optuna's, which would look through all trials for a generation and its parents: here both are at hand."""

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
    ``local_evaluations`` = 0: the trials are all that is spent, and half of the last ones are local moves around the
    front. ``progress(done, trials, front_size)``.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = _Sampler(population, seed)
    study = optuna.create_study(directions=["minimize"] * len(problem.goals), sampler=sampler)
    run = _Run(problem, study, sampler, np.random.default_rng(seed), trials, population, local_evaluations, start)
    front = run.generations(progress)
    if start is not None:
        front = merge(front_of(start, problem.goals), front, problem.goals)
    front = run.local.improve(front, local_evaluations, per_stage=True)
    plans = run.everything()
    return SearchResult(plans, front, _count(plans) + run.local.spent, study)


@dataclass
class _Run:
    """The loop over generations and everything evaluated."""

    problem: Problem
    study: optuna.Study
    sampler: _Sampler
    rng: np.random.Generator
    trials: int
    population: int
    local_evaluations: int
    start: Columns | None
    seen: Seen = field(default_factory=Seen)

    def __post_init__(self) -> None:
        self.genome = Genome.of(self.problem)
        self.local = LocalSearch(self.problem, self.genome)
        none = np.zeros(0, dtype=np.int64)
        self.parts = [self.problem.plans(none, none, np.zeros(0))]  # nothing, then a part per generation

    def everything(self) -> Columns:
        """All plans by trial number."""
        return concat(self.parts)

    def generations(self, progress: Progress | None) -> Columns:
        """Breed, evaluate and add until the trials or the space are spent; returns the front of all."""
        front, done = self.parts[0], 0
        shares = LOCAL_AT if self.local_evaluations else ()
        local_at = {round(self.trials * share / self.population) for share in shares} - {0}
        while done < self.trials:
            size = min(self.population, self.trials - done)
            if len(self.sampler.ends) in local_at:
                front, genes = self._improved(front, size)
            else:
                genes = self._bred(size)
            if not self.local_evaluations:
                share_done = done / self.trials
                genes = half_local(self.genome, self.everything(), front, self.seen, genes, share_done, self.rng)
            plans = self.problem.evaluated(*unseen(self.genome, genes, self.seen, self.rng))
            if not _count(plans):
                break  # nothing within reach that was not seen: the space is exhausted
            self.study.add_trials(_finished(plans, self.problem.goals))
            self.parts.append(plans)
            front, done = merge(front, plans, self.problem.goals), done + _count(plans)
            self.sampler.ends.append(done)
            if progress is not None:
                progress(done, self.trials, _count(front))
        return front

    def _bred(self, size: int) -> Ints:
        """Genes to begin with, or children of the parents that Optuna picks by rank and crowding."""
        if not self.sampler.ends:
            return first(self.genome, size, self.start, self.rng)
        parents = self.sampler.get_parent_population(self.study, len(self.sampler.ends))
        rows = np.sort([trial.number for trial in parents])
        return breed(self.genome, take(self.everything(), rows), self.population, self.rng)[:size]

    def _improved(self, front: Columns, size: int) -> tuple[Columns, Ints]:
        """The front after local moves; points of it become a generation, to breed on from there."""
        share = self.local_evaluations // (4 * len(LOCAL_AT))
        if self.start is None:
            front = self.local.climb(front, self.everything(), share)
        better = self.local.improve(front, share, per_stage=False)
        genes = self.genome.encode(take(better, evenly(better, size)))
        # A front smaller than a generation is repeated; repeated plans become mutants before they are evaluated.
        return better, np.resize(genes, (size, genes.shape[1])) if len(genes) else self.genome.random(size, self.rng)


def _count(plans: Columns) -> int:
    return len(plans["layout_index"])


def _finished(plans: Columns, goals: tuple[str, ...]) -> list[FrozenTrial]:
    """Finished trials of one generation, with their violation as Optuna's constraint."""
    rows = zip(*(plans[name].tolist() for name in ("violation", *goals)), strict=True)
    return [
        optuna.trial.create_trial(values=values, constraints={"violation": violation}) for violation, *values in rows
    ]
