"""What every searcher must keep, whatever its method: give it a problem, get a front."""

from dataclasses import replace

import numpy as np
import pytest

from jointopt.search.exact import exact_front
from jointopt.search.nsga2 import search
from jointopt.search.pareto import front_order, is_covered, objectives
from tests.fake_problem import fake_problem


def exact(problem, seed):
    return exact_front(problem).front


def nsga2(problem, seed):
    return search(problem, trials=200, seed=seed).front


def nsga2_from_exact(problem, seed):
    return search(problem, trials=120, seed=seed, start=exact_front(problem).front).front


SEARCHERS = [exact, nsga2, nsga2_from_exact]
PROBLEMS = {
    "one gpu": {"num_gpus": 1, "num_clocks": 7},
    "one clock": {"num_gpus": 8, "num_clocks": 1},
    "one clock for all stages": {"num_gpus": 16, "per_stage_clocks": False},
    "pipelines with slack": {"num_gpus": 32},
    "few feasible plans": {"num_gpus": 16, "feasible_share": 0.05},
}


@pytest.fixture(params=PROBLEMS.values(), ids=PROBLEMS)
def problem(request):
    return fake_problem(1, **request.param)


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_a_front_is_sorted_feasible_and_free_of_dominated_plans(searcher, problem):
    front = searcher(problem, 0)
    assert len(front["energy_j"]) > 0
    assert (front["violation"] <= 0).all()
    assert (np.diff(front["iteration_time_s"]) > 0).all()
    assert len(front_order(*objectives(front))) == len(front["energy_j"])


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_evaluating_a_plan_of_the_front_again_gives_the_values_of_the_front(searcher, problem):
    front = searcher(problem, 0)
    again = problem.evaluate(front["layout_index"], front["stage_clock_mhz"])
    for name, values in again.items():
        np.testing.assert_allclose(values, front[name], rtol=1e-12)


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_clocks_are_of_the_grid_one_per_stage_and_none_beyond(searcher, problem):
    front = searcher(problem, 0)
    clocks = front["stage_clock_mhz"]
    stages = problem.layouts["pp"][front["layout_index"]]
    np.testing.assert_array_equal(np.isfinite(clocks), np.arange(clocks.shape[1]) < stages[:, None])
    assert np.isin(clocks[np.isfinite(clocks)], problem.clocks_mhz).all()


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_the_same_seed_gives_the_same_front(searcher, problem):
    one, two = searcher(problem, 3), searcher(problem, 3)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_nothing_feasible_is_an_empty_front_and_no_error(searcher, problem):
    never = replace(problem, evaluate=lambda i, c: problem.evaluate(i, c) | {"violation": np.ones(len(i))})
    assert len(searcher(never, 0)["energy_j"]) == 0


@pytest.mark.parametrize("searcher", [s for s in SEARCHERS if s is not exact])
def test_no_searcher_with_one_clock_for_all_beats_the_exact_front(searcher):
    problem = fake_problem(2, 16, per_stage_clocks=False)
    best = exact_front(problem).front
    assert is_covered(*objectives(best), *objectives(searcher(problem, 0))).all()
