"""Device memory of one rank in bytes: weights, gradients, optimizer state, activations, logits.

Arrays broadcast; ``tokens`` are the rank's (micro-batch x sequence / cp); L layouts, pp stages.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.core.units import GIB
from jointopt.jobs.catalog.kernels import workspaces_mib
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE
from jointopt.jobs.framework import overlap_share as share_hidden
from jointopt.jobs.job import Job, Training
from jointopt.jobs.model import Layer, Model, evaluated, kinds_of
from jointopt.physics.layers import adapters
from jointopt.physics.layouts import (
    LayoutArrays,
    Split,
    by_depth,
    has_latents,
    has_scores,
    input_bytes,
    kv_heads_of_rank,
    layers_of_ranks,
)
from jointopt.physics.schedule import MOST_GROUPS, MOST_ROUNDS, live_chunks_of_1f1b, live_chunks_of_zero_bubble

_CELLS = 32_768  # layouts x ranks in one pass: each array then takes 256 KiB of the cache
_HEAVIEST = 4  # ranks of a layout that may need most; mostly fewer


@dataclass(frozen=True)
class Parameters:
    """Parameters that one rank of each stage holds: dense ones, and those of its experts."""

    dense: Floats
    expert: Floats

    def sharded(self, from_stage: int, zero_stage: Ints, shard: Floats, expert_shard: Floats) -> Floats:
        """Parameters of a rank, (L, pp), that ZeRO shards over ``shard`` ranks (experts' ``expert_shard``), (L, 1).

        ``from_stage``: the ZeRO stage from which on it does.
        """
        dense = self.dense / np.where(zero_stage >= from_stage, shard, 1.0)
        expert = self.expert / np.where(zero_stage >= from_stage, expert_shard, 1.0)
        return dense + expert


def layer_parameters(model: Model, lay: LayoutArrays) -> list[Parameters]:
    """Parameters of one layer of each of the kinds that a rank computes with, (L,) each.

    12·h² of a GPT layer (Narayanan et al. 2021, arXiv:2104.04473, section 5.1) over tp; norms and router are whole.
    """
    norm = float(model.hidden_size * (1 if model.rmsnorm else 2) * (2 if model.sandwich_norm else 1))
    shared = model.shared_expert_parameters / lay.tp
    router = float(model.num_experts * model.hidden_size + model.latent_parameters)  # whole on each rank
    ffn: dict[str, Floats | float] = {"dense": model.dense_mlp_parameters / lay.tp, "experts": shared + router}
    experts, none = model.num_experts / lay.ep * model.expert_parameters / lay.expert_tp, np.zeros_like(lay.tp)
    return [
        Parameters(
            sum(map(model.mixer_weights, kind.mixers)) / lay.tp + kind.parts * norm + ffn.get(kind.ffn, 0.0),
            experts if kind.ffn == "experts" else none,
        )
        for kind in lay.kinds
    ]


def table_parameters(model: Model, lay: LayoutArrays) -> Parameters:
    """Parameters of embedding or head that a rank computes with, (L,)."""
    return Parameters(model.vocab_size * model.hidden_size / lay.tp, np.zeros_like(lay.tp))


def stage_parameters(job: Job, lay: LayoutArrays) -> Parameters:
    """Parameters that a rank of every stage holds, (L, pp): its layers, the embedding first, the head or its copy last.

    A tied head is a copy of its own only where pp > 1, as in Megatron. Of weights that ranks gather, a rank's share;
    norms and routers, which stay whole, count as shared out too.
    """
    model, of, table = job.model, layer_parameters(job.model, lay), table_parameters(job.model, lay).dense
    dense = lay.weighed([one.dense[:, None] for one in of])
    dense += table[:, None] * lay.starts
    if model.position_embedding == "learned":
        dense += model.max_position_embeddings * model.hidden_size * lay.starts
    dense += np.where((lay.pp > 1) | (not model.tied_embeddings), table, 0.0)[:, None] * lay.ends
    if model.mtp_num_layers:  # their projections, and the embedding where it is another rank's
        lookup = table * (1.0 - lay.ends[:, 0]) * (not model.tied_embeddings)
        projections = model.mtp_num_layers * 2.0 * model.hidden_size**2 / lay.tp
        dense += (projections + lookup)[:, None] * lay.ends
    own = adapter_parameters(job, lay)
    expert = lay.weighed([one.expert[:, None] for one in of]) + own.expert
    return Parameters((dense + own.dense) / lay.gtp[:, None], expert / lay.egtp[:, None])


def adapter_parameters(job: Job, lay: LayoutArrays) -> Parameters:
    """Parameters of LoRA's adapters that one rank of every stage holds, (L, pp); experts' apart."""
    of = [np.zeros_like(lay.layers)] * 2
    for kind, layers in zip(lay.kinds, lay.layers_of_kinds, strict=True):
        for one in adapters(job.model, job.training, kind, *lay.adapter_cuts):
            of[one.routed] = of[one.routed] + one.parameters(job.training.lora_dim or 0)[:, None] * layers
    return Parameters(*of)


def state_bytes(
    params: Parameters, zero_stage: Ints, shard: Floats, expert_shard: Floats, training: Training,
    trained: Parameters | None = None,
) -> dict[str, Floats]:  # fmt: skip
    """Bytes of weights, gradients and optimizer after ZeRO, (L, pp) each.

    ``shard`` = dp·cp, ``expert_shard`` = ranks of an expert, (L, 1). Of parameters that are not ``trained`` (None: all
    are) weights alone, in `Training.frozen_bytes`. Mixed precision: 2 bytes of weights, the gradient's, 12 of fp32
    master and moments; fp32: 4 + 4 + 8. Stage 1 shards the optimizer, 2 gradients too, 3 weights too (Rajbhandari et
    al. 2020, arXiv:1910.02054, section 5). Part ``main_gradients``: the optimizer's wider copy of its shard, alive in
    its step alone.
    """
    cut, own = (zero_stage, shard, expert_shard), trained or params
    frozen = training.frozen_bytes * params.sharded(3, *cut) - training.frozen_bytes * own.sharded(3, *cut)
    return {
        "weights": training.weight_bytes * own.sharded(3, *cut) + frozen,
        "gradients": training.gradient_bytes * own.sharded(2, *cut),
        "optimizer": training.optimizer_bytes * own.sharded(1, *cut),
        "main_gradients": training.main_gradient_bytes * own.sharded(1, *cut),
    }


def _element_bytes(training: Training) -> float:
    return 4.0 if training.dtype == "fp32" else 2.0


def kept_input_bytes(training: Training, linear: str) -> float:
    """Bytes per element of a linear layer's input that the backward pass keeps: none where its weights are frozen."""
    return input_bytes(training) if training.keeps_input_of(linear) else 0.0


def _block_bytes(
    model: Model, training: Training, tp: Floats, sequence_parallel: Floats, stored_norms: float, feeds: str
) -> Floats:
    """Bytes per token around attention or an MLP: norm input and output, dropout mask; sharded by tp under SP.

    The output is kept for the gradient of the weights that it ``feeds``; where the framework ``keeps_gathered_inputs``,
    as the tensor ranks gathered it, h elements whatever tp is.
    """
    output = kept_input_bytes(training, feeds)
    gathered = output if training.framework.keeps_gathered_inputs else 0.0
    kept = _element_bytes(training) * (stored_norms - 1.0) + output + (1.0 if model.dropout else 0.0)
    kept += _element_bytes(training) * (max(model.num_residual_streams, 1) - 1)  # of hyper-connections
    shared = (kept - gathered) / tp + gathered
    return np.asarray(model.hidden_size * np.where(sequence_parallel, shared, kept))


def score_bytes(model: Model, training: Training, tp: Floats) -> Floats:
    """Bytes of stored attention scores per token: 5·a·s (softmax, mask, dropped), Korthikanti et al. 2022, equation 1.

    Without dropout the softmax alone, in fp32 (Megatron's attention_softmax_in_fp32). A mask has one byte in any
    precision. Flash kernels keep one fp32 per head instead (Dao et al. 2022, arXiv:2205.14135, section 3.1).
    """
    heads = model.num_attention_heads / tp
    if training.attention in ("unfused", "fused"):
        value = _element_bytes(training)
        stored = 2.0 * value + 1.0 if model.dropout and model.score_dropout else 4.0
        per_score = stored if training.attention == "unfused" else 1.5 * value
        return per_score * heads * training.seq_length
    return 4.0 * heads


def mixer_activations(
    model: Model, training: Training, tokens: Floats, tp: Floats, sequence_parallel: Floats, stored_norms: float,
    layer: Layer,
) -> Floats:  # fmt: skip
    """Bytes of what a layer's attention keeps: `attention_activations`, or of a kind without scores what it states."""
    held = np.zeros_like(tokens)
    for kind in layer.mixers:
        if "scores" in kinds_of("attention")[kind]:
            held = held + attention_activations(model, training, tokens, tp, sequence_parallel, stored_norms)
            continue
        elements = evaluated(model, kind, "kept") / tp + evaluated(model, kind, "kept_whole")
        around = _block_bytes(model, training, tp, sequence_parallel, stored_norms, "in_proj")
        held = held + tokens * (around + _element_bytes(training) * elements)
    return held


def attention_activations(
    model: Model, training: Training, tokens: Floats, tp: Floats, sequence_parallel: Floats, stored_norms: float
) -> Floats:
    """Bytes of norm input and output, q, k, v, core output, dropout mask; scores where the kernel stores them.

    Korthikanti et al. 2022 (arXiv:2205.05198) section 4, derived here for grouped queries and MLA. Where inputs of
    linear layers are kept quantized, the output's is kept beside the 16-bit value that attention itself keeps.
    """
    a, d, element = model.num_attention_heads, model.head_dim, _element_bytes(training)
    if model.kv_lora_rank:
        qk = model.qk_nope_head_dim + model.qk_rope_head_dim
        inner = a * (2 * qk + 2 * model.v_head_dim) / tp + model.q_lora_rank + model.kv_lora_rank
    else:
        inner = (2 * a / tp + 2 * kv_heads_of_rank(model, tp)) * d
    around = _block_bytes(model, training, tp, sequence_parallel, stored_norms, "linear_qkv")
    copy = kept_input_bytes(training, "linear_proj") if input_bytes(training) < element else 0.0
    projected = copy * a * (model.v_head_dim if model.kv_lora_rank else d) / tp
    return tokens * (around + element * inner + projected + score_bytes(model, training, tp))


def _mlp_bytes(model: Model, training: Training, width: Floats | float) -> Floats | float:
    """Bytes per token of up (and gate) and activated values of an MLP of that width; the latter feed a linear layer.

    Of an ``unfused_gate`` the activated gate too: the backward pass of its product with the other half needs it. What
    the activation function reads may be kept in 8 bit (Megatron Core's activation_func_fp8_input_store).
    """
    halves = 2.0 + training.framework.unfused_gate if model.gated_mlp else 1.0
    element = 1.0 if training.keeps_8_bit_activations else _element_bytes(training)
    return (element * halves + kept_input_bytes(training, "linear_fc2")) * width


def dense_layer_activations(
    model: Model, training: Training, tokens: Floats, tp: Floats, sequence_parallel: Floats,
    stored_norms: float = 2.0, layer: Layer | None = None,
) -> Floats:  # fmt: skip
    """Activation memory in bytes of one layer without experts: what it keeps for its backward pass, nothing recomputed.

    s·b·h·(10 + 24/t + 5·a·s/(h·t)) for GPT with dropout, all over t under SP (Korthikanti et al. 2022, arXiv:2205.05198
    equation 2); derived here for gated MLPs, grouped queries and ``stored_norms`` living copies of each norm's input.
    ``layer``: by default the model's first.
    """
    layer = layer or model.pattern[0]
    held = mixer_activations(model, training, tokens, tp, sequence_parallel, stored_norms, layer)
    if layer.ffn == "dense":
        around = _block_bytes(model, training, tp, sequence_parallel, stored_norms, "linear_fc1")
        held = held + tokens * (around + _mlp_bytes(model, training, model.ffn_hidden_size / tp))
    return held


def moe_layer_activations(
    model: Model, training: Training, lay: LayoutArrays, stored_norms: float, layer: Layer
) -> Floats:
    """`dense_layer_activations` of an MoE layer, (L,) bytes: routed copies of tokens, permuted, and shared experts.

    Derived here: experts see `LayoutArrays.kept_copies` of a rank's tokens, in and out.
    """
    around = _block_bytes(model, training, lay.tp, lay.sp, stored_norms, "linear_fc1")
    held = lay.tokens * (around + sum(_expert_bytes(model, training, lay)))
    return np.asarray(mixer_activations(model, training, lay.tokens, lay.tp, lay.sp, stored_norms, layer) + held)


def _expert_bytes(model: Model, training: Training, lay: LayoutArrays) -> tuple[Floats, Floats]:
    """Bytes per token of routed and of shared experts, (L,) each.

    A routed copy is kept as the experts' input, and as their output where its weight is applied after the experts.
    """
    routed = lay.kept_copies
    width = model.moe_ffn_hidden_size
    outputs = 0.0 if training.framework.weighs_routed_inputs else _element_bytes(training)
    ends = (outputs + kept_input_bytes(training, "linear_fc1")) * model.expert_input_size
    experts = _mlp_bytes(model, training, width / lay.expert_tp) + ends
    shared = _mlp_bytes(model, training, model.num_shared_experts * width / lay.tp)
    return np.asarray(routed * experts), np.asarray(shared)


def layer_input_bytes(
    model: Model, training: Training, tokens: Floats, tp: Floats, sequence_parallel: Floats
) -> Floats:
    """Bytes that full recompute keeps of a layer: its input, s·b·h elements (sharded by tp under SP).

    Korthikanti et al. 2022, section 5: 2·s·b·h·L at 2 bytes per element.
    """
    whole = _element_bytes(training) * tokens * model.hidden_size * max(model.num_residual_streams, 1)
    return np.where(sequence_parallel, whole / tp, whole)


def whole_tensor_bytes(job: Job, lay: LayoutArrays) -> Floats:
    """Bytes (L,) of inputs and gradients of products that a rank holds gathered under sequence parallelism.

    h elements per token each, whatever tp is, of one layer at a time: the framework's ``gathered_tensors``.
    """
    each = _element_bytes(job.training) * lay.tokens * job.model.hidden_size
    return np.where(lay.sp & (lay.tp > 1), job.training.framework.gathered_tensors * each, 0.0)


def logits_bytes(model: Model, tokens: Floats, tp: Floats, per_logit: float, tensor_parallel: bool) -> Floats:
    """Bytes of logits and their gradient at the peak of the loss, on the last stage.

    ``per_logit`` is the framework profile's of its cross-entropy (`Training.logit_bytes`); Korthikanti et al. 2022,
    section 4.3, has 4·s·b·v/t for fp32.
    """
    return per_logit * tokens * model.vocab_size / (tp if tensor_parallel else 1.0)


def tokens_with_logits(job: Job, lay: LayoutArrays) -> Floats:
    """Tokens of a rank, (L,), whose logits are alive at once: those of one chunk, or all.

    A fused linear cross-entropy takes a power of two of them, as gives about as many logits as the head's input has
    elements (Liger-Kernel, ops/fused_linear_cross_entropy.py), where ``logits_chunks`` says nothing else.
    """
    model, training = job.model, job.training
    if training.logits_chunks:
        return np.asarray(np.ceil(lay.tokens / training.logits_chunks))
    if training.cross_entropy != "linear":
        return np.asarray(lay.tokens)
    words = model.vocab_size / (lay.tp if training.framework.logits_tensor_parallel else 1.0)
    fewest = np.ceil(lay.tokens / np.ceil(words / model.hidden_size))
    return np.asarray(np.minimum(2.0 ** np.ceil(np.log2(fewest)), lay.tokens))


# Layers whose activations the ranks of a pipeline hold at once, and the few ranks that may need most memory.


@dataclass(frozen=True)
class LiveLayers:
    """Layers of each kind whose activations the ranks hold, at the times at which each may hold most.

    ``group`` (L,): layouts of one split and number of micro-batches; ``layers``: (groups, times, kinds, ranks).
    """

    group: Ints
    layers: Floats

    @classmethod
    def of(cls, lay: LayoutArrays) -> LiveLayers:
        """The layers held by all ranks of the layouts."""
        batches = np.minimum(lay.micro_batches, MOST_ROUNDS * lay.pp)
        keys, group = np.unique(lay.split.which << 32 | batches, return_inverse=True)
        found = [_layers_held(lay.split, int(lay.pp[0]), key >> 32, key & 0xFFFFFFFF) for key in keys.tolist()]
        times = np.arange(max(map(len, found)))
        return cls(group, np.stack([layers[np.minimum(times, len(layers) - 1)] for layers in found]))

    def of_ranks(self, ranks: Ints) -> LiveLayers:
        """The layers held by the ranks (groups, K) of each group."""
        return LiveLayers(self.group, np.take_along_axis(self.layers, ranks[:, None, None], axis=3))

    def most_bytes(self, of_kinds: Sequence[Floats]) -> Floats:
        """Most bytes alive at once on every rank, (L, ranks); ``of_kinds``: bytes of a layer of each kind."""
        most = np.zeros((len(self.group), self.layers.shape[3]))
        for count in self.layers.swapaxes(0, 1):
            at = count[self.group]
            np.maximum(most, sum(each * at[:, kind] for kind, each in enumerate(of_kinds)), out=most)
        return most

    def heaviest_ranks(self, split: Split) -> Ints:
        """Ranks, (groups, K), among which is the one that needs most memory; filled up with rank 0.

        Left out are ranks with the same layers as the rank before them, no embedding, no head and at no time more
        activations than it.
        """
        which = split.which[np.unique(self.group, return_index=True)[1]]
        own = np.stack([layers_of_ranks(chunks)[which] for chunks in split.kinds])
        less = (own[..., 1:] == own[..., :-1]).all(axis=0)
        less &= (self.layers[..., 1:] <= self.layers[..., :-1]).all(axis=(1, 2))
        less[:, :1] = less[:, -1:] = False
        order = np.argsort(np.pad(less, ((0, 0), (1, 0))), axis=1, kind="stable")
        kept = own.shape[2] - less.sum(axis=1)
        return np.where(np.arange(kept.max()) < kept[:, None], order[:, : kept.max()], 0)


def _layers_held(split: Split, pp: int, which: int, num_micro_batches: int) -> Floats:
    """`LiveLayers.layers` of one split and number of micro-batches, (times, kinds, pp)."""
    kinds, schedule = [chunks[which] for chunks in split.kinds], split.schedule[which]
    vpp = kinds[0].shape[1]
    if CHUNKS_OF_SCHEDULE.get(schedule) == vpp:
        alive = live_chunks_of_zero_bubble(schedule, pp, num_micro_batches)
    else:
        alive = live_chunks_of_1f1b(pp, vpp, min(num_micro_batches, MOST_GROUPS * pp))
    layers = np.stack([np.einsum("itc,ic->ti", alive, chunks) for chunks in kinds], axis=1)
    if sum(chunks.any() for chunks in kinds) == 1:  # of one kind alone most layers are most bytes
        layers = layers.max(axis=0, keepdims=True)
    return np.unique(layers, axis=0) if len(layers) > 1 else layers


# The parts of a rank's memory and their sum.


def memory_parts(job: Job, layouts: Columns) -> dict[str, Floats]:
    """Bytes per rank of each stage, (L, pp), for layouts of one pipeline depth; the parts add up to the peak.

    Parts: weights, gradients, optimizer, main_gradients (what its step needs beyond the activations that are then
    gone), activations, fragmentation (the framework profile's ``activation_factor``), logits (beyond the layer at
    work, which is not alive with them), gathered_weights (ZeRO-3), cuda_graphs, and what a process holds beside its
    training: communication, workspaces, other (`process_bytes`).
    """
    lay = LayoutArrays(job, layouts)
    return _parts(job, lay, LiveLayers.of(lay))


def peak_memory_bytes(job: Job, layouts: Columns) -> Floats:
    """Memory of the heaviest rank of every layout, (n,) bytes: the sum of `memory_parts`, on the few that may be it."""
    out = np.empty(len(layouts["pp"]))
    for rows, group in by_depth(layouts, _CELLS, _HEAVIEST):
        lay = LayoutArrays(job, group)
        held = LiveLayers.of(lay)
        ranks = held.heaviest_ranks(lay.split)
        parts = _parts(job, lay.of_ranks(ranks[held.group]), held.of_ranks(ranks))
        out[rows] = functools.reduce(np.add, parts.values()).max(axis=1)
    return out


def _parts(job: Job, lay: LayoutArrays, held: LiveLayers) -> dict[str, Floats]:
    layers, profile, training = lay.layers, job.training.framework, job.training
    params = stage_parameters(job, lay)
    trained = adapter_parameters(job, lay) if training.frozen else params
    state = device_state_bytes(state_bytes(params, *lay.zero_shards, training, trained), lay, training)
    per_layer, at_work = layer_bytes(job, lay)
    in_flight = held.most_bytes(per_layer)
    # offloaded activations leave those of two layers: the one at work and the one that is copied
    two = 2.0 * np.maximum.reduce(per_layer)
    in_flight = np.where(lay.offloads_activations[:, None], np.minimum(in_flight, two), in_flight)
    activations = in_flight + at_work + whole_tensor_bytes(job, lay)[:, None]
    alive, split = tokens_with_logits(job, lay), profile.logits_tensor_parallel
    logits = logits_bytes(job.model, alive, lay.tp, training.logit_bytes, split)
    logits = logits * (1.0 + job.model.mtp_num_layers)
    # logits are gone when the last layer is recomputed
    logits = np.maximum(logits[:, None] * lay.ends - at_work * profile.activation_factor, 0.0)
    # ZeRO-3 holds the gathered weights of the layer at work and of the next one
    working = 2.0 * training.weight_gather_bytes * (params.dense + params.expert) / np.maximum(layers, 1.0)
    working = np.where(lay.zero[:, None] == 3, working, 0.0) + gathered_bytes(job, lay)
    lost = activations * (profile.activation_factor - 1.0)
    kept = activations + np.minimum(lost, 0.0)
    captured = _captured_bytes(job, lay, held, np.minimum(state["main_gradients"], kept + logits))
    state["main_gradients"] = np.maximum(state["main_gradients"] - kept - logits, 0.0)
    process = {name: np.broadcast_to(each[:, None], kept.shape) for name, each in process_bytes(job, lay).items()}
    state["gradients"] = state["gradients"] + bucket_bytes(job, lay, params)
    return {
        **state, "activations": kept, "fragmentation": np.maximum(lost, 0.0), "logits": logits,
        "gathered_weights": working,
        "cuda_graphs": captured, **process,
    }  # fmt: skip


def gathered_bytes(job: Job, lay: LayoutArrays) -> Floats:
    """Bytes of the buffers, (L, pp), in which ranks that share weights (gtp, egtp) gather and reduce them.

    Megatron Core keeps a buffer for each weight of a layer, which layers share (GTPWeightCache): of the forward and of
    the backward pass, and of a whole gradient before it is scattered. Experts are gathered a layer ahead, each into one
    of two. Derived here.
    """
    buffers, training = np.zeros_like(lay.layers), job.training
    if not lay.gathers:
        return buffers
    of, gradient = layer_parameters(job.model, lay), training.gradient_bytes
    cut, some = (lay.gtp > 1.0, lay.egtp > 1.0), [count > 0 for count in lay.layers_of_kinds]
    largest, experts = (
        np.maximum.reduce([np.where(at, sizes[:, None], 0.0) for at, sizes in zip(some, each, strict=True)])
        for each in ([one.dense for one in of], [one.expert for one in of])
    )
    largest = largest + table_parameters(job.model, lay).dense[:, None] * (lay.starts + lay.ends)
    for shared, whole, copies in ((cut[0], largest, 2.0), (cut[1], experts, 4.0)):
        buffers = buffers + np.where(shared[:, None], whole * (copies * training.weight_gather_bytes + gradient), 0.0)
    return buffers


def bucket_bytes(job: Job, lay: LayoutArrays, params: Parameters) -> Floats:
    """Bytes (L, pp) of buffers through which gradients go to other replicas: the framework's ``bucket_elements``.

    4 bytes each: of DeepSpeed's two, one to reduce and one to gather, in 16 bit, or its BF16_Optimizer's one in fp32.
    """
    elements = np.minimum(job.training.framework.bucket_elements, params.dense + params.expert)
    return np.where(lay.shards[:, None] > 1, 4.0 * elements, 0.0)


def _captured_bytes(job: Job, lay: LayoutArrays, held: LiveLayers, step: Floats) -> Floats:
    """Bytes that captured CUDA graphs keep and eager execution frees, (L, pp); ``step`` (L, pp): the optimizer's.

    Transformer Engine's graphs: of each layer and micro-batch in flight an input and the gradient of an output. Of one
    graph over all passes: its pool, whose activations the optimizer's step cannot use. Derived here; NVIDIA's guide
    (Megatron-Bridge, docs/training/cuda-graphs.md) says a few GB, and over 10 GB where pp > 1.
    """
    if job.training.cuda_graph == "full_iteration":
        return step
    if not job.training.captures_graphs:
        return np.zeros_like(step)
    buffers = 2.0 * layer_input_bytes(job.model, job.training, lay.tokens, lay.tp, lay.sp)[:, None]
    return held.most_bytes([buffers] * len(lay.kinds))


def dropped_bytes(job: Job, lay: LayoutArrays, kind: Layer) -> Floats:
    """Bytes of one layer of a kind that recomputation of named modules drops, (L,).

    Attention's, the norms', and those of the whole MLP or of modules of it, which count only where the whole is kept.
    """
    model, training, re = job.model, job.training, lay.recompute
    feeding = bool(kind.mixers) * kept_input_bytes(training, "linear_qkv")
    feeding += (kind.ffn != "none") * kept_input_bytes(training, "linear_fc1")
    norms = feeding * model.hidden_size
    dropped = np.where(re.has("core_attn") & has_scores(kind), score_bytes(model, training, lay.tp), 0.0)
    dropped = dropped + np.where(re.has("layernorm"), np.where(lay.sp, norms / lay.tp, norms), 0.0)
    if has_latents(kind):
        # q, k and v that MLA's up-projections write (DeepSeek-V2, arXiv:2405.04434, section 2.1)
        widths = 2 * (model.qk_nope_head_dim + model.qk_rope_head_dim) + model.v_head_dim
        latent = _element_bytes(training) * model.num_attention_heads * widths / lay.tp
        dropped = dropped + np.where(re.has("mla_up_proj"), latent, 0.0)
    if kind.ffn != "experts":
        mlp = _mlp_bytes(model, training, model.ffn_hidden_size / lay.tp) * (kind.ffn == "dense")
        return np.asarray(lay.tokens * (dropped + np.where(re.has("mlp"), mlp, 0.0)))
    routed, shared = _expert_bytes(model, training, lay)
    copies = lay.kept_copies / lay.expert_tp
    activated = kept_input_bytes(training, "linear_fc2") * copies * model.moe_ffn_hidden_size
    parts = np.where(re.has("moe_act"), activated, 0.0) + np.where(re.has("shared_experts"), shared, 0.0)
    return np.asarray(lay.tokens * (dropped + np.where(re.has("moe"), routed + shared, parts)))


def batch_bytes(job: Job, lay: LayoutArrays) -> Floats:
    """Bytes that one micro-batch keeps on every stage, (L, pp)."""
    return lay.weighed(layer_bytes(job, lay)[0])


def layer_bytes(job: Job, lay: LayoutArrays) -> tuple[list[Floats], Floats]:
    """Bytes that a micro-batch keeps of a layer of each kind, and those of the layer at work beside them, (L, pp) each.

    Of a stage that recomputes some layers whole (Megatron's "block") the mean of its layers. Selective recomputation
    drops modules, or the framework's usual: the scores, or a share of the layers whole (``selective_share``); it
    restores at a time what it dropped of a layer, or a whole layer.
    """
    model, training, share = job.model, job.training, job.training.framework.selective_share
    norms = 2.0 if training.fused_norm else 5.0  # an unfused norm also keeps an fp32 copy and its statistics
    inputs = layer_input_bytes(model, training, lay.tokens, lay.tp, lay.sp)
    scores = lay.tokens * score_bytes(model, training, lay.tp)
    whole = lay.recompute.full_layers(lay.layers) / np.maximum(lay.layers, 1.0)  # share of a stage's layers
    # a layer's share of its stage's output, where that stays beside the next stage's input until the backward pass
    sent = training.framework.keeps_stage_outputs & (lay.pp > 1)
    outputs = (sent * inputs)[:, None] / np.maximum(lay.layers, 1.0)
    per_layer, working = list[Floats](), np.zeros(whole.shape)
    for kind, count in zip(lay.kinds, lay.layers_of_kinds, strict=True):
        routed = np.zeros_like(lay.tokens)  # of those that selective recomputation drops in any layer
        if kind.ffn == "experts":
            own = moe_layer_activations(model, training, lay, norms, kind)
            routed = lay.tokens * _expert_bytes(model, training, lay)[0] * training.framework.selective_experts
        else:
            own = dense_layer_activations(model, training, lay.tokens, lay.tp, lay.sp, norms, kind)
        # what the first product of an adapter hands to the second; inputs are those of the layers
        adapted = sum(one.tokens for one in adapters(model, training, kind, *lay.adapter_cuts))
        layer = own + _element_bytes(training) * float(training.lora_dim or 0) * adapted
        dropped = dropped_bytes(job, lay, kind) if lay.recompute.modules.any() else 0.0
        usual = share * (layer - inputs - routed) + routed if share else scores * has_scores(kind)
        kept = layer - np.where(lay.recompute.usual, usual, dropped)
        per_layer.append(whole * inputs[:, None] + (1.0 - whole) * kept[:, None] + outputs)
        restored = np.where(lay.recompute.usual & (share > 0), layer - inputs, layer - kept)
        at_work = np.where(whole > 0, (layer - inputs)[:, None], restored[:, None])
        working = np.maximum(working, np.where(count > 0, at_work, 0.0))
    # Scores that live only while their layer is at work (derived here for 16 bit). Unfused: an fp32 copy, its softmax
    # in fp32 and the gradient of that. A fused softmax has 16-bit gradients of its input and output.
    per_score = {"unfused": 12.0, "fused": 4.0}.get(training.attention, 0.0)
    workspace = per_score * model.num_attention_heads / lay.tp * training.seq_length
    return per_layer, working + (lay.tokens * workspace)[:, None]


# Device memory that a process holds beside its training: communicators, workspaces of kernels, the CUDA context.


_MIB = 2.0**20
_GROUPED_STREAMS = 4  # on each of which Transformer Engine runs products of experts, with a workspace of its own
# Transformer Engine's initialize_ub: forward and backward of qkv, proj, fc1, fc2, and weights' gradients of qkv and fc1
_USER_BUFFERS = 10


def process_bytes(job: Job, lay: LayoutArrays) -> dict[str, Floats]:
    """Bytes that a process holds beside its training by part, (L,): communication, workspaces and other.

    But for user buffers the parts add up to what the framework's profile was fitted to (``memory_overhead_gib``).
    A communicator takes ``communicator_gib``: 10 MB per channel and peer connection of its simple, LL and LL128
    buffers (NCCL's NCCL_BUFFSIZE, 4 MiB, and its siblings) over 16 to 32 channels; at most half of what was fitted.
    Workspaces are cuBLAS's: of PyTorch's handle and, where the framework has Transformer Engine, of its streams.
    """
    profile, fitted_gib = job.training.framework, job.cluster.gpu.process_memory_gib
    total = (profile.memory_overhead_gib if fitted_gib is None else fitted_gib) * GIB
    groups = sum((n > 1).astype(float) for n in (lay.tp, lay.cp, lay.dp, lay.ep, lay.pp))
    buffers = np.minimum(groups * profile.communicator_gib * GIB, total / 2.0)
    torch_mib, engine_mib = workspaces_mib(job.cluster.gpu)
    streams = 0 if not profile.quantized_inputs else _GROUPED_STREAMS if job.model.is_moe else 1
    workspaces = np.minimum(_MIB * (torch_mib + streams * engine_mib), total - buffers)
    return {
        "communication": buffers, "workspaces": workspaces + user_buffer_bytes(job, lay),
        "other": total - buffers - workspaces,
    }  # fmt: skip


def user_buffer_bytes(job: Job, lay: LayoutArrays) -> Floats:
    """Transformer Engine's user buffers for tensor-parallel collectives that overlap with products, (L,) bytes.

    Each holds a micro-batch's tokens of a context-parallel rank, whole (Megatron Core's initialize_tp_communicators);
    half of them gather, in 8 bit where products read 8 bit. They stay within a node and need sequence parallelism.
    """
    low = job.training.dtype in ("fp8", "fp4")
    framework = job.training.framework
    codes = lay.layouts["overlap"]
    hides = np.asarray(share_hidden(framework, "tp", codes)) > 0.0
    # a plan that turns the overlap on takes those of a framework whose buffers they are
    stated = hides & (framework.user_buffers | (framework.family == "megatron-core"))
    buffered = np.where(codes > 0, stated, framework.user_buffers)
    used = buffered & lay.sp & (lay.tp > 1) & (lay.tp <= job.cluster.gpus_per_node)
    each = lay.tokens * job.model.hidden_size * (1.5 if low else 2.0)
    return np.where(used, _USER_BUFFERS * each, 0.0)


# Weights, gradients and optimizer states in device memory where a plan keeps some of them in host memory.


_BUCKET = 5e8  # gradients on their way to the host together, DeepSpeed's reduce_bucket_size


def device_state_bytes(state: dict[str, Floats], lay: LayoutArrays, training: Training) -> dict[str, Floats]:
    """``state``, bytes (L, pp) each, less an offloaded optimizer and, under ZeRO-2 and 3, the offloaded gradients.

    The latter in frameworks that send gradients to the host as they come (DeepSpeed's ZeRO-Offload: Ren et al. 2021,
    arXiv:2101.06840, section 4.1), but for a bucket of them in 16 bit. One rank may have any stage: it shards nothing.
    """
    offloads = lay.offloads_optimizer[:, None]
    out = state | {"optimizer": np.where(offloads, 0.0, state["optimizer"])}
    if training.framework.offloads_gradients:
        sent, bucket = offloads & ((lay.zero >= 2) | (lay.shards == 1))[:, None], _BUCKET * training.weight_gather_bytes
        out["gradients"] = np.where(sent, np.minimum(state["gradients"], bucket), state["gradients"])
        out["main_gradients"] = np.where(sent, 0.0, state["main_gradients"])
    return out
