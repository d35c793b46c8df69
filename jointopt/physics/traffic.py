"""Collectives of every stage: what each kind of parallelism moves, how long, and for how many joules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats
from jointopt.core.units import BITS_PER_BYTE, GB, MICRO, PICO
from jointopt.physics import compute as c
from jointopt.physics import memory as mem
from jointopt.physics.collectives import collective_time_s, link_bytes
from jointopt.physics.layout_arrays import LayoutArrays
from jointopt.spec.job import Job
from jointopt.spec.kernels import KernelConstants, Links
from jointopt.spec.model import Model
from jointopt.spec.plans.placement import Group


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


@dataclass(frozen=True)
class Traffic:
    """Collectives of one layer: seconds and joules of the forward pass and of the backward pass, (L,)."""

    forward_s: Floats
    backward_s: Floats
    joules: Floats


def _collective(hw: Hardware, kind: str, moved: Floats, group: Group) -> tuple[Floats, Floats]:
    time = collective_time_s(kind, moved, group.size, group.local, hw.constants.collectives, hw.links)
    intra, inter = link_bytes(kind, moved, group.size, group.local)
    return time, intra * hw.intra_j_per_byte + inter * hw.inter_j_per_byte


def _exposed(time_s: Floats, overlap: float, window_s: Floats) -> Floats:
    """What is left of traffic that may hide its share ``overlap``, but not under more compute than there is."""
    return np.asarray(time_s - np.minimum(overlap * time_s, window_s))


def tp_traffic(job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: c.Pass) -> Traffic:
    """Two all-reduces of the residual stream per pass (or gather + scatter under SP), one more pair on recompute.

    What a framework overlaps hides under the kernels of the ``layer``, at their top clock.
    """
    moved = hidden_bytes(job.model, lay.tokens, hw.kernels.element_bytes)
    reduce_s, reduce_j = _collective(hw, "all_reduce", moved, groups["tp"])
    gather_s, gather_j = _collective(hw, "all_gather", moved, groups["tp"])
    scatter_s, scatter_j = _collective(hw, "reduce_scatter", moved, groups["tp"])
    pair_s = np.where(lay.sp, gather_s + scatter_s, reduce_s)
    pair_j = np.where(lay.sp, gather_j + scatter_j, reduce_j)
    repeat = 1.0 + lay.full
    overlap = job.training.framework.tp_overlap
    return Traffic(
        _exposed(2 * pair_s, overlap, layer.forward.time_s),
        _exposed(2 * pair_s * repeat, overlap, layer.backward.time_s),
        2 * pair_j * (1.0 + repeat),
    )


def cp_traffic(job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], core: c.Pass) -> Traffic:
    """Keys and values gathered forward; gathered again and their gradients scattered backward; hidden by the core."""
    e = hw.kernels.element_bytes
    moved = context_bytes(job.model, lay.tokens, lay.cp, lay.tp, e)
    once_s, once_j = _collective(hw, "all_gather", moved, groups["cp"])
    overlap, again = job.training.framework.cp_overlap, 2.0 + lay.full
    return Traffic(
        _exposed(once_s, overlap, core.forward.time_s),
        _exposed(again * once_s, overlap, core.backward.time_s),
        (1.0 + again) * once_j,
    )


def ep_traffic(job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: c.Pass) -> Traffic:
    """Dispatch and combine, forward and backward (and again under full recompute)."""
    moved = routed_bytes(job.model, lay.tokens, lay.token_share, hw.kernels.element_bytes)
    moved = np.where(
        lay.expert_tp > 1, moved / lay.tp, moved
    )  # each tensor rank sends its slice of the tokens
    once_s, once_j = _collective(hw, "all_to_all", moved, groups["ep"])
    overlap, again = job.training.framework.ep_overlap, 1.0 + lay.full
    return Traffic(
        _exposed(2 * once_s, overlap, layer.forward.time_s),
        _exposed(2 * once_s * again, overlap, layer.backward.time_s),
        2 * once_j * (1.0 + again),
    )


def gradient_traffic(
    job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], params: mem.Parameters
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


def pipeline_traffic(
    job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group]
) -> tuple[Floats, Floats]:
    if lay.pp == 1:
        return np.zeros_like(lay.tp), np.zeros_like(lay.tp)
    moved = pipeline_bytes(job.model, lay.tokens, lay.tp, lay.sp, hw.kernels.element_bytes)
    return _collective(hw, "p2p", moved, groups["pp"])


def hidden_bytes(model: Model, tokens: Floats, element_bytes: float) -> Floats:
    """The residual stream of one micro-batch on one rank: what TP reduces and PP sends."""
    return element_bytes * tokens * model.hidden_size


def pipeline_bytes(
    model: Model, tokens: Floats, tp: Floats, sequence_parallel: Floats, element_bytes: float
) -> Floats:
    """One activation (or its gradient) across one stage boundary; SP sends its shard only."""
    whole = hidden_bytes(model, tokens, element_bytes)
    return np.where(sequence_parallel, whole / tp, whole)


def context_bytes(model: Model, tokens: Floats, cp: Floats, tp: Floats, element_bytes: float) -> Floats:
    """Keys and values of the whole sequence that a rank sees in one layer's forward pass (gathered size)."""
    if model.kv_lora_rank:
        per_token = model.num_attention_heads * (
            model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
        )
    else:
        per_token = 2 * model.num_query_groups * model.head_dim
    return element_bytes * tokens * cp * per_token / tp


def routed_bytes(model: Model, tokens: Floats, token_share: Floats, element_bytes: float) -> Floats:
    """Tokens that one rank hands to experts in one direction of one all-to-all."""
    return element_bytes * tokens * token_share * model.moe_router_topk * model.hidden_size
