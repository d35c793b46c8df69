import functools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.physics.cost_model import CostModel
from jointopt.physics.sensitivities import with_clock_shares
from jointopt.search.exact import SLACKS, _least_by_range, exact_front, exact_front_of_profiles
from jointopt.search.pareto import front_of, is_covered, objectives
from jointopt.workflows.feasible_layouts import priced_problem, search_problem
from tests.fake_problem import fake_problem, loosely


@functools.cache
def problem_of(job):
    """The problem of a shipped job, whose space takes long to enumerate."""
    return priced_problem(shipped_job(job))


def everything(problem):
    """The front by evaluating every layout, bottleneck clock and share of slack."""
    shares = np.concatenate([[0.0], SLACKS])
    grids = np.meshgrid(np.arange(problem.num_layouts), np.arange(problem.num_clocks), shares, indexing="ij")
    layout, clock, slack = (grid.ravel() for grid in grids)
    return front_of(problem.plans(layout, clock, slack))


def assert_same(front, other):
    for one, two in ((front, other), (other, front)):
        loose = (values * (1 + 1e-9) for values in objectives(two))
        assert is_covered(*objectives(one), *loose).all()


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), clocks=st.integers(1, 9), share=st.sampled_from([1.0, 0.3]))
def test_the_front_is_that_of_evaluating_everything(seed, clocks, share):
    problem = fake_problem(seed, 8, clocks, feasible_share=share)
    assert_same(exact_front_of_profiles(problem).front, everything(problem))


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), clocks=st.integers(1, 9), share=st.sampled_from([1.0, 0.3]))
def test_a_quick_bound_leaves_the_front_as_it_is(seed, clocks, share):
    problem = fake_problem(seed, 8, clocks, feasible_share=share)
    bounded = loosely(problem, np.random.default_rng(seed))
    assert_same(exact_front_of_profiles(bounded).front, everything(problem))


@pytest.mark.parametrize("job", ["llama-3-8b-1x8-h100", "mixtral-8x22b-8x8-h100", "llama-3-405b-2048x8-h100"])
def test_the_quick_bound_of_the_physics_has_the_work_of_the_plan_and_no_more_time(job):
    problem, rng = problem_of(job), np.random.default_rng(0)
    uneven = np.flatnonzero((problem.layouts["pp"] > 1) & (problem.layouts["vpp"] > 1))
    layout = rng.choice(uneven, 200)
    clocks = problem.decode_clocks(layout, rng.integers(0, problem.num_clocks, 200), rng.random(200))
    time_s, energy_j = objectives(problem.evaluate(layout, clocks))
    least_s, least_j = problem.bounds(layout, clocks)
    assert (least_s <= time_s * (1 + 1e-12)).all()
    assert (least_s < 0.999 * time_s).any()
    work, least_work = energy_j - problem.slope_w(layout) * time_s, least_j - problem.slope_w(layout) * least_s
    np.testing.assert_allclose(least_work, work, rtol=0, atol=1e-9 * energy_j.max())


def test_the_front_of_a_shipped_job_is_that_of_evaluating_everything():
    problem = problem_of("opt-350m-2x4-a100")
    found = exact_front_of_profiles(problem)
    assert_same(found.front, everything(problem))
    assert found.evaluated < 0.1 * found.covered


def test_the_front_under_factors_of_its_own_on_each_layout_is_that_of_evaluating_everything():
    job, rng = shipped_job("opt-350m-2x4-a100"), np.random.default_rng(0)
    some = {name: values[::4] for name, values in enumerate_layouts(job).layouts.items()}
    time, power, offset_w = np.exp(0.2 * rng.standard_normal((3, len(some["pp"]))))
    physics = CostModel(job, some).corrected(time, power_factor=power, power_offset_w=20.0 * (offset_w - 1.0))
    problem = search_problem(job, physics, np.asarray(job.search.clock_mhz)[::4], np.ones(len(time)))
    found = exact_front_of_profiles(problem)
    assert_same(found.front, everything(problem))
    assert found.evaluated < 0.5 * found.covered


