"""LoRA: adapters of low rank beside frozen linear layers (Hu et al. 2021, arXiv:2106.09685): weights, bytes, kernels.

As Megatron-Bridge lays them (its peft/utils.py, ParallelLinearAdapter): a product down to the rank and one up again, in
16 bit, both cut by the ranks that cut their layer; one adapter serves all experts that a rank holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import Bools, Floats
from jointopt.jobs.job import Training
from jointopt.jobs.model import Model
from jointopt.physics.layers import Kernels, Pass, elementwise, linear


@dataclass(frozen=True)
class Adapter:
    """The adapter of one linear layer on one rank of L layouts."""

    fan_in: float  # of the whole layer
    fan_out: float
    row: bool  # its layer is cut along its inputs, else along its outputs
    tokens: Floats  # (L,) that go through it
    tp: Floats  # (L,) ranks that cut it
    routed: bool = False  # of experts
    mlp: bool = True  # of an MLP, else of attention

    def parameters(self, dim: int) -> Floats:
        """Weights of a rank, (L,)."""
        return dim * (self.fan_in + self.fan_out) / self.tp


def adapters(
    model: Model, training: Training, kind: str, tokens: Floats, tp: Floats, share: Floats, expert_tp: Floats
) -> list[Adapter]:
    """The adapters of one layer of a kind, ``dense`` or ``moe``; none where all weights are trained.

    Of ``tokens`` (L,) through the layers of a rank, which ``tp`` (L,) ranks cut; the rank's experts see a ``share`` of
    them, and are cut by ``expert_tp``: `LayoutArrays.adapter_cuts`.
    """
    h, heads = model.hidden_size, model.num_attention_heads
    head_width = model.v_head_dim if model.kv_lora_rank else model.head_dim
    found = [("linear_proj", Adapter(heads * head_width, h, True, tokens, tp, mlp=False))]
    if not model.kv_lora_rank:  # latent attention has no one product of queries, keys and values
        values = (heads + 2 * model.num_query_groups) * model.head_dim
        found.insert(0, ("linear_qkv", Adapter(h, values, False, tokens, tp, mlp=False)))
    mlps = [(model.ffn_hidden_size, tokens, tp, False)] if kind == "dense" else []
    if kind == "moe" and model.is_moe:
        mlps.append((model.moe_ffn_hidden_size, tokens * share * model.moe_router_topk, expert_tp, True))
        if model.num_shared_experts:
            mlps.append((model.num_shared_experts * model.moe_ffn_hidden_size, tokens, tp, False))
    for width, through, cut, routed in mlps:
        up = (2 if model.gated_mlp else 1) * width
        found.append(("linear_fc1", Adapter(h, up, False, through, cut, routed)))
        found.append(("linear_fc2", Adapter(width, h, True, through, cut, routed)))
    return [adapter for name, adapter in found if name in training.adapted]


def adapter_kernels(k: Kernels, found: Sequence[Adapter], training: Training, sp: Bools) -> list[Pass]:
    """Kernels of each adapter, (L,); ``sp`` (L,): under sequence parallelism.

    Both products; forward the sum's scale and addition, backward the gradient's scale and that of the shared input.
    Scale and addition are kernels of their own in any framework. What a row-parallel layer adds is whole on each rank,
    but for its slice of the sequence.
    """
    k, dim = replace(k, dtype=k.wide_dtype, frozen=False), float(training.lora_dim or 0)
    unfused, out = k.element_bytes / k.elementwise_factor, []
    for one in found:
        inputs = one.fan_in / (one.tp if one.row else 1.0)
        down = linear(k, one.tokens, dim if one.row else dim / one.tp, inputs)
        up = linear(k, one.tokens, one.fan_out / one.tp, dim)
        added = one.tokens * one.fan_out / np.where(one.row & ~sp, 1.0, one.tp) * unfused
        read = 3.0 * one.tokens * inputs * unfused
        scaled = Pass(elementwise(k, 5.0 * added, 2), elementwise(k, 2.0 * added + read, 2))
        out.append(down + up + scaled)
    return out
