"""Groups that are not full, and when gradient traffic ends, on paper: a layer takes 1 s forward and 2 s backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import SCHEDULE, STAGE_LAYERS
from jointopt.physics.makespan import dp_exposed_s, makespan_s
from jointopt.physics.pipeline import last_turns_s
from jointopt.physics.schedule import replay
from jointopt.physics.stage_costs import StageCosts
from tests.physics.hand.plain_machine import DENSE, stages

ROW = np.array([0])


def pipeline(*layers: int, vpp: int = 1, batches: int = 4, **cells: Any) -> StageCosts:
    """Two ranks of chunks with these layers, in the order of the pipeline, which share a rank's time by layers alone."""
    model = replace(DENSE, num_layers=sum(layers), vocab_size=64)
    costs = stages(pp=2, vpp=vpp, dp=4, batches=batches, model=model, stage_layers=STAGE_LAYERS.of(layers), **cells)
    units = np.zeros_like(costs.units_s)
    units[:, :, 0] = np.array([1.0, 2.0, 1.0])
    return replace(costs, units_s=units, p2p_s=np.zeros(1))


def exposed_s(costs: StageCosts, reduce_s: tuple[float, float], overlap: float = 0.0) -> float:
    """Of traffic of the two ranks."""
    costs = replace(costs, reduce_s=np.array([reduce_s]))
    passes = costs.layers, 2.0 * costs.layers
    return float(dp_exposed_s(costs, ROW, passes, makespan_s(costs.pipelines, ROW, *passes), overlap)[0])


@pytest.mark.parametrize(("batches", "time_s"), [(1, 5.0), (2, 8.0), (3, 12.0), (4, 16.0)])
def test_a_micro_batch_of_a_group_that_is_not_full_takes_its_share_of_what_a_full_one_adds(
    batches: int, time_s: float
) -> None:
    # chunks of 1 s on rank 0, which works all along from the second group on, of 0.5 s on rank 1; two chunks' way is 2 s
    pipes = pipeline(1, 1, 1, 1, vpp=2, batches=batches).pipelines
    passes = np.array([[2.0, 1.0]])
    assert makespan_s(pipes, ROW, passes, passes) == pytest.approx([time_s])


@pytest.mark.parametrize(("first", "drained_s"), [(2, 4.0), (1, 2.0), (0, 0.0)])
def test_gradients_hide_as_long_as_the_first_chunk_of_the_ranks_before_takes(first: int, drained_s: float) -> None:
    costs = pipeline(first, 2, 4 - first, 2, vpp=2)
    assert exposed_s(costs, (0.0, 50.0)) == pytest.approx(50.0 - drained_s, abs=1.0)


def test_an_empty_first_chunk_hides_nothing() -> None:
    assert exposed_s(pipeline(0, 2, 2, 2, vpp=2), (0.0, 50.0)) == pytest.approx(50.0)


def test_no_drain_hides_gradients_where_weights_fill_it() -> None:
    split, plain = (pipeline(2, 2, schedule=SCHEDULE.code(name)) for name in ("zb-h1", "1f1b"))
    assert exposed_s(split, (0.0, 50.0)) == pytest.approx(50.0)
    assert exposed_s(plain, (0.0, 50.0)) == pytest.approx(50.0 - 4.0)
