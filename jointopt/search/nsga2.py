"""Optuna's NSGA-II over layouts and clocks, one generation at a time through one vectorised evaluation.

Optuna keeps the study, ranks, and selects the parents; breeding is plugged in as its
``child_generation_strategy``. A generation is asked, repaired to plans that exist, freed of everything seen
before, evaluated in one call, and told as finished trials. These carry results alone, which is all that Optuna
needs to select; the plan of trial number n is row n of the result. What Optuna costs grows linearly with the trials.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna

from jointopt.core.schema import Columns, Ints
from jointopt.search.breeding import POPULATION, Seen, breed, first, half_local, unseen
from jointopt.search.genome import Genome
from jointopt.search.local_search import LocalSearch
from jointopt.search.pareto import OBJECTIVES, concat, evenly, front_of, merge, take
from jointopt.search.problem import Problem, Progress

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

LOCAL_AT = (0.3, 0.6)  # of the trials: where local moves feed into the breeding


@dataclass(frozen=True)
class SearchResult:
    """Every trial in order of evaluation, the front (sorted by time), and what was spent."""

    plans: Columns
    front: Columns
    evaluated: int
    study: optuna.Study


@dataclass
class _Archive:
    """Everything evaluated: plans generation by generation, and the plans that need no second look."""

    problem: Problem
    genome: Genome
    parts: list[Columns] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # by generation: its last trial's number plus one
    seen: Seen = field(default_factory=Seen)

    def add(self, plans: Columns) -> None:
        self.parts.append(plans)
        self.ends.append(count(plans) + (self.ends[-1] if self.ends else 0))

    def numbers(self, generation: int) -> slice:
        """The trial numbers of a generation."""
        return slice(self.ends[generation - 1] if generation else 0, self.ends[generation])

    def rows(self, numbers: Ints) -> Columns:
        """The plans of these trials in ascending order; touches only the generations that they belong to."""
        numbers = np.sort(numbers)
        generations = np.searchsorted(self.ends, numbers, side="right")
        chosen = [
            take(self.parts[born], numbers[generations == born] - self.numbers(born).start)
            for born in np.unique(generations).tolist()
        ]
        return concat(chosen)

    def everything(self) -> Columns:
        """All plans by trial number."""
        return concat([_no_plans(self.problem), *self.parts])


@dataclass
class _Breeder:
    """Optuna's extension point: breeds a whole generation at once."""

    archive: _Archive
    rng: np.random.Generator
    size: int

    def __call__(
        self, study: optuna.Study, search_space: dict[str, BaseDistribution], parents: list[FrozenTrial]
    ) -> dict[str, Any]:
        rows = self.archive.rows(np.array([trial.number for trial in parents]))
        return {"genes": breed(self.archive.genome, rows, self.size, self.rng)}


class _Sampler(optuna.samplers.NSGAIISampler):
    """Optuna's, which would look through all trials for a generation and its parents: here both are at hand."""

    def __init__(self, population: int, seed: int, breeder: _Breeder) -> None:
        super().__init__(population_size=population, seed=seed, child_generation_strategy=breeder)
        self._archive = breeder.archive
        self._chosen: dict[int, list[FrozenTrial]] = {0: []}

    def get_trial_generation(self, study: optuna.Study, trial: FrozenTrial) -> int:
        return len(self._archive.ends)  # only trials of a generation to come are inquired about

    def get_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        return study.get_trials(deepcopy=False)[self._archive.numbers(generation)]

    def get_parent_population(self, study: optuna.Study, generation: int) -> list[FrozenTrial]:
        if generation not in self._chosen:
            self._chosen[generation] = self.select_parent(study, generation)
        return self._chosen[generation]


