"""What a layout costs before any clock is chosen: per stage, with the SM-bound share kept apart.

Layouts of one pipeline depth form one `StageCosts`, whose arrays have shape (layouts, pp) unless stated otherwise.
Times are of one micro-batch at the maximum clock.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointopt.physics import comms
from jointopt.physics import compute as c
from jointopt.physics import memory as mem
from jointopt.physics.collectives import collective_time_s, link_bytes
from jointopt.physics.pipeline import in_flight_micro_batches
from jointopt.plans.placement import Group, even_domain, placement
from jointopt.plans.stages import layers_per_stage
from jointopt.schema import RECOMPUTE_CODES, Columns, Floats, Ints
from jointopt.spec.job import Job
from jointopt.spec.kernels import KernelConstants, Links
from jointopt.units import BITS_PER_BYTE, GB, GIB, MICRO, PICO

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "other")


@dataclass(frozen=True)
class StageCosts:
    """Clock-independent costs of layouts with one pipeline depth."""

    layouts: Columns  # layout columns, length L
    layers: Floats  # (pp,)
    num_micro_batches: Ints  # (L,)
    replicas: Ints  # (L,) GPUs per stage
    forward_sm_s: Floats
    forward_memory_s: Floats
    forward_comm_s: Floats  # exposed tp, cp and ep collectives
    backward_sm_s: Floats
    backward_memory_s: Floats
    backward_comm_s: Floats
    host_s: Floats  # (L, pp) floor of forward plus backward
    p2p_s: Floats  # (L,) one boundary crossing; paid on every receive
    gather_s: Floats  # ZeRO-3 weight gathers of one pass of one micro-batch, before overlap
    reduce_s: Floats  # gradient and parameter traffic once per iteration, before overlap
    optimizer_s: Floats
    flops: Floats  # of one micro-batch, forward and backward, weighted by the energy of the precision
    hbm_bytes: Floats  # of one micro-batch
    link_j: Floats  # communication energy of one micro-batch on one rank
    iteration_link_j: Floats  # of the gradient traffic, once
    iteration_hbm_bytes: Floats  # of the optimizer step
    slowest_step_s: Floats  # (L,) optimizer step of the slowest stage
    comm_parts_s: dict[str, Floats]  # tp_comm, cp_comm, ep_comm: forward plus backward, exposed

    @functools.cached_property
    def has_host_floor(self) -> bool:
        return bool(self.host_s.any())

    @functools.cached_property
    def has_gathers(self) -> bool:
        return bool(self.gather_s.any())

    @functools.cached_property
    def has_reduction(self) -> bool:
        return bool(self.reduce_s.any())


def paused(costs: StageCosts, duty: Floats) -> StageCosts:
    """The same work with pauses: kernels take ``duty`` >= 1 times as long, (L, pp)."""
    if not np.any(duty > 1.0):
        return costs
    names = ("forward_sm_s", "forward_memory_s", "backward_sm_s", "backward_memory_s")
    longer: dict[str, Any] = {name: getattr(costs, name) * duty for name in names}
    return replace(costs, **longer)


@dataclass(frozen=True)
class Hardware:
    """The job's cluster and software in the units of the formulas."""

    kernels: c.Kernels
    constants: KernelConstants
    links: Links
    intra_j_per_byte: float
    inter_j_per_byte: float


def hardware(job: Job, constants: KernelConstants) -> Hardware:
    cluster, habits = job.cluster, job.training.framework
    links = Links(
        cluster.intra_node_gbytes_per_s * GB,
        cluster.inter_node_gbytes_per_s * GB * habits.network_efficiency,
        cluster.inter_node_latency_us * MICRO,
    )
    per_bit = BITS_PER_BYTE * PICO
    return Hardware(
        c.kernels(job, constants),
        constants,
        links,
        cluster.intra_node_pj_per_bit * per_bit,
        cluster.inter_node_pj_per_bit * per_bit,
    )


