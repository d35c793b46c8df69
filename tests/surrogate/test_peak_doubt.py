"""Times below what the GPU's peak allows: where they begin, and what a prediction says of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job, Training
from jointopt.surrogate.intervals import above_peak
from jointopt.workflows.predict import predict

JOB = Job("j", load_model("llama-2-7b"), Training(4096, 64), build_cluster({"gpu": "h100-sxm5-80gb", "nodes": 1}))
RUN = {
    "model": "llama-2-7b", "gpu": "h100-sxm5-80gb", "num_gpus": 8, "gpus_per_node": 8, "seq_length": 4096,
    "global_batch_size": 64, "tp": 1, "pp": 1, "micro_batch_size": 1, "zero_stage": 1, "framework": "megatron-lm",
    "dtype": "bf16",
}  # fmt: skip


def test_a_time_is_impossible_below_six_flops_a_weight_and_six_a_causal_score_at_the_peak() -> None:
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 4096 * 32000
    least_s = (6 * weights + 6 * 32 * 4096 * 4096) * 4096 * 64 / 8 / 989.4e12
    plans = {"pp": np.ones(2), "iteration_time_s": np.array([0.999, 1.001]) * least_s}
    assert above_peak(JOB, plans).tolist() == [True, False]
    assert not above_peak(JOB, {"pp": np.ones(2)}).any()  # without a time


def test_a_core_of_a_cpu_has_no_bound() -> None:
    cores = replace(JOB, cluster=build_cluster({"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 8}))
    assert not above_peak(cores, {"pp": np.ones(1), "iteration_time_s": np.array([1e-6])}).any()


@pytest.mark.parametrize(("time_s", "doubts"), [(1.7, "peak"), (3.7, "")])
def test_measured_runs_that_recompute_less_than_they_state_leave_other_plans_in_doubt(
    time_s: float, doubts: str
) -> None:
    sizes = [RUN | {"micro_batch_size": size, "recompute": "full", "iteration_time_s": time_s} for size in (1, 2, 4)]
    found = predict(pd.DataFrame([RUN | {"recompute": "none"}]), measured=pd.DataFrame(sizes))
    assert (found["doubts"][0], found["in_domain"][0]) == (doubts, not doubts)
