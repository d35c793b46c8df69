"""Power above a limit for milliseconds: the clock law without the limit, for as long as boards react late."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.timeline import (
    REACTION_S,
    Excursion,
    Timeline,
    _unlimited_burst_w,
    _unlimited_runs,
    excursion,
)

JOB = shipped_job("llama-3-70b-4x8-h200")


def found(plan: str = "tp=4 pp=4 dp=2", job: Job = JOB) -> tuple[Excursion, CostModel]:
    parsed = parse_plan(plan, job)
    physics = CostModel(job, parsed.layouts)
    return excursion(physics, 0, parsed.stage_clock_mhz[0]), physics


def of_passes(starts: list[float], ends: list[float], whole_s: float) -> Timeline:
    zero = np.zeros(len(starts), np.int64)
    tail = {"gradients": whole_s - ends[-1], "optimizer": 0.0, "other": 0.0}
    return Timeline(zero, zero, zero, zero, np.array(starts), np.array(ends), 1, ends[-1], tail, (ends[-1], ends[-1]))


def test_kernels_draw_by_hand_what_their_work_takes_at_the_clock_that_is_set() -> None:
    bursts, physics = found()
    k, costs = physics.power, physics.groups[0]
    kernels = costs.forward_sm_s + costs.forward_memory_s + costs.backward_sm_s + costs.backward_memory_s
    work_j = 1e-12 * (k.pj_per_flop * costs.flops + k.pj_per_hbm_byte * costs.hbm_bytes)
    by_hand = k.static_w + k.active_w + work_j[0] / kernels[0]
    leaks = bursts.peak_w - by_hand  # cooler than the reference's 60 °C, so less
    assert (np.abs(leaks) < 0.01 * k.static_w * 30.0).all()
    assert (bursts.peak_w > 1.1 * 700.0).all()


def test_a_limit_acts_25_ms_late_after_a_long_pause_and_at_once_after_none() -> None:
    long, share = _unlimited_runs(of_passes([0.0, 1.0], [1.0, 2.0], 4.0), 0)  # two seconds' pause, then none
    assert long == pytest.approx(REACTION_S)
    assert share == pytest.approx(REACTION_S / 4.0)


def test_after_a_pause_as_long_as_the_ramp_the_lead_is_63_percent_of_the_longest() -> None:
    longest, _ = _unlimited_runs(of_passes([0.0], [1.0], 1.025), 0)
    assert longest == pytest.approx(REACTION_S * (1.0 - np.exp(-1.0)))


def test_a_pass_shorter_than_the_lead_is_above_the_limit_for_all_of_it() -> None:
    longest, share = _unlimited_runs(of_passes([0.0], [0.01], 5.0), 0)
    assert longest == pytest.approx(0.01)
    assert share == pytest.approx(0.01 / 5.0)


def test_passes_that_repeat_and_are_not_listed_are_no_pause() -> None:
    line = replace(of_passes([0.0, 50.0], [1.0, 51.0], 51.0), repeated_s=(1.0, 50.0))
    assert _unlimited_runs(line, 0)[0] == 0.0


def test_nothing_is_above_a_limit_that_does_not_bind_and_lower_limits_are_exceeded_by_more() -> None:
    slow, physics = found("tp=4 pp=4 dp=2 clock=1200")
    assert (slow.lasts_s == 0.0).all()
    assert slow.peak_w == pytest.approx(_unlimited_burst_w(physics, 0, np.full(4, 1200.0)), rel=1e-9)
    assert (slow.peak_w < slow.limit_w).all()
    low, _ = found(job=replace(JOB, cluster=replace(JOB.cluster, power_limit_w=500.0)))
    assert (low.peak_w - low.limit_w > 250.0).all()
