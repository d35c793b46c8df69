from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.search.exact import count_faster, exact_front, fastest_layout, lowest_bounds
from tests.fake_problem import fake_problem


def quick(seed):
    """A problem, and the same with a loose quick bound."""
    problem = fake_problem(seed, 32, 8)
    share = np.random.default_rng(seed).uniform(0.5, 1.0, problem.num_layouts)
    loose = replace(problem, quick_bound=lambda i: tuple(values * share[i] for values in problem.lower_bound(i)))
    return problem, loose


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_fastest_of_some_layouts_has_the_least_bound_whatever_the_quick_bound_leaves(seed):
    problem, loose = quick(seed)
    some = np.flatnonzero(np.random.default_rng(seed).random(problem.num_layouts) < 0.7)
    if len(some):
        assert fastest_layout(loose, some) == some[problem.lower_bound(some)[0].argmin()]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_by_times_above_the_bounds_the_fastest_is_that_of_the_least_time_and_as_many_are_faster(seed):
    problem, loose = quick(seed)
    layouts = np.arange(problem.num_layouts)
    times = problem.lower_bound(layouts)[0] * np.random.default_rng(seed).uniform(1.0, 1.1, len(layouts))
    assert fastest_layout(loose, layouts, lambda some: times[some]) == times.argmin()
    limit = float(np.median(times))
    assert count_faster(loose, limit, 10_000, lambda some: times[some]) == (times < limit).sum()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_times_are_worked_out_only_of_layouts_that_bounds_on_both_sides_leave_open(seed):
    problem, loose = quick(seed)
    rng, (least, _) = np.random.default_rng(seed), problem.lower_bound(np.arange(problem.num_layouts))
    times = least * rng.uniform(1.0, 1.1, len(least))
    most, seen = times * rng.uniform(1.0, 1.1, len(least)), []
    limit = float(np.median(times))

    def time_of(some):
        seen.extend(some.tolist())
        return times[some]

    assert count_faster(loose, limit, 10_000, time_of, lambda some: most[some]) == (times < limit).sum()
    assert set(seen) == set(np.flatnonzero((least < limit) & (most >= limit)))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_layouts_are_ranked_by_their_bounds_whatever_the_quick_bound_leaves(seed, most):
    problem, loose = quick(seed)
    times, _ = problem.lower_bound(np.arange(problem.num_layouts))
    order, least_s = lowest_bounds(loose, most)
    assert order.tolist() == np.argsort(times, kind="stable")[:most].tolist()
    np.testing.assert_array_equal(least_s, times[order])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 1.0))
def test_as_many_layouts_are_faster_as_have_a_lower_bound(seed, share):
    problem, loose = quick(seed)
    times, _ = problem.lower_bound(np.arange(problem.num_layouts))
    limit = float(np.quantile(times, share))
    assert count_faster(loose, limit, 10_000) == count_faster(problem, limit, 10_000) == (times < limit).sum()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.0, 1.0), st.integers(1, 20))
def test_faster_layouts_are_counted_up_to_a_number_and_then_left(seed, share, most):
    problem, loose = quick(seed)
    times, _ = problem.lower_bound(np.arange(problem.num_layouts))
    faster = int((times < (limit := float(np.quantile(times, share)))).sum())
    assert count_faster(loose, limit, most) == (faster if faster <= most else None)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_a_quick_bound_leaves_the_front_exact_and_settles_layouts_unseen(seed):
    problem, loose = quick(seed)
    found, expected = exact_front(loose), exact_front(problem)
    for name in ("iteration_time_s", "energy_j"):
        np.testing.assert_array_equal(found.front[name], expected.front[name])
    assert found.covered == expected.covered