def search(
    problem: Problem,
    *,
    trials: int = 1000,
    seed: int = 0,
    start: Columns | None = None,
    population: int = POPULATION,
    local_evaluations: int = 50_000,
    progress: Progress | None = None,
) -> SearchResult:
    """NSGA-II for ``trials`` distinct plans, then a local search around the front; the seed decides all.

    ``start``: a front to begin with (layout_index, clock_index, slack), for example the exact one; it is
    part of the final front. ``local_evaluations`` = 0: the trials are all that is spent, and half of the last ones
    are local moves around the front.
    ``progress(done, trials, front_size)``.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    archive = _Archive(problem, Genome.of(problem))
    breeder = _Breeder(archive, np.random.default_rng(seed), population)
    local = LocalSearch(problem, archive.genome)
    run = _Run(breeder, local, trials, local_evaluations, start, progress)
    study, sampler = _study(population, seed, breeder)
    front = run.generations(study, sampler)
    if start is not None:
        front = merge(front_of(start), front)
    front = local.improve(front, local_evaluations, per_stage=True)
    plans = archive.everything()
    return SearchResult(plans, front, count(plans) + local.spent, study)


def count(plans: Columns) -> int:
    """The number of plans in a table of plans."""
    return len(plans["layout_index"])


@contextmanager
def experimental_is_meant() -> Iterator[None]:
    """Optuna's warnings about experimental features, not repeated to the user: the tests watch those we use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _study(population: int, seed: int, breeder: _Breeder) -> tuple[optuna.Study, _Sampler]:
    with experimental_is_meant():
        sampler = _Sampler(population, seed, breeder)
    return optuna.create_study(directions=["minimize", "minimize"], sampler=sampler), sampler


@dataclass
class _Run:
    """The loop over generations and what it needs."""

    breeder: _Breeder
    local: LocalSearch
    trials: int
    local_evaluations: int
    start: Columns | None
    progress: Progress | None

    def generations(self, study: optuna.Study, sampler: _Sampler) -> Columns:
        """Ask, evaluate and tell until the trials or the space are spent; returns the front of all."""
        archive, generation, done = self.breeder.archive, 0, 0
        front = _no_plans(archive.problem)
        shares = LOCAL_AT if self.local_evaluations else ()
        local_at = {round(self.trials * share / self.breeder.size) for share in shares}
        while done < self.trials:
            size = min(self.breeder.size, self.trials - done)
            if generation in local_at and generation:
                front, asked = self._improved(front, size)
            else:
                asked = self._ask(study, sampler, generation, size)
            if not self.local_evaluations:
                asked = self._half_local(front, asked, done / self.trials)
            plans = archive.problem.evaluated(*unseen(archive.genome, asked, archive.seen, self.breeder.rng))
            if not count(plans):
                break  # nothing within reach that was not seen: the space is exhausted
            archive.add(plans)
            study.add_trials(_finished(plans))
            front = merge(front, plans)
            done, generation = done + count(plans), generation + 1
            if self.progress is not None:
                self.progress(done, self.trials, count(front))
        return front

    def _ask(self, study: optuna.Study, sampler: _Sampler, generation: int, size: int) -> Ints:
        if generation == 0:
            return first(self.breeder.archive.genome, size, self.start, self.breeder.rng)
        return _children(study, sampler)[:size]

    def _half_local(self, front: Columns, asked: Ints, share_done: float) -> Ints:
        archive = self.breeder.archive
        evaluated = archive.everything()
        return half_local(archive.genome, evaluated, front, archive.seen, asked, share_done, self.breeder.rng)

    def _improved(self, front: Columns, size: int) -> tuple[Columns, Ints]:
        """The front after local moves; points of it become a generation, to breed on from there."""
        share = self.local_evaluations // (4 * len(LOCAL_AT))
        if self.start is None:
            front = self.local.climb(front, self.breeder.archive.everything(), share)
        better = self.local.improve(front, share, per_stage=False)
        genes = self.breeder.archive.genome.encode(take(better, evenly(better, size)))
        # A front smaller than a generation is repeated; repeated plans become mutants before they are evaluated.
        return better, np.resize(genes, (size, genes.shape[1])) if len(genes) else self._random(size)

    def _random(self, size: int) -> Ints:
        return self.breeder.archive.genome.random(size, self.breeder.rng)


def _no_plans(problem: Problem) -> Columns:
    none = np.zeros(0, dtype=np.int64)
    return problem.plans(none, none, np.zeros(0))


def _children(study: optuna.Study, sampler: _Sampler) -> Ints:
    """Genes of a generation bred from the parents that Optuna's sampler picks by rank and crowding."""
    asking = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
    children: Ints = sampler.sample_relative(study, asking, {})["genes"]
    return children


def _finished(plans: Columns) -> list[FrozenTrial]:
    """Finished trials of one generation, with their violation as Optuna's constraint."""
    rows = zip(*(plans[name].tolist() for name in (*OBJECTIVES, "violation")), strict=True)
    return [
        optuna.trial.create_trial(
            values=[time_s, energy_j],
            constraints={"violation": violation},
        )
        for time_s, energy_j, violation in rows
    ]
