from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.physics.cost_model import CostModel
from jointopt.search.exact import exact_front
from jointopt.search.pareto import front_of
from jointopt.search.problem import Problem
from tests.fake_problem import fake_problem, loosely


def everything(problem):
    layouts = np.repeat(np.arange(problem.num_layouts), problem.num_clocks)
    clocks = np.tile(np.arange(problem.num_clocks), problem.num_layouts)
    return front_of(problem.evaluate_genes(layouts, clocks, np.zeros(len(layouts))))


def random_problem(seed, num_layouts, num_clocks, *, bounded, promised):
    """Coarse random values (many ties) that keep their promises: time falls with clock, work costs more."""
    rng = np.random.default_rng(seed)
    time_s = 1.0 + np.cumsum(rng.integers(0, 4, (num_layouts, num_clocks)), axis=1)[:, ::-1]
    work_j = 5.0 + np.cumsum(rng.integers(0, 4, (num_layouts, num_clocks)), axis=1)
    energy_j, grid = work_j + 2.0 * time_s, np.arange(num_clocks, dtype=float)
    violation = rng.integers(-3, 2, (num_layouts, num_clocks)).astype(float)

    def evaluate(layout, clocks):
        at = layout, clocks[:, 0].astype(int)
        return {"iteration_time_s": time_s[at], "energy_j": energy_j[at], "violation": violation[at]}

    def lower_bound(layout):
        return time_s.min(axis=1)[layout], energy_j.min(axis=1)[layout] - 0.5

    layouts = {"pp": np.ones(num_layouts, dtype=np.int64)}
    slope = 2.0 if promised else None
    return Problem(layouts, grid, evaluate, lower_bound if bounded else None, energy_slope_w=slope)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 20), st.booleans(), st.booleans(), st.integers(1, 50))
def test_pruning_never_changes_the_front(seed, num_layouts, num_clocks, bounded, promised, chunk):
    problem = random_problem(seed, num_layouts, num_clocks, bounded=bounded, promised=promised)
    found, expected = exact_front(problem, chunk_size=chunk).front, everything(problem)
    assert found["iteration_time_s"].tolist() == expected["iteration_time_s"].tolist()
    assert found["energy_j"].tolist() == expected["energy_j"].tolist()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("feasible_share", [1.0, 0.3])
def test_the_front_of_a_pipeline_problem_is_exact(seed, feasible_share):
    problem = fake_problem(seed, num_gpus=16, num_clocks=12, feasible_share=feasible_share)
    found, expected = exact_front(problem).front, everything(problem)
    np.testing.assert_array_equal(found["energy_j"], expected["energy_j"])
    np.testing.assert_array_equal(found["iteration_time_s"], expected["iteration_time_s"])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 20), st.integers(1, 50))
def test_plans_that_a_quick_bound_rules_out_are_not_on_the_front(seed, num_layouts, num_clocks, chunk):
    problem = random_problem(seed, num_layouts, num_clocks, bounded=True, promised=True)
    bounded = loosely(problem, np.random.default_rng(seed))
    found, expected = exact_front(bounded, chunk_size=chunk).front, everything(problem)
    assert found["iteration_time_s"].tolist() == expected["iteration_time_s"].tolist()
    assert found["energy_j"].tolist() == expected["energy_j"].tolist()


def test_without_bounds_every_plan_is_evaluated_once():
    problem = replace(fake_problem(0, 8, 10), lower_bound=None, energy_slope_w=None)
    result = exact_front(problem)
    assert result.evaluated == result.covered == problem.num_layouts * 10


def test_bounds_leave_most_of_a_large_space_unevaluated():
    result = exact_front(fake_problem(0, 64, 110))
    assert result.evaluated < 0.1 * result.covered


def test_no_call_of_evaluate_exceeds_the_chunk():
    problem, sizes = fake_problem(0, 16, 20), []

    def watched(layout, clocks):
        sizes.append(len(layout))
        return problem.evaluate(layout, clocks)

    exact_front(replace(loosely(problem, np.random.default_rng(0)), evaluate=watched), chunk_size=333)
    assert max(sizes) <= 333


def test_progress_ends_at_the_total_and_never_falls():
    calls = []
    result = exact_front(fake_problem(0, 16, 20), progress=lambda *call: calls.append(call))
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert calls[-1] == (result.covered, result.covered, len(result.front["energy_j"]))


def test_a_space_where_nothing_is_feasible_has_an_empty_front():
    problem = fake_problem(0, 8, 5)
    never = replace(problem, evaluate=lambda i, c: problem.evaluate(i, c) | {"violation": np.ones(len(i))})
    assert len(exact_front(never).front["energy_j"]) == 0


def test_no_layouts_at_all_give_an_empty_front():
    problem = fake_problem(0, 8, 5)
    none = replace(problem, layouts={name: values[:0] for name, values in problem.layouts.items()})
    assert exact_front(none).covered == 0


@pytest.mark.parametrize("framework", ["megatron-lm", "torchtitan"])
def test_stated_splits_and_schedules_leave_the_front_exact(framework: str) -> None:
    job = shipped_job("llama-3-8b-1x8-h100")
    training = replace(job.training, framework=load_framework(framework), global_batch_size=48)
    job = replace(job, model=replace(job.model, num_layers=30), training=training)
    layouts = enumerate_layouts(job).layouts
    some = np.flatnonzero((layouts["stage_layers"] > 0) | (layouts["schedule"] > 0))[::5]
    physics = CostModel(job, {name: column[some] for name, column in layouts.items()})
    clocks = np.asarray(job.search.clock_mhz)[::12]
    bounds = (physics.lower_bound, None, physics.energy_slope_w)
    problem = Problem(physics.layouts, clocks, physics.evaluate, *bounds)
    found, every = exact_front(problem).front, everything(problem)
    for column in ("iteration_time_s", "energy_j"):
        np.testing.assert_allclose(np.sort(found[column]), np.sort(every[column]), rtol=1e-9)
