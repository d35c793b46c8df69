"""Few micro-batches for many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.physics.instructions import Problem, extend_choice, windowed_problem
from jointopt.physics.schedule import schedule_graph

from .conftest import curve, problems


def pipeline(pp: int = 3, vpp: int = 1, batches: int = 60) -> Problem:
    kinds = [curve(0.5 + 0.1 * kind, 0.8) for kind in range(3 * pp)]
    return Problem(schedule_graph(pp, vpp, batches), kinds)


@pytest.mark.parametrize(("vpp", "most", "batches"), [(1, 120, 20), (2, 120, 9), (1, 1, 3), (1, 10**6, 60)])
def test_a_window_has_whole_groups_of_micro_batches_and_at_least_as_many_as_ranks(vpp, most, batches) -> None:
    assert windowed_problem(pipeline(vpp=vpp), most).graph.num_micro_batches == batches


@pytest.mark.parametrize("vpp", [1, 2])
def test_the_fastest_window_at_the_fastest_pace_is_the_fastest_schedule(vpp: int) -> None:
    whole = pipeline(vpp=vpp)
    part = windowed_problem(whole, 120)
    assert np.array_equal(extend_choice(part, part.fastest(), whole, 0.0), whole.fastest())


def test_first_and_last_micro_batches_keep_their_clocks() -> None:
    whole = pipeline()
    part = windowed_problem(whole, 120)
    batch = whole.graph.micro_batch
    wide = extend_choice(part, part.slowest(), whole, 0.0)
    ends = (batch < 10) | (batch >= 50)
    assert np.array_equal(wide[ends], whole.slowest()[ends])
    assert not wide[~ends].any()


@settings(deadline=None)
@given(problems(), st.floats(0.1, 9.0), st.floats(1.0, 1.5))
def test_a_slower_pace_never_takes_more_energy(problem, pace_s, slower) -> None:
    graph = problem.graph
    whole = Problem(schedule_graph(graph.pp, graph.vpp, 20 * graph.pp), problem.options)
    part = windowed_problem(whole, 2 * len(graph))
    fast, slow = (extend_choice(part, part.fastest(), whole, pace) for pace in (pace_s, slower * pace_s))
    if pace_s > widest_s(part):
        assert whole.energy_j(slow) <= whole.energy_j(fast)


def widest_s(problem: Problem) -> float:
    """The longest that a rank takes for a micro-batch at its fastest clock."""
    kinds = np.array([options.duration_s[0] for options in problem.options]).reshape(-1, 3)
    return float(problem.graph.vpp * kinds[:, :2].sum(axis=1).max())
