"""Pipeline schedules: the closed forms against the replayed schedule, limits and published numbers."""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.core.errors import PlanError
from jointopt.core.schema import Floats
from jointopt.physics import makespan, schedule
from jointopt.physics.makespan import regular_makespan_s
from jointopt.physics.schedule import (
    FORWARD,
    MOST_GROUPS,
    WHOLE,
    Pass,
    live_chunks_of_1f1b,
    predecessor,
    replay,
    schedule_graph,
    schedule_order,
)
from tests.each import each

SECONDS = st.one_of(
    st.just(0.0), st.floats(1.0, 2.0), st.floats(1e-6, 1e3), st.integers(1, 4).map(float)
)  # fmt: skip


@st.composite
def plans_1f1b(draw: st.DrawFn) -> tuple[list[float], list[float], int, int]:
    """(forward_s, backward_s, vpp, num_micro_batches), also with fewer micro-batches than ranks."""
    pp = draw(st.integers(1, 12))
    f, b = (draw(st.lists(SECONDS, min_size=pp, max_size=pp)) for _ in range(2))
    return f, b, 1, draw(st.integers(1, 40))


@st.composite
def plans_interleaved(draw: st.DrawFn) -> tuple[list[float], list[float], int, int]:
    pp, vpp = draw(st.integers(2, 7)), draw(st.integers(2, 4))
    f, b = (draw(st.lists(SECONDS, min_size=pp, max_size=pp)) for _ in range(2))
    return f, b, vpp, pp * draw(st.integers(1, 5))


def closed_form_s(f: list[float], b: list[float], vpp: int, m: int) -> float:
    pp = np.array([len(f)])
    return float(regular_makespan_s(np.array([f]), np.array([b]), pp, np.array([vpp]), np.array([m]))[0])


def replayed_s(f: Floats, b: Floats, m: int) -> Floats:
    """Makespans (n,) of the replayed schedule for seconds (n, pp, vpp) of each chunk."""
    pp, vpp = f.shape[1:]
    ends = replay(pp, vpp, m, lambda rank, op: (b if op.backward else f)[:, rank, op.chunk])
    return np.max(list(ends.values()), axis=0)


def replayed_plan_s(f: list[float], b: list[float], vpp: int, m: int) -> float:
    chunks = (np.repeat(np.array(a)[None, :, None] / vpp, vpp, axis=2) for a in (f, b))
    return float(replayed_s(*chunks, m)[0])


