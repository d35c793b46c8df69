"""Recomputation as plans state it: bytes that modules drop, layers recomputed whole, collectives redone.

Modules are those of Megatron Core's ``--recompute-modules`` (transformer_config.py): a checkpointed
module (mlp, moe, shared_experts, core_attn) keeps its input; an output-discarding one (layernorm, moe_act, mla_up_proj)
drops its output, which the backward pass of its consumer restores.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jointopt.core.schema import MODULES, Bools, Columns, Floats
from jointopt.jobs.job import Training
from jointopt.jobs.model import Model


class Recompute:
    """Modules and layers that each of L layouts recomputes; all arrays are (L,)."""

    def __init__(self, layouts: Columns, selective: Bools, full: Bools, num_layers: int) -> None:
        self.selective, self.full = selective, full
        self.modules = np.where(selective, layouts["recompute_modules"], 0)
        self.usual = selective & (self.modules == 0)  # what the framework calls selective
        self.chunk_layers = np.where(full, layouts["recompute_num_layers"], 0)
        self._vpp = layouts["vpp"]
        some = np.minimum(self.chunk_layers * layouts["vpp"] * layouts["pp"] / num_layers, 1.0)
        self.full_share = np.where(self.chunk_layers > 0, some, full.astype(float))  # of all layers

    def has(self, name: str) -> Bools:
        """A mask, (L,), true where a module is among those recomputed."""
        return np.asarray(self.modules & MODULES.bit(name) > 0)

    def full_layers(self, layers: Floats) -> Floats:
        """Layers of each stage that are recomputed whole, (L, pp); ``layers`` (pp,) or (L, pp).

        Megatron's "block" recomputes the first ``recompute_num_layers`` of each model chunk.
        """
        first = np.minimum((self.chunk_layers * self._vpp)[:, None], layers)
        every = np.where(self.full[:, None], layers, 0.0)
        return np.asarray(np.where(self.chunk_layers[:, None] > 0, first, every))

    def pairs_again(self, is_moe: bool, pairs: float = 2.0) -> Floats:
        """Pairs of tensor-parallel collectives of a layer that are redone, (L,): all, or the one of a module.

        A checkpointed MLP gathers its input and scatters its output once more.
        """
        return pairs * self.full_share + np.where(self.has("moe" if is_moe else "mlp"), 1.0, 0.0)

    def dispatches_again(self) -> Floats:
        """Share of a layer's forward all-to-alls that is redone, (L,)."""
        return np.asarray(np.maximum(self.full_share, self.has("moe")))


def latent_bytes(model: Model, element: float, tp: Floats) -> Floats:
    """Bytes per token of q, k and v that MLA's up-projections write (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""
    if not model.kv_lora_rank:
        return np.zeros_like(tp)
    qk = model.qk_nope_head_dim + model.qk_rope_head_dim
    return np.asarray(element * model.num_attention_heads * (2 * qk + model.v_head_dim) / tp)


def dropped_per_token(
    re: Recompute, around: Mapping[str, Floats], inner: Mapping[str, Floats | float], width: Mapping[str, Floats]
) -> Floats:
    """Bytes per token that a layer of one kind no longer keeps, (L,): attention's, the norms', and its MLP's modules.

    ``around``: bytes by module of attention and norms; ``inner``: those of whole checkpoints of the MLP (``mlp`` or
    ``moe``); ``width``: parts of them, which count only where the whole is kept.
    """
    total, whole = np.zeros(len(re.full)), np.zeros(len(re.full), bool)
    for name, held in {**around, **inner}.items():
        total = total + np.where(re.has(name), held, 0.0)
    for name in inner:
        whole = whole | re.has(name)
    for name, part in width.items():
        total = total + np.where(re.has(name) & ~whole, part, 0.0)
    return total


def input_bytes(training: Training) -> float:
    """Bytes per element of a linear layer's kept input: 1 in fp8, 9/16 in fp4 (a scale per 16), where TE keeps it so.

    Transformer Engine saves the quantized, columnwise copy of inputs for the weight gradient, with the scales that a
    stated recipe has (blockwise 4/128, mxfp8 1/32 of a byte per element); other stacks save bf16.
    """
    plain = 4.0 if training.dtype == "fp32" else 2.0
    if training.fp8_recipe is not None and training.framework.quantized_inputs:
        return training.fp8_recipe.operand_bytes
    quantized = {"fp8": 1.0, "fp4": 0.5625} if training.framework.quantized_inputs else {}
    return quantized.get(training.dtype, plain)
