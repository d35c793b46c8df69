"""LoRA: bytes of frozen weights, of adapters, and of inputs that no gradient of weights needs, counted on paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import scaling_recipe
from jointopt.jobs.job import Job, Training
from jointopt.jobs.model import Model

Held = Callable[..., list[float]]
Make = Callable[..., Model]
WHOLE = 4 * (10_240 + 36_864 + 128) + 2 * 64_000
# rank 4 beside q, k, v (64 -> 96), the output (64 -> 64), gate and up (64 -> 384), down (192 -> 64)
SIDES = {"linear_qkv": 64 + 96, "linear_proj": 64 + 64, "linear_fc1": 64 + 384, "linear_fc2": 192 + 64}
ADAPTERS = 4 * 4 * sum(SIDES.values())
TOKENS = 128


def states(held: Held, cells: dict[str, Any], *model: Model, **job: Any) -> list[float]:
    return [held(part, cells, *model, lora_dim=4, **job)[0] for part in ("weights", "gradients", "optimizer")]


def per_token(held: Held, *targets: str) -> float:
    """Bytes of one of four layers per token of the one micro-batch."""
    found = held("activations", {}, global_batch_size=1, lora_dim=4, lora_target_modules=targets)
    return found[0] / 4 / TOKENS


def test_frozen_weights_have_neither_gradients_nor_optimizer_state(held: Held) -> None:
    assert states(held, {}) == [2 * (WHOLE + ADAPTERS), 4 * ADAPTERS, 12 * ADAPTERS]


@pytest.mark.parametrize(("frozen_dtype", "per_weight"), [("bf16", 2), ("fp32", 4)])
def test_adapters_that_are_their_own_masters_lie_beside_frozen_weights_of_the_profiles_format(
    frozen_dtype: str, per_weight: int, held: Held
) -> None:
    framework = {"fp32_weights": True, "frozen_dtype": frozen_dtype}
    found = states(held, {}, framework=framework)
    assert found == [per_weight * WHOLE + 4 * ADAPTERS, 4 * ADAPTERS, 8 * ADAPTERS]
    assert states(held, {}, framework=framework, dtype="fp32")[0] == 4 * (WHOLE + ADAPTERS)


def test_zero_3_shards_frozen_weights_and_what_adapters_hold(held: Held) -> None:
    found = states(held, {"dp": 4, "zero_stage": 3})
    assert found == pytest.approx([2 * (WHOLE + ADAPTERS) / 4, 4 * ADAPTERS / 4, 12 * ADAPTERS / 4])


def test_tensor_parallelism_cuts_adapters(held: Held) -> None:
    assert states(held, {"tp": 2})[2] == 12 * ADAPTERS / 2


@pytest.mark.parametrize("target", list(SIDES))
def test_only_named_layers_have_adapters(target: str, held: Held) -> None:
    assert states(held, {}, lora_target_modules=(target,))[1] == 4 * 4 * 4 * SIDES[target]


def test_experts_of_a_rank_share_an_adapter(held: Held, moe: Make) -> None:
    found = states(held, {"dp": 2, "ep": 2}, moe(), lora_target_modules=("linear_fc1", "linear_fc2"))
    assert found[1] == 4 * 4 * 4 * ((64 + 2 * 32) + (32 + 64))


def test_an_adapted_layer_keeps_its_input_and_what_its_first_product_makes(held: Held) -> None:
    # of a layer without adapters norms' outputs (2·64 each) and the MLP's product (2·192) are not needed
    bare = (2 * 64) * 2 + 2 * (2 * 8 + 2 * 2) * 8 + 4 * 8 + 2 * 2 * 192
    kept = {"linear_qkv": 2 * 64, "linear_proj": 0, "linear_fc1": 2 * 64, "linear_fc2": 2 * 192}
    assert {name: per_token(held, name) - bare for name in kept} == {name: n + 2 * 4 for name, n in kept.items()}


def test_with_all_adapters_a_layer_keeps_what_a_trained_one_keeps_and_four_ranks_more(held: Held) -> None:
    whole = held("activations", {}, global_batch_size=1)[0] / 4 / TOKENS
    assert per_token(held, *SIDES) == whole + 4 * 2 * 4


@pytest.mark.parametrize(
    ("dtype", "lora_dim", "stated", "kept"),
    [("fp8", 4, None, 1), ("fp4", 4, None, 1), ("bf16", 4, None, 2), ("fp8", None, None, 2), ("fp8", 4, False, 2)],
)
def test_a_profile_may_keep_inputs_of_activation_functions_in_8_bit_beside_frozen_fp8_weights(
    dtype: str, lora_dim: int | None, stated: bool | None, kept: int, hand_job: Callable[..., Job]
) -> None:
    job = hand_job(framework={"fp8_activations_of_adapters": True}, dtype=dtype, lora_dim=lora_dim)
    training = replace(job.training, fp8_activations=stated)
    assert training.keeps_8_bit_activations == (kept == 1)


@pytest.mark.parametrize(("gpu", "copies"), [("mi300x", 1), ("h100-sxm5-80gb", 2), ("b200-sxm-180gb", 1)])
def test_frozen_fp8_weights_lie_along_columns_too_where_products_need_it_and_the_stack_keeps_it(
    gpu: str, copies: int
) -> None:
    recipe = scaling_recipe("delayed", load_gpu(gpu))
    training = Training(1, 1, "fp8", fp8_recipe=recipe, fp8_param_gather=True, lora_dim=4)
    assert training.frozen_bytes == copies
    assert training.weight_bytes == (1 if gpu.startswith("b200") else 2)
