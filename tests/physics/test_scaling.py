"""Recipes of fp8 and fp4: bytes of their casts, scales and copies by hand, and times that were published.

Times are those of Transformer Engine's GEMM profiling tutorial: the twelve products of a layer of hidden size 4096 with
an MLP of 16384 and 15,872 tokens, ms; what casts add is a run with them less one of operands that are cast already.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jointopt.jobs.catalog.kernels import kernel_constants, scaled_dtype
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job, Training
from jointopt.jobs.jobfile import job_from_options, parse_job
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics import layers as c
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import cast_times_s
from jointopt.physics.layouts import input_bytes
from jointopt.surrogate.dataset import price

H200, B300, H100, GB200 = "h200-sxm-141gb", "b300-sxm-270gb", "h100-sxm5-80gb", "gb200"
M = 15872
WIDTHS = [(4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096)]  # k, n forward
OPERANDS = sum(2 * M * (k + n) + 2 * k * n for k, n in WIDTHS)  # elements that the three products of each cast


def job(gpu: str, recipe: str, **training: Any) -> Job:
    stated = {"seq_length": 4096, "global_batch_size": 64, "dtype": scaled_dtype(recipe), "fp8_recipe": recipe}
    stated |= {"framework": "megatron-bridge"} | training
    cluster = {"gpu": gpu, "nodes": 1, "gpus_per_node": 8, "inter_node_gbytes_per_s": 50}
    return parse_job({"model": "llama-3-8b", "training": stated, "cluster": cluster}, "stem", None)  # type: ignore[arg-type]


def kernels(gpu: str, recipe: str, **training: Any) -> c.Kernels:
    made = job(gpu, recipe, **training)
    return c.kernels(made, kernel_constants(made.cluster.gpu))


def cast_bytes(gpu: str, recipe: str, elements: float = 1e6, own: float | None = None, **training: Any) -> float:
    """Bytes that casting moves, under the framework's factor on element-wise kernels or not."""
    found = c.quantization(kernels(gpu, recipe, **training), np.array(elements), None if own is None else np.array(own))
    return float(found.hbm_bytes)


@pytest.mark.parametrize(
    ("gpu", "recipe", "each"),
    [
        (H100, "delayed", 2 + 1 + 1), (GB200, "delayed", 2 + 1),
        (H100, "tensorwise", 2 * 2 + 1 + 1), (GB200, "tensorwise", 2 * 2 + 1),
        (H100, "blockwise", 2 + 2 * (1 + 4 / 128)), (GB200, "blockwise", 2 + 2 * (1 + 4 / 128)),
        (H100, "rowwise", 3 * 2 + 2 * (1 + 4 / 4096)),
        (GB200, "mxfp8", 2 + 2 * (1 + 3 / 32)), (GB200, "nvfp4", 3 * 2 + 2 * (0.5 + 3 / 16)),
    ],
)  # fmt: skip
def test_a_cast_moves_what_its_kernels_read_and_write(gpu: str, recipe: str, each: float) -> None:
    assert cast_bytes(gpu, recipe) == pytest.approx(each * 1e6)


@pytest.mark.parametrize(("recipe", "each"), [("tensorwise", 2 * 2 + 1), ("nvfp4", 2 * 2 + 0.5 + 3 / 16)])
def test_frozen_weights_need_no_copy_along_columns(recipe: str, each: float) -> None:
    assert cast_bytes(GB200, recipe, lora_dim=8) == pytest.approx(each * 1e6)


@pytest.mark.parametrize(
    ("gpu", "recipe", "moved"),
    [
        (H100, "tensorwise", 5 / 4 + 2), (GB200, "tensorwise", 5 / 4), (GB200, "mxfp8", (2 + 2 * (1 + 3 / 32)) / 4),
    ],
)  # fmt: skip
def test_a_rank_that_gathers_casts_its_share_and_hopper_transposes_all(gpu: str, recipe: str, moved: float) -> None:
    assert cast_bytes(gpu, recipe, own=0.25e6) == pytest.approx(moved * 1e6)
    assert cast_bytes(gpu, recipe, own=1e6) == cast_bytes(gpu, recipe)


