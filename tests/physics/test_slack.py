"""Stage clocks that spend slack, and the bounds that no clocks go below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.schema import Floats
from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.physics import bounds
from jointopt.physics.cost_model import CostModel
from tests.physics.hand.plain_machine import COMPUTING, MOE, physics

GRID = np.arange(210.0, 1411.0, 15.0)


@pytest.fixture
def pipeline(
    make_job: Callable[..., Job], price: Callable[..., CostModel], gpt_model: Callable[..., Model]
) -> CostModel:
    """Eight stages of which the last has a heavy head."""
    return price(make_job(64, gpt_model(8, vocab=256000), global_batch_size=2048), pp=8, dp=8)


def clocks_of(physics: CostModel, clock: float | Floats, share: float | Floats) -> Floats:
    clock, share = np.broadcast_arrays(np.atleast_1d(clock), np.atleast_1d(share))
    rows = np.zeros(len(clock), np.int64)
    return bounds.stage_clocks_mhz(
        physics.groups[0],
        physics.ceilings[0],
        rows,
        clock.astype(float),
        share.astype(float),
        GRID,
        physics.top_mhz,
        physics.job.training.framework.dp_overlap,
    )


def test_the_slowest_stage_keeps_its_clock_and_the_others_slow_down(pipeline: CostModel) -> None:
    clocks = clocks_of(pipeline, 1200.0, 1.0)[0]
    assert clocks[-1] == 1200.0
    assert (clocks[:-1] < 1200.0).all()


def test_more_slack_never_raises_a_clock(pipeline: CostModel) -> None:
    clocks = clocks_of(pipeline, 1410.0, np.linspace(0, 1, 11))
    assert (np.diff(clocks, axis=0) <= 0).all()
    assert (clocks[0] == 1410.0).all()


def test_many_plans_at_once_equal_each_alone(pipeline: CostModel) -> None:
    clock, share = np.array([600.0, 900.0, 1410.0]), np.array([0.2, 0.7, 1.0])
    alone = [clocks_of(pipeline, c, s)[0].tolist() for c, s in zip(clock, share, strict=True)]
    assert clocks_of(pipeline, clock, share).tolist() == alone


def test_clocks_come_from_the_grid(pipeline: CostModel) -> None:
    assert np.isin(clocks_of(pipeline, GRID, np.linspace(0, 1, len(GRID))), GRID).all()


def test_one_stage_has_no_slack(make_job: Callable[..., Job], price: Callable[..., CostModel]) -> None:
    assert clocks_of(price(make_job(), dp=8), 1200.0, 1.0).tolist() == [[1200.0]]


def test_spending_slack_saves_energy_where_many_micro_batches_hide_fill_and_drain(pipeline: CostModel) -> None:
    # Perseus (arXiv:2312.06902) saves 12-14 % without slowdown on real pipelines; here the head leaves more slack
    rows = np.zeros(1, np.int64)
    even, spent = (pipeline.evaluate(rows, clocks_of(pipeline, 1410.0, share)) for share in (0.0, 1.0))
    assert float(spent["energy_j"][0]) < 0.95 * float(even["energy_j"][0])


def test_the_floor_is_below_the_energy_at_every_clock_and_above_static_power(pipeline: CostModel) -> None:
    time, floor = (float(x[0]) for x in pipeline.lower_bound(np.zeros(1, np.int64)))
    assert floor > 64 * 0.5 * pipeline.power.static_w * time
    for clock in GRID:
        found = pipeline.evaluate(np.zeros(1, np.int64), np.full((1, 8), clock))
        assert float(found["energy_j"][0]) > floor


@pytest.mark.parametrize("plan", [{}, {"dp": 2}, {"model": MOE}], ids=["one GPU", "two GPUs", "experts"])
def test_the_floor_is_static_power_at_the_top_clock_and_the_work_of_the_lowest_voltage(plan: dict[str, Any]) -> None:
    cold = physics(**plan)
    power = PowerConstants(60.0, 60.0, 80.0, 0.7, 30.0, knee_fraction=0.5, voltage_ratio=1.4)
    cluster = replace(cold.job.cluster, gpu=replace(cold.job.cluster.gpu, power=power))
    model, row = CostModel(replace(cold.job, cluster=cluster), cold.layouts, COMPUTING), np.array([0])
    (time_s, floor_j), slow = model.lower_bound(row), model.evaluate(row, np.array([[500.0]]))
    static_w = plan.get("dp", 1) * (60.0 + model.cooler.mean_leakage_w)
    assert floor_j - static_w * time_s == pytest.approx(slow["energy_j"] - static_w * slow["iteration_time_s"])


def test_the_slope_is_the_waiting_power_of_all_gpus(pipeline: CostModel) -> None:
    slope = bounds.energy_slope_w(pipeline.power, pipeline.cooler, 64)
    assert slope == pytest.approx(64 * (pipeline.power.wait_w + pipeline.cooler.mean_leakage_w))
