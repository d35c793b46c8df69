"""Power of nodes of 8 H100 in immersion: MLPerf Training v4.0, Llama 2 70B with LoRA, by Sustainable Metal Cloud.

Layouts and seconds of a step are those of its logs (mlcommons/training_results_v4.0, smc/results).
"""

from __future__ import annotations

import pandas as pd
import pytest

from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.physics.site import cluster_power_kw
from jointopt.surrogate.dataset import price

RUNS = {1: (1, 8, 3.873, 6953.0), 8: (2, 8, 0.686, 5708.0), 64: (2, 64, 0.821, 4985.0)}  # cp, batch, s a step, W a node


def node_power_w(nodes: int, step_s: float | None = None) -> float:
    """Watts of a node as predicted, or with GPUs that wait for what the measured step takes longer."""
    cp, batch, *_ = RUNS[nodes]
    run = {
        "model": "llama-2-70b", "gpu": "h100-sxm5-80gb", "gpus_per_node": 8, "num_gpus": 8 * nodes, "tp": 4, "cp": cp,
        "pp": 1, "global_batch_size": batch, "micro_batch_size": 1, "seq_length": 8192, "dtype": "fp8",
        "framework": "nemo", "sequence_parallel": True, "zero_stage": 0, "lora_dim": 16,
        "lora_target_modules": "linear_qkv linear_proj",
    }  # fmt: skip
    found = price(pd.DataFrame([run])).physics
    time_s, energy_j = float(found["iteration_time_s"][0]), float(found["energy_j"][0]) / (8 * nodes)
    step_s = step_s or time_s
    watts = (energy_j + load_gpu("h100-sxm5-80gb").power.wait_w * (step_s - time_s)) / step_s
    site = build_cluster({"gpu": "h100-sxm5-80gb", "nodes": 1, "gpus_per_node": 8, "pue": 1.0, "cooling": "liquid"})
    return 1e3 * float(cluster_power_kw(site, watts))


@pytest.mark.parametrize(("nodes", "ratio"), [(1, 0.945), (8, 1.109), (64, 1.27)])
def test_node_power_is_off_by_what_the_page_states(nodes: int, ratio: float) -> None:
    assert node_power_w(nodes) / RUNS[nodes][3] == pytest.approx(ratio, abs=0.03)


@pytest.mark.parametrize("nodes", RUNS)
def test_node_power_at_the_measured_step_is_within_three_percent(nodes: int) -> None:
    *_, step_s, watts = RUNS[nodes]
    assert node_power_w(nodes, step_s) == pytest.approx(watts, rel=0.03)
