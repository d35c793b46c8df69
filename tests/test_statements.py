"""Statements 1 to 6 of the EuroMLSys'26 measurements (doi 10.1145/3805621.3807634), each as a test that reads as it."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from scipy.stats import kendalltau

from jointopt.jobfile import shipped_job
from jointopt.plans.parse import parse_plan
from jointopt.schema import Columns
from jointopt.workflow import estimator

DENSE = "opt-350m-8x4-gh200"
MOE = "olmoe-1b-7b-8x4-gh200"
TWO_NODES = "opt-350m-2x4-a100"
LAYOUTS = (
    "dp=8 pp=4 tp=1",
    "dp=4 pp=8 tp=1",
    "dp=8 pp=2 tp=2",
    "dp=4 pp=4 tp=2",
    "dp=4 pp=2 tp=4",
    "dp=2 pp=4 tp=4",
)
DATA_PARALLEL = "dp=4 pp=1 tp=2 micro_batch_size=1"
PIPELINE = "dp=2 pp=2 tp=2 micro_batch_size=2"


@functools.cache
def sweep(job_name: str, plan: str, slack: float = 0.0) -> Columns:
    """Time and energy of one layout at every clock of its job, ascending; ``slack`` as in `Estimator.stage_clocks`."""
    job = shipped_job(job_name)
    physics = estimator(job, parse_plan(plan, job).layouts)
    count = len(job.search.clock_mhz)
    layout, clock = np.zeros(count, np.int64), np.arange(count)
    stage_clocks = physics.stage_clocks(layout, clock, np.full(count, slack))
    return physics.evaluate(layout, stage_clocks) | {"clock_mhz": np.asarray(job.search.clock_mhz)}


def at_top(job_name: str, plan: str) -> dict[str, float]:
    return {name: float(values[-1]) for name, values in sweep(job_name, plan).items()}


def dense() -> dict[tuple[str, int], dict[str, float]]:
    return {
        (layout, mbs): at_top(DENSE, f"{layout} micro_batch_size={mbs}")
        for layout in LAYOUTS
        for mbs in (1, 2, 4)
    }


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


def test_5_at_the_maximum_clock_the_data_parallel_layout_is_best_in_time_and_energy() -> None:
    first, second = at_top(TWO_NODES, DATA_PARALLEL), at_top(TWO_NODES, PIPELINE)
    assert first["iteration_time_s"] < second["iteration_time_s"]
    assert first["energy_j"] < second["energy_j"]


def test_5_below_some_clock_the_slower_pipeline_uses_less_energy_than_the_fastest_layout_at_any_clock() -> (
    None
):
    first, second = sweep(TWO_NODES, DATA_PARALLEL), sweep(TWO_NODES, PIPELINE, 1.0)
    assert second["energy_j"].min() < first["energy_j"].min()
    assert second["iteration_time_s"].min() > first["iteration_time_s"].min()


@pytest.mark.parametrize("layout", ["dp=8 pp=4 tp=1", "dp=16 pp=2 tp=1", "dp=32 pp=1 tp=1"])
def test_6_more_expert_parallelism_draws_more_power_for_less_time_and_energy(layout: str) -> None:
    plans = [at_top(MOE, f"{layout} ep={ep} micro_batch_size=1") for ep in (1, 2, 4)]
    for fewer, more in itertools.pairwise(plans):
        assert more["avg_power_w"] > fewer["avg_power_w"]
        assert more["iteration_time_s"] < fewer["iteration_time_s"]
        assert more["energy_j"] < fewer["energy_j"]