@pytest.mark.parametrize("shares", [(0.6, 0.0), (1.0, 0.5), (0.4, 0.9)])
def test_the_front_of_kernels_that_follow_the_clock_otherwise_is_that_of_evaluating_everything(shares):
    job = with_clock_shares(shipped_job("opt-350m-2x4-a100"), *shares)
    some = {name: values[::4] for name, values in enumerate_layouts(job).layouts.items()}
    physics, usual = CostModel(job, some), CostModel(shipped_job("opt-350m-2x4-a100"), some)
    problem = search_problem(job, physics, np.asarray(job.search.clock_mhz)[::4], np.ones(len(some["pp"])))
    assert_same(exact_front_of_profiles(problem).front, everything(problem))
    low, index = np.full((len(some["pp"]), 1), 700.0), np.arange(len(some["pp"]))
    assert not np.allclose(*(each.evaluate(index, low)["iteration_time_s"] for each in (physics, usual)), rtol=0.01)


def test_all_clocks_of_every_layout_are_covered_and_those_of_pipelines_with_ten_shares_more():
    problem = fake_problem(2, 8, 5)
    found, pipelines = exact_front_of_profiles(problem), int((problem.layouts["pp"] > 1).sum())
    assert found.covered == 5 * problem.num_layouts + 10 * 5 * pipelines
    assert found.evaluated < found.covered


def halves(low, high):
    """Ranges that halving leads to, down to single places."""
    middle = (low + high) // 2
    return [(low, high), *(halves(low, middle) + halves(middle + 1, high) if low < high else [])]


@pytest.mark.parametrize("count", [1, 2, 7, 12])
def test_the_least_clock_of_every_half_is_that_of_its_clocks(count):
    clocks = np.random.default_rng(count).permuted(np.arange(5 * count * 3.0)).reshape(5, count, 3)
    place, least = _least_by_range(clocks)
    for low, high in halves(0, count - 1):
        np.testing.assert_array_equal(least[place[low, high]], clocks[:, low : high + 1].min(axis=1))
    assert len(least) == len(halves(0, count - 1))


@pytest.mark.parametrize("job", ["opt-350m-2x4-a100", "mixtral-8x22b-8x8-h100", "llama-3-405b-2048x8-h100"])
def test_the_physics_keeps_what_it_promises_about_the_clock_of_one_stage(job):
    problem, rng = problem_of(job), np.random.default_rng(0)
    layout = rng.choice(np.flatnonzero(problem.layouts["pp"] > 1), 500)
    rows, stage = np.arange(500), rng.integers(0, problem.layouts["pp"][layout])
    slow = problem.decode_clocks(layout, rng.integers(0, problem.num_clocks, 500), rng.random(500))
    fast = slow.copy()
    fast[rows, stage] = problem.clocks_mhz[-1]
    (slow_s, slow_j), (fast_s, fast_j) = (objectives(problem.evaluate(layout, c)) for c in (slow, fast))
    assert (fast_s <= slow_s * (1 + 1e-12)).all()
    work = slow_j - problem.slope_w(layout) * slow_s, fast_j - problem.slope_w(layout) * fast_s
    assert (work[0] <= work[1] + 1e-9 * slow_j).all()


def test_more_slack_never_raises_a_clock():
    problem = problem_of("mixtral-8x22b-8x8-h100")
    layout = np.repeat(np.flatnonzero(problem.layouts["pp"] > 1)[:200], 11)
    clock = np.full(len(layout), problem.num_clocks // 2)
    clocks = problem.decode_clocks(layout, clock, np.tile(np.linspace(0, 1, 11), 200))
    rises = np.diff(np.nan_to_num(clocks).reshape(200, 11, -1), axis=1)
    assert (rises <= 0).all()


@pytest.mark.parametrize("change", [{"stage_clocks": None}, {"energy_slope_w": None}])
def test_without_slack_or_promise_it_is_the_front_of_one_clock(change):
    problem = replace(fake_problem(1, 16, 12), **change)
    found, uniform = exact_front_of_profiles(problem), exact_front(problem)
    np.testing.assert_array_equal(found.front["energy_j"], uniform.front["energy_j"])
    assert found.covered == uniform.covered
