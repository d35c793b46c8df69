"""Weights, gradients and optimizer state: parameters counted on paper, times the bytes of Rajbhandari et al. 2020.

arXiv:1910.02054: 2 bytes of fp16 weights, the gradient, and 12 of fp32 master, momentum and variance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jointopt.jobs.model import Model

Held = Callable[..., list[float]]
Make = Callable[..., Model]
LAYER = 10_240 + 36_864 + 128
TABLE = 64_000
WHOLE = 4 * LAYER + 2 * TABLE


def states(held: Held, cells: dict[str, Any], *model: Model, **job: Any) -> list[float]:
    return [held(part, cells, *model, **job)[0] for part in ("weights", "gradients", "optimizer")]


@pytest.mark.parametrize(
    ("stage", "per_parameter"), [(0, (2, 4, 12)), (1, (2, 4, 1.5)), (2, (2, 0.5, 1.5)), (3, (0.25, 0.5, 1.5))]
)
def test_each_zero_stage_shards_one_more_state_over_dp_times_cp(
    stage: int, per_parameter: tuple[float, ...], held: Held
) -> None:
    found = states(held, {"dp": 2, "cp": 4, "zero_stage": stage})
    assert found == pytest.approx([share * WHOLE for share in per_parameter])


@pytest.mark.parametrize(
    ("stage", "dense", "expert"),
    [(0, (2, 4, 12), (2, 4, 12)), (1, (2, 4, 1.5), (2, 4, 3)), (3, (0.25, 0.5, 1.5), (0.5, 1, 3))],
)
def test_experts_are_sharded_over_dp_cp_over_ep_ranks(
    stage: int, dense: tuple[float, ...], expert: tuple[float, ...], held: Held, moe: Make
) -> None:
    # dp·cp = 8: dense state in eighths; ep = 2 leaves 2 of 4 experts on a rank, in quarters
    shared = 4 * (10_240 + 128 + 256) + 2 * TABLE
    experts = 4 * 2 * 6_144
    found = states(held, {"dp": 2, "cp": 4, "ep": 2, "zero_stage": stage}, moe())
    assert found == pytest.approx([d * shared + e * experts for d, e in zip(dense, expert, strict=True)])


@pytest.mark.parametrize(
    ("dtype", "gradient_bytes", "per_parameter"),
    [("bf16", 2, (2, 2, 12)), ("fp16", 4, (2, 4, 12)), ("fp8", 4, (2, 4, 12)), ("fp32", 2, (4, 4, 8))],
)
def test_a_parameter_holds_the_bytes_of_its_precision(
    dtype: str, gradient_bytes: int, per_parameter: tuple[int, ...], held: Held
) -> None:
    found = states(held, {}, dtype=dtype, framework={"gradient_bytes": gradient_bytes})
    assert found == [share * WHOLE for share in per_parameter]


def test_tensor_parallelism_cuts_matrices_and_tables_but_not_norms(held: Held) -> None:
    cut = 4 * ((10_240 + 36_864) / 2 + 128) + 2 * TABLE / 2
    assert held("weights", {"tp": 2}) == [2 * cut]


@pytest.mark.parametrize(("tied", "tables"), [(True, 1), (False, 2)])
def test_on_one_stage_a_tied_head_is_the_embedding(tied: bool, tables: int, held: Held, llama: Make) -> None:
    assert held("weights", {}, llama(tied_embeddings=tied)) == [2 * (4 * LAYER + tables * TABLE)]


@pytest.mark.parametrize("tied", [True, False])
def test_both_ends_of_a_pipeline_hold_the_vocabulary_once(tied: bool, held: Held, llama: Make) -> None:
    found = held("weights", {"pp": 4}, llama(tied_embeddings=tied))
    assert found == [2 * (LAYER + TABLE), 2 * LAYER, 2 * LAYER, 2 * (LAYER + TABLE)]


def test_learned_positions_stand_whole_on_the_first_stage(held: Held, llama: Make) -> None:
    model = llama(position_embedding="learned", max_position_embeddings=300)
    extra = [
        a - b
        for a, b in zip(held("weights", {"pp": 2, "tp": 2}, model), held("weights", {"pp": 2, "tp": 2}), strict=True)
    ]
    assert extra == [2 * 300 * 64, 0]


@pytest.mark.parametrize(
    ("fields", "layer"),
    [
        ({"rmsnorm": False}, 10_240 + 36_864 + 2 * 2 * 64),
        ({"gated_mlp": False}, 10_240 + 2 * 64 * 192 + 128),
        ({"num_query_groups": 8}, 4 * 64 * 64 + 36_864 + 128),
    ],
)
def test_layer_norm_plain_mlps_and_full_attention_are_counted(
    fields: dict[str, Any], layer: int, held: Held, llama: Make
) -> None:
    assert held("weights", {}, llama(**fields)) == [2 * (4 * layer + 2 * TABLE)]


def test_latent_attention_holds_its_four_projections(held: Held, llama: Make) -> None:
    # DeepSeek-V2, arXiv:2405.04434: q 64·24 + 24·8·(6+2), kv 64·(16+2) + 16·8·(6+5), output 8·5·64
    sizes = {"qk_nope_head_dim": 6, "qk_rope_head_dim": 2, "v_head_dim": 5}
    model = llama(q_lora_rank=24, kv_lora_rank=16, **sizes)
    attention = (64 * 24 + 24 * 8 * 8) + (64 * 18 + 16 * 8 * 11) + 8 * 5 * 64
    assert held("weights", {}, model) == [2 * (4 * (attention + 36_864 + 128) + 2 * TABLE)]


@pytest.mark.parametrize(("whole", "expert_tp"), [(True, 2), (False, 1)])
def test_an_moe_layer_holds_router_shared_experts_and_its_part_of_the_experts(
    whole: bool, expert_tp: int, held: Held, moe: Make
) -> None:
    # tp 2 cuts attention and shared experts, never router and norms; experts where the framework does
    layer = (10_240 + 3 * 6_144) / 2 + 128 + 4 * 64 + (4 / 2) * 6_144 / expert_tp
    framework = {"expert_tensor_parallel": whole}
    found = held("weights", {"tp": 2, "dp": 2, "ep": 2}, moe(num_shared_experts=3), framework=framework)
    assert found == [2 * (4 * layer + 2 * TABLE / 2)]


def test_leading_dense_layers_lie_on_the_first_stages(held: Held, moe: Make) -> None:
    sparse = 10_240 + 128 + 256 + 4 * 6_144
    found = held("weights", {"pp": 2}, moe(num_dense_layers=1))
    assert found == [2 * (LAYER + sparse + TABLE), 2 * (2 * sparse + TABLE)]


@pytest.mark.parametrize(
    ("stated", "per_parameter"),
    [
        ({"grad_reduce_dtype": "bf16"}, (2, 2, 12)),
        ({"exp_avg_dtype": "bf16"}, (2, 4, 4 + 2 + 2)),
        ({"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "fp32"}, (2, 4, 4 + 2 + 4)),
        # 16 of a master's 32 bits are the weight itself, unless that lives in 8 bit
        ({"precision_aware_optimizer": True}, (2, 4, 2 + 4 + 4)),
        ({"precision_aware_optimizer": True, "dtype": "fp8", "fp8_param_gather": True}, (2, 4, 12)),
        ({"dtype": "fp8", "fp8_param_gather": False}, (2 + 1 + 1, 4, 12)),
    ],
)
def test_stated_formats_of_states_hold_their_bytes(
    stated: dict[str, Any], per_parameter: tuple[int, ...], held: Held
) -> None:
    assert states(held, {}, **stated) == [share * WHOLE for share in per_parameter]


def test_fp32_weights_are_their_own_masters_where_the_framework_keeps_them(held: Held) -> None:
    found = states(held, {"dp": 4, "zero_stage": 3}, framework={"fp32_weights": True})
    assert found == pytest.approx([share * WHOLE / 4 for share in (4, 4, 8)])


def test_a_wider_copy_of_gradients_counts_beyond_the_activations_that_are_gone(held: Held) -> None:
    stated = {"grad_reduce_dtype": "bf16", "main_grads_dtype": "fp32", "global_batch_size": 2}
    kept = sum(held(part, {"dp": 2}, **stated)[0] for part in ("activations", "logits"))
    assert held("main_gradients", {"dp": 2}, **stated) == [max(4 * WHOLE - kept, 0)]
    assert held("main_gradients", {"dp": 2, "zero_stage": 1}, **stated) == [max(4 * WHOLE / 2 - kept, 0)]


def test_multi_token_prediction_adds_a_layer_an_embedding_and_a_projection_at_the_end(held: Held, llama: Make) -> None:
    plain, more = (held("weights", {"pp": 2}, llama(mtp_num_layers=n)) for n in (0, 1))
    assert [b - a for a, b in zip(plain, more, strict=True)] == [0, 2 * (LAYER + TABLE + 2 * 64 * 64)]


@pytest.mark.parametrize(("dtype", "stated", "gradient"), [("bf16", None, 6), ("fp16", None, 4), ("bf16", "bf16", 2)])
def test_a_framework_may_keep_more_of_a_gradient_in_bf16(
    dtype: str, stated: str | None, gradient: int, held: Held
) -> None:
    framework = {"gradient_bytes": 4, "bf16_gradient_bytes": 6}
    assert states(held, {}, dtype=dtype, grad_reduce_dtype=stated, framework=framework)[1] == gradient * WHOLE


@pytest.mark.parametrize(("elements", "held_bytes"), [(1_000, 4_000), (1e9, 4 * WHOLE)])
def test_gradients_go_to_other_replicas_through_a_bucket_no_larger_than_the_model(
    elements: float, held_bytes: float, held: Held
) -> None:
    framework = {"bucket_elements": elements}
    assert states(held, {"dp": 2}, framework=framework)[1] == 4 * WHOLE + held_bytes
    assert states(held, {}, framework=framework)[1] == 4 * WHOLE


@pytest.mark.parametrize(("stated", "moments"), [(None, 2 + 2), ("fp32", 4 + 4)])
def test_moments_have_the_framework_s_format_unless_one_is_stated(stated: str | None, moments: int, held: Held) -> None:
    found = states(held, {}, exp_avg_dtype=stated, framework={"moment_bytes": 2})
    assert found[2] == (4 + moments) * WHOLE
