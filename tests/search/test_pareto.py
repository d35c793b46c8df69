import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.search import pareto
from tests.fake_problem import recall

FEW_VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, np.inf, np.nan])
POINTS = st.lists(st.tuples(FEW_VALUES, FEW_VALUES), min_size=1, max_size=40).map(lambda p: np.array(p).T)


def brute_mask(first, second):
    points = list(zip(first, second, strict=True))

    def beaten(i, x, y):
        better = any((a <= x and b <= y) and (a < x or b < y) for a, b in points)
        return better or (x, y) in points[:i]

    return [bool(np.isfinite(x + y)) and not beaten(i, x, y) for i, (x, y) in enumerate(points)]


def plans_of(first, second, violation=0.0):
    return {
        "iteration_time_s": np.asarray(first, dtype=float),
        "energy_j": np.asarray(second, dtype=float),
        "violation": np.full(len(first), violation),
        "layout_index": np.arange(len(first)),
    }


@given(POINTS)
def test_the_front_agrees_with_comparing_every_pair(points):
    assert sorted(pareto.front_order(*points)) == np.flatnonzero(brute_mask(*points)).tolist()


@given(POINTS)
def test_the_front_is_sorted_and_strictly_falling(points):
    order = pareto.front_order(*points)
    assert (np.diff(points[0][order]) > 0).all()
    assert (np.diff(points[1][order]) < 0).all()


def test_of_equal_points_only_the_first_is_on_the_front():
    assert pareto.front_order(np.array([1.0, 1.0, 2.0]), np.array([5.0, 5.0, 5.0])).tolist() == [0]


def test_nothing_gives_an_empty_front():
    assert len(pareto.front_order(np.zeros(0), np.zeros(0))) == 0
    assert pareto.hypervolume(np.zeros(0), np.zeros(0), (1.0, 1.0)) == 0.0


@given(POINTS, POINTS)
def test_coverage_agrees_with_comparing_every_pair(front, points):
    front = front[:, pareto.front_order(*front)]
    below = (front[0][:, None] <= points[0]) & (front[1][:, None] <= points[1])
    assert pareto.is_covered(*front, *points).tolist() == below.any(axis=0).tolist()


@given(POINTS, POINTS)
def test_merging_batches_gives_the_front_of_everything(one, two):
    merged = pareto.merge(pareto.merge(None, plans_of(*one)), plans_of(*two))
    together = pareto.front_of(plans_of(*np.concatenate([one, two], axis=1)))
    assert merged["iteration_time_s"].tolist() == together["iteration_time_s"].tolist()
    assert merged["energy_j"].tolist() == together["energy_j"].tolist()


def test_what_violates_a_constraint_is_never_on_the_front():
    plans = pareto.concat([plans_of([1.0], [1.0], violation=0.5), plans_of([2.0], [2.0])])
    assert pareto.front_of(plans)["iteration_time_s"].tolist() == [2.0]


def test_the_hypervolume_of_two_boxes_counts_their_overlap_once():
    assert pareto.hypervolume(np.array([1.0, 2.0]), np.array([2.0, 1.0]), (3.0, 3.0)) == pytest.approx(3.0)


def test_points_beyond_the_reference_add_nothing():
    assert pareto.hypervolume(np.array([1.0, 0.5]), np.array([1.0, 9.0]), (2.0, 2.0)) == pytest.approx(1.0)


@given(POINTS, POINTS)
def test_more_points_never_have_less_hypervolume(one, two):
    both = np.concatenate([one, two], axis=1)
    assert pareto.hypervolume(*both, (5.0, 5.0)) >= pareto.hypervolume(*one, (5.0, 5.0)) - 1e-12


def test_hypervolume_equals_the_share_of_a_fine_grid_that_is_covered():
    rng = np.random.default_rng(0)
    first, second = rng.random((2, 12))
    order = pareto.front_order(first, second)
    cells = (np.arange(400) + 0.5) / 400
    covered = pareto.is_covered(first[order], second[order], *(g.ravel() for g in np.meshgrid(cells, cells)))
    assert pareto.hypervolume(first, second, (1.0, 1.0)) == pytest.approx(covered.mean(), abs=0.01)


