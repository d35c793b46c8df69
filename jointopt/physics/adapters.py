"""LoRA: adapters of low rank beside frozen linear layers (Hu et al. 2021, arXiv:2106.09685): weights, bytes, kernels.

As Megatron-Bridge lays them (its peft/utils.py, ParallelLinearAdapter): a product down to the rank and one up again, in
16 bit, both cut by the ranks that cut their layer; one adapter serves all experts that a rank holds.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import Bools, Floats
from jointopt.jobs.job import Job, Training
from jointopt.jobs.model import Model
from jointopt.physics.layers import Kernels, Pass, elementwise, linear
from jointopt.physics.layouts import LayoutArrays


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


@dataclass(frozen=True)
class Through:
    """Tokens through the layers of a rank and how these are cut: arrays (L,) of `LayoutArrays`, or of some rows."""

    tokens: Floats
    tp: Floats
    share: Floats  # of the tokens, that the rank's experts see
    expert_tp: Floats

    @classmethod
    def of(cls, lay: LayoutArrays) -> Through:
        """Tokens of all layouts, and how adapters are cut there."""
        return cls(lay.tokens, lay.tp, lay.token_share, lay.expert_tp)


def adapters(model: Model, training: Training, at: Through, kind: str) -> list[Adapter]:
    """The adapters of one layer of a kind, ``dense`` or ``moe``; none where all weights are trained."""
    found = _of_attention(model, at)
    if kind == "dense":
        found |= _of_mlp(model, model.ffn_hidden_size, at.tokens, at.tp)
    elif model.is_moe:
        routed = at.tokens * at.share * model.moe_router_topk
        found |= _of_mlp(model, model.moe_ffn_hidden_size, routed, at.expert_tp, routed=True)
        if model.num_shared_experts:
            width = model.num_shared_experts * model.moe_ffn_hidden_size
            shared = _of_mlp(model, width, at.tokens, at.tp)
            found |= {f"{name} of shared experts": adapter for name, adapter in shared.items()}
    return [adapter for name, adapter in found.items() if name.split()[0] in training.adapted]


def mlp_adapters(job: Job, lay: LayoutArrays, kind: str) -> list[Adapter]:
    """The adapters of the MLP, which run again where it is recomputed."""
    return [one for one in adapters(job.model, job.training, Through.of(lay), kind) if one.mlp]


def _of_attention(model: Model, at: Through) -> dict[str, Adapter]:
    """The adapters around attention's core; latent attention has no one product of queries, keys and values."""
    h, heads = model.hidden_size, model.num_attention_heads
    if model.kv_lora_rank:
        return {"linear_proj": Adapter(heads * model.v_head_dim, h, True, at.tokens, at.tp, mlp=False)}
    values = (heads + 2 * model.num_query_groups) * model.head_dim
    return {
        "linear_qkv": Adapter(h, values, False, at.tokens, at.tp, mlp=False),
        "linear_proj": Adapter(heads * model.head_dim, h, True, at.tokens, at.tp, mlp=False),
    }


def _of_mlp(model: Model, width: int, tokens: Floats, tp: Floats, *, routed: bool = False) -> dict[str, Adapter]:
    up = (2 if model.gated_mlp else 1) * width
    return {
        "linear_fc1": Adapter(model.hidden_size, up, False, tokens, tp, routed),
        "linear_fc2": Adapter(width, model.hidden_size, True, tokens, tp, routed),
    }


def adapter_kernels(k: Kernels, found: Sequence[Adapter], training: Training, sp: Bools) -> list[Pass]:
    """Kernels of each adapter, (L,); ``sp`` (L,): under sequence parallelism."""
    own = replace(k, dtype=k.wide_dtype, frozen=False)
    return [_kernels(own, adapter, float(training.lora_dim or 0), sp) for adapter in found]


def _kernels(k: Kernels, adapter: Adapter, dim: float, sp: Bools) -> Pass:
    """Both products; forward the sum's scale and addition, backward the gradient's scale and that of the shared input.

    Scale and addition are kernels of their own in any framework. What a row-parallel layer adds is whole on each rank,
    but for its slice of the sequence.
    """
    unfused = k.element_bytes / k.elementwise_factor
    tp, inputs = adapter.tp, adapter.fan_in / (adapter.tp if adapter.row else 1.0)
    down = linear(k, adapter.tokens, dim if adapter.row else dim / tp, inputs)
    up = linear(k, adapter.tokens, adapter.fan_out / tp, dim)
    added = adapter.tokens * adapter.fan_out / np.where(adapter.row & ~sp, 1.0, tp) * unfused
    read = 3.0 * adapter.tokens * inputs * unfused
    return down + up + Pass(elementwise(k, 5.0 * added, 2), elementwise(k, 2.0 * added + read, 2))


def adapted_layer(layer: Pass, parts: Sequence[Pass]) -> Pass:
    """A layer with its adapters."""
    return functools.reduce(operator.add, parts, layer)


def kept_bytes(found: Sequence[Adapter], training: Training, element_bytes: float) -> Floats | float:
    """Bytes that adapters keep for their backward pass, (L,): what the first product hands to the second.

    Their inputs are those of their layers, which `Training.keeps_input_of` counts.
    """
    total: Floats | float = 0.0
    for adapter in found:
        total = total + adapter.tokens
    return element_bytes * float(training.lora_dim or 0) * total
