from dataclasses import replace

import numpy as np
import optuna
import pytest

from jointopt.search.breeding import POPULATION
from jointopt.search.exact import exact_front
from jointopt.search.nsga2 import search
from jointopt.search.pareto import hypervolume, is_covered, nadir, objectives
from tests.fake_problem import fake_problem, recall


@pytest.fixture(scope="module")
def problem():
    return fake_problem(0, 32, 24)


@pytest.fixture(scope="module")
def found(problem):
    return search(problem, trials=400, seed=1)


def test_parents_come_from_ever_later_generations(found):
    sampler = found.study.sampler
    births = [
        np.mean([trial.number for trial in sampler.get_parent_population(found.study, generation)])
        for generation in range(1, 400 // POPULATION)
    ]
    assert births[-1] > births[0] + POPULATION
    assert len(sampler.get_population(found.study, 0)) == POPULATION


def test_a_generation_is_evaluated_in_one_call(problem):
    sizes = []

    def watched(layout, clocks):
        sizes.append(len(layout))
        return problem.evaluate(layout, clocks)

    search(replace(problem, evaluate=watched), trials=5 * POPULATION, local_evaluations=0)
    assert [size for size in sizes if size] == [POPULATION] * 5


def test_no_plan_is_evaluated_twice(found):
    rows = np.column_stack([found.plans["layout_index"], np.nan_to_num(found.plans["stage_clock_mhz"])])
    assert len(np.unique(rows, axis=0)) == len(rows) == 400


def test_the_trial_of_a_number_is_the_plan_of_that_row(found):
    stored = [trial.values for trial in found.study.trials]
    np.testing.assert_array_equal(stored, np.column_stack(objectives(found.plans)))


def test_without_trials_the_answer_is_the_start(problem):
    start = exact_front(problem).front
    found = search(problem, trials=0, start=start, local_evaluations=0)
    assert len(found.plans["slack"]) == found.evaluated == 0
    np.testing.assert_array_equal(found.front["energy_j"], start["energy_j"])


def test_the_same_seed_gives_the_same_result_and_another_one_another(problem):
    one, same, other = (search(problem, trials=200, seed=seed) for seed in (7, 7, 8))
    np.testing.assert_array_equal(one.plans["stage_clock_mhz"], same.plans["stage_clock_mhz"])
    np.testing.assert_array_equal(one.front["energy_j"], same.front["energy_j"])
    assert not np.array_equal(one.plans["layout_index"], other.plans["layout_index"])


def test_the_callers_random_numbers_are_left_alone(problem):
    np.random.seed(0)
    search(problem, trials=100)
    left = np.random.random()
    np.random.seed(0)
    assert left == np.random.random()


@pytest.mark.parametrize("seed", range(3))
def test_with_the_exact_front_as_start_the_result_is_worse_nowhere(seed):
    problem = fake_problem(seed, 64, 24)
    exact = exact_front(problem).front
    front = search(problem, trials=200, seed=seed, start=exact).front
    assert is_covered(*objectives(front), *objectives(exact)).all()


def test_clocks_per_stage_beat_the_exact_uniform_front_where_there_is_slack():
    problem = fake_problem(1, 64, 24)
    exact = exact_front(problem).front
    reference = nadir(*objectives(exact))
    front = search(problem, trials=300, start=exact).front
    assert hypervolume(*objectives(front), reference) > 1.02 * hypervolume(*objectives(exact), reference)


def test_unseeded_search_reaches_the_exact_front():
    shares = []
    for seed in range(3):
        problem = fake_problem(seed, 64, 24, per_stage_clocks=False)
        exact = objectives(exact_front(problem).front)
        front = objectives(search(problem, trials=1000, seed=seed).front)
        volume = hypervolume(*front, nadir(*exact)) / hypervolume(*exact, nadir(*exact))
        shares.append((volume, recall(*exact, *front)))
    volume, found = np.median(shares, axis=0)
    assert volume >= 0.999
    assert found >= 0.95


def test_one_clock_for_all_stays_one_clock_for_all():
    found = search(fake_problem(0, 16, 12, per_stage_clocks=False), trials=150)
    for plans in (found.plans, found.front):
        clocks = plans["stage_clock_mhz"]
        assert (np.nanmax(clocks, axis=1) == np.nanmin(clocks, axis=1)).all()


def test_every_plan_of_the_front_is_feasible_when_most_are_not():
    problem = fake_problem(2, 32, 24, feasible_share=0.02)
    found = search(problem, trials=400, seed=0)
    assert (found.plans["violation"] > 0).any()
    assert len(found.front["violation"]) > 0
    assert (found.front["violation"] <= 0).all()


def test_a_space_smaller_than_the_trials_is_searched_to_its_end():
    problem = fake_problem(0, 2, 3, drop=0.8, per_stage_clocks=False)
    size = problem.num_layouts * problem.num_clocks
    found = search(problem, trials=20 * size, local_evaluations=0)
    assert 0.9 * size <= len(found.plans["slack"]) <= size


def test_progress_counts_trials_up_to_the_last():
    calls = []
    search(fake_problem(0, 16, 12), trials=130, progress=lambda *call: calls.append(call))
    assert [call[0] for call in calls] == [40, 80, 120, 130]
    assert all(call[1] == 130 for call in calls)


def test_the_constraint_reaches_optuna():
    found = search(fake_problem(2, 16, 12, feasible_share=0.3), trials=80, local_evaluations=0)
    stored = [trial.constraints["violation"] for trial in found.study.trials]
    np.testing.assert_array_equal(stored, found.plans["violation"])


def test_optuna_stays_silent(capfd):
    search(fake_problem(0, 8, 6), trials=60)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == optuna.logging.ERROR