def test_recall_counts_points_that_are_equalled_or_beaten():
    exact = np.array([1.0, 2.0, 3.0, 4.0]), np.array([4.0, 3.0, 2.0, 1.0])
    assert recall(*exact, *exact) == 1.0
    assert recall(*exact, np.array([2.0, 2.9]), np.array([3.0, 1.9])) == 0.5
    assert recall(*exact, np.zeros(0), np.zeros(0)) == 0.0


def test_evenly_picked_points_keep_both_ends():
    front = plans_of(np.arange(100.0), np.arange(100.0)[::-1])
    assert pareto.evenly_spaced(front, 5).tolist() == [0, 25, 50, 74, 99]
    assert len(pareto.evenly_spaced(front, 1000)) == 100


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_plans_below_the_chord_of_the_ends_are_measured_in_shares_of_its_span(scale: float) -> None:
    # from (1, 16) to (4, 1): a plan half-way in the logarithm of time and three quarters down in that of energy
    time_s, energy_j = scale * np.array([1.0, 2.0, 2.0, 4.0]), scale * np.array([16.0, 2.0, 4.0, 1.0])
    np.testing.assert_allclose(pareto.below_chord(time_s, energy_j), [0.0, 0.25, 0.0, 0.0], atol=1e-12)


def test_where_one_plan_is_best_in_both_the_product_of_both_decides() -> None:
    found = pareto.below_chord(np.array([2.0, 1.0, 3.0]), np.array([1.0, 1.0, 0.5]) * [1.0, 0.4, 1.0])
    np.testing.assert_allclose(found, -np.log([2.0, 0.4, 1.5]))


def test_rows_are_spread_from_the_best_of_each_column_to_those_missed_most() -> None:
    values = np.array([[0.0, 10.0], [0.1, 9.9], [1.0, 4.0], [3.9, 2.0], [4.0, 0.0]])
    assert pareto.farthest_rows(values, 2).tolist() == [0, 4]
    assert pareto.farthest_rows(values, 3).tolist() == [0, 2, 4]
    assert pareto.farthest_rows(values, 9).tolist() == [0, 1, 2, 3, 4]
    assert pareto.farthest_rows(values[:1], 3).tolist() == [0]


def test_a_row_that_a_chosen_one_is_hardly_worse_than_is_missed_least() -> None:
    values = np.array([[0.0, 1.0, 5.0], [0.5, 0.0, 5.0], [1.0, 1.0, 0.0], [0.9, 0.4, 4.0], [0.6, 0.1, 4.9]])
    assert pareto.farthest_rows(values, 4).tolist() == [0, 1, 2, 3]


def test_a_row_that_is_nowhere_better_than_a_chosen_one_is_not_missed() -> None:
    # the last is worse than the first two by all of the span, the third better than each of them by 0.5 at least
    values = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.4], [1.0, 1.0]])
    assert pareto.farthest_rows(values, 3).tolist() == [0, 1, 2]


def test_the_reference_of_a_front_of_one_plan_lies_a_tenth_of_its_values_beyond() -> None:
    assert pareto.nadir(np.array([2.0]), np.array([50.0])) == pytest.approx((2.2, 55.0))


def test_the_volume_under_three_goals_is_the_share_of_their_box_up_to_a_tenth_beyond_the_front():
    front = np.exp([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    box, one = 1.1**3, 1.1 * 0.1 * 0.1  # of which each point has its own column's length, a tenth of the others'
    assert pareto.volume(front[:1], front) == pytest.approx(one / box)
    assert pareto.volume(front, front) == pytest.approx((3 * one - 2 * 0.1**3) / box)


def test_a_goal_without_a_span_adds_no_volume_and_takes_none():
    front = np.exp([[0.0, 1.0, 2.0], [1.0, 0.0, 2.0]])
    assert pareto.volume(front, front) == pytest.approx((2 * 1.1 * 0.1 - 0.1**2) / 1.1**2)
    assert pareto.volume(front * [1.0, 1.0, 1.01], front) == 0.0
