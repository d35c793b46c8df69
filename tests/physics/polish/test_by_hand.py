"""Schedules of one and two ranks whose clocks can be chosen on paper."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.physics.instructions import (
    Options,
    Problem,
    _spec,
    _units,
    convex_options,
    extend_choice,
    latest_ends_s,
    least_energy,
    windowed_problem,
)
from jointopt.physics.schedule import ends_s, schedule_graph

# One micro-batch on one rank: forward 1 or 2 s (10 or 4 J), the last backward 2 or 4 s (20 or 16 J).
FORWARD = Options(np.array([1000.0, 500.0]), np.array([1.0, 2.0]), np.array([10.0, 4.0]))
BACKWARD = Options(np.array([1000.0, 500.0]), np.array([2.0, 4.0]), np.array([20.0, 16.0]))
ALONE = Problem(schedule_graph(1, 1, 1), [FORWARD, BACKWARD, BACKWARD])
PAIR = Problem(schedule_graph(2, 1, 2), [FORWARD, BACKWARD, BACKWARD] * 2)


@pytest.mark.parametrize(
    ("makespan", "seconds", "joules"),
    [(3.0, [1, 2], 30.0), (3.5, [1.5, 2], 27.0), (5.0, [2, 3], 22.0), (9.0, [2, 4], 20.0)],
)
def test_slack_goes_where_a_second_saves_most(makespan: float, seconds: list[float], joules: float) -> None:
    # the forward pass saves 6 W, the backward pass 2 W
    found = least_energy(ALONE, makespan)
    assert found is not None
    assert found[0] == pytest.approx(seconds)
    assert found[1] == pytest.approx(joules)


def test_of_a_curve_with_47_options_the_programme_sees_every_second() -> None:
    # of a curve of squares: half way between two of its 24 corners the line is 1 J above it
    k = np.arange(47.0)
    fixed = Options(np.array([1000.0]), np.array([2.0]), np.array([5.0]))
    problem = Problem(schedule_graph(1, 1, 1), [Options(1000.0 - k, 1.0 + k, (50.0 - k) ** 2), fixed, fixed])
    for longer_s, above_j in ((0, 0), (1, 1), (2, 0), (23, 1), (45, 1), (46, 0)):
        found = least_energy(problem, 3.0 + longer_s)
        assert found is not None
        assert found[1] == pytest.approx(5 + (50 - longer_s) ** 2 + above_j)


def test_two_ranks_may_slow_what_is_not_critical() -> None:
    # 1F1B of forward 1 s and backward 2 s: rank 0 ends at 1, 2 and, after rank 1's backwards at 4 and 7, at 6 and 9
    graph, choice = PAIR.graph, PAIR.fastest()
    ends = ends_s(graph, PAIR.durations_s(choice))
    assert ends[graph.of_rank(0)].tolist() == [1, 2, 6, 9]
    assert ends[graph.of_rank(1)].tolist() == [2, 4, 5, 7]
    latest = latest_ends_s(graph, PAIR.durations_s(choice), 9.0)
    assert latest[graph.of_rank(0)].tolist() == [1, 4, 7, 9]
    assert latest[graph.of_rank(1)].tolist() == [2, 4, 5, 7]


def test_energy_clocks_and_makespan_of_a_choice() -> None:
    choice = np.zeros(len(PAIR.graph), np.int64)
    choice[PAIR.graph.of_rank(0)[1]] = 1  # rank 0's second forward pass takes 2 s and 6 J less
    assert PAIR.energy_j(choice) == pytest.approx(4 * 10 + 4 * 20 - 6)
    assert PAIR.makespan_s(choice) == pytest.approx(9.0)
    assert sorted(PAIR.clocks_mhz(choice)) == [500.0] + [1000.0] * 7


def test_spent_slack_slows_the_one_pass_that_may_wait() -> None:
    # rank 0's second forward pass has 2 s, its first backward pass 1 s where 2 are needed
    spent = PAIR.spend_slack(PAIR.fastest(), 9.0)
    expected = np.zeros(8, np.int64)
    expected[PAIR.graph.of_rank(0)[1]] = 1
    assert spent.tolist() == expected.tolist()


def test_within_a_time_the_slowest_option_is_taken() -> None:
    assert ALONE.durations_s(ALONE.within(np.array([1.99, 4.0]))).tolist() == [1.0, 4.0]


def test_a_clock_above_the_line_between_its_neighbours_is_left_out() -> None:
    # from (1, 10) to (3, 4) the line is at 7 J after 2 s
    for joules, kept in ((7.5, [1.0, 3.0]), (6.5, [1.0, 2.0, 3.0])):
        curve = Options(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0]), np.array([10.0, joules, 4.0]))
        assert convex_options(curve).duration_s.tolist() == kept


def test_energy_by_units_of_time_is_interpolated() -> None:
    assert _units(FORWARD, 0.25).tolist() == pytest.approx([10, 8.5, 7, 5.5, 4])
    assert _units(FORWARD, 0.4).tolist() == pytest.approx([10, 7.6, 5.2, 4])


@pytest.mark.parametrize(("most", "batches"), [(40, 10), (16, 4), (2, 2)])
def test_a_window_holds_two_instructions_per_rank_and_micro_batch(most: int, batches: int) -> None:
    long = Problem(schedule_graph(2, 1, 20), PAIR.options)
    assert windowed_problem(long, most).graph.num_micro_batches == batches


def paced_middle(chunks: int, pace: float) -> tuple[set[float], set[float], set[float]]:
    """Seconds of forward and backward passes in the middle of 20 micro-batches, and of those in both ends' window."""
    long = Problem(schedule_graph(2, chunks, 20), PAIR.options)
    part = windowed_problem(long, 16 * chunks)
    seconds = long.durations_s(extend_choice(part, part.fastest(), long, pace))
    middle = (long.graph.micro_batch >= 2) & (long.graph.micro_batch < 18)  # the rest is the window's
    backward = long.graph.backward
    return set(seconds[middle & ~backward]), set(seconds[middle & backward]), set(seconds[~middle])


