"""Passes with clocks of their own, against the physics of one clock per stage."""

from __future__ import annotations

import numpy as np
import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.instructions import beyond_schedule_s, instruction_costs

PLANS = (
    ("opt-350m-8x4-gh200", "dp=8 pp=4 mbs=4"),
    ("mixtral-8x22b-8x8-h100", "dp=2 pp=8 cp=4 ep=8 mbs=1"),
    ("gpt3-175b-128x8-a100", "tp=8 pp=8 vpp=2 mbs=1"),
)


@pytest.mark.parametrize("factor", [1.0, 1.3])
@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_energy_of_passes_explains_how_energy_follows_the_clock(name: str, plan: str, factor: float) -> None:
    job = shipped_job(name)
    parsed = parse_plan(plan, job)
    plain, pp = CostModel(job, parsed.layouts), int(parsed.layouts["pp"][0])
    physics = plain.corrected(np.array([factor]), 1.0, factor**-2, 40.0 * (factor - 1.0))
    clocks = np.array([0.6, 0.8, 1.0]) * physics.top_mhz
    whole = physics.evaluate(np.zeros(3, np.int64), np.repeat(clocks[:, None], pp, axis=1))
    costs = instruction_costs(physics, 0, clocks, factor)
    batches = physics.groups[0].num_micro_batches[0]
    passes_j = (batches * (costs.forward_j + costs.backward_j) + costs.step_j).sum(axis=0)
    rest_j = whole["energy_j"] - passes_j - physics.energy_slope_w * whole["iteration_time_s"]
    assert rest_j == pytest.approx(rest_j[0], abs=1e-9 * whole["energy_j"].max())


@pytest.mark.parametrize(("name", "plan"), PLANS)
def test_schedule_and_what_comes_beyond_it_are_the_iteration_of_one_clock_per_stage(name: str, plan: str) -> None:
    job = shipped_job(name)
    parsed = parse_plan(plan, job)
    physics = CostModel(job, parsed.layouts)
    times = physics.times(0, np.array([0]), parsed.stage_clock_mhz)
    for slower in (1.0, 1.3):
        beyond = beyond_schedule_s(physics, 0, slower)
        beyond_s = beyond(slower * times.forward_s[0], slower * times.backward_s[0])
        assert slower * times.makespan_s[0] + beyond_s == pytest.approx(slower * times.total_s[0], rel=1e-12)


def test_faster_clocks_never_make_a_pass_slower() -> None:
    job = shipped_job("opt-350m-8x4-gh200")
    physics = CostModel(job, parse_plan("dp=8 pp=4 mbs=4", job).layouts)
    costs = instruction_costs(physics, 0, np.asarray(job.search.clock_mhz), 1.0)
    for passes_s in (costs.forward_s, costs.backward_s):
        assert (np.diff(passes_s, axis=1) <= 0.0).all()
