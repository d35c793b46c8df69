"""Traffic of each kind of parallelism: which collectives, how many bytes. Bytes per rank, arrays broadcast.

What a collective costs on which link is `jointopt.physics.collectives`; which link a group crosses is
`jointopt.spec.plans.placement`.
"""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats
from jointopt.spec.model import Model


def hidden_bytes(model: Model, tokens: Floats, element_bytes: float) -> Floats:
    """The residual stream of one micro-batch on one rank: what TP reduces and PP sends."""
    return element_bytes * tokens * model.hidden_size


def pipeline_bytes(
    model: Model, tokens: Floats, tp: Floats, sequence_parallel: Floats, element_bytes: float
) -> Floats:
    """One activation (or its gradient) across one stage boundary; SP sends its shard only."""
    whole = hidden_bytes(model, tokens, element_bytes)
    return np.where(sequence_parallel, whole / tp, whole)


def context_bytes(model: Model, tokens: Floats, cp: Floats, tp: Floats, element_bytes: float) -> Floats:
    """Keys and values of the whole sequence that a rank sees in one layer's forward pass (gathered size)."""
    if model.kv_lora_rank:
        per_token = model.num_attention_heads * (
            model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
        )
    else:
        per_token = 2 * model.num_query_groups * model.head_dim
    return element_bytes * tokens * cp * per_token / tp


def routed_bytes(model: Model, tokens: Floats, token_share: Floats, element_bytes: float) -> Floats:
    """Tokens that one rank hands to experts in one direction of one all-to-all."""
    return element_bytes * tokens * token_share * model.moe_router_topk * model.hidden_size
