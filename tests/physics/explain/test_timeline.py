"""One iteration in time is the iteration that was priced."""

import numpy as np
import pytest

from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import breakdown
from jointopt.physics.explain.timeline import FORWARD, Timeline, stage_power_w, timeline

JOB = "llama-3-70b-4x8-h200"
PLANS = (
    "dp=4 pp=4 tp=2", "dp=4 pp=4 tp=2 vpp=5", "dp=4 pp=4 tp=2 vpp=2 stage_layers=9;10*6;11",
    "dp=4 pp=4 tp=2 vpp=1 schedule=zb-h1", "dp=4 pp=4 tp=2 vpp=2 schedule=zbv",
    "dp=2 pp=4 tp=4 vpp=2 schedule=dualpipev", "dp=4 tp=8", "dp=4 pp=4 tp=2 clock_mhz=1200",
)  # fmt: skip


def priced(plan: str) -> tuple[CostModel, np.ndarray]:
    job = shipped_job(JOB)
    parsed = parse_plan(plan, job)
    return CostModel(job, parsed.layouts).corrected(np.array([1.1])), parsed.stage_clock_mhz[0]


def passes(plan: str, **options: int) -> Timeline:
    return timeline(*(lambda physics, clocks: (physics, 0, clocks))(*priced(plan)), **options)


@pytest.mark.parametrize("plan", PLANS)
def test_the_last_pass_and_what_follows_it_end_with_the_predicted_time(plan: str) -> None:
    physics, clocks = priced(plan)
    found = timeline(physics, 0, clocks)
    assert found.end_s.max() == pytest.approx(found.pipeline_s)
    assert found.iteration_s == pytest.approx(
        physics.evaluate(np.zeros(1, np.int64), clocks[None])["iteration_time_s"][0]
    )


@pytest.mark.parametrize("plan", PLANS)
def test_a_rank_runs_one_pass_at_a_time_and_every_micro_batch_once_forward_on_each_chunk(plan: str) -> None:
    found = passes(plan)
    for rank in range(found.rank.max() + 1):
        own = found.rank == rank
        assert (found.start_s[own][1:] >= found.end_s[own][:-1] - 1e-9).all()
        forward = own & (found.kind == FORWARD)
        seen = np.stack([found.chunk[forward], found.micro_batch[forward]])
        assert len(np.unique(seen, axis=1).T) == forward.sum() == found.num_micro_batches * (found.chunk.max() + 1)


@pytest.mark.parametrize("plan", PLANS)
def test_running_and_waiting_add_up_to_the_energy_of_each_stage(plan: str) -> None:
    physics, clocks = priced(plan)
    parts = breakdown(physics, 0, clocks)
    runs_w, waits_w = stage_power_w(physics, 0, parts)
    joules = (runs_w * parts.busy_s + waits_w * parts.idle_s) * parts.gpus_per_stage
    np.testing.assert_allclose(joules, parts.stage_energy_j)
    assert (runs_w > waits_w).all()
    assert (waits_w > 0.0).all()


@pytest.mark.parametrize("plan", PLANS[:3])
def test_of_a_long_iteration_the_middle_is_left_out_and_the_ends_are_the_same(plan: str) -> None:
    whole, short = passes(plan), passes(plan, most_passes=64)
    assert len(short.rank) < len(whole.rank)
    assert short.iteration_s == pytest.approx(whole.iteration_s)
    begin, end = short.repeated_s
    assert 0.0 < begin < end < short.pipeline_s
    early = whole.start_s < begin / 2
    np.testing.assert_allclose(short.start_s[short.start_s < begin / 2], whole.start_s[early])
    assert short.end_s.max() == pytest.approx(whole.end_s.max())


def test_a_gpu_that_waits_draws_its_rest_and_what_waiting_takes_and_passes_draw_the_remainder() -> None:
    physics, clocks = priced("dp=4 pp=4 tp=2")
    parts = breakdown(physics, 0, clocks)
    runs_w, waits_w = stage_power_w(physics, 0, parts)
    total_s = parts.busy_s + parts.idle_s
    rest_j = parts.stage_energy_parts_j["static"] + parts.stage_energy_parts_j["leakage"]
    more_w = physics.power.wait_w - physics.power.static_w
    assert waits_w == pytest.approx(rest_j / parts.gpus_per_stage / total_s + more_w)
    of_gpu = parts.stage_energy_j / parts.gpus_per_stage
    assert runs_w * parts.busy_s + waits_w * parts.idle_s == pytest.approx(of_gpu)
