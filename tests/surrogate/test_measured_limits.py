"""Plans under power limits run at the clock at which what was learned of power meets the limit."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jointopt.core.facts import Source
from jointopt.core.schema import Columns, Floats
from jointopt.jobs.clocks import under_limits
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import uniform_stage_clocks
from jointopt.physics.cost_model import CostModel
from jointopt.search.exact import exact_front_of_profiles
from jointopt.search.pareto import is_covered, objectives
from jointopt.surrogate.files import load_surrogate
from jointopt.surrogate.job_model import JobModel
from jointopt.surrogate.own_cluster import OwnRuns
from jointopt.surrogate.power import PowerScale, at_limit, board_power_of
from jointopt.workflows.explain import explain
from jointopt.workflows.feasible_layouts import search_problem
from jointopt.workflows.predict import predict
from tests.search.test_exact_stages import everything

LIMITS_W = (400.0, 380.0, 350.0, 300.0, 250.0, 200.0, 150.0)  # an A100 is sold with 400 W
PLAN = "dp=4 tp=2 micro_batch_size=4"
LEARNED = [(1.2, 0.0), (0.8, 0.0), (1.3, -40.0), (0.7, 60.0)]


@functools.cache
def job() -> Job:
    return shipped_job("opt-350m-2x4-a100")


def model(factor: float = 1.0, offset_w: float = 0.0, of: Job | None = None, known: bool = True) -> JobModel:
    """The job as if many runs of its cluster had shown that GPUs draw a line in the power of the physics."""
    here = of or job()
    cluster, default = here.cluster, load_surrogate("default")
    source = str(Source("mine", here.training.framework.name, cluster.gpu.id, cluster.gpus_per_node))
    power = PowerScale(factor, 0.05 if known else None, offset_w)
    return JobModel(here, replace(default, own=(OwnRuns(source, power=power, clocks=(0.6, 1.0)),)))


@functools.cache
def layouts() -> Columns:
    return {name: values[::23] for name, values in enumerate_layouts(job()).layouts.items()}


def results(physics: CostModel, share: float = 1.0) -> Columns:
    """Predictions and heat (limits, layouts) with all stages at a share of the top clock."""
    clocks = uniform_stage_clocks(physics.layouts["pp"], share * physics.top_mhz)
    index = np.arange(len(clocks))
    found = physics.evaluate(index, clocks) | physics.heat(index, clocks)
    return {name: values.reshape(len(LIMITS_W), -1) for name, values in found.items()}


@pytest.mark.parametrize(("factor", "offset_w"), LEARNED)
@pytest.mark.parametrize("share", [1.0, 0.7])
def test_mean_power_keeps_every_limit_and_time_falls_as_it_rises(factor: float, offset_w: float, share: float) -> None:
    found = results(model(factor, offset_w).cost_model(under_limits(layouts(), LIMITS_W)), share)
    limits: Floats = np.array(LIMITS_W)[:, None]
    assert (found["avg_power_w"] <= limits * (1 + 1e-9)).all()
    assert (found["peak_power_w"] <= limits * (1 + 1e-6)).all()
    assert (np.diff(found["iteration_time_s"], axis=0) >= -1e-12).all()


@pytest.mark.parametrize(("factor", "slower"), [(1.2, True), (0.8, False)])
def test_gpus_that_draw_more_are_slower_under_a_limit_and_such_that_draw_less_are_faster(factor, slower) -> None:
    limited = under_limits(layouts(), (200.0,))
    index, clocks = np.arange(len(limited["pp"])), uniform_stage_clocks(limited["pp"], 1410.0)
    usual, own = (
        model(f).cost_model(limited).iteration_time_s(index, clocks) / model(f).cost_model(layouts()).iteration_time_s(
            index, clocks)
        for f in (1.0, factor)
    )  # fmt: skip
    assert ((own > usual * 1.02) if slower else (own < usual * 0.98)).mean() > 0.5
    assert (own >= usual * (1 - 1e-9)).all() if slower else (own <= usual * (1 + 1e-9)).all()


def test_what_gpus_draw_meets_a_limit_that_it_would_exceed_while_kernels_run_or_in_the_mean() -> None:
    found = results(model(1.2).cost_model(under_limits(layouts(), LIMITS_W)))
    over = found["avg_power_w"][0] > np.array(LIMITS_W)[:, None]  # without a limit
    used = np.maximum(found["peak_power_w"], found["avg_power_w"]) / np.array(LIMITS_W)[:, None]
    assert over[2:5].any()
    assert (used[:5][over[:5]] > 0.94).all()  # a board cooler than the constants leaks less


def test_plans_under_the_limit_of_the_runs_are_as_without_one_to_the_last_digit() -> None:
    own = model(1.1)
    alone, at_it = (own.cost_model(part) for part in (layouts(), under_limits(layouts(), (400.0,))))
    index, clocks = np.arange(len(layouts()["pp"])), uniform_stage_clocks(layouts()["pp"], 1410.0)
    found, expected = (physics.evaluate(index, clocks) for physics in (at_it, alone))
    np.testing.assert_array_equal(found["iteration_time_s"], expected["iteration_time_s"])
    assert (found["avg_power_w"] <= 400.0 * (1 + 1e-9)).all()


def test_limits_hold_as_in_the_physics_where_nothing_was_learned_of_power() -> None:
    limited = under_limits(layouts(), LIMITS_W)
    index, clocks = np.arange(len(limited["pp"])), uniform_stage_clocks(limited["pp"], 1410.0)
    bare, own = CostModel(job(), limited), model(known=False).cost_model(limited)
    np.testing.assert_array_equal(
        own.evaluate(index, clocks)["avg_power_w"], bare.evaluate(index, clocks)["avg_power_w"]
    )
    np.testing.assert_array_equal(own.heat(index, clocks)["peak_power_w"], bare.heat(index, clocks)["peak_power_w"])


def test_a_cluster_s_limit_holds_as_that_of_its_plans() -> None:
    whole, plan = model(1.2, 0.0, at_limit(job(), 250.0)), model(1.2)
    own, stated = explain(whole, f"{PLAN} clock_mhz=1410"), explain(plan, f"{PLAN} clock_mhz=1410 power_limit_w=250")
    assert own.iteration_time_s == pytest.approx(stated.iteration_time_s, rel=1e-9)
    assert own.avg_power_w == pytest.approx(stated.avg_power_w, rel=1e-9)
    assert stated.stages[0].held_by == "power_limit"
    assert stated.iteration_time_s > explain(plan, f"{PLAN} clock_mhz=1410").iteration_time_s


def test_kernels_that_the_limit_holds_draw_it_however_far_off_the_mean_is() -> None:
    physics = CostModel(at_limit(job(), 200.0), layouts())
    found = board_power_of(physics, PowerScale(1.5, None, 0.0), 200.0)
    held = found.burst_w[-1] > 200.0 / 1.5
    assert held.all()
    np.testing.assert_allclose(found.line[0] * found.burst_w[-1] + found.line[1], 200.0)
    assert (found.mean_w <= 200.0 * (1 + 1e-9)).all()


@pytest.mark.parametrize(("factor", "offset_w"), LEARNED)
def test_the_exact_search_keeps_its_promise_under_learned_limits(factor: float, offset_w: float) -> None:
    limited = under_limits({name: values[::4] for name, values in layouts().items()}, (400.0, 250.0))
    physics = model(factor, offset_w).cost_model(limited)
    grid = np.asarray(job().search.clock_mhz)[::6]
    problem = search_problem(job(), physics, grid, np.ones(len(limited["pp"])))
    found, every = exact_front_of_profiles(problem).front, everything(problem)
    for one, two in ((found, every), (every, found)):
        assert is_covered(*objectives(one), *(values * (1 + 1e-9) for values in objectives(two))).all()


def test_rows_of_a_table_under_a_limit_are_predicted_as_the_plan_is(tmp_path) -> None:
    from tests.surrogate.test_job_model import measured_runs

    watts = np.array([explain(job(), p, surrogate="none").avg_power_w for p in ("dp=8", "dp=4 tp=2")])
    runs = measured_runs(job(), 1.0).head(2).assign(avg_power_w=1.2 * watts)
    queried = runs.head(1).assign(power_limit_w=250.0)
    found = predict(queried, "default", pd.concat([runs] * 3, ignore_index=True))
    bare = predict(runs.head(1), "default", pd.concat([runs] * 3, ignore_index=True))
    assert found.predicted_avg_power_w[0] <= 250.0 * (1 + 1e-9)
    assert found.predicted_iteration_time_s[0] >= bare.predicted_iteration_time_s[0]
