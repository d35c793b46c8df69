"""The schedule as a graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import PlanError
from jointopt.physics.instructions import latest_ends_s
from jointopt.physics.makespan import regular_makespan_s
from jointopt.physics.schedule import ends_s, schedule_graph

SHAPES = st.sampled_from(((2, 1, 3), (4, 1, 2), (4, 1, 9), (3, 2, 6), (2, 4, 2)))
TIMES = st.lists(st.floats(0.1, 2.0), min_size=8, max_size=8)


def passes(shape: tuple[int, int, int], times: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Forward and backward seconds of each rank, all its chunks together."""
    return np.array(times[: shape[0]]), np.array(times[4 : 4 + shape[0]])


@given(SHAPES, TIMES)
def test_equal_clocks_take_as_long_as_the_closed_form_of_the_pipeline(shape, times) -> None:
    forward, backward = passes(shape, times)
    graph = schedule_graph(*shape)
    seconds = np.where(graph.backward, backward[graph.rank], forward[graph.rank]) / shape[1]
    exact = regular_makespan_s(forward[None], backward[None], *(np.array([n]) for n in shape))[0]
    assert ends_s(graph, seconds).max() == pytest.approx(exact, rel=1e-12)


@given(SHAPES, TIMES)
def test_no_instruction_must_end_before_it_can_and_some_have_no_slack(shape, times) -> None:
    graph = schedule_graph(*shape)
    seconds = np.resize(times, len(graph))
    ends = ends_s(graph, seconds)
    slack = latest_ends_s(graph, seconds, float(ends.max())) - ends
    assert slack.min() == pytest.approx(0.0, abs=1e-12)


def test_every_instruction_stands_behind_what_it_waits_for() -> None:
    graph = schedule_graph(4, 2, 8)
    numbers = np.arange(len(graph))
    assert (graph.previous < numbers).all()
    assert (graph.source < numbers).all()


def test_each_rank_has_one_last_instruction_and_it_is_a_backward_pass() -> None:
    graph = schedule_graph(4, 1, 6)
    assert sorted(graph.rank[graph.last]) == [0, 1, 2, 3]
    assert graph.backward[graph.last].all()


def test_interleaving_without_whole_groups_is_no_schedule() -> None:
    with pytest.raises(PlanError, match="divisible by pp"):
        schedule_graph(4, 2, 6)
