"""Layers so short that launching their kernels may last longer: which plans are doubted for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.catalog.frameworks import load_framework
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.catalog.recorded_runs import recorded_runs
from jointopt.jobs.job import Job, Training
from jointopt.surrogate.intervals import DOUBTS, RESULTS, add_intervals, doubts, layer_peak_s

PLANS = {
    name: np.array(values) for name, values in {"pp": [1, 1, 1], "tp": [1, 4, 8], "micro_batch_size": [1, 1, 2]}.items()
} | {"stage_clock_mhz": np.full((3, 1), 1980.0)}


def job(framework: str = "nemo", gpu: str = "h100-sxm5-80gb", **training: Any) -> Job:
    cluster = build_cluster({"gpu": gpu, "nodes": 1, "gpus_per_node": 8})
    one = Training(4096, 64, framework=load_framework(framework))
    return Job("j", load_model("llama-3-8b"), replace(one, **training), cluster)


def test_a_layer_at_the_peak_takes_six_flops_a_weight_and_twelve_a_score() -> None:
    weights = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    seconds = 4096 * (6 * weights + 12 * 4096 * 4096) / 989.4e12  # 6.3 ms
    assert layer_peak_s(job(), PLANS) == pytest.approx([seconds, seconds / 4, seconds / 4], rel=1e-3)
    assert layer_peak_s(job(), PLANS | {"cp": np.full(3, 2)}) == pytest.approx(
        [seconds / 2, seconds / 8, seconds / 8], rel=1e-3
    )


def test_layers_under_two_milliseconds_at_the_peak_are_doubted() -> None:
    assert doubts(job(), PLANS)["host"].tolist() == [False, True, True]


@pytest.mark.parametrize(
    "known", [job("nanotron"), job("megatron-deepspeed"), job(cuda_graph="full_iteration"), job(gpu="cpu-core")]
)
def test_where_the_host_s_share_is_known_no_layer_is_too_short(known: Job) -> None:
    assert not doubts(known, PLANS)["host"].any()


def test_the_interval_of_short_layers_is_wider_and_says_why() -> None:
    plans = PLANS | {name: np.ones(3) for name in RESULTS}
    found = add_intervals(job(), plans)
    assert found["in_domain"].tolist() == [True, False, False]
    high, wider = np.log(found["iteration_time_s_high"]), recorded_runs().wider["dense"]
    assert high[1:] / high[0] == pytest.approx(wider[2] / wider[0])  # two steps from what is recorded
    assert high[1] > high[0]
    assert "shorter than recorded ones" in DOUBTS["host"]
