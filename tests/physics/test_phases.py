"""Power by phase: what GPUs draw in kernels bound by compute or memory, in collectives, and while they wait."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import PHASES, Phase, breakdown, phases

JOB = shipped_job("llama-3-70b-4x8-h200")
PLANS = (
    "dp=4 tp=4 pp=2 vpp=6 clock=1650,1620", "dp=4 tp=8", "dp=32 zero_stage=3 rc=full", "dp=2 pp=8 cp=2 clock=1200",
)  # fmt: skip


def found(plan: str, time_factor: float = 1.0) -> tuple[CostModel, np.ndarray, dict[str, Phase]]:
    parsed = parse_plan(plan, JOB)
    physics = CostModel(JOB, parsed.layouts).corrected(np.array([time_factor]))
    return physics, parsed.stage_clock_mhz[0], phases(physics, 0, parsed.stage_clock_mhz[0])


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_phases_add_up_to_the_time_and_the_energy_of_a_gpu(plan: str, factor: float) -> None:
    physics, clocks, by_phase = found(plan, factor)
    parts = breakdown(physics, 0, clocks)
    assert tuple(by_phase) == PHASES
    assert sum(one.time_s for one in by_phase.values()) == pytest.approx(parts.busy_s + parts.idle_s)
    joules = sum(np.nan_to_num(one.power_w) * one.time_s for one in by_phase.values())
    assert joules == pytest.approx(parts.stage_energy_j / parts.gpus_per_stage)


def test_kernels_bound_by_compute_draw_most_and_waiting_least() -> None:
    _, _, by_phase = found("dp=4 tp=4 pp=2 vpp=6")
    compute, memory, moving, waiting = (by_phase[name].power_w for name in PHASES)
    assert (compute > memory).all()
    assert (memory > moving).all()
    assert (moving >= waiting).all()


def test_a_lower_clock_lengthens_the_compute_bound_phase_alone() -> None:
    fast, slow = (found(f"dp=4 tp=4 pp=2 vpp=6 clock={mhz}")[2] for mhz in (1500, 750))
    assert slow["compute_bound"].time_s == pytest.approx(2.0 * fast["compute_bound"].time_s)
    assert slow["memory_bound"].time_s == pytest.approx(fast["memory_bound"].time_s)
    assert (slow["compute_bound"].power_w < 0.6 * fast["compute_bound"].power_w).all()


def test_one_gpu_that_sends_nothing_has_no_power_of_communication() -> None:
    job = replace(JOB, cluster=replace(JOB.cluster, nodes=1, gpus_per_node=1))
    parsed = parse_plan("dp=1", job)
    alone = phases(CostModel(job, parsed.layouts), 0, parsed.stage_clock_mhz[0])
    assert alone["communication"].time_s.tolist() == [0.0]
    assert np.isnan(alone["communication"].power_w).all()
