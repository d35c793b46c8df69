"""Pipelines that are made by the law itself."""

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import Floats
from jointopt.physics.calibrate.law_fit import Hierarchy, ResponsePrior
from jointopt.physics.calibrate.pipeline_fit import (
    RankRows,
    _follows,
    _prior,
    _RankLaw,
    fit_ranks,
    scattered_schedule_s,
)
from jointopt.physics.clock_law import CurveConstants, GpuConstants, log_power_w, log_time_s, switching_shape
from jointopt.physics.schedule import replay

SHAPE = GpuConstants(knee=0.75, rise=0.22, softness=0.02, floor=0.2, idle_w=50.0)
MICRO_BATCHES = 8
BLANKED = ("time_s", "iteration_s", "energy_j")
WAIT_W = 100.0  # at the maximum clock


def measured(clocks: Floats, limits_w: Floats | None = None) -> RankRows:
    """Two ranks under each plan's clocks (plans, 2) and limits (plans, 2)."""
    plan, rank = np.divmod(np.arange(clocks.size), 2)
    x = np.tile(clocks.reshape(-1), (2, 1))
    own = [CurveConstants(np.log(t * (1 + 0.1 * rank)), *map(np.array, (0.7, 62.0, 300.0, 1.0))) for t in (0.1, 0.2)]
    given_w = np.full(clocks.size, np.nan) if limits_w is None else limits_w.reshape(-1)
    limit = np.nan_to_num(given_w, nan=2000.0)
    time = np.exp([log_time_s(SHAPE, w, x[0], limit) for w in own])
    power = np.exp([log_power_w(SHAPE, w, x[0], limit) for w in own])
    per_plan = time.reshape(2, -1, 2)
    iteration = np.repeat(scattered_schedule_s(*per_plan, MICRO_BATCHES, np.zeros(clocks.shape)) + 0.05, 2)
    busy = MICRO_BATCHES * time
    wait_w = 62.0 + (WAIT_W - 62.0) * switching_shape(x[0], SHAPE.knee, SHAPE.rise)
    energy = wait_w * (iteration - busy.sum(axis=0)) + (busy * power).sum(axis=0)
    return RankRows(rank, plan, x, given_w, MICRO_BATCHES, time, iteration, energy)


def hidden(rows: RankRows, plan: int) -> RankRows:
    out = rows.plan == plan
    blank = [np.where(out, np.nan, values) for values in (rows.time_s, rows.iteration_s, rows.energy_j)]
    return RankRows(rows.rank, rows.plan, rows.x, rows.limit_w, MICRO_BATCHES, *blank)


PLANS = np.array([[1.0, 1.0], [0.6, 0.6], [0.8, 0.7], [0.9, 0.75], [0.85, 0.95]])


def test_a_plan_that_was_not_measured_is_predicted_from_four_that_were() -> None:
    rows = measured(PLANS)
    predicted = fit_ranks(hidden(rows, 4), ResponsePrior(limit_w=2000.0))
    out = rows.plan == 4
    assert predicted.iteration.value[out] == pytest.approx(rows.iteration_s[out], rel=0.01)
    assert predicted.energy.value[out] == pytest.approx(rows.energy_j[out], rel=0.015)
    assert (predicted.energy.low[out] < rows.energy_j[out]).all()
    assert (rows.energy_j[out] < predicted.energy.high[out]).all()


@pytest.mark.parametrize("seen", ["clocks", "limits"])
def test_plans_under_clocks_predict_those_under_limits_and_the_other_way_round(seen: str) -> None:
    clocks = np.vstack([PLANS, np.ones((3, 2))])
    limits = np.vstack([np.full_like(PLANS, np.nan), np.repeat([[320.0], [280.0], [240.0]], 2, axis=1)])
    rows = measured(clocks, limits)
    out = rows.limited if seen == "clocks" else ~rows.limited
    blank = [np.where(out, np.nan, values) for values in (rows.time_s, rows.iteration_s, rows.energy_j)]
    predicted = fit_ranks(replace(rows, **dict(zip(BLANKED, blank, strict=True))), ResponsePrior(limit_w=360.0))
    assert predicted.iteration.value[out] == pytest.approx(rows.iteration_s[out], rel=0.08)
    assert predicted.energy.value[out] == pytest.approx(rows.energy_j[out], rel=0.08)


def test_an_iteration_that_the_row_states_is_not_predicted_again() -> None:
    rows = measured(PLANS)
    predicted = fit_ranks(rows, ResponsePrior(limit_w=2000.0))
    assert predicted.iteration.value == pytest.approx(rows.iteration_s)
    assert np.exp(predicted.theta[predicted.hierarchy.size]) == pytest.approx(WAIT_W, rel=0.1)


def test_without_scatter_the_schedule_is_the_simulated_one() -> None:
    forward, backward = [0.1, 0.13, 0.12], [0.2, 0.22, 0.19]
    ends = replay(3, 1, 6, lambda rank, op: np.array([(backward if op.backward else forward)[rank]]))
    simulated = scattered_schedule_s(np.array([forward]), np.array([backward]), 6, np.zeros((1, 3)))
    assert simulated[0] == pytest.approx(max(ends.values())[0])


def test_scatter_makes_a_balanced_pipeline_slower() -> None:
    even = np.full((1, 4), 0.1)
    steady, scattered = (scattered_schedule_s(even, even, 32, np.full((1, 4), s)) for s in (0.0, 0.1))
    assert scattered[0] > 1.02 * steady[0]


def test_a_rank_changes_with_no_parameter_that_it_does_not_follow() -> None:
    rows = measured(PLANS)
    rows = replace(rows, limit_w=np.where(rows.plan < 3, np.nan, 250.0))
    hierarchy = Hierarchy(np.repeat([0, 1], 2), 2)
    mean = _prior(rows, hierarchy, ResponsePrior(limit_w=400.0)).mean
    law = _RankLaw(rows, hierarchy, rows.time_s, rows.iteration_s)
    changed = np.array([law(theta) != law(mean) for theta in mean + 0.1 * np.eye(mean.size)])
    followed = (_follows(rows, hierarchy)[:, None, :] == np.arange(mean.size)[:, None]).any(axis=0)
    assert changed.any(axis=1).sum() > hierarchy.size / 2
    assert not (changed & ~followed).any()
