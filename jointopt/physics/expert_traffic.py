"""Traffic of experts: tokens to the ranks of their experts and back, and to the parts of cut experts."""

from __future__ import annotations

import functools
import math

import numpy as np

from jointopt.core.schema import Floats
from jointopt.jobs.job import Job, Training
from jointopt.jobs.model import Model
from jointopt.jobs.plans.placement import Group
from jointopt.physics.collectives import dispatch_bytes, dispatch_time_s
from jointopt.physics.compute import Pass
from jointopt.physics.expert_load import most_loaded
from jointopt.physics.layout_arrays import LayoutArrays
from jointopt.physics.traffic import Hardware, Traffic, collective, routed_bytes

_FP8_BYTES = 1.0 + 4.0 / 128.0  # an element and its share of an fp32 scale per 128 (arXiv:2412.19437, section 3.3.2)


@functools.lru_cache(maxsize=4096)
def places_per_token(model: Model, places: int) -> float:
    """Expected number of ``places`` (ranks or nodes), each with as many experts, on which a token's experts lie.

    Top-k of all experts drawn at random, or of ``moe_router_group_topk`` of ``moe_router_num_groups`` groups at random:
    node-limited routing where groups are nodes (arXiv:2412.19437, section 2.1.2). Derived here: hypergeometric.
    """
    groups = max(model.moe_router_num_groups, 1)
    chosen, in_group = model.moe_router_group_topk or groups, model.num_experts / groups
    held = model.num_experts / places
    own_groups = max(round(held / in_group), 1)  # groups of which a place holds experts
    hit = 0.0
    for taken in range(1, min(own_groups, chosen) + 1):
        ways = math.comb(own_groups, taken) * math.comb(groups - own_groups, chosen - taken)
        missed = _none_of(taken * min(held, in_group), chosen * in_group, model.moe_router_topk)
        hit += ways / math.comb(groups, chosen) * (1.0 - missed)
    return places * hit


def _none_of(held: float, of: float, draws: int) -> float:
    """Probability that none of ``draws`` experts ``of`` so many is one of the ``held`` ones."""
    return math.prod(max(of - held - i, 0.0) / (of - i) for i in range(draws))


def _per_token(model: Model, places: Floats) -> Floats:
    values, back = np.unique(np.ceil(places), return_inverse=True)
    return np.array([places_per_token(model, int(value)) for value in values.tolist()])[back]


def ep_traffic(job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: Pass) -> Traffic:
    """Expert parallelism: all-to-alls that dispatch and combine, forward and backward (again under full recompute).

    Lepikhin et al. 2020 (GShard, arXiv:2006.16668) section 3; until the most loaded rank has its tokens. Under SP cut
    experts (etp) gather the tokens of their ranks and scatter the outputs, as Megatron Core's token dispatchers do.
    Hides under kernels of the MoE ``layer``: of another micro-batch, forward beside backward, so not in the fill and
    drain of the pipeline.
    """
    training = job.training
    sent = routed_bytes(job.model, lay.tokens, lay.token_share, 1.0) / lay.expert_tp  # each rank its slice of tokens
    element = hw.kernels.element_bytes
    dispatch, combine = (
        _all_to_all(job, hw, lay, groups["ep"], size * sent) for size in (_dispatched_bytes(training, element), element)
    )
    once = dispatch + combine
    if np.any(lay.sp & (lay.expert_tp > 1)):  # without SP each rank has all tokens already
        gathered = element * sent * lay.expert_tp
        pair = sum(_most_loaded(hw, lay, kind, gathered, groups["etp"]) for kind in ("all_gather", "reduce_scatter"))
        once = once + np.where(lay.sp, pair, 0.0)
    return _beside_other_micro_batches(job, hw, lay, once, layer)


def _dispatched_bytes(training: Training, element: float) -> float:
    """Bytes of an element on its way to experts: in fp8 with its scale where the framework sends it so."""
    if not training.framework.fp8_dispatch or training.dtype not in ("fp8", "fp4"):
        return element
    recipe = training.fp8_recipe
    return _FP8_BYTES if recipe is None or recipe.dtype != "fp8" else recipe.operand_bytes


def _all_to_all(job: Job, hw: Hardware, lay: LayoutArrays, group: Group, sent: Floats) -> Floats:
    """(seconds, joules) of one dispatch or combine, (2, L); ``sent`` is the bytes of a copy for every expert."""
    if _dispatcher(job) == "alltoall":
        return _most_loaded(hw, lay, "all_to_all", sent, group)
    token = sent / job.model.moe_router_topk  # a token is sent once to a rank, and once over the network to a node
    local = np.minimum(group.local, group.size)
    hosts = group.size / local
    ranks, nodes = (token * _per_token(job.model, places) for places in (lay.ep, hosts))
    intra, inter = dispatch_bytes(ranks, nodes, group.size, local)
    most = lay.expert_load * ranks, most_loaded(job.model, hosts, lay.expert_spread) * nodes
    seconds = dispatch_time_s(*most, group.size, local, hw.constants.collectives, hw.links)
    return np.stack([seconds, intra * hw.intra_j_per_byte + inter * hw.inter_j_per_byte])


def _most_loaded(hw: Hardware, lay: LayoutArrays, kind: str, moved: Floats, group: Group) -> Floats:
    """(seconds, joules) of a collective that ends when the most loaded rank has its share; joules are a mean rank's."""
    seconds, joules = collective(hw, kind, moved * lay.expert_load, group)
    return np.stack([seconds, joules / lay.expert_load])


def _beside_other_micro_batches(job: Job, hw: Hardware, lay: LayoutArrays, once: Floats, layer: Pass) -> Traffic:
    """The exposed part of traffic that takes ``once`` (2, L) per pass, and what the hidden part slows kernels by.

    While it is sent, t of n SMs copy and kernels run on the rest: H hidden seconds make them take H·t/n longer, and C
    seconds of kernels hide up to C·n/(n - t). Derived here; all kernels are taken to slow, the memory-bound ones too.
    """
    seconds, joules = once
    forward, backward = seconds, seconds * (1.0 + lay.again.dispatches_again())
    profile = job.training.framework
    overlap = max(profile.ep_overlap, profile.chosen_ep_overlap * job.training.overlap_moe_a2a)
    kept = _sms_kept(job, hw)
    # forward passes of the first and backward passes of the last micro-batches have no other one beside them
    alone = np.minimum(np.maximum(lay.layouts["pp"] - 1, 1) / np.maximum(lay.micro_batches, 1), 1.0)
    whole, window = forward + backward, (layer.forward.time_s + layer.backward.time_s) / (1.0 - kept)
    hidden = np.minimum(overlap * whole, window) * (1.0 - alone)
    left = 1.0 - np.divide(hidden * (1.0 - kept), whole, out=np.zeros_like(whole), where=whole > 0)
    return Traffic(forward * left, backward * left, (2.0 + lay.again.dispatches_again()) * joules, kept * hidden)


def _sms_kept(job: Job, hw: Hardware) -> float:
    """Share of the SMs that a hidden all-to-all keeps from the kernels beside it; at most half, a judgement."""
    sms = job.training.framework.dispatcher_sms.get(_dispatcher(job), 0)
    return min(sms / hw.kernels.gemm.sm_count, 0.5)


def _dispatcher(job: Job) -> str:
    return job.training.token_dispatcher or job.training.framework.token_dispatcher