class _Layouts:
    """Layout columns as floats, and what every formula asks of them."""

    def __init__(self, job: Job, layouts: Columns) -> None:
        f = {k: v.astype(float) for k, v in layouts.items()}
        self.tp, self.cp, self.ep, self.dp, self.vpp = f["tp"], f["cp"], f["ep"], f["dp"], f["vpp"]
        self.sp = layouts["sequence_parallel"].astype(bool)
        self.recompute = layouts["recompute"]
        self.full = self.recompute == RECOMPUTE_CODES["full"]
        self.selective = self.recompute == RECOMPUTE_CODES["selective"]
        self.zero = layouts["zero_stage"]
        self.pp = int(layouts["pp"][0])
        self.tokens = f["micro_batch_size"] * job.training.seq_length / self.cp
        self.micro_batches = (
            job.training.global_batch_size // (layouts["dp"] * layouts["micro_batch_size"])
        ).astype(np.int64)
        whole = job.training.framework.expert_tensor_parallel
        self.expert_tp = self.tp if whole else np.ones_like(self.tp)
        self.token_share = np.ones_like(self.tp) if whole else 1.0 / self.tp
        self.sharded_tokens = np.where(self.sp, self.tokens / self.tp, self.tokens)


def stage_layers(job: Job, layouts: Columns) -> Floats:
    """Layers per stage (pp,), the head counted as the layers that its flops are worth where layers do not divide."""
    model = job.model
    per_layer = model.attention_parameters + model.dense_mlp_parameters
    if model.is_moe:
        experts = (model.moe_router_topk + model.num_shared_experts) * model.expert_parameters
        per_layer = model.attention_parameters + experts
    head = model.vocab_size * model.hidden_size / per_layer
    return np.asarray(
        layers_per_stage(model.num_layers, layouts["pp"][:1], layouts["vpp"][:1], head_layers=head)[0],
        dtype=float,
    )


def _dense_layers(job: Job, layers: Floats) -> Floats:
    """Of each stage's layers, how many are dense: all, or the leading ones of an MoE model."""
    if not job.model.is_moe:
        return layers
    before = np.concatenate(([0.0], np.cumsum(layers)[:-1]))
    return np.asarray(np.clip(job.model.num_dense_layers - before, 0.0, layers))


def _unique(lay: _Layouts, *columns: Floats) -> tuple[Ints, Ints]:
    """First occurrence and inverse of distinct rows, so that kernels are priced once per shape."""
    stacked = np.stack([np.asarray(x, dtype=float) for x in columns], axis=1)
    _, first, inverse = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class _LayerCosts:
    dense: c.Pass
    moe: c.Pass
    core: c.Pass
    embedding: c.Pass
    head: c.Pass


def _layer_costs(job: Job, hw: Hardware, lay: _Layouts) -> _LayerCosts:
    model, k = job.model, hw.kernels
    first, inverse = _unique(lay, lay.tokens, lay.tp, lay.ep, lay.sp, lay.cp)
    tokens, tp, ep, sharded = (x[first] for x in (lay.tokens, lay.tp, lay.ep, lay.sharded_tokens))
    # context parallelism: a rank's queries meet the keys of the whole sequence
    core = c.attention_core(k, model, tokens, job.training.seq_length, tp)
    attention = c.attention_layer(k, model, tokens, job.training.seq_length, tp, sharded)
    dense = attention + c.mlp_layer(k, model, tokens, model.ffn_hidden_size / tp, sharded)
    moe = dense
    if model.is_moe:
        moe = attention + c.moe_layer(
            k, model, tokens, ep, lay.expert_tp[first], lay.token_share[first], tp, sharded
        )
    parts = (dense, moe, core, c.embedding(k, model, tokens, tp), c.head(k, model, tokens, tp))
    return _LayerCosts(*(_take(p, inverse) for p in parts))


def _take(p: c.Pass, index: Ints) -> c.Pass:
    def one(w: c.Work) -> c.Work:
        return c.Work(
            *(
                np.broadcast_to(x, (index.max() + 1,))[index]
                for x in (w.sm_s, w.memory_s, w.flops, w.hbm_bytes)
            )
        )

    return c.Pass(one(p.forward), one(p.backward))


def _where(mask: Floats, a: c.Work) -> c.Work:
    return a.times(mask.astype(float))


