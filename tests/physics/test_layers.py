"""Kernels of a layer: flops against Megatron's formula, times within the roofline, limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.schema import Floats
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.physics import layers as c
from jointopt.physics.cost_model import CostModel
from jointopt.physics.layers import moe_layer

TOKENS = np.array([2048.0, 4096.0, 16384.0])
TP = np.array([1.0, 2.0, 8.0])


def of(job: Job) -> c.Kernels:
    return c.kernels(job, kernel_constants(job.cluster.gpu))


def layer(job: Job, tokens: Floats, tp: Floats) -> c.Pass:
    k, length = of(job), job.training.seq_length
    core = c.attention_core(k, job.model, tokens, length, tp)
    attention = c.attention_layer(k, job.model, tokens, core, tp, tokens)
    return attention + c.mlp_layer(k, job.model, tokens, job.model.ffn_hidden_size / tp, tokens)


def test_gpt_layers_and_head_do_the_flops_of_narayanan_equation_3(
    make_job: Callable[..., Job], gpt_model: Callable[..., Model]
) -> None:
    # arXiv:2104.04473 appendix: 96·B·s·l·h²·(1 + s/(6h) + V/(16·l·h)), full recompute, scores not halved
    h, layers, vocab, s = 12288, 96, 51200, 2048
    job = make_job(model=gpt_model(layers, h, 96, vocab), attention="unfused")
    one, head = (
        layer(job, np.array(float(s)), np.array(1.0)),
        c.head(of(job), job.model, np.array(float(s)), np.array(1.0)),
    )
    found = layers * (2 * one.forward.flops + one.backward.flops) + head.forward.flops + head.backward.flops
    assert float(found) == pytest.approx(
        96 * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h)), rel=1e-9
    )


def test_a_flash_kernel_does_half_of_the_scores_and_recomputes_them_backward(make_job: Callable[..., Job]) -> None:
    # arXiv:2307.08691 section 4.1: 4·s²·heads·head_dim, halved when causal; backward 2.5 times forward
    job = make_job(attention="flash2")
    core = c.attention_core(of(job), job.model, np.array(2048.0), 2048, np.array(1.0))
    assert float(core.forward.flops) == 4 * 2048**2 * job.model.hidden_size / 2
    assert float(core.backward.flops) == 2.5 * float(core.forward.flops)


def test_many_shapes_at_once_equal_each_alone(make_job: Callable[..., Job]) -> None:
    job = make_job()
    together = layer(job, TOKENS, TP)
    for i in range(len(TP)):
        alone = layer(job, TOKENS[i], TP[i])
        for side in ("forward", "backward"):
            for f in fields(c.Work):
                many, one = getattr(getattr(together, side), f.name), getattr(getattr(alone, side), f.name)
                assert float(many[i]) == pytest.approx(float(one), rel=1e-12)


@pytest.mark.parametrize("attention", ["unfused", "fused", "flash1", "flash2", "flash3"])
@pytest.mark.parametrize("gpu", ["v100-sxm2-16gb", "a100-sxm4-80gb", "h100-sxm5-80gb", "mi300x"])
def test_no_layer_is_faster_than_the_peak_rate(gpu: str, attention: str, make_job: Callable[..., Job]) -> None:
    job = make_job(gpu=gpu, attention=attention, dtype="fp16")
    whole = layer(job, TOKENS, TP)
    for work in (whole.forward, whole.backward):
        assert (work.flops / work.time_s < of(job).gemm.peak_flops).all()
        assert (work.hbm_bytes / work.time_s < of(job).gemm.hbm_bytes_per_s).all()


def test_tensor_parallelism_divides_flops_exactly_and_time_by_less(make_job: Callable[..., Job]) -> None:
    one, eight = (layer(make_job(), np.array(4096.0), np.array(t)) for t in (1.0, 8.0))
    assert float(one.forward.flops / eight.forward.flops) == pytest.approx(8)
    assert 1 < float(one.forward.time_s / eight.forward.time_s) < 8


def test_flash_attention_is_faster_the_newer_and_unfused_slowest(make_job: Callable[..., Job]) -> None:
    times = []
    for kernel in ("flash3", "flash2", "flash1", "fused", "unfused"):
        job = make_job(gpu="h100-sxm5-80gb", attention=kernel)
        core = c.attention_core(of(job), job.model, np.array(8192.0), 8192, np.array(1.0))
        times.append(float((core.forward + core.backward).time_s))
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("gpu", "kernel", "low", "high"),
    [
        ("a100-sxm4-80gb", "flash2", 0.50, 0.73),  # arXiv:2307.08691, abstract: 50-73 % of the peak
        ("h100-sxm5-80gb", "flash2", 0.30, 0.40),  # arXiv:2407.08608, abstract: 35 %
        ("h100-sxm5-80gb", "flash3", 0.525, 0.75),  # the same: 1.5-2.0 times that, up to 75 %
    ],
)
def test_long_causal_attention_reaches_the_share_of_the_peak_that_its_authors_report(
    gpu: str, kernel: str, low: float, high: float, make_job: Callable[..., Job], gpt_model: Callable[..., Model]
) -> None:
    k = of(make_job(gpu=gpu, attention=kernel))
    core = c.attention_core(k, gpt_model(hidden=2048, heads=16), np.array(16384.0), 16384, np.array(1.0)).forward
    architecture = load_gpu(gpu).architecture.lower()
    factor = k.compute_factor * make_job().training.framework.slower_on[architecture].get(kernel, 1.0)
    assert low < float(core.flops / core.time_s) * factor / k.gemm.peak_flops < high


def test_fp8_speeds_up_linear_layers_and_leaves_the_head_and_the_scores(make_job: Callable[..., Job]) -> None:
    wide, narrow = (make_job(gpu="h100-sxm5-80gb", dtype=d, model=None) for d in ("bf16", "fp8"))
    tokens, one = np.array(16384.0), np.array(1.0)
    heads = [float(c.head(of(j), j.model, tokens, one).forward.sm_s) for j in (wide, narrow)]
    cores = [float(c.attention_core(of(j), j.model, tokens, 2048, one).forward.sm_s) for j in (wide, narrow)]
    assert heads[0] == heads[1]
    assert cores[0] == cores[1]
    faster = [float(layer(j, tokens, one).forward.time_s) for j in (wide, narrow)]
    assert faster[1] < faster[0]


def test_fp32_without_tf32_is_an_order_of_magnitude_slower(make_job: Callable[..., Job]) -> None:
    # the A100 data sheet: 312 against 19.5 TFLOP/s
    times = [
        float(c.linear(of(make_job(dtype=d)), np.array(8192.0), 8192.0, 8192.0).forward.sm_s) for d in ("bf16", "fp32")
    ]
    assert 8 < times[1] / times[0] < 16


def test_experts_together_do_the_work_of_top_k_dense_layers(
    make_job: Callable[..., Job], catalogue_model: Callable[[str], Model]
) -> None:
    model = catalogue_model("mixtral-8x7b")
    job, tokens, one = make_job(model=model), np.array(8192.0), np.array(1.0)
    experts = moe_layer(of(job), model, tokens, one, tokens, one, one, one, one, 0.0 * one)[0].forward.flops
    router = 2 * tokens * model.hidden_size * model.num_experts
    dense = 2 * tokens * model.moe_router_topk * model.expert_parameters
    assert float(experts) == pytest.approx(float(dense + router))


def test_fused_experts_move_no_bytes_for_the_activation_and_its_casts(
    make_job: Callable[..., Job], catalogue_model: Callable[[str], Model]
) -> None:
    model = catalogue_model("mixtral-8x7b")
    job = make_job(gpu="h100-sxm5-80gb", model=model, dtype="fp8")
    k, rows, count = of(job), np.array(512.0), 8.0
    own, fused = (c.mlp_layer(replace(k, fused_experts=f), model, rows, 14336.0, rows, count) for f in (False, True))
    values = rows * count * 14336 * k.elementwise_factor
    # forward: gate and up read, their product written, in 16 bit; that read, two copies written in 8 bit
    spared = values * (3 * 2 + (2 + 2) / k.elementwise_factor)
    assert float(own.forward.hbm_bytes) - float(fused.forward.hbm_bytes) == pytest.approx(float(spared))
    assert float(fused.backward.flops) == float(own.backward.flops)
    assert float(fused.backward.time_s) < float(own.backward.time_s)


def test_half_the_tokens_take_half_the_flops_and_more_than_half_the_time(make_job: Callable[..., Job]) -> None:
    whole, half = (layer(make_job(), np.array(t), np.array(1.0)).forward for t in (4096.0, 2048.0))
    assert float(half.flops) == pytest.approx(float(whole.flops) / 2)
    assert float(half.time_s) > float(whole.time_s) / 2


@pytest.mark.parametrize(
    ("vocabulary", "tflops"), [(51152, 252), (51144, 227), (51140, 138), (51138, 137), (51137, 76)]
)
def test_a_width_that_few_elements_divide_slows_a_product_as_measured(
    vocabulary: int, tflops: float, make_job: Callable[..., Job]
) -> None:
    # EleutherAI/cookbook, results of arXiv:2401.14489: 8192 x vocabulary x 14336 on A100; 255 TFLOP/s at 51136
    factor = float(c.alignment_factor(of(make_job()), vocabulary, 14336))
    assert factor == pytest.approx(255 / tflops, rel=0.12)


@given(st.integers(1, 1 << 16), st.integers(1, 1 << 16), st.integers(0, 4))
def test_the_better_widths_are_aligned_the_faster_and_the_worse_one_decides(
    make_job: Callable[..., Job], n: int, depth: int, power: int
) -> None:
    k = of(make_job())
    one, finer = (float(c.alignment_factor(k, n * scale, depth * scale)) for scale in (1, 2**power))
    assert 1.0 <= finer <= one
    assert one == max(float(c.alignment_factor(k, width)) for width in (n, depth))


def test_neither_vocabularies_nor_uneven_cuts_nor_fp32_count_as_unaligned(
    make_job: Callable[..., Job], gpt_model: Callable[..., Model]
) -> None:
    odd, padded = (
        float(c.head(of(job), job.model, np.array(8192.0), np.array(1.0)).forward.sm_s)
        for job in (make_job(model=gpt_model(vocab=vocab)) for vocab in (50257, 50304))
    )
    assert odd == pytest.approx(padded, rel=0.01)
    assert c.alignment_factor(of(make_job()), 1800.5) == 1.0
    assert c.alignment_factor(of(make_job(dtype="fp32")), 1801) == 1.0


@pytest.mark.parametrize(("tp", "pp", "of_96_s", "of_128_s"), [(4, 12, 110.31, 153.90), (8, 6, 124.75, 162.72)])
def test_heads_of_108_cost_what_megatron_deepspeed_measured_and_flash_pads_them(
    tp: int, pp: int, of_96_s: float, of_128_s: float, make_job: Callable[..., Job],
    gpt_model: Callable[..., Model], price: Callable[..., CostModel],
) -> None:  # fmt: skip
    # BigScience's search on 384 A100: 13,824 wide, 78 layers, the same plan with 96 and with 128 heads
    def slower(attention: str) -> float:
        times = []
        for heads in (96, 128):
            model = gpt_model(78, 13824, heads, 250880)
            job = make_job(384, model, framework="megatron-deepspeed", global_batch_size=2048, attention=attention)
            plan = price(job, dp=8, tp=tp, pp=pp, micro_batch_size=4, recompute=2, zero_stage=1)
            times.append(plan.iteration_time_s(np.array([0]), np.full((1, pp), 1410.0))[0])
        return float(times[1] / times[0])

    assert slower("fused") == pytest.approx(of_128_s / of_96_s, rel=0.03)
    assert slower("flash2") == pytest.approx(1.0, rel=0.03)
