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

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.physics import compute as c
from jointopt.physics import memory as mem
from jointopt.physics.layout_arrays import LayoutArrays, dense_layers_of, stage_layers
from jointopt.physics.memory import stage_parameters
from jointopt.physics.traffic import (
    Hardware,
    cp_traffic,
    ep_traffic,
    gradient_traffic,
    pipeline_traffic,
    tp_traffic,
)
from jointopt.spec.job import Job
from jointopt.spec.plans.placement import even_domain, placement


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
    link_j: Floats  # communication energy of one micro-batch on one rank, the sum of ``link_parts_j``
    iteration_link_j: Floats  # of the gradient traffic, once
    iteration_hbm_bytes: Floats  # of the optimizer step
    slowest_step_s: Floats  # (L,) optimizer step of the slowest stage
    comm_parts_s: dict[str, Floats]  # tp_comm, cp_comm, ep_comm: forward plus backward, exposed
    link_parts_j: dict[str, Floats]  # those, pp_comm and zero_comm

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


def stage_costs(job: Job, hw: Hardware, layouts: Columns) -> StageCosts:
    """Costs of layouts that share one pipeline depth."""
    lay = LayoutArrays(job, layouts)
    habits = job.training.framework
    layers = stage_layers(job, layouts)
    groups = placement(layouts, even_domain(job.cluster))
    layer = layer_costs(job, hw, lay)
    work = work_per_stage(job, layers, lay, layer)
    traffic = {
        "tp_comm": tp_traffic(job, hw, lay, groups, layer.dense),
        "cp_comm": cp_traffic(job, hw, lay, groups, layer.core),
    }
    per_stage = {"tp_comm": layers, "cp_comm": layers}
    if job.model.is_moe:
        traffic["ep_comm"] = ep_traffic(job, hw, lay, groups, layer.moe)
        per_stage["ep_comm"] = layers - dense_layers_of(job, layers)
    forward_comm = _summed(t.forward_s[:, None] * per_stage[n] for n, t in traffic.items())
    backward_comm = _summed(t.backward_s[:, None] * per_stage[n] for n, t in traffic.items())
    p2p_s, p2p_j = pipeline_traffic(job, hw, lay, groups)
    params = stage_parameters(job, lay, layers)
    reduce_s, reduce_j, gather_s, gather_j = gradient_traffic(job, hw, lay, groups, params)
    step_bytes = _optimizer_bytes(lay, params)
    step_s = step_bytes / (0.8 * hw.kernels.gemm.hbm_bytes_per_s) + _slices_s(job, lay, layers)
    overhead = habits.micro_batch_overhead_s
    link_parts_j = {n: t.joules[:, None] * per_stage[n] for n, t in traffic.items()}
    link_parts_j |= {"pp_comm": p2p_j[:, None] * _sends(lay), "zero_comm": gather_j}
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
        link_j=_summed(link_parts_j.values()),
        iteration_link_j=reduce_j,
        iteration_hbm_bytes=step_bytes,
        comm_parts_s={n: (t.forward_s + t.backward_s)[:, None] * per_stage[n] for n, t in traffic.items()},
        link_parts_j=link_parts_j,
    )


def with_host_of(job: Job, costs: StageCosts, before: Job) -> StageCosts:
    """Costs of the job ``before`` as they are for ``job``, which differs in what its host takes per micro-batch."""
    more_s = job.training.framework.micro_batch_overhead_s - before.training.framework.micro_batch_overhead_s
    return replace(
        costs,
        forward_comm_s=costs.forward_comm_s + more_s / 3.0,
        backward_comm_s=costs.backward_comm_s + more_s * 2.0 / 3.0,
        host_s=_host_s(job, LayoutArrays(job, costs.layouts), costs.layers),
    )


def _sends(lay: LayoutArrays) -> Floats:
    """Activations and gradients that a stage sends per micro-batch, (L, pp): the two ends have one neighbour less."""
    ends = np.zeros(lay.pp)
    ends[0] += 1.0
    ends[-1] += 1.0
    return 2.0 * lay.vpp[:, None] - ends


def _host_s(job: Job, lay: LayoutArrays, layers: Floats) -> Floats:
    """Least time of one micro-batch on each stage, (L, pp): what the host needs to launch its layers and experts."""
    habits = job.training.framework
    piped = habits.host_floor_pp_s + habits.host_floor_pp_tp_s * lay.tp
    layer = piped if lay.pp > 1 else np.full_like(lay.tp, habits.host_floor_s)
    experts = habits.expert_host_s * job.model.num_experts / lay.ep
    moe_layers = layers - dense_layers_of(job, layers)
    total = layer[:, None] * layers + experts[:, None] * moe_layers
    return np.asarray(total * (job.cluster.gpu.host_time_factor or 1.0))


def _slices_s(job: Job, lay: LayoutArrays, layers: Floats) -> Floats:
    """Time of ZeRO-1 and 2 to put gathered weights together where each rank's slice is a copy of its own, (L, pp)."""
    sliced = (lay.zero == 1) | (lay.zero == 2)
    copies = np.where(sliced, lay.dp * lay.cp - 1.0, 0.0)
    return np.asarray(job.training.framework.zero_slice_s * copies[:, None] * layers)


def _summed(parts: Iterable[Floats]) -> Floats:
    return np.asarray(functools.reduce(np.add, parts))


def _optimizer_bytes(lay: LayoutArrays, params: mem.Parameters) -> Floats:
    """Adam reads and writes master and moments (24 B), reads the gradient (4 B), writes the weight (2 B)."""
    shard = np.where(lay.zero >= 1, lay.dp * lay.cp, 1.0)[:, None]
    expert_shard = np.where(lay.zero >= 1, lay.dp * lay.cp / lay.ep, 1.0)[:, None]
    return 30.0 * (params.dense / shard + params.expert / expert_shard)


def _unique(lay: LayoutArrays, *columns: Floats) -> tuple[Ints, Ints]:
    """First occurrence and inverse of distinct rows, so that kernels are priced once per shape."""
    stacked = np.stack([np.asarray(x, dtype=float) for x in columns], axis=1)
    _, first, inverse = np.unique(stacked, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)


@dataclass(frozen=True)
class LayerCosts:
    dense: c.Pass
    moe: c.Pass
    core: c.Pass
    embedding: c.Pass
    head: c.Pass


def layer_costs(job: Job, hw: Hardware, lay: LayoutArrays) -> LayerCosts:
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
    return LayerCosts(*(_take(p, inverse) for p in parts))


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


def _with_recompute(job: Job, p: c.Pass, core: c.Pass, lay: LayoutArrays) -> c.Pass:
    """Forward work repeated before the backward pass: a layer (full), the attention core or some layers (selective)."""
    again = _where(lay.full, p.forward)
    share = job.training.framework.selective_share
    again = again + _where(lay.selective, p.forward.times(share) if share else core.forward)
    return c.Pass(p.forward, p.backward + again)


def work_per_stage(job: Job, layers: Floats, lay: LayoutArrays, costs: LayerCosts) -> c.Pass:
    """(L, pp) work: layers of each kind, embedding on the first stage, head on the last."""
    dense_layers = dense_layers_of(job, layers)
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