def _with_recompute(job: Job, p: c.Pass, core: c.Pass, lay: _Layouts) -> c.Pass:
    """Forward work repeated before the backward pass: a layer (full), the attention core or some layers (selective)."""
    again = _where(lay.full, p.forward)
    share = job.training.framework.selective_share
    again = again + _where(lay.selective, p.forward.times(share) if share else core.forward)
    return c.Pass(p.forward, p.backward + again)


def _per_stage(job: Job, layers: Floats, lay: _Layouts, costs: _LayerCosts) -> c.Pass:
    """(L, pp) work: layers of each kind, embedding on the first stage, head on the last."""
    dense_layers = _dense_layers(job, layers)
    dense = _with_recompute(job, costs.dense, costs.core, lay)
    moe = _with_recompute(job, costs.moe, costs.core, lay)

    def outer(w: c.Work, per_stage: Floats) -> c.Work:
        return c.Work(*(x[:, None] * per_stage for x in (w.sm_s, w.memory_s, w.flops, w.hbm_bytes)))

    first, last = np.zeros(len(layers)), np.zeros(len(layers))
    first[0], last[-1] = 1.0, 1.0

    def total(side: str) -> c.Work:
        work = outer(getattr(dense, side), dense_layers) + outer(getattr(moe, side), layers - dense_layers)
        work = work + outer(getattr(costs.embedding, side), first)
        return work + outer(getattr(costs.head, side), last)

    return c.Pass(total("forward"), total("backward"))


@dataclass(frozen=True)
class _Traffic:
    """Collectives of one layer: seconds and joules of the forward pass and of the backward pass, (L,)."""

    forward_s: Floats
    backward_s: Floats
    joules: Floats


def _collective(hw: Hardware, kind: str, moved: Floats, group: Group) -> tuple[Floats, Floats]:
    time = collective_time_s(kind, moved, group.size, group.local, hw.constants.collectives, hw.links)
    intra, inter = link_bytes(kind, moved, group.size, group.local)
    return time, intra * hw.intra_j_per_byte + inter * hw.inter_j_per_byte


def _tp_traffic(job: Job, hw: Hardware, lay: _Layouts, groups: dict[str, Group]) -> _Traffic:
    """Two all-reduces of the residual stream per pass (or gather + scatter under SP), one more pair on recompute."""
    moved = comms.hidden_bytes(job.model, lay.tokens, hw.kernels.element_bytes)
    reduce_s, reduce_j = _collective(hw, "all_reduce", moved, groups["tp"])
    gather_s, gather_j = _collective(hw, "all_gather", moved, groups["tp"])
    scatter_s, scatter_j = _collective(hw, "reduce_scatter", moved, groups["tp"])
    pair_s = np.where(lay.sp, gather_s + scatter_s, reduce_s)
    pair_j = np.where(lay.sp, gather_j + scatter_j, reduce_j)
    repeat = 1.0 + lay.full
    exposed = 1.0 - job.training.framework.tp_overlap
    return _Traffic(2 * pair_s * exposed, 2 * pair_s * exposed * repeat, 2 * pair_j * (1.0 + repeat))


def _cp_traffic(job: Job, hw: Hardware, lay: _Layouts, groups: dict[str, Group]) -> _Traffic:
    """Keys and values gathered forward; gathered again and their gradients scattered backward."""
    e = hw.kernels.element_bytes
    moved = comms.context_bytes(job.model, lay.tokens, lay.cp, lay.tp, e)
    once_s, once_j = _collective(hw, "all_gather", moved, groups["cp"])
    exposed = 1.0 - job.training.framework.cp_overlap
    return _Traffic(once_s * exposed, (2.0 + lay.full) * once_s * exposed, (3.0 + lay.full) * once_j)


def _ep_traffic(job: Job, hw: Hardware, lay: _Layouts, groups: dict[str, Group]) -> _Traffic:
    """Dispatch and combine, forward and backward (and again under full recompute)."""
    moved = comms.routed_bytes(job.model, lay.tokens, lay.token_share, hw.kernels.element_bytes)
    moved = np.where(
        lay.expert_tp > 1, moved / lay.tp, moved
    )  # each tensor rank sends its slice of the tokens
    once_s, once_j = _collective(hw, "all_to_all", moved, groups["ep"])
    exposed = 1.0 - job.training.framework.ep_overlap
    return _Traffic(
        2 * once_s * exposed, 2 * once_s * exposed * (1.0 + lay.full), 2 * once_j * (2.0 + lay.full)
    )


