"""Choices among clocks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.physics.instructions import Options, Problem, convex_options, efficient_options
from jointopt.physics.schedule import schedule_graph

from .conftest import curve, problems


def test_a_clock_that_another_beats_in_time_and_energy_is_no_option() -> None:
    kept = efficient_options(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]), np.array([5.0, 4.0, 4.5]))
    assert kept.clock_mhz.tolist() == [3.0, 2.0]


def test_of_clocks_that_a_power_limit_makes_equal_the_lowest_is_kept() -> None:
    kept = efficient_options(np.array([1200.0, 1300.0, 1410.0]), np.full(3, 1.0), np.full(3, 7.0))
    assert kept.clock_mhz.tolist() == [1200.0]


@given(st.lists(st.tuples(st.floats(1, 9), st.floats(1, 9)), min_size=1, max_size=12))
def test_no_option_lies_below_the_convex_hull(points) -> None:
    time_s, energy_j = np.array(points).T
    options = efficient_options(np.arange(len(points), dtype=float), time_s, energy_j)
    hull = convex_options(options)
    on_hull = np.interp(options.duration_s, hull.duration_s, hull.energy_j)
    assert (options.energy_j >= on_hull - 1e-9).all()


@settings(deadline=None)
@given(problems(), st.randoms(use_true_random=False), st.floats(1.0, 1.2))
def test_spent_slack_never_takes_more_time_or_energy(problem: Problem, random, slower) -> None:
    choice = np.array([random.randrange(3) for _ in range(len(problem.graph))])
    limit_s = slower * problem.makespan_s(choice)
    spent = problem.spend_slack(choice, limit_s)
    assert problem.makespan_s(spent) <= limit_s * (1 + 1e-9)
    assert problem.energy_j(spent) <= problem.energy_j(choice)


@settings(deadline=None, max_examples=25)
@given(problems())
def test_after_slack_is_spent_no_instruction_can_be_slowed_alone(problem: Problem) -> None:
    spent = problem.spend_slack(problem.fastest(), problem.makespan_s(problem.fastest()))
    for k in np.flatnonzero(spent < problem.slowest()):
        slower = spent.copy()
        slower[k] += 1
        assert problem.makespan_s(slower) > problem.makespan_s(problem.fastest())


def test_a_stage_clock_comes_to_the_fastest_option_that_it_allows() -> None:
    problem = Problem(schedule_graph(2, 1, 2), [curve(1.0, 0.5)] * 6)
    clocks = problem.clocks_mhz(problem.at_clocks(np.array([1000.0, 860.0])))
    assert set(clocks[problem.graph.rank == 0]) == {1000.0}
    assert clocks[problem.graph.rank == 1] == pytest.approx(850.0)


def test_within_takes_the_slowest_option_that_is_fast_enough_and_else_the_fastest() -> None:
    options = Options(np.array([2.0, 1.0]), np.array([1.0, 2.0]), np.array([2.0, 1.0]))
    problem = Problem(schedule_graph(2, 1, 1), [options] * 6)
    assert problem.within(np.array([0.5, 1.0, 1.9, 2.0])).tolist() == [0, 0, 0, 1]


def test_a_clock_below_all_options_comes_to_the_slowest() -> None:
    three = Options(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 4.0]), np.array([9.0, 4.0, 1.0]))
    problem = Problem(schedule_graph(2, 1, 2), [three] * 6)
    assert set(problem.clocks_mhz(problem.at_clocks(np.array([0.5, 0.5])))) == {1.0}
    assert set(problem.clocks_mhz(problem.at_clocks(np.array([2.5, 2.5])))) == {2.0}
