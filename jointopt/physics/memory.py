"""Device memory of one rank in bytes: weights, gradients, optimizer state, activations, logits.

Arrays broadcast; ``tokens`` are the rank's (micro-batch x sequence / cp); L layouts, pp stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.core.units import GIB
from jointopt.physics.layout_arrays import LayoutArrays, dense_layers_of, kv_heads_of_rank, stage_layers
from jointopt.physics.schedule import in_flight_micro_batches
from jointopt.spec.job import Job, Training
from jointopt.spec.model import Model


@dataclass(frozen=True)
class Parameters:
    """Parameters that one rank of each stage holds: dense ones, and those of its experts."""

    dense: Floats
    expert: Floats


def stage_parameters(job: Job, lay: LayoutArrays, layers: Floats) -> Parameters:
    """Parameters per rank of every stage, (L, pp): its layers, the embedding first, the head (or its copy) last.

    12·h² of a GPT layer (Narayanan et al. 2021, arXiv:2104.04473, section 5.1) over tp; norms and router are whole. A
    tied head is a copy of its own only where pp > 1, as in Megatron.
    """
    model = job.model
    attention = model.attention_parameters / lay.tp + 2.0 * model.hidden_size * (1 if model.rmsnorm else 2)
    dense_layer = attention + model.dense_mlp_parameters / lay.tp
    shared = model.num_shared_experts * model.expert_parameters / lay.tp
    moe_layer = attention + shared + float(model.num_experts * model.hidden_size)
    experts = model.num_experts / lay.ep * model.expert_parameters / lay.expert_tp
    dense_layers = dense_layers_of(job, layers)
    moe_layers = layers - dense_layers
    dense = dense_layer[:, None] * dense_layers + moe_layer[:, None] * moe_layers
    table = model.vocab_size * model.hidden_size / lay.tp
    dense[:, 0] += table
    if model.position_embedding == "learned":
        dense[:, 0] += model.max_position_embeddings * model.hidden_size
    if lay.pp > 1 or not model.tied_embeddings:
        dense[:, -1] += table
    return Parameters(dense, experts[:, None] * moe_layers)


def state_bytes(
    params: Parameters, zero_stage: Ints, shard: Floats, expert_shard: Floats, gradient_bytes: int, training: Training
) -> dict[str, Floats]:
    """Bytes of weights, gradients and optimizer after ZeRO; ``shard`` = dp·cp, ``expert_shard`` = ranks of an expert.

    Mixed precision: 2 bytes of weights, ``gradient_bytes``, 12 of fp32 master and moments; fp32: 4 + 4 + 8. Stage 1
    shards the optimizer, 2 gradients too, 3 weights too (Rajbhandari et al. 2020, arXiv:1910.02054, section 5).
    """
    full = training.dtype == "fp32"
    weight, gradient, adam = (4.0, 4.0, 8.0) if full else (2.0, float(gradient_bytes), 12.0)

    def sharded(from_stage: int, per_parameter: float) -> Floats:
        dense = params.dense / np.where(zero_stage >= from_stage, shard, 1.0)
        expert = params.expert / np.where(zero_stage >= from_stage, expert_shard, 1.0)
        return per_parameter * (dense + expert)

    return {"weights": sharded(3, weight), "gradients": sharded(2, gradient), "optimizer": sharded(1, adam)}


def _element_bytes(training: Training) -> float:
    return 4.0 if training.dtype == "fp32" else 2.0


def _block_bytes(
    model: Model, training: Training, tp: Floats, sequence_parallel: Floats, stored_norms: float
) -> Floats:
    """Bytes per token around attention or an MLP: norm input and output, dropout mask; sharded by tp under SP."""
    whole = model.hidden_size * (_element_bytes(training) * stored_norms + (1.0 if model.dropout else 0.0))
    return np.where(sequence_parallel, whole / tp, whole)


def score_bytes(model: Model, training: Training, tp: Floats) -> Floats:
    """Bytes of stored attention scores per token: 5·a·s (softmax in, out, mask), Korthikanti et al. 2022, equation 1.

    Flash kernels keep one fp32 per head instead (Dao et al. 2022, arXiv:2205.14135, section 3.1).
    """
    heads = model.num_attention_heads / tp
    if training.attention in ("unfused", "fused"):
        per_score = (5.0 if model.dropout else 4.0) if training.attention == "unfused" else 3.0
        return per_score * (2.0 if training.dtype == "fp32" else 1.0) * heads * training.seq_length
    return 4.0 * heads


def attention_activations(
    model: Model, training: Training, tokens: Floats, tp: Floats, sequence_parallel: Floats, stored_norms: float
) -> Floats:
    """Bytes of norm input and output, q, k, v, core output, dropout mask; scores where the kernel stores them.

    Korthikanti et al. 2022 (arXiv:2205.05198) section 4, derived here for grouped queries and MLA.
    """
    a, d = model.num_attention_heads, model.head_dim
    if model.kv_lora_rank:
        qk = model.qk_nope_head_dim + model.qk_rope_head_dim
        inner = a * (2 * qk + 2 * model.v_head_dim) / tp + model.q_lora_rank + model.kv_lora_rank
    else:
        inner = (2 * a / tp + 2 * kv_heads_of_rank(model, tp)) * d
    around = _block_bytes(model, training, tp, sequence_parallel, stored_norms)
    return tokens * (around + _element_bytes(training) * inner + score_bytes(model, training, tp))


def _mlp_bytes(model: Model, training: Training, width: Floats | float) -> Floats | float:
    """Bytes per token of up (and gate) and activated values of an MLP of that width."""
    return _element_bytes(training) * (3.0 if model.gated_mlp else 2.0) * width


def dense_layer_activations(
    model: Model, training: Training, tokens: Floats, tp: Floats, sequence_parallel: Floats, stored_norms: float = 2.0
) -> Floats:
    """Bytes that one dense layer keeps for its backward pass, nothing recomputed.

    s·b·h·(10 + 24/t + 5·a·s/(h·t)) for GPT with dropout, all over t under SP (Korthikanti et al. 2022, arXiv:2205.05198
    equation 2); derived here for gated MLPs, grouped queries and ``stored_norms`` living copies of each norm's input.
    """
    attention = attention_activations(model, training, tokens, tp, sequence_parallel, stored_norms)
    around = _block_bytes(model, training, tp, sequence_parallel, stored_norms)
    return attention + tokens * (around + _mlp_bytes(model, training, model.ffn_hidden_size / tp))


def moe_layer_activations(model: Model, training: Training, lay: LayoutArrays, stored_norms: float = 2.0) -> Floats:
    """`dense_layer_activations` of an MoE layer, (L,) bytes: routed copies of tokens, permuted, and shared experts.

    Derived here for balanced routing: experts see ``token_share`` x top-k copies of a rank's tokens, in and out.
    """
    routed = model.moe_router_topk * lay.token_share
    width = model.moe_ffn_hidden_size
    experts = _mlp_bytes(model, training, width / lay.expert_tp) + 2.0 * _element_bytes(training) * model.hidden_size
    shared = _mlp_bytes(model, training, model.num_shared_experts * width / lay.tp)
    around = _block_bytes(model, training, lay.tp, lay.sp, stored_norms)
    attention = attention_activations(model, training, lay.tokens, lay.tp, lay.sp, stored_norms)
    return np.asarray(attention + lay.tokens * (around + routed * experts + shared))


def layer_input_bytes(
    model: Model, training: Training, tokens: Floats, tp: Floats, sequence_parallel: Floats
) -> Floats:
    """Bytes that full recompute keeps of a layer: its input, s·b·h elements (sharded by tp under SP).

    Korthikanti et al. 2022, section 5: 2·s·b·h·L at 2 bytes per element.
    """
    whole = _element_bytes(training) * tokens * model.hidden_size
    return np.where(sequence_parallel, whole / tp, whole)


def logits_bytes(model: Model, tokens: Floats, tp: Floats, per_logit: float, tensor_parallel: bool) -> Floats:
    """Bytes of logits and their gradient at the peak of the loss, on the last stage.

    ``per_logit`` is the framework profile's, fitted; Korthikanti et al. 2022, section 4.3, has 4·s·b·v/t for fp32.
    """
    return per_logit * tokens * model.vocab_size / (tp if tensor_parallel else 1.0)


def memory_parts(job: Job, layouts: Columns) -> dict[str, Floats]:
    """Bytes per rank of each stage, (L, pp), for layouts of one pipeline depth.

    Parts: weights, gradients, optimizer, activations, other (process, logits, ZeRO-3's gathered weights). The
    allocator's fragmentation is not modelled but for the framework profile's ``activation_factor``.
    """
    lay = LayoutArrays(job, layouts)
    layers = stage_layers(job, layouts)
    profile, training = job.training.framework, job.training
    params = stage_parameters(job, lay, layers)
    shard, zero = (lay.dp * lay.cp)[:, None], lay.zero[:, None]
    state = state_bytes(params, zero, shard, lay.expert_dp[:, None], profile.gradient_bytes, training)
    activations = _activation_bytes(job, lay, layers)
    held_gib = job.cluster.gpu.process_memory_gib
    other = np.full_like(activations, (profile.memory_overhead_gib if held_gib is None else held_gib) * GIB)
    other[:, -1] += logits_bytes(job.model, lay.tokens, lay.tp, profile.logits_bytes, profile.logits_tensor_parallel)
    # ZeRO-3 holds the gathered weights of the layer at work and of the next one
    working = 2.0 * 2.0 * (params.dense + params.expert) / np.maximum(layers, 1.0)
    return {
        **state,
        "activations": activations * profile.activation_factor,
        "other": other + np.where(zero == 3, working, 0.0),
    }


def _activation_bytes(job: Job, lay: LayoutArrays, layers: Floats) -> Floats:
    """Bytes of activations of every stage, (L, pp): those of its micro-batches in flight, and the layer at work."""
    model, training = job.model, job.training
    norms = 2.0 if training.fused_norm else 5.0  # an unfused norm also keeps an fp32 copy and its statistics
    dense = dense_layer_activations(model, training, lay.tokens, lay.tp, lay.sp, norms)
    moe = moe_layer_activations(model, training, lay, norms) if model.is_moe else dense
    scores = lay.tokens * score_bytes(model, training, lay.tp)
    inputs = layer_input_bytes(model, training, lay.tokens, lay.tp, lay.sp)
    share = training.framework.selective_share

    def kept(layer: Floats) -> Floats:
        """A layer's bytes after recompute: its input (full), all but the scores or but some layers (selective)."""
        partly = (1.0 - share) * layer + share * inputs if share else layer - scores
        return np.where(lay.full, inputs, np.where(lay.selective, partly, layer))

    dense_layers = dense_layers_of(job, layers)
    per_batch = kept(dense)[:, None] * dense_layers + kept(moe)[:, None] * (layers - dense_layers)
    depth = np.full(len(lay.tp), lay.pp)
    in_flight = in_flight_micro_batches(depth, lay.vpp.astype(np.int64), lay.micro_batches, np.arange(lay.pp))
    working = np.where(lay.full | lay.selective, np.maximum(dense, moe), 0.0)
    return per_batch * in_flight + working[:, None]
