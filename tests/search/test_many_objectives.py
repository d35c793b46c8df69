"""Moves that sharpen a front of many goals: what they keep, what they spend, and which plan takes a place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.search.breeding import CLOCK, SLACK, Genome
from jointopt.search.nsga2 import (
    _distinct_rows,
    _evaluate_some,
    _every_clock_and_slack,
    _first_that_beats,
    improve_front,
    search,
    search_goals,
)
from jointopt.search.pareto import front_of, is_beaten, stacked
from jointopt.search.problem import Problem
from tests.fake_problem import fake_problem

GOALS = ("iteration_time_s", "energy_j", "memory")


@pytest.fixture(scope="module")
def problem() -> Problem:
    """Times and energies of pipelines, and memory that a larger micro-batch needs more of."""
    plain = fake_problem(3, 8, 6, feasible_share=0.7)

    def evaluate(layout: Ints, clocks: Floats) -> Columns:
        return plain.evaluate(layout, clocks) | {"memory": plain.layouts["micro_batch_size"][layout] + 8.0}

    return replace(plain, evaluate=evaluate, goals=GOALS)


@pytest.fixture(scope="module")
def drawn(problem: Problem) -> Columns:
    """The front of 40 plans drawn at random."""
    rng = np.random.default_rng(0)
    layouts = rng.choice(problem.num_layouts, 40)
    plans = problem.evaluate_genes(layouts, rng.integers(0, problem.num_clocks, 40), np.zeros(40))
    return front_of({name: values[plans["violation"] <= 0.0] for name, values in plans.items()}, GOALS)


def test_every_plan_of_the_front_is_kept_or_beaten_and_all_that_join_are_feasible(
    problem: Problem, drawn: Columns
) -> None:
    front, spent = improve_front(problem, drawn)
    before, after = stacked(drawn, GOALS), stacked(front, GOALS)
    assert is_beaten(after, before * (1 + 1e-12)).all()
    assert np.prod(after, axis=1).min() < np.prod(before, axis=1).min()
    assert (front["violation"] <= 0.0).all()
    assert spent > 0


def test_of_three_goals_no_clock_or_share_of_slack_of_the_fronts_layouts_is_missing(
    problem: Problem, drawn: Columns
) -> None:
    front, _ = improve_front(problem, drawn)
    genome = Genome.of(problem)
    every = _evaluate_some(genome, _every_clock_and_slack(genome, front), 100_000)
    assert len(front["slack"]) > 1
    assert is_beaten(stacked(front, GOALS) * (1 + 1e-12), stacked(every, GOALS) * (1 + 1e-9)).all()


@pytest.mark.parametrize("most", [1, 30, 700])
def test_no_more_plans_are_evaluated_than_allowed(problem: Problem, drawn: Columns, most: int) -> None:
    front, spent = improve_front(problem, drawn, evaluations=most)
    assert 0 <= spent <= most
    assert is_beaten(stacked(front, GOALS), stacked(drawn, GOALS) * (1 + 1e-12)).all()


def test_plans_evaluated_are_those_of_the_search_and_of_the_moves(problem: Problem) -> None:
    found = search(problem, trials=60, seed=1, local_evaluations=0)
    moves = improve_front(problem, found.front)[1]
    assert moves > 0
    assert search_goals(problem, trials=60, seed=1).evaluated == found.evaluated + moves


def test_moves_that_are_feasible_are_counted(problem: Problem, drawn: Columns) -> None:
    counts = []

    def evaluate(layouts: Ints, clocks: Floats) -> Columns:
        found = problem.evaluate(layouts, clocks)
        counts.append(int((found["violation"] <= 0.0).sum()))
        return found

    _, spent = improve_front(replace(problem, evaluate=evaluate), drawn)
    assert spent == sum(counts)


def test_a_sweep_has_each_clock_and_share_of_slack_of_the_fronts_layouts_once(problem: Problem) -> None:
    pipeline, single = (
        int(np.flatnonzero(rows)[3]) for rows in (problem.layouts["pp"] > 1, problem.layouts["pp"] == 1)
    )
    genome = Genome.of(problem)
    rows = _every_clock_and_slack(genome, {"layout_index": np.array([pipeline, single, pipeline])})
    layouts, clocks, slacks = genome.decode(rows)
    found = list(zip(layouts.tolist(), clocks.tolist(), slacks.round(1).tolist(), strict=True))
    wanted = {(pipeline, clock, step / 10) for clock in range(6) for step in range(11)}
    assert len(found) == len(set(found))
    assert set(found) == wanted | {(single, clock, 0.0) for clock in range(6)}
    assert rows[:, CLOCK].max() == 5
    assert rows[:, SLACK].max() == 10


@pytest.mark.parametrize(("most", "every"), [(20, 1), (10, 2), (9, 3), (1, 20)])
def test_of_too_many_moves_evenly_spaced_ones_are_evaluated(problem: Problem, most: int, every: int) -> None:
    free, genes = replace(problem, least_violation=None), Genome.of(problem).random(20, np.random.default_rng(1))
    plans = _evaluate_some(Genome.of(free), genes, most)
    layouts, clocks, slacks = Genome.of(free).decode(genes[::every])
    feasible = free.evaluate_genes(layouts, clocks, slacks)["violation"] <= 0.0
    assert plans["layout_index"].tolist() == layouts[feasible].tolist()
    assert plans["clock_index"].tolist() == clocks[feasible].tolist()


def test_a_place_is_taken_by_the_first_plan_that_is_nowhere_worse_and_somewhere_better() -> None:
    moved = np.array([[1.0, 3.0], [2.0, 2.0], [1.0, 2.0], [1.0, 1.0]])
    assert _first_that_beats(moved, np.array([1.5, 2.5])) == 2
    assert _first_that_beats(moved, np.array([2.0, 2.5])) == 1
    assert _first_that_beats(moved, np.array([0.5, 9.0])) is None
    assert _first_that_beats(moved[:1], np.array([1.0, 3.0])) is None


def test_plans_join_that_gain_more_than_a_hundredth_over_all_others() -> None:
    known = np.array([[0.0, 0.0]])
    moved = np.array([[0.5, -0.005], [-0.2, 0.5], [-0.205, 0.495], [-0.3, 0.6], [0.4, -0.3]])
    assert _distinct_rows(known, moved, np.arange(5), 9, 0.01).tolist() == [1, 3, 4]
    assert _distinct_rows(known, moved, np.array([4, 3, 2, 1, 0]), 9, 0.01).tolist() == [4, 3, 2]
    assert _distinct_rows(known, moved, np.arange(5), 9, 0.0).tolist() == [0, 1, 2, 3, 4]
    assert _distinct_rows(known, moved, np.arange(5), 2, 0.01).tolist() == [1, 3]
    assert _distinct_rows(known, moved, np.arange(5), 0, 0.01).tolist() == []
