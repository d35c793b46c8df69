"""Bytes that recomputed modules and layers, and offloading, leave on a rank; layers as in `test_activations`.

Of four layers of one micro-batch: what is dropped is gone four times, and alive once while its layer is at work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jointopt.core.schema import MODULES, OFFLOAD
from jointopt.jobs.model import Model
from jointopt.physics import memory

Held = Callable[..., list[float]]
Make = Callable[..., Model]
TOKENS, ONE = 128, {"global_batch_size": 1}
NORM, HEADS, LSE, MLP = 2 * 2 * 64, 2 * (2 * 8 + 2 * 2) * 8, 4 * 8, 2 * 3 * 192
ROUTED = 2 * (2 * 3 * 32 + 2 * 2 * 64)


def freed(held: Held, modules: str, cells: dict[str, Any], *model: Model, **job: Any) -> float:
    """Bytes per token that one layer drops, from those of all four less the one at work."""
    selective = {"recompute": 1, "recompute_modules": MODULES.code(modules)}
    none, some = (held("activations", cells | more, *model, **ONE, **job)[0] for more in ({}, selective))
    return (none - some) / TOKENS / 3


@pytest.mark.parametrize(
    ("modules", "dropped"),
    [
        ("mlp", MLP), ("layernorm", 2 * 2 * 64), ("core_attn", LSE), ("mlp;core_attn", MLP + LSE), ("moe", 0),
        ("mla_up_proj", 0),
    ],
)  # fmt: skip
def test_a_dense_layer_drops_what_its_modules_write(modules: str, dropped: int, held: Held) -> None:
    assert freed(held, modules, {}) == dropped
    assert freed(held, modules, {"tp": 2, "sequence_parallel": True}) == dropped / 2


@pytest.mark.parametrize(
    ("modules", "dropped"),
    [
        ("moe", ROUTED + 2 * 3 * 32), ("moe_act", 2 * 2 * 32), ("shared_experts", 2 * 3 * 32),
        ("moe;moe_act;shared_experts", ROUTED + 2 * 3 * 32), ("mlp", 0),
    ],
)  # fmt: skip
def test_an_moe_layer_drops_a_module_once(modules: str, dropped: int, held: Held, moe: Make) -> None:
    assert freed(held, modules, {}, moe(num_shared_experts=1)) == dropped


def test_up_projections_of_latent_attention_drop_queries_keys_and_values(held: Held, llama: Make) -> None:
    model = llama(q_lora_rank=24, kv_lora_rank=16, qk_nope_head_dim=6, qk_rope_head_dim=2, v_head_dim=5)
    assert freed(held, "mla_up_proj", {}, model) == 2 * 8 * (2 * 8 + 5)


@pytest.mark.parametrize(("vpp", "layers", "whole"), [(1, 1, 1), (1, 3, 3), (1, 9, 4), (2, 1, 2)])
def test_full_recompute_of_some_layers_keeps_the_others(vpp: int, layers: int, whole: int, held: Held) -> None:
    # so many layers of every chunk keep their input alone; one of them is at work
    layer = 2 * NORM + HEADS + LSE + MLP
    cells = {"recompute": 2, "recompute_num_layers": layers, "vpp": vpp}
    found = held("activations", cells, **ONE)
    assert found == [pytest.approx(TOKENS * (whole * 128 + (4 - whole) * layer + layer - 128))]


def test_offloaded_activations_leave_two_layers(held: Held) -> None:
    layer = 2 * NORM + HEADS + LSE + MLP
    assert held("activations", {"offload": OFFLOAD.code("activations")}, **ONE) == [TOKENS * 2 * layer]


def test_an_offloaded_optimizer_leaves_weights_and_gradients(held: Held) -> None:
    cells = {"offload": OFFLOAD.code("optimizer")}
    assert held("optimizer", cells) == [0.0]
    assert held("gradients", cells) == held("gradients", {})


@pytest.mark.parametrize(("bucket", "left"), [(5e8, None), (1_000, 2_000.0)])
def test_zero_offload_leaves_a_bucket_of_the_gradients_in_16_bit(
    bucket: float, left: float | None, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_BUCKET", bucket)
    cells, profile = {"offload": OFFLOAD.code("optimizer"), "dp": 2}, {"offloads_gradients": True}
    for stage, sent in ((1, False), (2, True), (3, True)):
        whole, found = (held("gradients", cells | {"zero_stage": stage}, framework=one) for one in ({}, profile))
        assert found == ([left] if sent and left else whole)


def test_one_rank_sends_its_gradients_to_the_host_whatever_its_stage(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_BUCKET", 1_000)
    cells = {"offload": OFFLOAD.code("optimizer"), "dp": 1, "zero_stage": 0}
    assert held("gradients", cells, framework={"offloads_gradients": True}) == [2_000.0]


def test_logits_and_the_layer_that_is_recomputed_are_not_alive_together(held: Held) -> None:
    layer = TOKENS * (2 * NORM + HEADS + LSE + MLP - 128)
    framework = {"logits_bytes": 100.0}
    whole, less = (held("logits", {"recompute": rc}, framework=framework, **ONE)[0] for rc in (0, 2))
    assert whole - less == layer


def test_selective_recomputation_may_drop_what_routed_experts_keep_whatever_its_share(held: Held, moe: Make) -> None:
    # of each of four layers the other half of its routed copies goes, and none is restored beside the layer at work
    share = {"selective_share": 0.5}
    some, more = (
        held("activations", {"recompute": 1}, moe(), **ONE, framework=share | of)[0]
        for of in ({}, {"selective_experts": True})
    )
    assert some - more == pytest.approx(4 * TOKENS * ROUTED / 2)
