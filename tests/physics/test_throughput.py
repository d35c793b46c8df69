"""Throughput against published figures: each published step time or token rate gives the published flops and MFU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.schema import RECOMPUTE_CODES
from jointopt.jobs.catalog.models import known_model
from jointopt.jobs.job import Job, Training
from jointopt.jobs.jobfile import job_from_options
from jointopt.jobs.shape import inline_model
from jointopt.physics.throughput import THROUGHPUT, model_flops_per_token, peak_tflops, throughput, with_rates
from tests.each import each

# GPUs, sequences of 2,048 tokens, recompute, seconds of an iteration; then TFLOP/s per GPU with what is recomputed
HARDWARE = {  # all on A100: arXiv:2104.04473 table 2, arXiv:2201.11990 section 3.4, arXiv:2211.05100 section 3.2.4
    ("gpt3-175b", 384, 1536, "full", 76.1): 153.0,
    ("gpt3-175b", 768, 1536, "full", 39.0): 149.0,
    ("mt-nlg-530b", 2240, 1920, "full", 60.1): 126.0,
    ("mt-nlg-530b", 2800, 1920, "full", 50.2): 121.0,
    ("mt-nlg-530b", 3360, 1920, "full", 44.4): 113.0,
    ("bloom-176b", 384, 2048, "full", 105.0): 150.0,
}
# arXiv:2205.05198 table 5, selective recompute of attention's scores: MFU and HFU in percent
SELECTIVE = {
    ("gpt3-175b", 64, 64, "selective", 13.75): (51.4, 52.8),
    ("mt-nlg-530b", 280, 280, "selective", 37.83): (56.0, 57.0),
}
# Megatron-Bridge's performance summary of release 26.04: tokens/s per GPU, and TFLOP/s per GPU of causal scores
PER_GPU = {
    ("llama-3-405b", 8192, 1440): 3653, ("llama-3-405b", 8192, 328): 827, ("llama-3-405b", 8192, 1184): 2960,
    ("llama-3-405b", 8192, 1024): 2617, ("llama-3-405b", 8192, 864): 2144, ("llama-3-405b", 8192, 800): 1994,
    ("llama-3-405b", 8192, 960): 2453, ("qwen3-30b-a3b", 4096, 31744): 729, ("qwen3-30b-a3b", 4096, 8960): 206,
    ("qwen3-30b-a3b", 4096, 27136): 619, ("qwen3-30b-a3b", 4096, 26112): 599, ("qwen3-30b-a3b", 4096, 30720): 704,
}  # fmt: skip


# its GPT-OSS 120B, 4,096 tokens, every other layer with a window of 128: tokens/s per GPU, and TFLOP/s of causal scores
GPT_OSS = {20800: 679, 17728: 579, 5824: 191}


def job_of(model: str, gpus: int = 8, sequences: int = 64, **more: Any) -> Job:
    options = {"model": model, "gpu": "a100-sxm4-80gb", "gpus": gpus, "global_batch_size": sequences,
               "seq_length": 2048, "dtype": "bf16"}  # fmt: skip
    return job_from_options(**options | more)


def rates_of(job: Job, recompute: str, time_s: float, **columns: int) -> dict[str, float]:
    plan = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "recompute": RECOMPUTE_CODES[recompute]} | columns
    plan = {"dp": job.cluster.num_gpus // (plan["tp"] * plan["pp"] * plan["cp"])} | plan
    layouts = {name: np.array([value]) for name, value in plan.items()}
    return {name: float(value[0]) for name, value in throughput(job, layouts, [time_s], [1e6]).items()}


@pytest.mark.parametrize(("run", "published"), HARDWARE.items(), ids=str)
def test_published_flops_with_recompute_follow_from_the_step_time(run: Any, published: float) -> None:
    model, gpus, sequences, recompute, time_s = run
    found = rates_of(job_of(model, gpus, sequences), recompute, time_s)
    assert 312.0 * found["hfu"] == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(("run", "published"), SELECTIVE.items(), ids=str)
def test_published_mfu_and_hfu_follow_from_the_step_time(run: Any, published: tuple[float, float]) -> None:
    model, gpus, sequences, recompute, time_s = run
    found = rates_of(job_of(model, gpus, sequences), recompute, time_s)
    assert (100.0 * found["mfu"], 100.0 * found["hfu"]) == pytest.approx(published, rel=0.02)


@each(("run", "published"), PER_GPU.items())
def test_published_causal_flops_follow_from_the_token_rate(run: Any, published: float) -> None:
    model, seq_length, tokens_per_s = run
    shape = known_model(model)
    assert shape is not None
    flops = model_flops_per_token(shape, seq_length, causal=True)
    assert flops * tokens_per_s / 1e12 == pytest.approx(published, rel=0.02)


# Tokens/s and model TFLOP/s of a GPU of NVIDIA's LoRA runs: performance_summary.md of NVIDIA/NeMo, 24.07, questions of
# SQuAD packed to 4,096 tokens, which attend to themselves alone: 256 tokens stand for them.
LORA = {"llama-2-7b": (24824, 663), "llama-2-13b": (14629, 757), "llama-2-70b": (2621, 722)}


@pytest.mark.parametrize("model", LORA)
def test_published_flops_of_lora_count_four_for_a_frozen_weight(model: str) -> None:
    shape, (tokens_per_s, published) = known_model(model), LORA[model]
    assert shape is not None
    training = Training(256, 32, lora_dim=32, lora_target_modules=("linear_qkv",))
    flops = model_flops_per_token(shape, 256, causal=True, training=training)
    assert flops * tokens_per_s / 1e12 == pytest.approx(published, rel=0.02)


def test_weights_of_adapters_count_six() -> None:
    shape = known_model("llama-3-8b")
    assert shape is not None
    none, some = (Training(16, 1, lora_dim=dim, lora_target_modules=("linear_proj",)) for dim in (1, 3))
    more = model_flops_per_token(shape, 16, training=some) - model_flops_per_token(shape, 16, training=none)
    assert more == 6 * 32 * 2 * (4096 + 4096)


@pytest.mark.parametrize(("tokens_per_s", "published"), GPT_OSS.items())
def test_published_flops_of_layers_with_windows_follow_from_the_token_rate(tokens_per_s: int, published: int) -> None:
    sizes = {"num_layers": 36, "hidden_size": 2880, "ffn_hidden_size": 2880, "num_attention_heads": 64, "head_dim": 64,
             "num_query_groups": 8, "vocab_size": 201088, "gated_mlp": True, "num_experts": 128,
             "moe_router_topk": 4}  # fmt: skip
    full = inline_model(sizes, "gpt-oss-120b")
    window = replace(full, window_size=128, window_attn_skip_freq=2)
    flops, of_all = (model_flops_per_token(model, 4096, causal=True) / 1e12 for model in (window, full))
    assert flops * tokens_per_s == pytest.approx(published, rel=0.004)
    assert of_all / flops > 1.05


def test_scores_that_recomputation_repeats_are_those_of_the_windows() -> None:
    job = job_of("gpt3-175b")
    half = replace(job, model=replace(job.model, window_size=1024, window_attn_skip_freq=2))
    full, window = (rates_of(one, "selective", 10.0) for one in (job, half))
    base = [model_flops_per_token(one.model, 2048) for one in (job, half)]
    more = [b * (rates["hfu"] / rates["mfu"] - 1) for b, rates in zip(base, (full, window), strict=True)]
    assert more[1] == pytest.approx(more[0] * (48 + 48 * 0.75) / 96)


def test_flops_of_a_small_model_are_those_counted_by_hand() -> None:
    shape = known_model("llama-3-8b")
    assert shape is not None
    small = replace(shape, num_layers=1, hidden_size=4, ffn_hidden_size=8, num_attention_heads=2, num_query_groups=1,
                    head_dim=2, vocab_size=10)  # fmt: skip
    attention, mlp, head = 4 * (4 + 2 * 2) + 4 * 4, 3 * 4 * 8, 4 * 10
    scores = 3 * (2 * 16 * 4 + 2 * 16 * 4)  # of 16 tokens: products with the keys and the values, three passes
    assert model_flops_per_token(small, 16) == 6 * (attention + mlp + head) + scores


def test_a_layer_that_predicts_a_further_token_counts_with_its_head_and_what_joins_two_hidden_states() -> None:
    shape = known_model("deepseek-v3")
    assert shape is not None
    one, two = (model_flops_per_token(replace(shape, mtp_num_layers=count), 4096) for count in (1, 2))
    # eight experts, a shared one and a router
    routed = shape.attention_parameters + (8 + 1) * 3 * 7168 * 2048 + 256 * 7168
    scores = 3 * 2 * 4096 * 128 * (192 + 128)
    assert two - one == 6 * (routed + 7168 * shape.vocab_size + 2 * 7168**2) + scores


def test_recomputed_parts_add_a_forward_pass_each() -> None:
    job = job_of("gpt3-175b")
    shape, base = job.model, model_flops_per_token(job.model, 2048)
    rates = {kind: rates_of(job, kind, 10.0) for kind in ("none", "selective", "full")}
    more = {kind: rates[kind]["hfu"] / rates[kind]["mfu"] * base - base for kind in rates}
    scores = 96 * 4 * 2048 * 12288
    assert more["none"] == 0.0
    assert more["selective"] == pytest.approx(scores)
    assert more["full"] == pytest.approx(scores + 2 * 96 * (shape.attention_parameters + shape.dense_mlp_parameters))
    half = rates_of(job, "full", 10.0, pp=4, recompute_num_layers=12)  # 12 of the 24 layers of each stage
    assert half["hfu"] / half["mfu"] * base - base == pytest.approx(more["full"] / 2)


@given(st.floats(0.01, 1e3), st.floats(1.0, 1e9), st.sampled_from(["bf16", "fp32"]))
def test_rates_agree_with_each_other(time_s: float, energy_j: float, dtype: str) -> None:
    job = job_of("llama-3-8b", dtype=dtype)
    one = {name: np.ones(1, np.int64) for name in ("tp", "pp", "cp", "ep", "vpp")} | {"recompute": np.zeros(1)}
    one |= {"dp": np.array([8])}
    found = {name: float(rate[0]) for name, rate in throughput(job, one, [time_s], [energy_j]).items()}
    assert found["tokens_per_s"] * time_s == pytest.approx(64 * 2048)
    assert found["tokens_per_s_per_gpu"] * 8 == pytest.approx(found["tokens_per_s"])
    assert found["mfu"] * peak_tflops(job) == pytest.approx(found["model_tflops_per_gpu"])
    assert found["tokens_per_j"] * energy_j == pytest.approx(64 * 2048)
    assert found["kwh_per_billion_tokens"] * 3.6e6 * found["tokens_per_j"] == pytest.approx(1e9)


def test_plans_keep_their_columns_and_gain_rates() -> None:
    job = job_of("llama-3-8b")
    plans = {name: np.ones(2, np.int64) for name in ("dp", "tp", "pp", "cp", "ep", "vpp")} | {"recompute": np.zeros(2)}
    plans |= {"iteration_time_s": np.array([1.0, 2.0]), "energy_j": np.array([2e3, np.nan]), "avg_power_w": np.ones(2)}
    found = with_rates(job, plans)
    assert set(THROUGHPUT) | set(plans) <= set(found)
    assert found["mfu"][0] == pytest.approx(2.0 * found["mfu"][1])
    assert np.isnan(found["tokens_per_j"][1])
