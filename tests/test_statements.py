"""What published measurements state, each as a test that reads as it.

9 and 10: CharLLM-PPT (MICRO'25). 11 and 12: Lu, Hu, Zhu, Energy and Latency Tradeoff in Rack Scale Computing. What the
model is free to answer otherwise is graded, and not demanded: tests/test_paper_statements.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import Breakdown, breakdown

DENSE = "opt-350m-8x4-gh200"


def of(job: Job, plan: str) -> dict[str, float]:
    """Predictions of one plan of ``job`` at its highest clock, peak power and temperature included."""
    parsed, only = parse_plan(plan, job), np.zeros(1, np.int64)
    physics = CostModel(job, parsed.layouts)
    found = physics.evaluate(only, parsed.stage_clock_mhz) | physics.heat(only, parsed.stage_clock_mhz)
    return {name: float(values[0]) for name, values in found.items()}


def apart(job: Job, plan: str) -> Breakdown:
    parsed = parse_plan(plan, job)
    return breakdown(CostModel(job, parsed.layouts), 0, parsed.stage_clock_mhz[0])


def in_air(inlet_c: float, rise_k: float) -> Job:
    job = shipped_job(DENSE)
    return replace(job, cluster=replace(job.cluster, inlet_temperature_c=inlet_c, exhaust_rise_k=rise_k))


def test_9_larger_micro_batches_raise_peak_power_and_temperature() -> None:
    plans = [of(in_air(22.5, 0.0), f"dp=4 pp=8 micro_batch_size={mbs}") for mbs in (1, 2, 4)]
    for name in ("peak_power_w", "temperature_c"):
        values = [plan[name] for plan in plans]
        assert values == sorted(values)


def test_10_recomputation_costs_time_and_energy_and_frees_memory() -> None:
    job = shipped_job("llama-3-70b-4x8-h200")
    stored, again = (of(job, f"tp=4 pp=4 dp=2 recompute={how}") for how in ("none", "full"))
    assert again["iteration_time_s"] > 1.2 * stored["iteration_time_s"]
    assert again["energy_j"] > 1.2 * stored["energy_j"]
    assert again["peak_memory_gib"] < 0.8 * stored["peak_memory_gib"]


@pytest.mark.parametrize(("overlap", "plan"), [("tp_overlap", "tp=8 dp=4"), ("dp_overlap", "tp=8 dp=4")])
def test_10_overlap_hides_communication_and_raises_power(overlap: str, plan: str) -> None:
    job = shipped_job("llama-3-70b-4x8-h200")

    def hiding(share: float) -> Job:
        framework = replace(job.training.framework, **{overlap: share})  # type: ignore[arg-type]
        return replace(job, training=replace(job.training, framework=framework))

    shown, hidden = of(hiding(0.0), plan), of(hiding(1.0), plan)
    assert hidden["iteration_time_s"] < shown["iteration_time_s"]
    assert hidden["avg_power_w"] > shown["avg_power_w"]


RACK = "llama-3-8b-1x8-h100"


def batch_of_four(gpus: int) -> Job:
    job = shipped_job(RACK)
    return replace(
        job, training=replace(job.training, global_batch_size=4), cluster=replace(job.cluster, gpus_per_node=gpus)
    )


def test_11_data_parallelism_stops_scaling_at_the_batch_and_tensor_parallelism_does_not() -> None:
    layouts = enumerate_layouts(batch_of_four(8)).layouts
    assert (layouts["dp"].max(), layouts["tp"].max()) == (4, 8)
    few, many = of(batch_of_four(4), "dp=4"), of(batch_of_four(8), "dp=4 tp=2")
    assert many["iteration_time_s"] < 0.8 * few["iteration_time_s"]


def test_11_tensor_parallelism_reads_activations_again_which_shows_in_joules() -> None:
    data, tensor = (apart(shipped_job(RACK), plan) for plan in ("dp=8", "tp=8"))
    assert tensor.memory_energy_j["tensor_parallel_rereads"] > 0.3 * tensor.memory_energy_j["activations"]
    assert data.memory_energy_j["tensor_parallel_rereads"] == 0.0
    assert tensor.memory_energy_j["weights"] == pytest.approx(data.memory_energy_j["weights"], rel=0.01)
    assert tensor.energy_j["memory"] > 1.3 * data.energy_j["memory"]


def test_11_the_forward_pass_of_data_parallelism_communicates_nothing() -> None:
    job = shipped_job(RACK)
    data, tensor = (CostModel(job, parse_plan(p, job).layouts).groups[0] for p in ("dp=8 zero_stage=0", "tp=8"))
    assert float(data.forward_comm_s.max()) == 0.0 < float(tensor.forward_comm_s.max())
    assert float(data.link_j.max()) == 0.0 < float(data.iteration_link_j.min())


def test_12_a_pipeline_moves_the_least_communication_energy_and_pays_bubbles() -> None:
    plans: dict[str, Any] = {plan: apart(shipped_job(RACK), plan) for plan in ("pp=8", "dp=8", "tp=8", "cp=8")}
    spent = {plan: parts.energy_j["communication"] for plan, parts in plans.items()}
    assert spent["pp=8"] < 0.1 * min(joules for plan, joules in spent.items() if plan != "pp=8")
    bubbles = {plan: parts.time_s["bubble"] for plan, parts in plans.items()}
    assert [plan for plan, seconds in bubbles.items() if seconds > 1e-9] == ["pp=8"]


def test_12_a_bit_between_racks_costs_fifteen_times_a_bit_over_nvlink() -> None:
    job = shipped_job("llama-3-70b-4x8-h200")
    rate = job.cluster.inter_node_pj_per_bit / job.cluster.intra_node_pj_per_bit
    assert rate == pytest.approx(15.0, rel=0.05)
    switched = replace(job, cluster=replace(job.cluster, nodes=1, gpus_per_node=32))  # one NVLink domain
    plan = "pp=2 tp=8 dp=2"
    across, inside = (sum(apart(j, plan).communication_energy_j["pp_comm"].values()) for j in (job, switched))
    assert across == pytest.approx(rate * inside)
