"""Zero-bubble schedules: their orders, their bubbles and what they hold."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.schema import SCHEDULE
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.physics.cost_model import CostModel
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.makespan import path_bound_s
from jointopt.physics.schedule import (
    FORWARD,
    INPUT,
    MOST_ROUNDS,
    WEIGHT,
    WHOLE,
    Pass,
    live_chunks_of_zero_bubble,
    rank_order,
    zero_bubble_time_s,
)

SCHEDULES = st.sampled_from(sorted(CHUNKS_OF_SCHEDULE))


def pytorch_order(schedule: str, pp: int, m: int, rank: int) -> list[Pass]:
    torch = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = {torch.FORWARD: FORWARD, torch.BACKWARD_INPUT: INPUT, torch.BACKWARD_WEIGHT: WEIGHT}
    kinds[torch.FULL_BACKWARD] = WHOLE
    fields = {"pp_group_size": pp, "num_stages": 2 * pp, "_n_microbatches": m, "n_local_stages": 1}
    fields["microbatches_per_round"] = m // max(1, m // pp)
    names = {"zbv": "ZBVZeroBubble", "zb-h1": "InterleavedZeroBubble", "dualpipev": "DualPipeV"}
    schedule_class = getattr(torch, f"Schedule{names[schedule]}")
    actions = schedule_class._calculate_single_rank_operations(SimpleNamespace(**fields), rank)
    single = [one for a in actions if a for one in (a.sub_actions or (a,))]
    return [(kinds[a.computation_type], int(a.stage_index >= pp), a.microbatch_index) for a in single]


@settings(max_examples=40, deadline=None)
@given(SCHEDULES, st.integers(2, 8), st.integers(1, 24), st.data())
def test_every_rank_runs_its_passes_in_pytorchs_order(
    torch: Any, schedule: str, pp: int, m: int, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, pp - 1))
    m += 2 * pp * (schedule == "dualpipev")  # which starts with so many
    assert rank_order(schedule, pp, m, rank) == pytorch_order(schedule, pp, m, rank)


def simulated_s(schedule: str, seconds: list[np.ndarray], m: int) -> float:
    """Makespan by trying every rank's next pass again and again; seconds (vpp, pp) by kind."""
    pp = seconds[0].shape[1]
    queues = [rank_order(schedule, pp, m, rank) for rank in range(pp)]
    place = {(r, c): (2 * pp - 1 - r if c else r) for r in range(pp) for c in range(len(seconds[0]))}
    last, free, done = max(place.values()), [0.0] * pp, dict[tuple[int, int, int], float]()
    while any(queues):
        for rank, queue in enumerate(queues):
            while queue:
                kind, chunk, j = queue[0]
                at = place[rank, chunk]
                gradient = (FORWARD, at, j) if at == last else (INPUT, at + 1, j)
                needs = {FORWARD: (FORWARD, at - 1, j), WEIGHT: (INPUT, at, j)}.get(kind, gradient)
                if needs[1] >= 0 and needs not in done:
                    break
                done_kind = INPUT if kind == WHOLE else kind
                free[rank] = done[done_kind, at, j] = max(free[rank], done.get(needs, 0.0)) + seconds[kind][chunk, rank]
                queue.pop(0)
    return max(free)


@settings(max_examples=30, deadline=None)
@given(SCHEDULES, st.integers(2, 6), st.integers(1, 15), st.integers(0, 10**6))
def test_the_makespan_is_that_of_a_plain_simulation_and_above_the_bound(
    schedule: str, pp: int, m: int, seed: int
) -> None:
    shape = (3, CHUNKS_OF_SCHEDULE[schedule], pp)
    forward, inputs, weights = np.random.default_rng(seed).uniform(0.0, 2.0, shape)[..., None]
    m += 2 * pp * (schedule == "dualpipev")
    found = zero_bubble_time_s(schedule, forward, inputs, weights, m)[0]
    kinds = (forward, inputs, weights, inputs + weights)
    assert found == pytest.approx(simulated_s(schedule, [a[..., 0] for a in kinds], m))
    rank = (forward + inputs + weights).sum(axis=0)
    ahead = np.cumsum(forward[0].T, axis=1) - forward[0].T
    assert path_bound_s(ahead, rank.T, np.array([m]))[0] <= found * (1 + 1e-12)


@pytest.mark.parametrize(("pp", "m"), [(2, 2), (4, 4), (4, 16), (8, 24)])
def test_zb_h1_leaves_the_published_bubble(pp: int, m: int) -> None:
    # arXiv:2401.10241, table 1: (p - 1)(T_F + T_B - T_W)
    one = np.ones((1, pp, 1))
    assert zero_bubble_time_s("zb-h1", one, 1.2 * one, 0.8 * one, m)[0] == pytest.approx(3 * m + (pp - 1) * 1.4)


@pytest.mark.parametrize(
    ("schedule", "pp", "m"), [("zbv", 4, 7), ("zbv", 8, 40), ("dualpipev", 4, 8), ("dualpipev", 8, 40)]
)
def test_equal_passes_along_a_v_leave_no_bubble_but_the_way_to_the_last_rank(schedule: str, pp: int, m: int) -> None:
    one = np.ones((2, pp, 1))
    assert zero_bubble_time_s(schedule, one, one, one, m)[0] == 6 * m + pp - 1


@settings(max_examples=30, deadline=None)
@given(SCHEDULES, st.integers(2, 8), st.integers(1, 8))
def test_ranks_hold_no_more_than_1f1b_and_repeat(schedule: str, pp: int, rounds: int) -> None:
    held = live_chunks_of_zero_bubble(schedule, pp, min(rounds, MOST_ROUNDS) * pp).sum(axis=2).max(axis=1)
    assert held.tolist() == live_chunks_of_zero_bubble(schedule, pp, rounds * pp).sum(axis=2).max(axis=1).tolist()
    assert held.max() <= pp * CHUNKS_OF_SCHEDULE[schedule] + (schedule == "dualpipev")


@pytest.fixture
def three(make_job: Callable[..., Job], gpt_model: Callable[..., Model], price: Callable[..., CostModel]) -> CostModel:
    codes = np.array([SCHEDULE.code(name) for name in ("1f1b", "zb-h1", "zbv")])
    return price(make_job(model=gpt_model(8)), dp=2, pp=4, vpp=np.array([1, 1, 2]), schedule=codes)


def test_zero_bubbles_take_less_time_and_stay_above_their_bound(three: CostModel) -> None:
    found = three.evaluate(np.arange(3), np.full((3, 4), three.top_mhz))
    plain, h1, _ = found["iteration_time_s"]
    assert h1 < plain
    assert np.all(three.lower_bound(np.arange(3))[0] <= found["iteration_time_s"] * (1.0 + 1e-12))


def test_the_first_rank_of_a_v_has_the_head(three: CostModel) -> None:
    lay = LayoutArrays(three.job, three.layouts)
    assert lay.ends.tolist() == [[0, 0, 0, 1], [0, 0, 0, 1], [1, 0, 0, 0]]
    flops = three.groups[0].forward_flops
    assert flops[2, 0] > flops[2, 3]
    assert flops.sum(axis=1) == pytest.approx(flops[0].sum())
