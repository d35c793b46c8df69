"""Utilization of GPUs and links: shares of a plan's own time and of its own links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import Utilization, breakdown, utilization


def used(job: Job, plan: str) -> tuple[Utilization, CostModel]:
    parsed = parse_plan(plan, job)
    physics = CostModel(job, parsed.layouts)
    return utilization(physics, 0, parsed.stage_clock_mhz[0]), physics


def test_kernels_are_part_of_what_occupies_a_gpu_and_both_are_shares() -> None:
    found, _ = used(shipped_job("llama-3-70b-4x8-h200"), "tp=4 pp=4 dp=2")
    assert (found.kernels > 0.0).all()
    assert (found.kernels < found.running).all()
    assert (found.running <= 1.0).all()
    assert (found.occupied <= 1.0).all()


def test_nvml_counts_no_wait_for_the_host_s_launches() -> None:
    job, plan = shipped_job("opt-350m-8x4-gh200"), "dp=32 micro_batch_size=1"
    framework = replace(job.training.framework, host_floor_s=2 * job.training.framework.host_floor_s)
    slow, _ = used(replace(job, training=replace(job.training, framework=framework)), plan)
    found, _ = used(job, plan)
    assert slow.occupied == pytest.approx(found.occupied, rel=0.05)
    assert slow.running < 0.6 * found.running


def test_the_bytes_of_links_are_those_whose_joules_are_counted() -> None:
    job = shipped_job("llama-3-70b-4x8-h200")
    found, physics = used(job, "tp=4 pp=4 dp=2")
    cluster = job.cluster
    pj = {"intra_node": cluster.intra_node_pj_per_bit, "inter_node": cluster.inter_node_pj_per_bit}
    joules = sum(8e-12 * pj[link] * sent.sum() for link, sent in found.link_bytes.items())
    parts = breakdown(physics, 0, np.full(4, physics.top_mhz))
    assert joules * parts.gpus_per_stage == pytest.approx(parts.energy_j["communication"])


def test_plain_data_parallelism_within_a_node_leaves_the_network_idle() -> None:
    found, _ = used(shipped_job("llama-3-8b-1x8-h100"), "dp=8")
    assert (found.links["inter_node"] == 0.0).all()
    assert (found.links["intra_node"] > 0.0).all()


def test_a_pipeline_s_bubble_is_what_its_gpus_are_not_occupied() -> None:
    few, many = (used(shipped_job("llama-3-8b-1x8-h100"), f"pp=8 micro_batch_size={size}")[0] for size in (8, 1))
    assert few.occupied.mean() < many.occupied.mean() < 1.0
