"""Groups that are not full, and when gradient traffic ends, on paper: a layer takes 1 s forward and 2 s backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.schema import SCHEDULE, STAGE_LAYERS
from jointopt.physics.makespan import dp_exposed_s, last_turns_s, makespan_s
from jointopt.physics.schedule import replay
from jointopt.physics.stage_costs import StageCosts
from tests.physics.hand.plain_machine import DENSE, physics

ROW = np.array([0])


def pipeline(*layers: int, vpp: int = 1, batches: int = 4, **cells: Any) -> StageCosts:
    """Ranks of chunks with these layers, in the order of the pipeline, which share a rank's time by layers.

    Alike ranks are there once, after the first and the last.
    """
    model, split = replace(DENSE, num_layers=sum(layers), vocab_size=64), STAGE_LAYERS.code_of(layers)
    plan = {"pp": len(layers) // vpp, "vpp": vpp, "dp": 4, "stage_layers": split} | cells
    costs = physics(batches=batches, model=model, **plan).distinct[0].costs
    units = np.zeros_like(costs.units_s)
    units[:, :, 0] = np.array([1.0, 2.0, 1.0])
    return replace(costs, units_s=units, p2p_s=np.zeros(1))


def exposed_s(costs: StageCosts, reduce_s: tuple[float, ...], overlap: float = 0.0) -> float:
    """Of traffic of the ranks, in the order of their costs."""
    costs = replace(costs, reduce_s=np.array([reduce_s]))
    passes = costs.layers, 2.0 * costs.layers
    return float(dp_exposed_s(costs, ROW, passes, makespan_s(costs.pipelines, ROW, *passes), overlap)[0])


@pytest.mark.parametrize(("batches", "time_s"), [(1, 5.0), (2, 8.0), (3, 12.0), (4, 16.0)])
def test_a_micro_batch_of_a_group_that_is_not_full_takes_its_share_of_what_a_full_one_adds(
    batches: int, time_s: float
) -> None:
    # chunks of 1 s on rank 0, at work all along where there are two groups, of 0.5 s on rank 1; the way there is 2 s
    pipes = pipeline(1, 1, 1, 1, vpp=2, batches=batches).pipelines
    passes = np.array([[2.0, 1.0]])
    assert makespan_s(pipes, ROW, passes, passes) == pytest.approx([time_s])


def test_gradients_hide_while_the_first_chunk_of_the_rank_before_has_its_last_backward_pass() -> None:
    # a layer there takes 2 s of the 8 s that rank 0 is at work backwards; two layers, as in the other chunk, 4 s
    assert exposed_s(pipeline(1, 2, 3, 2, vpp=2), (0.0, 50.0)) == pytest.approx(50.0 - 2.0)
    assert exposed_s(pipeline(2, 2, 2, 2, vpp=2), (0.0, 50.0)) == pytest.approx(50.0 - 4.0)


def test_no_gradients_hide_while_an_empty_first_chunk_has_its_last_backward_pass() -> None:
    assert exposed_s(pipeline(0, 2, 2, 2, vpp=2), (0.0, 50.0)) == pytest.approx(50.0)


def test_gradients_of_a_rank_that_ends_long_before_the_one_that_it_waits_for_hide_under_that_ones_work() -> None:
    # rank 0 works 4 * 9 s; its last forward pass ends at 24 s, so that rank 1 has its last backward pass at 25 to 27 s
    costs = pipeline(3, 1)
    assert exposed_s(costs, (0.0, 20.0), overlap=1.0) == pytest.approx(25.0 + 20.0 - 36.0)
    assert exposed_s(costs, (0.0, 20.0)) == pytest.approx(27.0 + 20.0 - 36.0)


def test_of_ranks_alike_the_first_has_the_least_time_to_hide_its_gradients() -> None:
    # of four ranks the second ends its last backward pass 2 s before the first rank does, and the third 4 s
    assert exposed_s(pipeline(1, 1, 1, 1), (0.0, 0.0, 3.0)) == pytest.approx(3.0 - 2.0)


@pytest.mark.parametrize("layers", [(2, 2), (3, 1)])
def test_no_drain_hides_gradients_where_weights_fill_it(layers: tuple[int, int]) -> None:
    # all ranks count as at work until the last of them ends, which those of equal work are
    costs = pipeline(*layers, schedule=SCHEDULE.code("zb-h1"))
    assert exposed_s(costs, (0.0, 50.0)) == pytest.approx(50.0)


@given(st.lists(st.tuples(*[st.floats(0.1, 10.0)] * 2), min_size=1, max_size=5), st.integers(1, 12))
def test_paths_that_turn_at_a_rank_or_later_end_no_later_than_its_last_pass(
    seconds: list[tuple[float, float]], batches: int
) -> None:
    passes = np.array(seconds).T[:, :, None]
    turns = last_turns_s(*passes, np.array([batches]))[:, 0]
    ends = replay(len(seconds), 1, batches, lambda rank, op: passes[int(op.backward), rank])
    before = np.cumsum(passes[1, :, 0]) - passes[1, :, 0]
    for rank in range(len(seconds)):
        last = max(end[0] for (place, _), end in ends.items() if place == rank)
        assert turns[rank:].max() - before[rank] <= last + 1e-9


def test_of_equal_ranks_that_path_ends_the_pipeline_which_turns_at_the_last_one() -> None:
    # 4 rounds of 3 s; after the way in, of 6 s, the first rank has 3 s of work and waits as long as its backward pass
    turns = last_turns_s(np.ones((2, 1)), np.full((2, 1), 2.0), np.array([3]))
    assert turns.tolist() == [[11.0], [12.0]]
