"""Kernels that selective recomputation runs again: the forward pass of each module that it names."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model
from jointopt.physics.adapters import adapter_kernels, mlp_adapters
from jointopt.physics.layers import Kernels, Pass, Routing, Work, elementwise, linear, mlp_layer
from jointopt.physics.layouts import LayoutArrays


def module_work(job: Job, k: Kernels, lay: LayoutArrays, priced: tuple[Pass, Pass], kind: str) -> Work:
    """Forward kernels of the modules that a layer of one kind (``dense`` or ``moe``) recomputes, (L,).

    ``priced``: its attention core, and its MLP or experts. A module inside a recomputed one counts once: an expert's
    activation and shared experts under ``moe``.
    """
    again, model, (core, beside) = lay.again, job.model, priced
    parts = {
        "core_attn": core.forward, "layernorm": elementwise(k, 4.0 * lay.sharded_tokens * model.hidden_size *
                                                            k.element_bytes, 2),
    }  # fmt: skip
    if model.kv_lora_rank:
        parts["mla_up_proj"] = _up_projections(model, k, lay)
    apart = ~again.has("moe")
    if kind == "dense" and model.has_mlp:
        parts["mlp"] = beside.forward
    elif model.is_moe:
        parts["moe"] = beside.forward
        parts["moe_act"] = _activations(model, k, lay).times(apart.astype(float))
        if model.num_shared_experts:
            width = model.num_shared_experts * model.moe_ffn_hidden_size / lay.tp
            shared = mlp_layer(k, model, lay.tokens, width, lay.sharded_tokens).forward
            parts["shared_experts"] = shared.times(apart.astype(float))
    whole = "mlp" if kind == "dense" else "moe"
    for one in adapter_kernels(k, mlp_adapters(job, lay, kind), job.training, lay.sp):
        parts[whole] = parts[whole] + one.forward
    zero = np.zeros(len(lay.tp))
    total = Work(zero, zero, zero, zero)
    for name, work in parts.items():
        total = total + work.times(again.has(name).astype(float))
    return total


def routing(lay: LayoutArrays, rows: Ints | slice = slice(None)) -> Routing:
    """How tokens come to the experts of those layouts."""
    return Routing(*(x[rows] for x in (lay.ep, lay.expert_tp, lay.token_share, lay.expert_load, lay.expert_spread)))


def _up_projections(model: Model, k: Kernels, lay: LayoutArrays) -> Work:
    """MLA's products from the latents to queries, keys and values (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    heads = model.num_attention_heads / lay.tp
    qk = model.qk_nope_head_dim + model.qk_rope_head_dim
    up = linear(k, lay.tokens, heads * (model.qk_nope_head_dim + model.v_head_dim), float(model.kv_lora_rank))
    return (up + linear(k, lay.tokens, heads * qk, float(model.q_lora_rank or model.hidden_size))).forward


def _activations(model: Model, k: Kernels, lay: LayoutArrays) -> Work:
    """The activation of the routed experts: up (and gate) read, the product written."""
    copies: Floats = lay.tokens * lay.token_share * model.moe_router_topk / lay.expert_tp * lay.expert_load
    width = (3 if model.gated_mlp else 2) * model.moe_ffn_hidden_size
    return elementwise(k, copies * width * k.element_bytes, 1)