@settings(max_examples=60, deadline=None)
@given(plans_1f1b())
def test_1f1b_closed_form_equals_the_replayed_schedule(plan: tuple[list[float], list[float], int, int]) -> None:
    assert closed_form_s(*plan) == pytest.approx(replayed_plan_s(*plan), rel=1e-9, abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(plans_interleaved())
def test_interleaved_closed_form_equals_the_replayed_schedule(plan: tuple[list[float], list[float], int, int]) -> None:
    assert closed_form_s(*plan) == pytest.approx(replayed_plan_s(*plan), rel=1e-9, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.one_of(plans_1f1b(), plans_interleaved()), st.data())
def test_a_slower_rank_never_shortens_the_iteration(
    plan: tuple[list[float], list[float], int, int], data: st.DataObject
) -> None:
    f, b, vpp, m = plan
    rank = data.draw(st.integers(0, len(f) - 1))
    before = closed_form_s(f, b, vpp, m) * (1 - 1e-12)
    slower = [x + (i == rank) * 0.7 for i, x in enumerate(f)]
    assert closed_form_s(slower, b, vpp, m) >= before
    slower = [x + (i == rank) * 0.7 for i, x in enumerate(b)]
    assert closed_form_s(f, slower, vpp, m) >= before


@each("pp", [2, 3, 8, 16])
@each("vpp", [2, 3, 4])
@each("groups", [1, 2, 3, 6])
def test_interleaved_closed_form_equals_the_schedule_of_many_unequal_plans(pp: int, vpp: int, groups: int) -> None:
    rng = np.random.default_rng(pp * 100 + vpp * 10 + groups)
    f, b = np.exp(rng.normal(0.0, 1.5, (2, 200, pp)))
    chunks = [np.repeat(a[:, :, None] / vpp, vpp, axis=2) for a in (f, b)]
    exact = replayed_s(*chunks, groups * pp)
    closed = regular_makespan_s(f, b, *(np.full(200, x) for x in (pp, vpp, groups * pp)))
    np.testing.assert_allclose(closed, exact, rtol=1e-12)


@pytest.mark.parametrize(("pp", "vpp", "m"), [(4, 1, 8), (4, 1, 2), (8, 2, 16), (8, 4, 8), (2, 3, 12)])
def test_equal_ranks_idle_for_the_published_bubble(pp: int, vpp: int, m: int) -> None:
    """Narayanan et al. 2021, section 2.2: the bubble is (p - 1)/v of a micro-batch's time on one rank."""
    assert closed_form_s([1.0] * pp, [2.0] * pp, vpp, m) == pytest.approx(m * 3.0 + (pp - 1) * 3.0 / vpp)


def test_one_rank_has_no_bubble() -> None:
    assert closed_form_s([1.5], [2.5], 1, 7) == pytest.approx(28.0)


def test_a_slow_rank_sets_the_pace_of_long_iterations() -> None:
    f, b = [1.0, 1.3, 1.0, 1.1], [2.0, 2.1, 2.0, 2.2]
    for vpp in (1, 2):
        step = closed_form_s(f, b, vpp, 4004) - closed_form_s(f, b, vpp, 4000)
        assert step == pytest.approx(4 * 3.4)


def test_many_plans_at_once_equal_each_plan_alone() -> None:
    rng = np.random.default_rng(3)
    n = 3000
    pp = rng.choice([1, 2, 4, 8], n)
    vpp = np.where(pp > 1, rng.choice([1, 2, 3], n), 1)
    m = pp * rng.integers(1, 6, n)
    f, b = rng.uniform(0.5, 2.0, (2, n, 8))
    together = regular_makespan_s(f, b, pp, vpp, m)
    for i in range(0, n, 97):
        p = pp[i]
        assert together[i] == pytest.approx(closed_form_s(list(f[i, :p]), list(b[i, :p]), int(vpp[i]), int(m[i])))


def test_columns_beyond_the_ranks_are_ignored() -> None:
    f = np.array([[1.0, 1.0, np.nan, np.inf]])
    time_s = regular_makespan_s(f, 2 * f, np.array([2]), np.array([1]), np.array([4]))
    assert time_s[0] == pytest.approx(15.0)


def test_no_plans_take_no_time() -> None:
    none = np.array([], dtype=np.int64)
    assert regular_makespan_s(np.empty((0, 4)), np.empty((0, 4)), none, none, none).shape == (0,)


def test_a_head_on_the_last_chunk_costs_the_same_as_spread_over_its_rank() -> None:
    """The even split is exact while the head's rank stays the slowest throughout."""
    pp, vpp, m = 4, 2, 16
    f = np.full((1, pp, vpp), 4.0)
    f[0, -1, -1] += 2.0
    exact = replayed_s(f, 2 * f, m)[0]
    assert closed_form_s(list(f[0].sum(1)), list(2 * f[0].sum(1)), vpp, m) == pytest.approx(exact)


@pytest.mark.parametrize(("pp", "vpp", "m"), [(4, 1, 8), (4, 1, 2), (4, 2, 8), (3, 4, 3)])
def test_simulated_operations_respect_rank_and_data_order(pp: int, vpp: int, m: int) -> None:
    seconds = {False: np.ones(1), True: np.full(1, 2.0)}
    end_s = replay(pp, vpp, m, lambda _, op: seconds[op.backward])
    assert len(end_s) == 2 * pp * vpp * m
    for rank in range(pp):
        order = schedule_order(pp, vpp, m, rank)
        start_s = {op: end_s[rank, op] - seconds[op.backward] for op in order}
        assert all(end_s[rank, before] <= start_s[after] for before, after in pairwise(order))
        for op in order:
            needs = predecessor("1f1b", pp, vpp, rank, *op)
            if needs is not None:
                source, kind, *rest = needs
                assert end_s[source, Pass(kind if kind == FORWARD else WHOLE, *rest)] <= start_s[op]


def test_interleaved_order_is_megatrons() -> None:
    """The first rank of Megatron-LM's p = 2, v = 2, m = 4: groups of 2 micro-batches per chunk, 4 to warm up."""
    order = schedule_order(2, 2, 4, 0)
    named = ["FB"[op.backward] + f"{op.chunk}{op.micro_batch}" for op in order]
    assert named[:8] == ["F00", "F01", "F10", "F11", "F02", "B10", "F03", "B11"]
    assert named[8:] == ["F12", "B00", "F13", "B01", "B12", "B13", "B02", "B03"]


def most_held(order: list[Pass], weight: list[float]) -> float:
    """Counted, not computed: the most that forwards started and not yet undone hold, so much for each chunk."""
    return max(accumulate(-weight[op.chunk] if op.backward else weight[op.chunk] for op in order))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 5), st.data())