def test_sequence_parallelism_makes_casts_of_a_layer_shorter() -> None:
    made = job(GB200, "mxfp8")
    split, whole = (
        float(
            cast_times_s(
                CostModel(made, parse_plan(f"dp=2 tp=4 micro_batch_size=16 sequence_parallel={sp}", made).layouts), 0
            )[0]
        )
        for sp in ("true", "false")
    )
    # q, k, v 4096 in, 1536 out; output 1024, 4096; MLP 4096, 7168 and 3584, 4096: 4096 is a quarter under SP
    share = (4 * 1024 + 1536 + 1024 + 7168 + 3584) / (4 * 4096 + 1536 + 1024 + 7168 + 3584)
    assert split / whole == pytest.approx(share, rel=0.03)  # and launches
    # two micro-batches of 32 layers, 4.19 bytes an element at 0.85 of 8 TB/s, eight casts of two kernels
    each = 29696 * 16 * 4096 * (2 + 2 * (1 + 3 / 32)) / (0.85 * 8e12) + 8 * 2 * 1.98e-6
    assert whole == pytest.approx(2 * 32 * each, rel=0.001)


@pytest.mark.parametrize(
    ("gpu", "recipe", "cast_ms", "within"),
    [
        (H200, "delayed", 18.978 - 16.785, 0.12), (H200, "tensorwise", 20.285 - 16.785, 0.06),
        (B300, "delayed", 7.802 - 6.812, 0.16), (B300, "tensorwise", 9.147 - 6.812, 0.19),
        (B300, "mxfp8", 8.984 - 7.161, 0.13), (B300, "nvfp4", 6.453 - 3.764, 0.07),
    ],
)  # fmt: skip
def test_casts_add_the_milliseconds_that_were_published(gpu: str, recipe: str, cast_ms: float, within: float) -> None:
    found = c.quantization(kernels(gpu, recipe, framework="generic"), np.array(float(OPERANDS)))
    assert 1e3 * float(found.time_s) == pytest.approx(cast_ms, rel=within)


@pytest.mark.parametrize(
    ("gpu", "recipe", "over", "published"),
    [
        (H100, "blockwise", "tensorwise", 1.23), (B300, "mxfp8", "tensorwise", 7.161 / 6.812),
        (B300, "blockwise", "tensorwise", 7.161 / 6.812), (B300, "delayed", "tensorwise", 1.0),
    ],
)  # fmt: skip
def test_products_with_scales_of_blocks_are_slower(gpu: str, recipe: str, over: str, published: float) -> None:
    both = [c.linear(kernels(gpu, name), np.array(65536.0), 16384.0, 65536.0) for name in (recipe, over)]
    slower, plain = (float(one.forward.sm_s) for one in both)
    assert slower / plain == pytest.approx(published, rel=0.01)


def fp4_gain(*shapes: tuple[float, float, float]) -> float:
    """Time of products (m, n, k) with the casts of both operands in mxfp8 over that in nvfp4, on a B300."""
    found = []
    for recipe in ("mxfp8", "nvfp4"):
        k = kernels(B300, recipe, framework="generic")
        times = [c.linear(k, np.array(m), n, depth).forward + c.quantization(k, np.array(n * depth))
                 for m, n, depth in shapes]  # fmt: skip
        found.append(sum(float(one.time_s) for one in times))
    return found[0] / found[1]


def test_fp4_gains_by_the_size_of_a_product_and_nothing_in_a_small_one() -> None:
    # published over mxfp8: 1.39 of the layer, 1.46 of the product up, 1.05 of the smallest, attention's output
    layer = [shape for k, n in WIDTHS for shape in ((M, n, k), (M, k, n), (k, n, M))]
    assert fp4_gain(*layer) == pytest.approx(8.984 / 6.453, rel=0.08)
    large, small, tiny = fp4_gain((M, 16384, 4096)), fp4_gain((M, 4096, 4096)), fp4_gain((512, 1024, 1024))
    assert large > 1.15 * small > 1.15
    assert tiny < 1.0


@pytest.mark.parametrize(
    ("gpu", "recipe", "kept"),
    [(H100, "delayed", 1.0), (H100, "tensorwise", 1.0), (H100, "blockwise", 1 + 4 / 128), (GB200, "mxfp8", 1 + 1 / 32),
     (GB200, "nvfp4", 0.5 + 1 / 16)],
)  # fmt: skip
def test_a_kept_input_has_its_scales_beside_it_where_transformer_engine_keeps_it(
    gpu: str, recipe: str, kept: float
) -> None:
    assert input_bytes(job(gpu, recipe).training) == kept
    assert input_bytes(job(gpu, recipe, framework="torchtitan").training) == 2.0


