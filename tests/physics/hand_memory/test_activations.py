"""Activations: the terms of Korthikanti et al. 2022 (arXiv:2205.05198, section 4), counted for one small layer each.

Bytes per token of the small LLaMA with flash attention: each norm's input and output 2·2·64, q, k, v and core output
2·(2·8 + 2·2)·8, one fp32 per head 4·8, gate, up and product 2·3·192.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jointopt.jobs.model import Model

Held = Callable[..., list[float]]
Make = Callable[..., Model]
NORM, HEADS, LSE, MLP = 2 * 2 * 64, 2 * (2 * 8 + 2 * 2) * 8, 4 * 8, 2 * 3 * 192
ATTENTION = NORM + HEADS + LSE
TOKENS = 128
ONE = {"global_batch_size": 1}  # one micro-batch in flight


def per_token(held: Held, cells: dict[str, Any], *model: Model, **job: Any) -> float:
    """Bytes of one of four layers per token of a micro-batch."""
    return held("activations", cells, *model, **({"global_batch_size": 1} | job))[0] / 4 / TOKENS


def test_a_layer_keeps_norms_heads_and_the_mlp(held: Held) -> None:
    assert per_token(held, {}) == 2 * NORM + HEADS + LSE + MLP


def test_tensor_parallelism_leaves_what_surrounds_the_norms_whole(held: Held) -> None:
    assert per_token(held, {"tp": 2}) == 2 * NORM + (HEADS + LSE + MLP) / 2


def test_sequence_parallelism_cuts_everything(held: Held) -> None:
    found = per_token(held, {"tp": 2, "sequence_parallel": True})
    assert found == (2 * NORM + HEADS + LSE + MLP) / 2


def test_inputs_kept_as_gathered_stay_whole_whatever_tensor_parallelism_cuts(held: Held) -> None:
    # of each of two norms the output, 2*64 bytes, is the input of a column-parallel product
    gathered = {"keeps_gathered_inputs": True}
    plan = {"tp": 4, "sequence_parallel": True}
    found = per_token(held, plan, framework=gathered) - per_token(held, plan)
    assert found == pytest.approx(2 * 2 * 64 * (1 - 1 / 4))
    for cells in ({"tp": 4}, {"tp": 1, "sequence_parallel": True}):  # where they are whole, or nothing is gathered
        assert per_token(held, cells, framework=gathered) == per_token(held, cells)


@pytest.mark.parametrize("tp", [2, 4])
def test_what_a_layer_at_work_gathers_is_whole_once_whatever_tensor_parallelism_cuts(tp: int, held: Held) -> None:
    # three tensors of 64 elements of 2 bytes for each of 128 tokens, of one layer of four
    plan, gathered = {"tp": tp, "sequence_parallel": True}, {"gathered_tensors": 3}
    found, plain = (held("activations", plan, **ONE, framework=of)[0] for of in (gathered, {}))
    assert found - plain == 3 * 2 * 64 * TOKENS
    for cells in ({"tp": tp}, {"tp": 1, "sequence_parallel": True}):
        assert per_token(held, cells, framework=gathered) == per_token(held, cells)


def test_a_stage_that_keeps_its_output_holds_one_more_input_per_micro_batch(held: Held) -> None:
    # two stages of two layers: the first has two micro-batches in flight, the last one
    plan, kept = {"pp": 2, "recompute": 2}, {"keeps_stage_outputs": True}
    found, plain = (held("activations", plan, framework=of) for of in (kept, {}))
    assert [one - other for one, other in zip(found, plain, strict=True)] == [2 * 2 * 64 * TOKENS, 2 * 64 * TOKENS]
    assert per_token(held, {}, framework=kept) == per_token(held, {})


@pytest.mark.parametrize("gated", [True, False])
def test_inputs_of_activation_functions_may_be_kept_in_8_bit(gated: bool, held: Held, llama: Make) -> None:
    model, halves = llama(gated_mlp=gated), 2 if gated else 1
    assert per_token(held, {}, model) - per_token(held, {}, model, fp8_activations=True) == halves * 192


def test_a_gate_in_a_kernel_of_its_own_keeps_the_activated_half_too(held: Held, llama: Make) -> None:
    assert per_token(held, {}, framework={"unfused_gate": True}) == 2 * NORM + HEADS + LSE + MLP + 2 * 192
    plain = llama(gated_mlp=False)
    assert per_token(held, {}, plain, framework={"unfused_gate": True}) == per_token(held, {}, plain)


def test_a_kv_head_is_whole_on_each_of_the_ranks_that_share_it(held: Held) -> None:
    # 2 KV heads on 4 ranks: q and core output of 2 heads, k and v of one each, 8 wide
    found = per_token(held, {"tp": 4, "sequence_parallel": True})
    assert found == (2 * NORM + LSE + MLP) / 4 + 2 * (2 * 2 + 2 * 1) * 8


def test_context_parallelism_and_micro_batches_set_the_tokens(held: Held) -> None:
    found = per_token(held, {"cp": 4, "micro_batch_size": 6}, global_batch_size=6)
    assert found == 6 / 4 * (2 * NORM + HEADS + LSE + MLP)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"num_query_groups": 8}, 2 * NORM + 2 * 4 * 64 + LSE + MLP),
        ({"gated_mlp": False}, 2 * NORM + HEADS + LSE + 2 * 2 * 192),
        ({"dropout": True}, 2 * (NORM + 64) + HEADS + LSE + MLP),
    ],
)
def test_query_groups_gates_and_dropout_masks_are_counted(
    fields: dict[str, Any], kept: int, held: Held, llama: Make
) -> None:
    assert per_token(held, {}, llama(**fields)) == kept


def test_an_unfused_norm_keeps_three_copies_more(held: Held) -> None:
    assert per_token(held, {}, fused_norm=False) == 2 * (2 * 5 * 64) + HEADS + LSE + MLP


def test_fp32_doubles_all_but_the_statistics_of_flash(held: Held) -> None:
    assert per_token(held, {}, dtype="fp32") == 2 * (2 * NORM + HEADS + MLP) + LSE


@pytest.mark.parametrize(
    ("attention", "dropout", "per_score"),
    [("unfused", True, 5), ("unfused", False, 4), ("fused", False, 3), ("fused", True, 3)],
)
def test_stored_scores_take_so_many_bytes_of_head_times_sequence(
    attention: str, dropout: bool, per_score: int, held: Held, llama: Make
) -> None:
    # 2 for the softmax's output, 2 for what the dropout let through, 1 for its mask
    rest = 2 * (NORM + 64 * dropout) + (HEADS + MLP) / 2
    found = per_token(held, {"tp": 2}, llama(dropout=dropout), attention=attention)
    at_work = {"unfused": 12, "fused": 4}[attention] / 4  # of one of the four layers
    assert found == rest + (per_score + at_work) * 8 / 2 * 128


def test_without_dropout_scores_are_kept_in_fp32_alone(held: Held) -> None:
    found = per_token(held, {}, attention="unfused", dtype="fp32")
    assert found == 2 * (2 * NORM + HEADS + MLP) + (4 + 12 / 4) * 8 * 128  # no more than in 16 bit


def test_latent_attention_keeps_its_heads_and_both_latents(held: Held, llama: Make) -> None:
    # q and k of 6 + 2, v and core output of 5 per head, cut by tp; the latents of 24 and 16 are not
    sizes = {"qk_nope_head_dim": 6, "qk_rope_head_dim": 2, "v_head_dim": 5}
    model = llama(q_lora_rank=24, kv_lora_rank=16, **sizes)
    inner = 2 * (8 * (2 * 8 + 2 * 5) / 2 + 24 + 16)
    assert per_token(held, {"tp": 2}, model) == 2 * NORM + inner + (LSE + MLP) / 2


def test_an_moe_layer_keeps_each_routed_copy_before_and_after_its_permutation(held: Held, moe: Make) -> None:
    routed = 2 * (2 * 3 * 32) + 2 * (2 * 2 * 64)  # two copies, each two widths of 64 and its expert's three of 32
    assert per_token(held, {}, moe()) == ATTENTION + NORM + routed


def test_shared_experts_keep_their_width_for_every_token(held: Held, moe: Make) -> None:
    more = per_token(held, {"tp": 2}, moe(num_shared_experts=3)) - per_token(held, {"tp": 2}, moe())
    assert more == 2 * 3 * 3 * 32 / 2


@pytest.mark.parametrize("plain", [False, True])
def test_shared_experts_without_gates_keep_two_widths(plain: bool, held: Held, moe: Make) -> None:
    both = (moe(num_shared_experts=n, gated_mlp=not plain) for n in (3, 0))
    more, none = (per_token(held, {}, model) for model in both)
    assert more - none == 2 * (2 if plain else 3) * 3 * 32


@pytest.mark.parametrize(("whole", "routed"), [(True, 2 * (6 * 32 / 2 + 4 * 64)), (False, 6 * 32 + 4 * 64)])
def test_tensor_parallelism_cuts_experts_or_shares_their_tokens_out(
    whole: bool, routed: float, held: Held, moe: Make
) -> None:
    # cut: both copies at half width; whole: each of two ranks takes one of a token's two copies
    found = per_token(held, {"tp": 2}, moe(), framework={"expert_tensor_parallel": whole})
    assert found == 2 * NORM + (HEADS + LSE) / 2 + routed


@pytest.mark.parametrize(("cells", "share"), [({}, 1), ({"tp": 2, "sequence_parallel": True}, 2)])
def test_full_recompute_keeps_layer_inputs_and_works_on_one_layer(
    cells: dict[str, Any], share: int, held: Held
) -> None:
    layer = 2 * NORM + HEADS + LSE + MLP
    found = held("activations", cells | {"recompute": 2}, **ONE)
    assert found == [TOKENS * (3 * 2 * 64 + layer) / share]


def test_selective_recompute_drops_the_scores_of_all_layers_but_the_one_at_work(held: Held) -> None:
    layer, stored, at_work = 2 * NORM + HEADS + MLP, 4 * 8 * 128, 12 * 8 * 128
    found = held("activations", {"recompute": 1}, attention="unfused", **ONE)
    assert found == [TOKENS * (4 * layer + stored + at_work)]


def test_a_framework_may_recompute_a_share_of_the_layers_whole(held: Held) -> None:
    layer = 2 * NORM + HEADS + LSE + MLP
    found = held("activations", {"recompute": 1}, framework={"selective_share": 0.25}, **ONE)
    assert found == [TOKENS * (4 * (0.75 * layer + 0.25 * 2 * 64) + layer - 2 * 64)]


def test_the_layer_at_work_is_the_larger_kind_of_the_stage(held: Held, moe: Make) -> None:
    dense = 2 * NORM + HEADS + LSE + MLP
    sparse = ATTENTION + NORM + 2 * (6 * 32 + 4 * 64)
    found = held("activations", {"pp": 2, "recompute": 2}, moe(num_dense_layers=1), **ONE)
    assert found == [TOKENS * (2 * 64 + max(dense, sparse)), TOKENS * (2 * 64 + sparse)]


def test_dense_and_moe_layers_of_a_stage_are_counted_apart(held: Held, moe: Make) -> None:
    dense = 2 * NORM + HEADS + LSE + MLP
    sparse = ATTENTION + NORM + 2 * (6 * 32 + 4 * 64)
    found = held("activations", {"pp": 2}, moe(num_dense_layers=1), **ONE)
    assert found == [TOKENS * (dense + sparse), TOKENS * 2 * sparse]


@pytest.mark.parametrize(
    ("pp", "vpp", "batches", "in_flight"),
    [
        (4, 1, 16, [4, 3, 2, 1]),
        (4, 1, 2, [2, 2, 2, 1]),
        (4, 2, 16, [4 * (1 + 3 / 8), 4.5, 3.5, 2.5]),
        (2, 4, 16, [2 * (1 + 1 / 8), 1.75]),
        (2, 2, 2, [2, 1.5]),
    ],
)
def test_stages_hold_the_micro_batches_of_1f1b_and_of_interleaving(
    pp: int, vpp: int, batches: int, in_flight: list[float], held: Held, llama: Make
) -> None:
    # interleaved, the first rank holds p·(1 + (p - 1)/(p·v)); each rank after it two chunks less
    layer = TOKENS * (2 * NORM + HEADS + LSE + MLP)
    cells = {"pp": pp, "vpp": vpp}
    found = held("activations", cells, llama(num_layers=8), global_batch_size=batches)
    assert found == [8 / pp * layer * count for count in in_flight]


def test_the_allocator_of_a_framework_adds_its_factor(held: Held) -> None:
    layer = TOKENS * (2 * NORM + HEADS + LSE + MLP)
    found = held("fragmentation", {}, framework={"activation_factor": 1.3}, **ONE)
    assert found == pytest.approx([0.3 * 4 * layer])


def test_fp8_keeps_the_inputs_of_linear_layers_in_a_byte_where_the_framework_does(held: Held) -> None:
    # norm outputs and the MLP's product lose a byte; attention's output is kept for itself and, in fp8, its projection
    less = 2 * 64 + 192 - 8 * 8
    found = per_token(held, {}, dtype="fp8", framework={"quantized_inputs": True})
    assert found == per_token(held, {}, dtype="fp8") - less == 2 * NORM + HEADS + LSE + MLP - less


def test_experts_weighed_at_their_inputs_keep_no_outputs(held: Held, moe: Make) -> None:
    found = per_token(held, {}, moe(), framework={"weighs_routed_inputs": True})
    assert found == per_token(held, {}, moe()) - 2 * 2 * 64
