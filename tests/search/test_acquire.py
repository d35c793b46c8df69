"""Which plan is worth a run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.search.acquire import acquire, added_area, added_volume, expected_gain, expected_saving, gain_left
from jointopt.search.pareto import front_order, hypervolume, nadir

TIME = ("iteration_time_s",)
BOTH = ("iteration_time_s", "energy_j")
NOTHING = {name: np.empty(0) for name in BOTH}


def outlook(time, energy=None, spread=0.1, fits=1.0):
    columns = {"iteration_time_s": np.array(time, float)}
    columns["energy_j"] = np.array(energy if energy is not None else time, float)
    for name in BOTH:
        columns |= {f"{name}_low": columns[name] * np.exp(-1.645 * spread)}
        columns |= {f"{name}_high": columns[name] * np.exp(1.645 * spread)}
    return columns | {"probability_fits": np.broadcast_to(np.asarray(fits, float), len(time))}


def measured(time, energy=()):
    return {"iteration_time_s": np.array(time, float), "energy_j": np.array(energy or time, float)}


def chosen(predicted, known=NOTHING, k=1, objectives=TIME, allowed=None, costs=None, **options):
    size = len(predicted["probability_fits"])
    allowed = np.ones(size, bool) if allowed is None else np.array(allowed)
    costs = np.ones(size) if costs is None else np.array(costs, float)
    rng = np.random.default_rng(0)
    return acquire(predicted, known, costs, k, rng, objectives=objectives, allowed=allowed, **options).tolist()


def test_the_fastest_plan_is_first_and_the_order_is_that_of_the_predictions():
    assert chosen(outlook([3.0, 1.0, 2.0]), k=2) == [1, 2]


def test_a_plan_that_is_not_allowed_is_never_chosen():
    assert chosen(outlook([1.0, 2.0]), allowed=[False, True], k=2) == [1]


def test_a_plan_that_hardly_fits_gives_way_to_one_that_does():
    assert chosen(outlook([1.0, 1.05, 2.0], fits=[0.05, 1.0, 1.0])) == [1]


def test_of_two_equal_plans_the_less_certain_gains_more():
    predicted = outlook([1.1, 1.1])
    predicted["iteration_time_s_low"] = np.array([1.0, 0.8])
    predicted["iteration_time_s_high"] = np.array([1.2, 1.5])
    assert chosen(predicted, measured([1.0])) == [1]


def test_a_costly_run_must_gain_more():
    predicted = outlook([1.0, 1.01])
    assert chosen(predicted, measured([1.2])) == [0]
    assert chosen(predicted, measured([1.2]), costs=[2.0, 1.0]) == [1]


def test_nothing_is_chosen_where_no_plan_is_allowed():
    assert chosen(outlook([2.0, 3.0]), measured([1.0]), allowed=[False, False]) == []


def test_a_run_of_a_plan_predicted_as_fast_as_the_best_saves_two_fifths_of_the_deviation_where_it_fits():
    saved = expected_saving(outlook([1.0, 1.0], spread=0.1, fits=[1.0, 0.5]), measured([1.0]), objectives=TIME)
    share = 1.0 - np.exp(-0.1 / np.sqrt(2.0 * np.pi))  # the mean of a normal's positive half
    assert saved == pytest.approx([share, share / 2.0], rel=1e-3)


def test_a_run_gains_and_saves_by_normal_errors():
    predicted, known = outlook([np.exp(0.4)], spread=0.1), measured([1.0])
    gain = expected_gain(predicted, known, np.random.default_rng(0), objectives=TIME)
    saved = expected_saving(predicted, known, objectives=TIME)
    assert [*gain, *saved] == pytest.approx([0.1 * 7.145e-6] * 2, rel=0.02)  # four deviations behind


def test_by_two_objectives_a_run_saves_the_least_share_by_which_every_measured_plan_is_worse():
    known = measured([1.0, 4.0], [4.0, 1.0])
    predicted = outlook([2.0, 1.0, 4.1, 0.9], [2.0, 3.6, 1.1, 9.0], spread=1e-6)
    saved = expected_saving(predicted, known, objectives=BOTH)
    assert saved == pytest.approx([0.5, 0.1, 0.0, 0.1], abs=1e-4)  # half of either, then a tenth of energy, of time


def test_a_batch_holds_the_second_kind_of_plan_before_a_twin_of_the_first():
    predicted = outlook([1.0, 1.001, 1.02], spread=0.1)
    rng = np.random.default_rng(1)
    one, other = np.exp(0.1 * rng.standard_normal((2, 256)))
    draws = {"iteration_time_s": np.stack([one, 1.001 * one, 1.02 * other]), "fits": np.ones((3, 256), bool)}
    assert chosen(predicted, measured([1.1]), k=2) == [0, 1]
    assert chosen(predicted, measured([1.1]), k=2, draws=draws) == [0, 2]


def test_a_batch_has_one_plan_of_each_family_as_long_as_there_are_others():
    families = np.array([0, 0, 0, 1, 2])
    assert chosen(outlook([1.0, 1.01, 1.02, 1.1, 1.15]), k=4, families=families) == [0, 3, 4, 1]
    assert chosen(outlook([1.0, 1.01, 1.02, 9.0, 9.5]), k=2, families=families) == [0, 1]


def test_a_batch_begins_with_the_plan_that_it_is_given():
    assert chosen(outlook([1.0, 1.01, 1.5]), k=2, first=2) == [2, 0]


def test_every_run_of_a_batch_is_chosen_by_its_gain_per_cost():
    predicted, costs = outlook([1.0, 1.02, 1.05], spread=0.01), [1.0, 3.0, 1.0]
    draws = {"iteration_time_s": np.array([[1.0, 1.4], [1.4, 1.02], [1.4, 1.05]]), "fits": np.ones((3, 2), bool)}
    assert chosen(predicted, measured([1.3]), k=2, draws=draws) == [0, 1]
    assert chosen(predicted, measured([1.3]), k=2, draws=draws, costs=costs) == [0, 2]


def test_in_two_objectives_a_batch_spreads_over_the_front():
    predicted = outlook([1.0, 1.01, 4.0], [4.0, 4.01, 1.0], spread=0.01)
    assert sorted(chosen(predicted, measured([4.0], [4.0]), k=2, objectives=BOTH)) == [0, 2]


def test_a_batch_holds_no_plan_twice_and_no_more_than_there_are():
    assert sorted(chosen(outlook([1.0, 2.0, 3.0]), k=9)) == [0, 1, 2]


def test_expected_improvement_is_the_mean_over_normal_draws():
    times, rng = np.array([0.8, 1.0, 1.2]), np.random.default_rng(0)
    gain = expected_gain(outlook(times), measured([1.0]), rng, objectives=TIME)
    draws = np.log(times)[:, None] + 0.1 * rng.standard_normal((3, 400_000))
    assert gain == pytest.approx(np.maximum(-draws, 0.0).mean(axis=1), rel=0.02)


@pytest.mark.parametrize("objectives", [TIME, BOTH])
def test_gains_are_looked_for_in_the_spread_that_is_given_not_in_intervals(objectives):
    predicted, known = outlook([1.02, 1.05], spread=0.07), measured([1.0])
    twin = {name: np.array([0.007, 0.1]) for name in BOTH}  # the first is like a plan that ran
    assert chosen(predicted, known, objectives=objectives) == [0]
    assert chosen(predicted, known, objectives=objectives, spread=twin) == [1]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.5, 4.0), min_size=1, max_size=8), st.floats(0.5, 4.0))
def test_gain_and_saving_are_never_negative_and_fall_with_time(times, incumbent):
    predicted, known = outlook(sorted(times)), measured([incumbent])
    gain = expected_gain(predicted, known, np.random.default_rng(0), objectives=TIME)
    saved = expected_saving(predicted, known, objectives=TIME)
    assert (gain >= 0).all()
    assert ((saved >= 0) & (saved < 1)).all()
    assert (np.diff([gain, saved]) <= 1e-12).all()


def test_in_two_objectives_a_gap_of_the_front_is_worth_more_than_its_neighbourhood():
    known = measured([1.0, 4.0], [4.0, 1.0])
    predicted = outlook([1.01, 2.0, 4.0], [4.0, 2.0, 1.01], spread=0.01)
    assert chosen(predicted, known, objectives=BOTH) == [1]


def test_in_two_objectives_the_gain_is_the_area_in_logarithms_times_the_chance_to_fit():
    known = measured([1.0, 4.0], [4.0, 1.0])
    predicted = outlook([2.0, 2.0, 1.0, 1.0], [2.0, 2.0, 3.98, 3.94], spread=1e-6, fits=[1.0, 0.5, 1.0, 1.0])
    gain = expected_gain(predicted, known, np.random.default_rng(0), objectives=BOTH)
    area = np.log(4.0 / 2.0) ** 2  # to the right as far as one neighbour, up as far as the other
    assert gain[:2] == pytest.approx([area, area / 2], rel=1e-3)
    assert gain[2:] == pytest.approx(np.log(4.0) * np.log([4.0 / 3.98, 4.0 / 3.94]), rel=1e-3)


def test_in_two_objectives_a_batch_counts_the_area_beside_the_plans_before():
    known, cheap = measured([1.0, 16.0], [16.0, 1.0]), [1.0, 1.0, 1.0]
    predicted = outlook([4.0, 4.1, 12.0], [4.0, 4.0, 1.5], spread=1e-3)
    assert chosen(predicted, known, k=3, objectives=BOTH, costs=cheap) == [0, 2, 1]
    assert chosen(predicted, known, k=1, objectives=BOTH, costs=[9.0, 1.0, 9.0]) == [1]


def _left(times, energies=None, fits=True):
    values = {"iteration_time_s": np.array(times, float), "energy_j": np.array(energies or times, float)}
    return values | {"fits": np.broadcast_to(fits, values["iteration_time_s"].shape)}


def test_the_gain_that_is_left_is_the_share_by_which_the_best_falls_in_the_mean_of_draws():
    draws, every = (
        _left([[0.8, 1.2, 0.9, 0.5], [0.9, 1.1, 0.7, 0.6]], fits=[[True, True, True, False]] * 2),
        np.ones(2, bool),
    )
    assert gain_left(draws, measured([1.0, 1.3]), TIME, every) == pytest.approx((0.2 + 0.0 + 0.3 + 0.0) / 4)
    assert gain_left(draws, measured([1.0]), TIME, np.array([True, False])) == pytest.approx((0.2 + 0.1) / 4)
    assert gain_left(draws, measured([1.0]), TIME, ~every) == 0.0
    assert np.isnan(gain_left(draws, NOTHING, TIME, every))
    assert np.isnan(gain_left(_left([[0.45]]), measured([1.0]), TIME, np.ones(1, bool)))  # more than twice as fast


def test_in_two_objectives_the_gain_that_is_left_is_that_of_the_volume_under_the_front():
    known, one = measured([1.0, 4.0], [4.0, 1.0]), np.ones(1, bool)
    reference = nadir(np.log([1.0, 4.0, 2.0]), np.log([4.0, 1.0, 2.0]))
    before = hypervolume(np.log([1.0, 4.0]), np.log([4.0, 1.0]), reference)
    found = gain_left(_left([[2.0, 2.0]], [[2.0, 5.0]]), known, BOTH, one)
    assert found == pytest.approx(np.log(2.0) ** 2 / 2 / before)


def test_in_two_objectives_a_dominated_plan_has_no_gain():
    known = measured([1.0], [1.0])
    predicted = outlook([2.0], [2.0], spread=0.01)
    assert expected_gain(predicted, known, np.random.default_rng(0), objectives=BOTH).tolist() == [0.0]
    assert expected_saving(predicted, known, objectives=BOTH).tolist() == [0.0]


POINTS = st.lists(st.tuples(st.floats(0.1, 3.0), st.floats(0.1, 3.0)), min_size=1, max_size=8)


@settings(max_examples=30, deadline=None)
@given(POINTS, POINTS)
def test_added_area_is_the_difference_of_hypervolumes(known, new):
    known, new = np.array(known), np.array(new)
    front = known[front_order(known[:, 0], known[:, 1])]
    reference = (2.5, 2.5)
    before = hypervolume(known[:, 0], known[:, 1], reference)
    both = [np.vstack([known, point]) for point in new]
    after = [hypervolume(points[:, 0], points[:, 1], reference) for points in both]
    np.testing.assert_allclose(added_area(front, new, reference), np.array(after) - before, atol=1e-9)


THREE = (*BOTH, "peak_memory_gib")


def with_memory(columns, memory, spread=0.02):
    values = np.array(memory, float)
    ends = {
        f"peak_memory_gib{end}": values * np.exp(sign * 1.645 * spread) for end, sign in (("_low", -1), ("_high", 1))
    }
    return columns | {"peak_memory_gib": values} | ends


def of_three(time, energy, memory):
    return measured(time, energy) | {"peak_memory_gib": np.array(memory, float)}


def test_with_three_objectives_a_plan_is_worth_a_run_for_the_third_alone():
    predicted = with_memory(outlook([1.05, 1.05], [1.05, 1.05], spread=0.01), [60.0, 20.0])
    known = of_three([1.0], [1.0], [50.0])
    assert chosen(predicted, known, objectives=THREE) == [1]
    assert expected_saving(predicted, known, objectives=THREE) == pytest.approx([0.0, 0.6], abs=0.01)  # of 50 GiB
    assert expected_saving(predicted, known, objectives=BOTH) == pytest.approx([0.0, 0.0], abs=0.001)


def test_a_batch_of_three_objectives_takes_plans_that_do_not_stand_for_each_other():
    predicted = with_memory(outlook([1.0, 1.001, 1.3], [1.0, 1.001, 1.0], spread=0.01), [50.0, 50.1, 20.0])
    assert set(chosen(predicted, of_three([1.4], [1.4], [60.0]), k=2, objectives=THREE)) == {0, 2}


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000))
def test_the_volume_that_a_point_of_three_adds_is_what_the_front_with_it_has_more(seed):
    rng = np.random.default_rng(seed)
    front, point = rng.random((4, 3)), rng.random((1, 3))
    everything = np.concatenate([front, point])
    added = added_volume(front, point, everything)[0]
    both = added_volume(np.ones((1, 3)) * 9, np.vstack([everything, front]), everything)
    assert 0.0 <= added <= both[4]
    assert (added == 0.0) or not (front <= point).all(axis=1).any()


def test_what_is_left_to_gain_of_three_objectives_falls_to_nothing_where_no_plan_is_better():
    draws = {name: np.full((2, 4), 2.0) for name in THREE} | {"fits": np.ones((2, 4), bool)}
    known = of_three([1.0, 1.2], [1.0, 0.9], [1.0, 0.8])
    assert gain_left(draws, known, THREE, np.ones(2, bool)) == 0.0
    better = draws | {"peak_memory_gib": np.full((2, 4), 0.7)}
    assert gain_left(better, known, THREE, np.ones(2, bool)) > 0.0
