"""Parameters and device memory of every stage, from layouts."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Columns, Floats
from jointopt.core.units import GIB
from jointopt.physics import memory as mem
from jointopt.physics.layout_arrays import LayoutArrays, dense_layers_of, stage_layers
from jointopt.physics.pipeline import in_flight_micro_batches
from jointopt.spec.job import Job


def stage_parameters(job: Job, lay: LayoutArrays, layers: Floats) -> mem.Parameters:
    """Parameters per rank of every stage, (L, pp): its layers, the embedding first, the head (or its copy) last."""
    model = job.model
    dense_layer, moe_layer, experts = mem.layer_parameters(model, lay.tp, lay.ep, lay.expert_tp)
    dense_layers = dense_layers_of(job, layers)
    moe_layers = layers - dense_layers
    dense = dense_layer[:, None] * dense_layers + moe_layer[:, None] * moe_layers
    table = model.vocab_size * model.hidden_size / lay.tp
    dense[:, 0] += table
    if model.position_embedding == "learned":
        dense[:, 0] += model.max_position_embeddings * model.hidden_size
    if lay.pp > 1 or not model.tied_embeddings:
        dense[:, -1] += table
    return mem.Parameters(dense, experts[:, None] * moe_layers)


def memory_parts(job: Job, layouts: Columns) -> dict[str, Floats]:
    """Bytes per rank of each stage, (L, pp), for layouts of one pipeline depth.

    Parts: weights, gradients, optimizer, activations, other.
    """
    lay = LayoutArrays(job, layouts)
    layers = stage_layers(job, layouts)
    habits, training = job.training.framework, job.training
    params = stage_parameters(job, lay, layers)
    shard = (lay.dp * lay.cp)[:, None]
    state = mem.state_bytes(
        params, lay.zero[:, None], shard, shard / lay.ep[:, None], habits.gradient_bytes, training
    )
    activations = _activation_bytes(job, lay, layers)
    logits = mem.logits_bytes(
        job.model, lay.tokens, lay.tp, habits.logits_bytes, habits.logits_tensor_parallel
    )
    held_gib = job.cluster.gpu.process_memory_gib
    other = np.full_like(activations, (habits.memory_overhead_gib if held_gib is None else held_gib) * GIB)
    other[:, -1] += logits
    # ZeRO-3 holds the gathered weights of the layer at work and of the next one
    working = 2.0 * 2.0 * (params.dense + params.expert) / np.maximum(layers, 1.0)
    other += np.where(lay.zero[:, None] == 3, working, 0.0)
    return {
        "weights": state.weights,
        "gradients": state.gradients,
        "optimizer": state.optimizer,
        "activations": activations * habits.activation_factor,
        "other": other,
    }


def _activation_bytes(job: Job, lay: LayoutArrays, layers: Floats) -> Floats:
    model, training = job.model, job.training
    norms = 2.0 if training.fused_norm else 5.0  # an unfused norm also keeps an fp32 copy and its statistics
    dense_kept = mem.dense_layer_activations(model, training, lay.tokens, lay.tp, lay.sp, norms)
    moe_kept = dense_kept
    if model.is_moe:
        moe_kept = mem.moe_layer_activations(
            model, training, lay.tokens, lay.tp, lay.sp, lay.expert_tp, lay.token_share, norms
        )
    scores = lay.tokens * mem.score_bytes(model, training, lay.tp)
    inputs = mem.layer_input_bytes(model, training, lay.tokens, lay.tp, lay.sp)
    dense_layers = dense_layers_of(job, layers)
    in_flight = in_flight_micro_batches(
        np.full(len(lay.tp), lay.pp), lay.vpp.astype(np.int64), lay.micro_batches, np.arange(lay.pp)
    )

    share = training.framework.selective_share

    def kept(layer: Floats) -> Floats:
        partly = (1.0 - share) * layer + share * inputs if share else layer - scores
        return np.where(lay.full, inputs, np.where(lay.selective, partly, layer))

    per_batch = kept(dense_kept)[:, None] * dense_layers + kept(moe_kept)[:, None] * (layers - dense_layers)
    working = np.where(lay.full | lay.selective, np.maximum(dense_kept, moe_kept), 0.0)
    return per_batch * in_flight + working[:, None]
