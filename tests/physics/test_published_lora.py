"""LoRA against NVIDIA's published runs: performance_summary.md of NVIDIA/NeMo, container 24.07, 8 H100, fp8, batch 32.

Adapters of rank 32 beside q, k, v, as its configs have them. Questions of SQuAD are packed to 4,096 tokens and attend
to themselves alone: 16 sequences of 256 tokens stand for a packed one. No constant is fitted to these runs.

Memory against torchtune's README (pytorch/torchtune, read 2026-11-28): Llama 3.1, 2 sequences of 2,048 tokens a GPU.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from jointopt.jobs.jobfile import parse_job
from jointopt.jobs.plans.space import enumerate_layouts
from jointopt.physics.memory import memory_parts
from jointopt.surrogate.dataset import price

PUBLISHED = {
    ("llama-2-7b", 1, 1): 24824,
    ("llama-2-13b", 1, 1): 14629,
    ("llama-2-70b", 2, 4): 2621,
}  # tokens/s of a GPU


def tokens_per_s(model: str, tp: int, pp: int, **cells: object) -> float:
    run = {
        "model": model, "tp": tp, "pp": pp, "num_gpus": 8, "global_batch_size": 512, "micro_batch_size": 16,
        "seq_length": 256, "dtype": "fp8", "framework": "nemo", "gpu": "h100-sxm5-80gb", "gpus_per_node": 8,
    }  # fmt: skip
    return 512 * 256 / 8 / float(price(pd.DataFrame([run | cells])).physics["iteration_time_s"][0])


@pytest.mark.parametrize("run", PUBLISHED, ids=lambda run: run[0])
def test_published_lora_runs_are_predicted_within_eight_percent(run: tuple[str, int, int]) -> None:
    found = tokens_per_s(*run, lora_dim=32, lora_target_modules="linear_qkv")
    assert found == pytest.approx(PUBLISHED[run], rel=0.08)


def test_training_all_weights_is_slower_as_published() -> None:
    # 16,891 tokens/s for 7B: 1.47 times as long as with adapters
    whole = tokens_per_s("llama-2-7b", 1, 1)
    adapters = tokens_per_s("llama-2-7b", 1, 1, lora_dim=32, lora_target_modules="linear_qkv")
    assert 1.15 < adapters / whole < 1.47


# GiB of the allocator, of one RTX 4090 and RTX A6000 (8B, with and without recomputation), and of 8 A100 (70B)
@pytest.mark.parametrize(
    ("model", "gpus", "recompute", "published"),
    [("llama-3-8b", 1, "full", 16.2), ("llama-3-8b", 1, "none", 30.3), ("llama-3-70b", 8, "full", 27.6)],
)
def test_published_memory_of_lora_under_fsdp_is_predicted_within_a_fifth(
    model: str, gpus: int, recompute: str, published: float
) -> None:
    training = {"seq_length": 2048, "global_batch_size": 2 * gpus, "framework": "fsdp", "lora_dim": 8}
    search = {"tp": [1], "pp": [1], "cp": [1], "micro_batch_size": [2], "recompute": [recompute]}
    cluster = {"gpu": "a100-sxm4-80gb", "nodes": 1, "gpus_per_node": gpus}
    job = parse_job({"model": model, "training": training, "cluster": cluster, "search": search}, "x", Path())
    parts = memory_parts(job, enumerate_layouts(job).layouts)
    found = sum(held.max(axis=1) for name, held in parts.items() if name != "other").min()
    assert found / 2**30 == pytest.approx(published, rel=0.2)


# MLPerf Training v5.1: Dell XE9685L (8 B200), NVIDIA Tyche (72 GB200), Cisco (64 H100); rank 16, sequences of 8,192
@pytest.mark.parametrize(
    ("gpu", "per_node", "gpus", "tp", "cp", "batch", "published_s", "within"),
    [
        ("b200-sxm-180gb", 8, 8, 1, 1, 8, 1.294, 0.15),
        ("gb200", 4, 72, 1, 8, 9, 0.199, 0.12),
        ("h100-sxm5-80gb", 8, 64, 4, 2, 8, 0.544, 0.03),
    ],
)
def test_mlperf_lora_runs_in_fp8_have_attention_in_fp8(
    gpu: str, per_node: int, gpus: int, tp: int, cp: int, batch: int, published_s: float, within: float
) -> None:
    run = {
        "model": "llama-2-70b", "framework": "nemo", "dtype": "fp8", "fp8_recipe": "delayed", "fp8_param_gather": True,
        "gpu": gpu, "gpus_per_node": per_node, "num_gpus": gpus, "tp": tp, "pp": 1, "cp": cp, "micro_batch_size": 1,
        "global_batch_size": batch, "seq_length": 8192, "lora_dim": 16, "zero_stage": 1, "recompute": "none",
        "lora_target_modules": "linear_qkv;linear_proj", "sequence_parallel": tp > 1,
    }  # fmt: skip
    found = float(price(pd.DataFrame([run])).physics["iteration_time_s"][0])
    assert found == pytest.approx(published_s, rel=within)