@pytest.mark.parametrize(
    ("gpu", "recipe", "live", "beside", "gathered"),
    [
        (H100, "tensorwise", 2.0, 4.0, 1.0), (GB200, "tensorwise", 1.0, 3.0, 1.0),
        (H100, "blockwise", 2 + 8 / 128**2, 4 + 8 / 128**2, 1.0), (GB200, "mxfp8", 2 + 2 / 32, 4 + 2 / 32, 2.0),
    ],
)  # fmt: skip
def test_weights_have_the_copies_of_their_recipe_and_mxfp8_gathers_16_bit(
    gpu: str, recipe: str, live: float, beside: float, gathered: float
) -> None:
    of: Callable[[bool], Training] = lambda eight: job(gpu, recipe, fp8_param_gather=eight).training  # noqa: E731
    assert (of(True).weight_bytes, of(False).weight_bytes) == (live, beside)
    assert (of(True).weight_gather_bytes, of(False).weight_gather_bytes) == (gathered, 2.0)
    assert job(gpu, recipe).training.weight_bytes == 2.0  # where no recipe is stated


def tokens_per_s(precision: str | None, **cells: Any) -> float:
    """Tokens a second of each GPU under a recipe of Megatron-Bridge."""
    run = {"framework": "megatron-bridge", "seq_length": 8192, "precision": precision, "dtype": "fp8", "zero_stage": 1}
    run |= {"sequence_parallel": True, "recompute": "none", "micro_batch_size": 1} | cells
    found = price(pd.DataFrame([run])).physics["iteration_time_s"][0]
    return float(run["global_batch_size"] * run["seq_length"] / run["num_gpus"] / found)


@pytest.mark.parametrize(("precision", "published"), [("fp8_cs", 31508), ("fp8_mx", 29789)])
def test_llama_3_8b_on_gb200_trains_as_fast_as_published(precision: str, published: float) -> None:
    # Megatron-Bridge's performance summary, container 25.11
    run = {"model": "llama-3-8b", "gpu": "gb200", "num_gpus": 8, "gpus_per_node": 4, "global_batch_size": 128}
    run |= {"dp": 8, "tp": 1, "pp": 1, "cp": 1, "micro_batch_size": 2, "cuda_graph": "full_iteration"}
    assert tokens_per_s(precision, **run) == pytest.approx(published, rel=0.05)


def test_mxfp8_is_slower_than_one_scale_per_tensor_as_published() -> None:
    # 405B on 128 B200, 25.11: 661 and 624 tokens/s of a GPU, 1.06
    run = {"model": "llama-3-405b", "gpu": "b200-sxm-180gb", "num_gpus": 128, "gpus_per_node": 8, "vpp": 8}
    run |= {"dp": 2, "tp": 4, "pp": 8, "cp": 2, "global_batch_size": 64}
    current, blocks = (tokens_per_s(precision, **run) for precision in ("fp8_cs", "fp8_mx"))
    assert current / blocks == pytest.approx(661 / 624, rel=0.03)


def test_without_a_recipe_nothing_changes() -> None:
    options = ("llama-3-8b", H100, 8, 64, 4096)
    plain = job_from_options(*options, dtype="fp8", framework="megatron-bridge")
    k = c.kernels(plain, kernel_constants(plain.cluster.gpu))
    assert k.gemm == kernel_constants(plain.cluster.gpu).gemm
    assert float(c.quantization(k, np.array(1e6), np.array(1.0)).hbm_bytes) == pytest.approx(4e6)


def test_a_framework_that_sends_tokens_in_fp8_sends_their_scales() -> None:
    def joules(recipe: str) -> float:
        made = job(H100, recipe, framework="hai-llm")
        physics = CostModel(replace(made, model=load_model("qwen3-30b-a3b")), parse_plan("dp=8 ep=8", made).layouts)
        return float(physics.groups[0].link_parts_j["ep_comm"].sum())

    # dispatched in 8 bit, combined in 16; blockwise has 4 bytes for 128 elements
    assert joules("blockwise") / joules("tensorwise") == pytest.approx((1 + 4 / 128 + 2) / (1 + 2))
