import numpy as np
import pytest

from jointopt.search import local_search
from jointopt.search.breeding import Genome
from jointopt.search.exact import exact_front, exact_front_of_profiles
from jointopt.search.local_search import RESOLUTION, LocalSearch, gaining_plans, move_stages, plans_at_clocks
from jointopt.search.pareto import evenly_spaced, front_of, is_covered, objectives, take
from tests.fake_problem import fake_problem, loosely


@pytest.fixture(scope="module")
def problem():
    return fake_problem(1, 64, 24)


def random_front(problem, seed=0):
    genome = Genome.of(problem)
    return front_of(problem.plans(*genome.decode(genome.random(50, np.random.default_rng(seed)))))


@pytest.mark.parametrize("per_stage", [False, True])
def test_an_improved_front_is_worse_nowhere(problem, per_stage):
    front = random_front(problem)
    better = LocalSearch(problem, Genome.of(problem)).improve(front, 5000, per_stage=per_stage)
    assert is_covered(*objectives(better), *objectives(front)).all()
    assert not is_covered(*objectives(front), *objectives(better)).all()


def test_no_more_is_spent_than_allowed(problem):
    front = random_front(problem)
    for allowed in (0, 1, 100, 3000):
        improving, climbing = (LocalSearch(problem, Genome.of(problem)) for _ in range(2))
        improving.improve(front, allowed, per_stage=True)
        climbing.climb(front, front, allowed)
        assert max(improving.spent, climbing.spent) <= allowed


def test_climbing_finds_the_best_layout_of_other_degrees():
    problem = fake_problem(1, 64, 24, per_stage_clocks=False)
    degrees = np.stack([problem.layouts[name] for name in ("tp", "pp", "cp")], axis=1)
    exact = exact_front(problem).front
    local = LocalSearch(problem, Genome.of(problem))
    front = local.climb(random_front(problem), random_front(problem), 40_000)
    wanted, found = (np.unique(degrees[plans["layout_index"]], axis=0).tolist() for plans in (exact, front))
    assert all(combination in found for combination in wanted)
    assert is_covered(*objectives(front), *objectives(random_front(problem))).all()


def test_every_clock_of_a_front_layout_is_tried(problem):
    exact = exact_front(problem).front
    one_each = take(exact, np.unique(exact["layout_index"], return_index=True)[1])
    better = LocalSearch(problem, Genome.of(problem)).improve(front_of(one_each), 20_000, per_stage=False)
    assert is_covered(*objectives(better), *objectives(exact)).all()


def test_single_stages_move_to_neighbouring_clocks_of_the_grid_only(problem):
    exact = exact_front(problem).front
    front = LocalSearch(problem, Genome.of(problem)).improve(exact, 20_000, per_stage=True)
    clocks = front["stage_clock_mhz"]
    assert np.isin(clocks[np.isfinite(clocks)], problem.clocks_mhz).all()
    stages = np.isfinite(clocks).sum(axis=1)
    np.testing.assert_array_equal(stages, problem.layouts["pp"][front["layout_index"]])
    assert (np.nanmax(clocks, axis=1) > np.nanmin(clocks, axis=1)).any()


def test_gains_below_the_resolution_do_not_bloat_the_front(problem):
    front = exact_front(problem).front
    middle = take(front, evenly_spaced(front, 3))
    almost = middle | {"energy_j": middle["energy_j"] * (1 - RESOLUTION / 10)}
    clear = middle | {"energy_j": middle["energy_j"] * (1 - RESOLUTION * 10)}
    assert len(gaining_plans(front, almost)["energy_j"]) == 0
    assert len(gaining_plans(front, clear)["energy_j"]) == 3


def test_a_quick_bound_leaves_the_moves_of_single_stages_as_they_are(problem):
    exact = exact_front_of_profiles(problem).front
    bounded = loosely(problem, np.random.default_rng(0))
    (plain, spent), (found, same) = (move_stages(one, exact, 50_000) for one in (problem, bounded))
    assert spent == same
    for name, values in plain.items():
        np.testing.assert_array_equal(found[name], values)


def test_moves_that_several_at_once_rule_out_are_not_evaluated_one_by_one(problem, monkeypatch):
    exact, bounded, tried = exact_front_of_profiles(problem).front, loosely(problem, np.random.default_rng(0)), []
    monkeypatch.setattr(
        local_search, "plans_at_clocks", lambda *plans: tried.append(len(plans[1])) or plans_at_clocks(*plans)
    )
    move_stages(bounded, exact, 50_000)
    few = sum(tried)
    monkeypatch.setattr(local_search, "_least_of_groups_s", lambda _, layout, *__: np.zeros(len(layout)))
    move_stages(bounded, exact, 50_000)
    assert 0 < few < 0.7 * (sum(tried) - few)


def test_moving_single_stages_leads_where_the_whole_local_search_leads_from_an_exact_front(problem):
    exact = exact_front_of_profiles(problem).front
    front, evaluated = move_stages(problem, exact, 50_000)
    whole = LocalSearch(problem, Genome.of(problem)).improve(exact, 50_000, per_stage=True)
    np.testing.assert_array_equal(front["energy_j"], whole["energy_j"])
    assert len(front["energy_j"]) > len(exact["energy_j"])
    assert 0 < evaluated <= 50_000
