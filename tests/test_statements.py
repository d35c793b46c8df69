"""What published measurements state, each as a test that reads as it.

1 to 6: EuroMLSys'26 (doi 10.1145/3805621.3807634). 9 and 10: CharLLM-PPT (MICRO'25). 11 and 12: Lu, Hu, Zhu, Energy and
Latency Tradeoff in Rack Scale Computing.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import Breakdown, breakdown

DENSE = "opt-350m-8x4-gh200"
MOE = "olmoe-1b-7b-8x4-gh200"
TWO_NODES = "opt-350m-2x4-a100"
LAYOUTS = ("dp=8 pp=4 tp=1", "dp=4 pp=8 tp=1", "dp=8 pp=2 tp=2", "dp=4 pp=4 tp=2", "dp=4 pp=2 tp=4", "dp=2 pp=4 tp=4")
DATA_PARALLEL = "dp=4 pp=1 tp=2 micro_batch_size=1"
PIPELINE = "dp=2 pp=2 tp=2 micro_batch_size=2"


@functools.cache
def sweep(job_name: str, plan: str, slack: float = 0.0) -> Columns:
    """Time and energy of one layout at every clock of its job, ascending; ``slack`` as in `CostModel.stage_clocks`."""
    job = shipped_job(job_name)
    physics = CostModel(job, parse_plan(plan, job).layouts)
    count = len(job.search.clock_mhz)
    layout, clock = np.zeros(count, np.int64), np.arange(count)
    stage_clocks = physics.stage_clocks(layout, clock, np.full(count, slack))
    return physics.evaluate(layout, stage_clocks) | {"clock_mhz": np.asarray(job.search.clock_mhz)}


def at_top(job_name: str, plan: str) -> dict[str, float]:
    return {name: float(values[-1]) for name, values in sweep(job_name, plan).items()}


def dense() -> dict[tuple[str, int], dict[str, float]]:
    return {(layout, mbs): at_top(DENSE, f"{layout} micro_batch_size={mbs}") for layout in LAYOUTS for mbs in (1, 2, 4)}


def rank_correlation(first: str, second: str) -> float:
    plans = list(dense().values())
    return float(kendalltau([plan[first] for plan in plans], [plan[second] for plan in plans])[0])


def test_1_at_one_clock_energy_closely_follows_iteration_time_across_layouts() -> None:
    assert rank_correlation("iteration_time_s", "energy_j") > 0.85


def test_1_power_varies_less_than_time_and_inversely() -> None:
    time, power = ([plan[name] for plan in dense().values()] for name in ("iteration_time_s", "avg_power_w"))
    assert max(power) / min(power) < max(time) / min(time)
    assert rank_correlation("iteration_time_s", "avg_power_w") < -0.85


def test_1_the_best_layout_draws_the_most_power_and_takes_the_least_time_and_energy() -> None:
    plans = dense()
    best = plans["dp=8 pp=4 tp=1", 4]
    assert best["avg_power_w"] == max(plan["avg_power_w"] for plan in plans.values())
    assert best["iteration_time_s"] == min(plan["iteration_time_s"] for plan in plans.values())
    assert best["energy_j"] == min(plan["energy_j"] for plan in plans.values())


@pytest.mark.parametrize("mbs", [1, 2, 4])
@pytest.mark.parametrize(
    ("less", "more"),
    [
        ("dp=8 pp=4 tp=1", "dp=4 pp=4 tp=2"),
        ("dp=4 pp=4 tp=2", "dp=2 pp=4 tp=4"),
        ("dp=8 pp=2 tp=2", "dp=4 pp=4 tp=2"),
        ("dp=8 pp=4 tp=1", "dp=4 pp=8 tp=1"),
    ],
)
def test_2_higher_tp_or_pp_takes_longer_and_more_energy(less: str, more: str, mbs: int) -> None:
    low, high = dense()[less, mbs], dense()[more, mbs]
    assert low["iteration_time_s"] < high["iteration_time_s"]
    assert low["energy_j"] < high["energy_j"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_2_larger_micro_batches_are_faster(layout: str) -> None:
    times = [dense()[layout, mbs]["iteration_time_s"] for mbs in (1, 2, 4)]
    assert times == sorted(times, reverse=True)


def test_3_energy_against_clock_is_a_valley() -> None:
    energy = sweep(TWO_NODES, DATA_PARALLEL)["energy_j"]
    bottom = int(energy.argmin())
    assert 0 < bottom < len(energy) - 1
    assert np.all(np.diff(energy[: bottom + 1]) < 0)
    assert np.all(np.diff(energy[bottom:]) > 0)


def test_3_power_falls_and_time_rises_as_the_clock_falls() -> None:
    plans = sweep(TWO_NODES, DATA_PARALLEL)
    assert np.all(np.diff(plans["avg_power_w"]) > 0)
    assert np.all(np.diff(plans["iteration_time_s"]) < 0)


def slowdown(plan: str, clock_mhz: float, slack: float) -> float:
    plans = sweep(TWO_NODES, plan, slack)
    at = int(np.flatnonzero(plans["clock_mhz"] == clock_mhz)[0])
    return float(plans["iteration_time_s"][at] / plans["iteration_time_s"][-1])


@pytest.mark.parametrize("clock_mhz", [1200.0, 990.0, 780.0])
@pytest.mark.parametrize("pipeline", [PIPELINE, "dp=1 pp=4 tp=2 micro_batch_size=4"])
def test_4_a_data_parallel_layout_loses_more_time_at_lower_clocks_than_a_pipeline_with_slack(
    pipeline: str, clock_mhz: float
) -> None:
    assert slowdown(DATA_PARALLEL, clock_mhz, 0.0) > slowdown(pipeline, clock_mhz, 1.0)


def test_5_at_the_maximum_clock_the_data_parallel_layout_is_the_fastest_and_the_pipeline_takes_as_much_energy() -> None:
    first, second = at_top(TWO_NODES, DATA_PARALLEL), at_top(TWO_NODES, PIPELINE)
    assert first["iteration_time_s"] < second["iteration_time_s"]
    assert first["energy_j"] == pytest.approx(second["energy_j"], rel=0.025)  # measured: less


def test_5_below_some_clock_the_slower_pipeline_uses_less_energy_than_the_fastest_layout_at_any_clock() -> None:
    first, second = sweep(TWO_NODES, DATA_PARALLEL), sweep(TWO_NODES, PIPELINE, 1.0)
    assert second["energy_j"].min() < first["energy_j"].min()
    assert second["iteration_time_s"].min() > first["iteration_time_s"].min()


def crossover() -> tuple[float, float]:
    """(time, clock of the slowest stage) from which the pipeline takes less energy than the data-parallel layout."""
    first, second = sweep(TWO_NODES, DATA_PARALLEL), sweep(TWO_NODES, PIPELINE, 1.0)
    for at in reversed(range(len(second["energy_j"]))):
        within = first["iteration_time_s"] <= second["iteration_time_s"][at]
        if within.any() and second["energy_j"][at] < first["energy_j"][within].min():
            return float(second["iteration_time_s"][at]), float(second["clock_mhz"][at])
    raise AssertionError("the pipeline never takes less energy")


def test_5_from_the_crossover_on_stages_with_slack_make_the_pipeline_the_leaner_one() -> None:
    time_s, clock_mhz = crossover()
    assert clock_mhz == 1410.0  # of the slowest stage
    assert time_s == pytest.approx(3.62, rel=0.02)  # the fastest plan takes 3.55 s


@pytest.mark.parametrize("other", ["dp=2 pp=2 tp=2", "dp=1 pp=4 tp=2 micro_batch_size=4"])
def test_5_the_front_is_made_of_these_two_layouts(other: str) -> None:
    pair = [sweep(TWO_NODES, DATA_PARALLEL), sweep(TWO_NODES, PIPELINE, 1.0)]
    time, energy = (np.concatenate([p[name] for p in pair]) for name in ("iteration_time_s", "energy_j"))
    for share in (0.0, 1.0):
        plans = sweep(TWO_NODES, other, share)
        beaten = (time[:, None] <= plans["iteration_time_s"]) & (energy[:, None] <= plans["energy_j"])
        assert beaten.any(axis=0).all()


@pytest.mark.parametrize("layout", ["dp=8 pp=4 tp=1", "dp=16 pp=2 tp=1", "dp=32 pp=1 tp=1"])
def test_6_more_expert_parallelism_takes_less_time_and_energy_at_about_the_same_power(layout: str) -> None:
    plans = [at_top(MOE, f"{layout} ep={ep} micro_batch_size=1") for ep in (1, 2, 4)]
    for fewer, more in itertools.pairwise(plans):
        assert more["avg_power_w"] > 0.99 * fewer["avg_power_w"]  # measured: slightly more
        assert more["iteration_time_s"] < fewer["iteration_time_s"]
        assert more["energy_j"] < fewer["energy_j"]


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


def test_9_where_gpus_throttle_a_larger_micro_batch_runs_at_a_lower_clock_and_loses_its_gain() -> None:
    cool, hot = in_air(22.5, 0.0), in_air(35.0, 35.0)
    small, large = "dp=4 pp=8 micro_batch_size=2", "dp=4 pp=8 micro_batch_size=4"
    gains = [1.0 - of(air, large)["iteration_time_s"] / of(air, small)["iteration_time_s"] for air in (cool, hot)]
    assert gains[0] > 0.07
    assert abs(gains[1]) < 0.2 * gains[0]
    slowed = [apart(hot, plan) for plan in (small, large)]
    assert [plan.held_by[-1] for plan in slowed] == ["temperature"] * 2  # the stage with the head, which all wait for
    assert slowed[1].clock_mhz[-1] < slowed[0].clock_mhz[-1] < 0.6 * slowed[0].clock_mhz[0]


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
