"""Workloads below a model: some layers of it, or attention or the MLP of them alone, without embedding and head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jointopt.spec.model import Model

# what neither attention nor an MLP has: the word embedding, positions, the output matrix, tokens predicted further
_ENDS: dict[str, Any] = {
    "vocab_size": 0, "max_position_embeddings": 0, "embedding_size": 0, "mtp_num_layers": 0, "tied_embeddings": False,
    "final_norm": False, "embedding_norm": False,
}  # fmt: skip
_MLP: dict[str, Any] = {
    "ffn_hidden_size": 0, "num_experts": 0, "moe_router_topk": 0, "moe_ffn_hidden_size": 0, "num_shared_experts": 0,
    "moe_router_num_groups": 0, "moe_router_group_topk": 0, "moe_linear_bias": False,
}  # fmt: skip
_ATTENTION: dict[str, Any] = {
    "num_attention_heads": 0, "num_query_groups": 0, "qkv_bias": False, "attention_sinks": False,
    "qk_norm": False, "qk_norm_full": False, "q_lora_rank": 0, "kv_lora_rank": 0, "qk_nope_head_dim": 0,
    "qk_rope_head_dim": 0, "v_head_dim": 0, "window_size": 0, "window_attn_skip_freq": 0,
}  # fmt: skip
# columns of tables that do not describe a block
NOT_IN = {
    "layer": ("vocab_size",), "attention": ("vocab_size", "ffn_hidden_size", "gated_mlp"),
    "feed_forward": ("vocab_size", "num_attention_heads", "num_query_groups"),
}  # fmt: skip
_WITHOUT = {"layer": {}, "attention": _MLP, "feed_forward": _ATTENTION}


def block_of(model: Model, block: str, num_layers: int = 1, name: str = "") -> Model:
    """So many layers of the model as a workload of their own, by one of `MODEL_BLOCKS`: what it leaves out has size 0.

    Activations come in and go out; a gradient of what comes in is worked out, as in the middle of a model. Of a model
    with experts and leading dense layers those with experts.
    """
    # positions other than RoPE are added to the embedding, or to scores at no cost
    positions = "rope" if model.position_embedding == "rope" and block != "feed_forward" else "alibi"
    without = _ENDS | {"num_dense_layers": 0} | _first_windows(model, num_layers) | _WITHOUT[block]
    return replace(
        model, block=block, num_layers=num_layers, name=name or f"{model.name}-{block}", config=None,
        position_embedding=positions, **without,
    )  # fmt: skip


def _first_windows(model: Model, num_layers: int) -> dict[str, Any]:
    """Windows of the model's first layers, again from the first where the block has more of them than the model."""
    freq = model.window_attn_skip_freq
    if not isinstance(freq, tuple):
        return {}
    return {"window_attn_skip_freq": tuple(freq[at % len(freq)] for at in range(num_layers))}