def _gradient_traffic(
    job: Job, hw: Hardware, lay: _Layouts, groups: dict[str, Group], params: mem.Parameters
) -> tuple[Floats, Floats, Floats, Floats]:
    """(once per iteration s, J) and (ZeRO-3 gathers per micro-batch: one pass s, both passes J), shape (L, pp)."""
    habits = job.training.framework
    weight = 4.0 if job.training.dtype == "fp32" else 2.0

    def column(group: Group) -> Group:
        return Group(group.size[:, None], group.local[:, None])

    zero = lay.zero[:, None]
    seconds, joules = np.zeros(params.dense.shape), np.zeros(params.dense.shape)
    gather_s, gather_j = np.zeros(params.dense.shape), np.zeros(params.dense.shape)
    updated_s, updated_j = np.zeros(params.dense.shape), np.zeros(params.dense.shape)
    for count, name in ((params.dense, "dp_cp"), (params.expert, "expert_dp")):
        if not np.any(count):
            continue
        group = column(groups[name])
        grads = count * max(habits.gradient_comm_bytes, 1)
        reduce_s, reduce_j = _collective(hw, "all_reduce", grads, group)
        scatter_s, scatter_j = _collective(hw, "reduce_scatter", grads, group)
        once_s, once_j = _collective(hw, "all_gather", weight * count, group)
        update_s = np.where(zero == 3, 0.0, once_s)
        update_j = np.where(zero == 3, 0.0, once_j)
        whole = (zero == 0) | (zero == 1) & habits.zero1_reduces_whole
        seconds = seconds + np.where(whole, reduce_s, scatter_s)
        joules = joules + np.where(whole, reduce_j, scatter_j)
        updated_s, updated_j = (
            updated_s + np.where(zero > 0, update_s, 0.0),
            updated_j + np.where(zero > 0, update_j, 0.0),
        )
        gather_s = gather_s + np.where(zero == 3, once_s, 0.0)
        gather_j = gather_j + np.where(zero == 3, 2 * once_j, 0.0)
    # ZeRO-2 and ZeRO-3 scatter gradients after every micro-batch; so do frameworks that cannot accumulate locally
    every = (zero >= 2) | (zero == 0) & (lay.pp > 1) & habits.gradient_sync_per_micro_batch
    repeats = np.where(every, lay.micro_batches[:, None], 1.0)
    return seconds * repeats + updated_s, joules * repeats + updated_j, gather_s, gather_j


def stage_parameters(job: Job, lay: _Layouts, layers: Floats) -> mem.Parameters:
    """Parameters per rank of every stage, (L, pp): its layers, the embedding first, the head (or its copy) last."""
    model = job.model
    dense_layer, moe_layer, experts = mem.layer_parameters(model, lay.tp, lay.ep, lay.expert_tp)
    dense_layers = _dense_layers(job, layers)
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
    """Bytes per rank of each stage by `MEMORY_PARTS`, (L, pp), for layouts of one pipeline depth."""
    lay = _Layouts(job, layouts)
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
    other = np.full_like(activations, habits.memory_overhead_gib * GIB)
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


def _activation_bytes(job: Job, lay: _Layouts, layers: Floats) -> Floats:
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
    dense_layers = _dense_layers(job, layers)
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


def _host_s(job: Job, lay: _Layouts, layers: Floats) -> Floats:
    """Least time of one micro-batch on each stage, (L, pp): what the host needs to launch its layers and experts."""
    habits = job.training.framework
    piped = habits.host_floor_pp_s + habits.host_floor_pp_tp_s * lay.tp
    layer = piped if lay.pp > 1 else np.full_like(lay.tp, habits.host_floor_s)
    experts = habits.expert_host_s * job.model.num_experts / lay.ep
    moe_layers = layers - _dense_layers(job, layers)
    total = layer[:, None] * layers + experts[:, None] * moe_layers
    return np.asarray(total * (job.cluster.gpu.host_time_factor or 1.0))