@pytest.mark.parametrize(("pace", "pair"), [(3.0, (1.0, 2.0)), (4.0, (2.0, 2.0)), (5.9, (2.0, 2.0)), (6.0, (2.0, 4.0))])
def test_the_middle_keeps_the_pace_at_the_least_energy(pace: float, pair: tuple[float, float]) -> None:
    assert paced_middle(1, pace) == ({pair[0]}, {pair[1]}, {1.0, 2.0})


@pytest.mark.parametrize(
    ("pace", "pair"), [(6.0, (1.0, 2.0)), (7.9, (1.0, 2.0)), (8.0, (2.0, 2.0)), (12.0, (2.0, 4.0))]
)
def test_the_pace_of_a_rank_is_that_of_all_its_chunks(pace: float, pair: tuple[float, float]) -> None:
    # two chunks of 3 s at the fastest
    assert paced_middle(2, pace)[:2] == ({pair[0]}, {pair[1]})


@pytest.mark.parametrize("few", [6, 7])
def test_the_ends_of_the_whole_are_those_of_the_window(few: int) -> None:
    part, long = (Problem(schedule_graph(2, 1, count), PAIR.options) for count in (few, 10))
    head, left_out = few // 2, 10 - few
    slowed = {(b, mb) for b in (False, True) for mb in range(few) if (mb + b) % 2}  # forward odd, backward even
    choice = np.array([key in slowed for key in zip(part.graph.backward, part.graph.micro_batch, strict=True)], int)
    found = extend_choice(part, choice, long, 0.0)  # a pace that none keeps: the middle as fast as it can
    for backward, batch, slow in zip(long.graph.backward, long.graph.micro_batch, found, strict=True):
        same = batch if batch < head else batch - left_out
        assert slow == ((batch < head or same >= head) and (backward, same) in slowed)


@pytest.mark.parametrize(("makespan", "seconds"), [(3.9, [1.0, 2.0]), (4.0, [2.0, 2.0]), (6.0, [2.0, 4.0])])
def test_a_pass_is_slowed_only_where_all_of_it_fits(makespan: float, seconds: list[float]) -> None:
    assert ALONE.durations_s(ALONE.spend_slack(ALONE.fastest(), makespan)).tolist() == seconds


def test_lowtime_is_given_as_many_units_as_the_shortest_pass_has_and_one_more_for_each_slower_option() -> None:
    pytest.importorskip("lowtime")
    spec = _spec(FORWARD, 0.25, 1000.0)  # 1 to 2 s
    assert sorted(option.quant_time for option in spec.options.options) == [4, 5, 6, 7, 8]
    assert spec.cost_model(4) == pytest.approx(10_000.0)
    assert spec.cost_model(8) == pytest.approx(4_000.0)


def test_a_pass_that_ends_at_the_makespan_but_for_rounding_is_slowed() -> None:
    # 0.1 + 0.2 is above 0.3 by the last bit
    fixed = Options(np.array([1000.0]), np.array([0.1]), np.array([5.0]))
    last = Options(np.array([1000.0, 500.0]), np.array([0.1, 0.2]), np.array([5.0, 4.0]))
    problem = Problem(schedule_graph(1, 1, 1), [fixed, fixed, last])
    assert problem.spend_slack(problem.fastest(), 0.3).tolist() == [0, 1]
    assert problem.spend_slack(problem.fastest(), 0.2999).tolist() == [0, 0]


def test_the_last_backward_pass_has_options_of_its_own() -> None:
    kinds = [Options(np.array([1000.0]), np.array([seconds]), np.array([1.0])) for seconds in (1.0, 2.0, 3.0)]
    problem = Problem(schedule_graph(1, 1, 2), kinds)
    assert sorted(problem.durations_s(problem.fastest())) == [1.0, 1.0, 2.0, 3.0]
    part, whole = Problem(schedule_graph(1, 1, 2), kinds), Problem(schedule_graph(1, 1, 4), kinds)
    found = extend_choice(part, part.fastest(), whole, 3.0)
    assert whole.makespan_s(found) == pytest.approx(4 * 1.0 + 3 * 2.0 + 3.0)
