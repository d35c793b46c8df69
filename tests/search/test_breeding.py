import numpy as np
import pytest

from jointopt.search.breeding import CLOCK, SLACK, Genome, Seen, breed, decode_unseen, elite, local_moves
from jointopt.search.pareto import front_of, take
from tests.fake_problem import fake_problem


@pytest.fixture(scope="module")
def genome():
    return Genome.of(fake_problem(1, 32, 24, feasible_share=0.6))


@pytest.fixture(scope="module")
def plans(genome):
    genes = genome.random(200, np.random.default_rng(0))
    return genome.problem.plans(*genome.decode(genes))


def test_the_first_of_equal_plans_is_new_and_only_once():
    seen, layout = Seen(), np.array([1, 1, 2])
    clocks = np.array([[900.0, np.nan], [900.0, np.nan], [900.0, 800.0]])
    assert seen.lacks(layout, clocks).all()
    assert seen.add(layout, clocks).tolist() == [0, 2]
    assert not seen.lacks(layout, clocks).any()
    assert seen.add(layout, clocks).tolist() == []


@pytest.mark.parametrize("size", [1, 10, 60, 1000])
def test_the_elite_is_the_front_then_the_next_ones_then_the_least_infeasible(plans, size):
    rows = elite(plans, size)
    assert len(rows) == len(set(rows.tolist())) == min(size, 200)
    violation = np.maximum(plans["violation"][rows], 0.0)
    assert (np.diff(violation) >= 0).all()
    front = front_of(plans)["energy_j"]
    if size >= len(front):
        np.testing.assert_array_equal(plans["energy_j"][rows[: len(front)]], front)


def test_the_elite_by_three_goals_is_their_front_with_the_best_in_each_kept_where_it_is_thinned(plans):
    goals = ("iteration_time_s", "energy_j", "third")
    three = plans | {"third": np.random.default_rng(1).random(200), "violation": np.zeros(200)}
    front = front_of(three, goals)
    assert len(front["third"]) > 10
    rows = elite(three, len(front["third"]), goals)
    assert {*three["third"][rows]} == {*front["third"]}
    few = take(three, elite(three, 6, goals))
    assert len(few["third"]) == 6
    assert all(few[name].min() == front[name].min() for name in goals)


def test_local_moves_differ_in_one_gene_of_the_layout_or_in_the_clocks_profile(genome, plans):
    front, seen, rng = take(front_of(plans), np.array([0])), Seen(), np.random.default_rng(0)
    [own] = genome.encode(front)
    for clocks in (False, True):
        moves = local_moves(genome, front, seen, 1000, rng, clocks=clocks)
        layouts_differ = (moves[:, :CLOCK] != own[:CLOCK]).sum(axis=1)
        profiles_differ = (moves[:, [CLOCK, SLACK]] != own[[CLOCK, SLACK]]).any(axis=1)
        assert ((layouts_differ == 1) != profiles_differ).all()
        assert profiles_differ.any() == clocks


def test_local_moves_are_new_and_no_more_than_requested(genome, plans):
    seen, rng = Seen(), np.random.default_rng(0)
    first = local_moves(genome, front_of(plans), seen, 30, rng, clocks=True)
    decode_unseen(genome, first, seen, rng)
    layout, clock, slack = genome.decode(local_moves(genome, front_of(plans), seen, 30, rng, clocks=True))
    assert len(layout) == len(first) == 30
    assert seen.lacks(layout, genome.problem.decode_clocks(layout, clock, slack)).all()


def test_what_was_seen_is_replaced_by_something_new(genome, plans):
    seen, rng = Seen(), np.random.default_rng(0)
    seen.add(plans["layout_index"], plans["stage_clock_mhz"])
    layout, _, _, stages = decode_unseen(genome, genome.encode(plans)[:50], seen, rng)
    assert len(layout) == 50
    assert len(np.unique(np.column_stack([layout, np.nan_to_num(stages)]), axis=0)) == 50


def test_children_are_of_the_genome(genome, plans):
    children = breed(genome, plans, 100, np.random.default_rng(0))
    assert children.shape == (100, len(genome.sizes))
    assert ((children >= 0) & (children < genome.sizes)).all()
