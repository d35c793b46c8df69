"""Kernels of the experts of a layer: router, permutation, grouped products, shared experts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import Floats
from jointopt.jobs.model import Model
from jointopt.physics.compute import Kernels, Pass, Work, elementwise, linear, mlp_layer


@dataclass(frozen=True)
class Routing:
    """How tokens come to the experts of a rank, (L,) each."""

    ep: Floats
    expert_tp: Floats  # cuts an expert's width
    # share of the rank's tokens that its experts see: 1 where tp cuts them, 1/tp where ranks route their own slice
    token_share: Floats
    load: Floats  # tokens of the most loaded rank over the mean
    spread: Floats  # standard deviation of an expert's tokens over their mean


def moe_layer(
    k: Kernels, model: Model, tokens: Floats, way: Routing, tp: Floats, sharded_tokens: Floats
) -> tuple[Pass, Pass]:
    """Kernels of router, permutation, grouped expert products and shared experts; and how long of it a mean rank waits.

    Seconds are those of the rank with the most tokens, for which all wait in the combine that follows; flops, bytes and
    what is counted as work are a mean rank's, which waits for so many of these seconds. The router is never in fp8 or
    fp4: frameworks keep it out of Transformer Engine's quantized products (Megatron Core's ``moe_router_dtype``).
    """
    routed = tokens * way.token_share * model.moe_router_topk
    local_experts = model.num_experts / way.ep
    per_expert = np.maximum(routed / local_experts, 1.0) * way.load  # in the mean peers send what is sent away
    moved = 2.0 * (1.0 + way.load) * routed * model.hidden_size * k.element_bytes  # as sent, and as received
    width = model.moe_ffn_hidden_size / way.expert_tp
    experts = mlp_layer(k, model, per_expert, width, sharded_tokens, local_experts, way.spread)
    router = linear(k, sharded_tokens, float(model.num_experts), float(model.hidden_size), dtype=k.wide_dtype)
    experts, waiting = _of_a_mean_rank(experts, way.load)
    work = experts + router + Pass(elementwise(k, moved, 4), elementwise(k, moved, 4))
    if model.num_shared_experts:
        shared = model.num_shared_experts * model.moe_ffn_hidden_size / tp
        work += mlp_layer(k, model, tokens, shared, sharded_tokens)
    return work, waiting


def _of_a_mean_rank(experts: Pass, load: Floats) -> tuple[Pass, Pass]:
    """Flops and bytes of a rank with the mean of tokens in the most loaded one's time; how long it waits of that."""
    mean = 1.0 / load

    def own(work: Work) -> Work:
        return replace(work, flops=work.flops * mean, hbm_bytes=work.hbm_bytes * mean)

    def idle(work: Work) -> Work:
        return Work(work.sm_s * (1.0 - mean), 0.0 * mean, 0.0 * mean, 0.0 * mean)

    return Pass(own(experts.forward), own(experts.backward)), Pass(idle(experts.forward), idle(experts.backward))
