"""Least energy by linear programming."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.physics.instructions import Problem, least_energy
from jointopt.physics.schedule import ends_s, schedule_graph

from .conftest import curve, problems


@settings(deadline=None, max_examples=40)
@given(problems(), st.floats(1.0, 1.3))
def test_it_keeps_to_the_makespan_and_no_choice_of_clocks_needs_less(problem: Problem, slower) -> None:
    limit_s = slower * problem.makespan_s(problem.fastest()) * (1 + 1e-9)
    found = least_energy(problem, limit_s)
    assert found is not None
    seconds, energy_j = found
    assert ends_s(problem.graph, seconds).max() <= limit_s * (1 + 1e-6)
    spent = problem.spend_slack(problem.fastest(), limit_s)
    assert problem.energy_j(spent) >= energy_j * (1 - 1e-6)


def test_a_makespan_that_no_clocks_reach_has_no_answer() -> None:
    problem = Problem(schedule_graph(2, 1, 4), [curve(1.0, 0.5)] * 6)
    assert least_energy(problem, 0.99 * problem.makespan_s(problem.fastest())) is None


def test_the_time_of_least_energy_needs_no_more_than_the_slowest_clocks() -> None:
    problem = Problem(schedule_graph(3, 1, 4), [curve(1.0, 0.5)] * 9)
    found = least_energy(problem, 2.0 * problem.makespan_s(problem.slowest()))
    assert found is not None
    assert found[1] == pytest.approx(problem.energy_j(problem.slowest()))
    assert np.array_equal(problem.within(found[0]), problem.slowest())
