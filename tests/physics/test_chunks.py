"""Interleaved pipelines whose chunks differ: the walk over all ranks at once against the replayed schedule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import STAGE_LAYERS, Columns, Floats
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.physics.cost_model import CostModel
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.makespan import (
    chunk_times_s,
    chunked_time_s,
    iteration_time_s,
    least_makespan_s,
    most_makespan_s,
    path_bound_s,
)
from jointopt.physics.schedule import replay
from tests.physics.conftest import gpt


@st.composite
def plans(draw: st.DrawFn) -> tuple[Floats, Floats, int]:
    """Forward and backward seconds (vpp, pp, 8) of every chunk, and micro-batches."""
    shape = draw(st.integers(2, 4)), draw(st.integers(2, 6)), 8
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    times = draw(
        st.sampled_from([
            lambda: rng.uniform(1.0, 2.0, shape), lambda: rng.integers(0, 3, shape).astype(float),
            lambda: 1.0 + 0.01 * rng.integers(0, 2, shape), lambda: rng.uniform(0.0, 1e3, shape),
        ])
    )  # fmt: skip
    return times(), times(), shape[1] * draw(st.integers(1, 12))


def replayed_s(forward_s: Floats, backward_s: Floats, m: int) -> Floats:
    vpp, pp, _ = forward_s.shape
    ends = replay(pp, vpp, m, lambda rank, op: (backward_s if op.backward else forward_s)[op.chunk, rank])
    return np.max(list(ends.values()), axis=0)


@settings(max_examples=60, deadline=None)
@given(plans())
def test_unequal_chunks_take_what_the_replayed_schedule_takes(plan: tuple[Floats, Floats, int]) -> None:
    np.testing.assert_allclose(chunked_time_s(*plan), replayed_s(*plan), rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("shape", [(2, 2), (2, 5), (3, 3), (5, 4)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_critical_path_of_each_of_five_hundred_plans_is_found(shape: tuple[int, int], groups: int) -> None:
    rng = np.random.default_rng(groups)
    forward, backward = rng.random((2, *shape, 500)) ** 4  # few chunks are long, so that the way round the ring counts
    m = groups * shape[1]
    np.testing.assert_allclose(chunked_time_s(forward, backward, m), replayed_s(forward, backward, m), rtol=1e-10)


@settings(max_examples=50, deadline=None)
@given(plans())
def test_the_bound_is_never_above_the_schedule(plan: tuple[Floats, Floats, int]) -> None:
    forward, backward, batches = plan
    first, rank = (forward + backward)[0].T, (forward + backward).sum(axis=0).T
    least = path_bound_s(np.cumsum(first, axis=1) - first, rank, np.full(len(rank), batches))
    assert np.all(least <= chunked_time_s(*plan) * (1.0 + 1e-12))


def test_equal_chunks_take_the_closed_form() -> None:
    f = np.random.default_rng(1).uniform(1.0, 2.0, (50, 8))
    chunks = np.repeat(f.T[None] / 4, 4, axis=0)
    plan = (np.full(50, 8), np.full(50, 4), np.full(50, 64))
    np.testing.assert_allclose(chunked_time_s(chunks, 2 * chunks, 64), iteration_time_s(f, 2 * f, *plan), rtol=1e-9)


@pytest.mark.parametrize("groups", [10**6, 10**9])
def test_groups_that_only_repeat_are_not_walked_however_many(groups: int) -> None:
    forward, backward = np.random.default_rng(5).uniform(1.0, 2.0, (2, 3, 4, 20))
    few_s, more_s = (chunked_time_s(forward, backward, 4 * count) for count in (40, 41))
    expected = few_s + (groups - 40) * (more_s - few_s)
    np.testing.assert_allclose(chunked_time_s(forward, backward, 4 * groups), expected, rtol=1e-9)


@pytest.fixture
def uneven(make_job: Callable[..., Job], gpt_model: Callable[..., Model], price: Callable[..., CostModel]) -> CostModel:
    """pp 2, vpp 2: the same layers on each rank, in chunks of 3, 3, 1, 1 and of 2, 2, 2, 2."""
    codes = np.array([STAGE_LAYERS.code_of((3, 3, 1, 1)), 0])
    return price(make_job(model=gpt_model(8)), pp=2, vpp=2, stage_layers=codes)


def test_chunks_share_their_ranks_time_and_unequal_ones_take_longer(uneven: CostModel) -> None:
    clocks = np.full((2, 2), uneven.top_mhz)
    t = uneven.times(0, np.arange(2), clocks)
    forward, _ = chunk_times_s(uneven.groups[0].pipelines, np.array([0]), t.forward_s[:1], t.backward_s[:1])
    np.testing.assert_allclose(forward.sum(axis=0)[:, 0], t.forward_s[0])
    assert forward[0, 0, 0] > 2.5 * forward[1, 0, 0]
    assert t.makespan_s[0] > t.makespan_s[1]


def test_a_pipeline_takes_at_most_what_chunks_as_long_as_the_longest_of_their_rank_take(uneven: CostModel) -> None:
    pipes, rows = uneven.groups[0].pipelines, np.arange(2)
    t = uneven.times(0, rows, np.full((2, 2), uneven.top_mhz))
    longest = [2.0 * s.max(axis=0).T for s in chunk_times_s(pipes, rows[:1], t.forward_s[:1], t.backward_s[:1])]
    by_hand = iteration_time_s(*longest, np.array([2]), np.array([2]), pipes.num_micro_batches[:1])
    most = most_makespan_s(pipes, rows, t.forward_s, t.backward_s)
    assert most == pytest.approx([by_hand[0], t.makespan_s[1]])
    assert least_makespan_s(pipes, rows, t.forward_s, t.backward_s)[0] < t.makespan_s[0] < 0.95 * most[0]


def test_no_clock_beats_the_bounds_of_unequal_chunks(uneven: CostModel) -> None:
    time_s, energy_j = uneven.lower_bound(np.arange(2))
    for mhz in (uneven.top_mhz, 0.7 * uneven.top_mhz):
        found = uneven.evaluate(np.arange(2), np.full((2, 2), mhz))
        assert np.all(time_s <= found["iteration_time_s"] * (1 + 1e-12))
        assert np.all(energy_j <= found["energy_j"] * (1 + 1e-12))


def test_each_rank_holds_the_dense_layers_of_its_own_chunks(
    make_job: Callable[..., Job], catalogue_model: Callable[[str], Model], layouts_of: Callable[..., Columns]
) -> None:
    # 3 dense layers lead: chunk 0 of rank 0 has 2 of them, chunk 0 of rank 1 one
    code = STAGE_LAYERS.code_of((2, 20, 20, 19))
    lay = LayoutArrays(make_job(model=catalogue_model("deepseek-v3")), layouts_of(pp=2, vpp=2, stage_layers=code))
    assert lay.dense_layers.tolist() == [[2, 1]]
    assert lay.layers.tolist() == [[22, 39]]


@pytest.mark.parametrize(("pp", "vpp"), [(2500, 4), (4, 2500), (10_000, 1)])
def test_models_of_ten_thousand_layers_are_split_as_others(
    pp: int, vpp: int, make_job: Callable[..., Job], layouts_of: Callable[..., Columns]
) -> None:
    lay = LayoutArrays(make_job(gpus=pp, model=gpt(layers=10_000)), layouts_of(pp=pp, vpp=vpp))
    assert lay.layers.shape == (1, pp)
    assert lay.layers.sum() == 10_000