def _summed(parts: Iterable[Floats]) -> Floats:
    return np.asarray(functools.reduce(np.add, parts))


def stage_costs(job: Job, hw: Hardware, layouts: Columns) -> StageCosts:
    """Costs of layouts that share one pipeline depth."""
    lay = _Layouts(job, layouts)
    habits = job.training.framework
    layers = stage_layers(job, layouts)
    groups = placement(layouts, even_domain(job.cluster))
    work = _per_stage(job, layers, lay, _layer_costs(job, hw, lay))
    traffic = {
        "tp_comm": _tp_traffic(job, hw, lay, groups),
        "cp_comm": _cp_traffic(job, hw, lay, groups),
    }
    per_stage = {"tp_comm": layers, "cp_comm": layers}
    if job.model.is_moe:
        traffic["ep_comm"] = _ep_traffic(job, hw, lay, groups)
        per_stage["ep_comm"] = layers - _dense_layers(job, layers)
    forward_comm = _summed(t.forward_s[:, None] * per_stage[n] for n, t in traffic.items())
    backward_comm = _summed(t.backward_s[:, None] * per_stage[n] for n, t in traffic.items())
    link_j = _summed(t.joules[:, None] * per_stage[n] for n, t in traffic.items())
    p2p_s, p2p_j = _pipeline_traffic(job, hw, lay, groups)
    params = stage_parameters(job, lay, layers)
    reduce_s, reduce_j, gather_s, gather_j = _gradient_traffic(job, hw, lay, groups, params)
    step_bytes = _optimizer_bytes(lay, params)
    step_s = step_bytes / (0.8 * hw.kernels.gemm.hbm_bytes_per_s)
    overhead = habits.micro_batch_overhead_s
    return StageCosts(
        layouts=layouts,
        layers=layers,
        num_micro_batches=lay.micro_batches,
        replicas=(layouts["dp"] * layouts["tp"] * layouts["cp"]).astype(np.int64),
        forward_sm_s=work.forward.sm_s,
        forward_memory_s=work.forward.memory_s,
        forward_comm_s=forward_comm + overhead / 3.0,
        backward_sm_s=work.backward.sm_s,
        backward_memory_s=work.backward.memory_s,
        backward_comm_s=backward_comm + overhead * 2.0 / 3.0,
        host_s=_host_s(job, lay, layers),
        p2p_s=p2p_s * lay.vpp * (1.0 - habits.pp_overlap),
        gather_s=gather_s,
        reduce_s=reduce_s,
        optimizer_s=step_s,
        slowest_step_s=step_s.max(axis=1),
        flops=(work.forward.flops + work.backward.flops) * hw.kernels.flop_energy,
        hbm_bytes=work.forward.hbm_bytes + work.backward.hbm_bytes,
        link_j=link_j + (2 * p2p_j * lay.vpp)[:, None] + gather_j,
        iteration_link_j=reduce_j,
        iteration_hbm_bytes=step_bytes,
        comm_parts_s={n: (t.forward_s + t.backward_s)[:, None] * per_stage[n] for n, t in traffic.items()},
    )


def _pipeline_traffic(
    job: Job, hw: Hardware, lay: _Layouts, groups: dict[str, Group]
) -> tuple[Floats, Floats]:
    if lay.pp == 1:
        return np.zeros_like(lay.tp), np.zeros_like(lay.tp)
    moved = comms.pipeline_bytes(job.model, lay.tokens, lay.tp, lay.sp, hw.kernels.element_bytes)
    return _collective(hw, "p2p", moved, groups["pp"])


def _optimizer_bytes(lay: _Layouts, params: mem.Parameters) -> Floats:
    """Adam reads and writes master and moments (24 B), reads the gradient (4 B), writes the weight (2 B)."""
    shard = np.where(lay.zero >= 1, lay.dp * lay.cp, 1.0)[:, None]
    expert_shard = np.where(lay.zero >= 1, lay.dp * lay.cp / lay.ep, 1.0)[:, None]
    return 30.0 * (params.dense / shard + params.expert / expert_shard)