def test_what_unequal_chunks_hold_at_most_is_what_the_schedule_does(
    pp: int, vpp: int, groups: int, data: st.DataObject
) -> None:
    m = groups * pp if pp > 1 and vpp > 1 else data.draw(st.integers(1, 20))
    vpp = vpp if pp > 1 else 1
    weights = [data.draw(st.lists(st.integers(0, 9).map(float), min_size=vpp, max_size=vpp)) for _ in range(pp)]
    held = np.einsum("itc,ic->it", live_chunks_of_1f1b(pp, vpp, min(m, MOST_GROUPS * pp)), weights).max(axis=1)
    assert held.tolist() == [most_held(schedule_order(pp, vpp, m, rank), weights[rank]) for rank in range(pp)]


def test_in_flight_micro_batches_approach_the_published_factor() -> None:
    """Korthikanti et al. 2022: interleaving multiplies the first stage's activations by 1 + (p - 1)/(p v)."""
    first = [float(live_chunks_of_1f1b(p, v, 64)[0].sum(axis=-1).max() / v) for p, v in ((8, 1), (8, 4), (4, 2))]
    assert first == [8.0, 8 * (1 + 7 / 32), 4 * (1 + 3 / 8)]


@pytest.mark.parametrize(("pp", "vpp", "m"), [(4, 2, 6), (4, 1, 0), (0, 1, 4), (4, 0, 4)])
def test_a_plan_without_a_schedule_is_refused(pp: int, vpp: int, m: int) -> None:
    with pytest.raises(PlanError, match="Plan 1 has no pipeline schedule"):
        regular_makespan_s(np.ones((2, 4)), np.ones((2, 4)), np.array([4, pp]), np.array([1, vpp]), np.array([8, m]))


def test_too_few_columns_are_refused() -> None:
    with pytest.raises(PlanError, match="expected at least 4"):
        regular_makespan_s(np.ones((1, 2)), np.ones((1, 2)), np.array([4]), np.array([1]), np.array([8]))


def test_a_deadlocked_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "rank_order", lambda *_: [Pass(WHOLE, 0, 0), Pass(FORWARD, 0, 0)])
    with pytest.raises(PlanError, match="deadlocks"):
        schedule_graph(2, 1, 77)


def test_plans_beyond_a_block_are_priced_as_those_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    count = 50
    given = *rng.uniform(0.5, 1.5, (2, count, 4)), np.full(count, 4), np.ones(count, int), rng.integers(4, 9, count)
    whole = regular_makespan_s(*given)
    monkeypatch.setattr(makespan, "BLOCK_TIMES", 28)
    np.testing.assert_array_equal(regular_makespan_s(*given), whole)
