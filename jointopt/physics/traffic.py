"""Traffic of each kind of parallelism: which collectives, of how many bytes per rank, how long, for how many joules.

First one collective among ``size`` members, ``local`` of them in each scale-up domain; its ``message_bytes`` is one
rank's full buffer: result of an all-gather, input of a reduce-scatter, all of an all-to-all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import UsageError, nearest_hint
from jointopt.core.schema import Bools, Floats
from jointopt.core.units import BITS_PER_BYTE, GB, MICRO, PICO
from jointopt.jobs.framework import overlap_share, usual_overlap_share
from jointopt.jobs.job import Job
from jointopt.jobs.kernels import CollectiveConstants, KernelConstants, Links, NetworkProtocol, Protocol
from jointopt.jobs.model import Layer, Model, evaluated
from jointopt.jobs.plans.placement import Group
from jointopt.physics.layers import Kernels, Pass, adapters, kernels
from jointopt.physics.layouts import LayoutArrays, has_latents, has_scores, kv_heads_of_rank, most_loaded
from jointopt.physics.memory import Parameters

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
FITTED_MEMBERS = 8.0


def collective_time_s(
    kind: str, message_bytes: npt.ArrayLike, size: npt.ArrayLike, local: npt.ArrayLike, constants:
    CollectiveConstants, links: Links,
) -> Floats:  # fmt: skip
    """Seconds of one collective on idle links; zero for one member or an empty message. Arrays broadcast.

    Inside a domain: fitted to 504 NCCL timings of 2, 4, 8 GPUs (2 % median error); beyond 8 the bus bandwidth of 8,
    latency by the logarithm. Across nodes: form and latencies of NCCL's own tuning model, ring or (all-reduce) tree,
    and for messages to one peer its channels and chunks; not fitted. Raises `UsageError` for an unknown kind.
    """
    message, size, inside = _checked(kind, message_bytes, size, local)
    sent, within, time_s = (size > 1.0) & (message > 0.0), inside >= size, np.zeros(size.shape)
    across = {"all_to_all": _direct_s, "p2p": _sent_s}.get(kind, _reduced_s)
    for rows, seconds in ((sent & within, _intra_s), (sent & ~within, across)):  # each at its own: half of the work
        if rows.any():
            at = ... if rows.all() else rows
            members = np.maximum(size[at], 2.0)
            time_s[at] = seconds(kind, message[at], members, inside[at], constants, links)
    return time_s


def link_bytes(
    kind: str, message_bytes: npt.ArrayLike, size: npt.ArrayLike, local: npt.ArrayLike
) -> tuple[Floats, Floats]:
    """Bytes that each GPU sends over (the scale-up link, the network) in one collective, group average, (...) each.

    Rings send (n - 1)/n of the buffer per direction, twice in an all-reduce (Patarasuk and Yuan 2009); of a domain's
    ``local`` hops one crosses the network. In-network reduction (SHARP) would send half of that.
    """
    message, size, inside = _checked(kind, message_bytes, size, local)
    sent = ring_share(kind, size) * message
    remote = 1.0 / inside
    if kind == "p2p":
        remote = np.ones_like(size)
    elif kind == "all_to_all":
        remote = (size - inside) / np.maximum(size - 1.0, 1.0)
    remote = np.where(inside >= size, 0.0, remote)
    return sent * (1.0 - remote), sent * remote


def _checked(kind: str, message: npt.ArrayLike, size: npt.ArrayLike, local: npt.ArrayLike) -> tuple[Floats, ...]:
    """Bytes, members and those of them in one domain, as arrays of one shape, (...) each."""
    if kind not in KINDS:
        raise UsageError(
            f"The collective {kind!r} is unknown{nearest_hint(kind, KINDS)}; expected one of {', '.join(KINDS)}."
        )
    message, size, local = (np.asarray(a, dtype=np.float64) for a in (message, size, local))
    return tuple(np.broadcast_arrays(message, size, np.minimum(local, size)))


def ring_share(kind: str, size: Floats) -> Floats:
    """Bytes that each of ``size`` ranks of a ring sends per byte of the full buffer: (n - 1)/n, twice in an all-reduce.

    A ring all-reduce is a reduce-scatter and an all-gather (Patarasuk and Yuan 2009, section 3); a send has one peer.
    """
    if kind == "p2p":
        return np.where(size > 1.0, 1.0, 0.0)
    return (2.0 if kind == "all_reduce" else 1.0) * (size - 1.0) / size


def _intra_s(kind: str, message: Floats, size: Floats, local: Floats, c: CollectiveConstants, links: Links) -> Floats:
    """Seconds inside one domain: latency plus bytes over bus bandwidth, of the fastest of NCCL's protocols."""
    if kind == "p2p":  # an all-to-all of two, each of which sends half of twice the message
        return _intra_s("all_to_all", 2.0 * message, np.full_like(size, 2.0), local, c, links)
    # linear in the ring up to the sizes measured, logarithmic from there with the same slope, as trees are
    hops = np.minimum(size, FITTED_MEMBERS) - 2.0 + FITTED_MEMBERS * np.log(np.maximum(size / FITTED_MEMBERS, 1.0))
    sent = ring_share(kind, size) * message
    times = [p.latency_s + p.member_s * hops + sent / _bus_bytes_per_s(p, size, c, links) for p in c.protocols[kind]]
    # the 8-norm minimum: near a crossover NCCL mixes protocols and beats each of the straight lines
    rates = sum((np.square(np.square(np.square(1.0 / t))) for t in times), np.zeros(()))
    return np.asarray(1.0 / np.sqrt(np.sqrt(np.sqrt(rates))))


def _bus_bytes_per_s(protocol: Protocol, size: Floats, c: CollectiveConstants, links: Links) -> Floats:
    """Bus bandwidth as nccl-tests defines it, by the logarithm of the size between 2, 4 and 8 members."""
    scale = links.intra_bytes_per_s / c.fitted_intra_bytes_per_s
    return scale * np.interp(np.log2(size), (1.0, 2.0, 3.0), protocol.bus_bytes_per_s)


def _reduced_s(kind: str, message: Floats, size: Floats, local: Floats, c: CollectiveConstants, links: Links) -> Floats:
    """Seconds across domains of the fastest ring through every NIC or, for all-reduce, binary tree over nodes.

    A ring takes all hops in turn; a tree has a chain inside each node, and latency grows with log2(nodes). Bandwidth:
    one NIC per local member, never more than the scale-up link carries.
    """
    nodes, rounds = size / local, 2.0 if kind == "all_reduce" else 1.0
    network = local * links.inter_bytes_per_s * c.inter_fraction
    inside = _bus_bytes_per_s(c.protocols[kind][-1], np.maximum(local, 2.0), c, links)
    speed = np.where(local > 1.0, np.minimum(network, inside), network)

    def seconds(p: NetworkProtocol, intra_hops: Floats, inter_hops: Floats, sent: Floats) -> Floats:
        hops_s = intra_hops * p.intra_hop_s + inter_hops * (p.inter_hop_s + links.inter_latency_s)
        return p.start_s + rounds * hops_s + sent / (p.bandwidth_fraction * speed)

    times = [seconds(p, size - nodes, nodes - 1.0, ring_share(kind, size) * message) for p in c.ring]
    if kind == "all_reduce":
        times += [seconds(p, local - 1.0, np.ceil(np.log2(nodes)), 2.0 * message) for p in c.tree]
    return np.asarray(np.minimum.reduce(times))


def _direct_s(kind: str, message: Floats, size: Floats, local: Floats, c: CollectiveConstants, links: Links) -> Floats:
    """Each member sends to each peer: remote shares through its own NIC, while local ones use the domain."""
    return _both_links_s(*link_bytes(kind, message, size, local), size - local, local, c, links)


def _sent_s(_: str, message: Floats, _size: Floats, _local: Floats, c: CollectiveConstants, links: Links) -> Floats:
    """One message to a peer on another node, as NCCL sends it: by LL, or in chunks by Simple over a peer's channels.

    The first chunk is copied to a buffer before the network has it, the last one from a buffer after it. NCCL's choices
    by size; their time derived here. Channels are taken to fill the NIC together.
    """
    low, simple, own = c.ring[0], c.ring[-1], c.send
    nic = links.inter_bytes_per_s * c.inter_fraction
    chunk = own.chunk_bytes * np.select([message < own.chunk_bytes, message < 8.0 * own.chunk_bytes], [0.25, 0.5], 1.0)
    copied_s = 2.0 * np.minimum(chunk, message / own.channels) / own.channel_bytes_per_s
    simple_s = simple.start_s + simple.inter_hop_s + copied_s + message / (nic * simple.bandwidth_fraction)
    low_s = low.start_s + low.inter_hop_s + message / (nic * low.bandwidth_fraction)
    return np.asarray(links.inter_latency_s + np.where(message <= own.channels * own.ll_bytes, low_s, simple_s))


def _both_links_s(
    inside: Floats, outside: Floats, peers: Floats, local: Floats, c: CollectiveConstants, links: Links
) -> Floats:
    """Seconds to send ``inside`` bytes within the domain and, at the same time, ``outside`` bytes to remote peers."""
    inside_s = inside / _bus_bytes_per_s(c.protocols["all_to_all"][-1], np.maximum(local, 2.0), c, links)
    nic = links.inter_bytes_per_s * c.inter_fraction
    outside_s = [p.start_s + p.inter_hop_s + outside / (nic * p.bandwidth_fraction) for p in c.ring]
    return np.asarray(links.inter_latency_s + c.peer_s * peers + np.maximum(inside_s, np.minimum.reduce(outside_s)))


def dispatch_bytes(
    rank_bytes: npt.ArrayLike, node_bytes: npt.ArrayLike, size: npt.ArrayLike, local: npt.ArrayLike
) -> tuple[Floats, Floats]:
    """Bytes that each GPU sends over (the scale-up link, the network) where nodes forward what is sent to them once.

    ``rank_bytes``: one copy of a token for each rank that needs it, ``node_bytes`` for each node, own ones included. A
    copy goes to the rank of the same place on the node, then over the scale-up link (arXiv:2412.19437, section 3.2.2).
    """
    ranks, nodes, size, local = (np.asarray(a, dtype=np.float64) for a in (rank_bytes, node_bytes, size, local))
    return ranks * (local - 1.0) / local, nodes * (1.0 - local / size)


def dispatch_time_s(
    rank_bytes: Floats, node_bytes: Floats, size: npt.ArrayLike, local: npt.ArrayLike, constants: CollectiveConstants,
    links: Links,
) -> Floats:  # fmt: skip
    """Seconds of one dispatch of `dispatch_bytes`, or of the combine that goes back."""
    size, local = (np.asarray(a, dtype=np.float64) for a in (size, local))
    inside, outside = dispatch_bytes(rank_bytes, node_bytes, size, local)
    across = _both_links_s(inside, outside, size / local - 1.0, local, constants, links)
    return np.where(local >= size, collective_time_s("all_to_all", rank_bytes, size, local, constants, links), across)


# What each kind of parallelism moves, by which collectives.


def hidden_bytes(model: Model, tokens: Floats, element_bytes: float) -> Floats:
    """Bytes of the residual stream of one micro-batch on one rank, s·b·h elements: what TP reduces and PP sends."""
    return element_bytes * tokens * model.hidden_size


def pipeline_bytes(model: Model, tokens: Floats, tp: Floats, sequence_parallel: Floats, element_bytes: float) -> Floats:
    """Bytes of one activation (or its gradient) across one stage boundary; SP sends its shard only.

    Narayanan et al. 2021 (arXiv:2104.04473) section 4.1, whose scatter/gather optimisation is SP's shard. All residual
    streams of hyper-connections cross.
    """
    whole = hidden_bytes(model, tokens, element_bytes) * max(model.num_residual_streams, 1)
    return np.where(sequence_parallel, whole / tp, whole)


def context_bytes(model: Model, tokens: Floats, cp: Floats, tp: Floats, element_bytes: float) -> Floats:
    """Bytes of keys and values of the whole sequence that a rank sees in one layer's forward pass (gathered size).

    Grouped queries have fewer of them; MLA's are counted after their up-projection, as its core reads them.
    """
    if model.kv_lora_rank:
        widths = model.qk_nope_head_dim + model.qk_rope_head_dim + model.v_head_dim
        per_token: Floats = model.num_attention_heads * widths / tp
    else:
        per_token = 2 * kv_heads_of_rank(model, tp) * model.head_dim
    return element_bytes * tokens * cp * per_token


def routed_bytes(model: Model, tokens: Floats, token_share: Floats, element_bytes: float) -> Floats:
    """Bytes that one rank hands to experts in one direction of one all-to-all, top-k copies of its tokens.

    Lepikhin et al. 2020 (GShard, arXiv:2006.16668) with balanced routing and no capacity factor.
    """
    return element_bytes * tokens * token_share * model.moe_router_topk * model.expert_input_size


@dataclass(frozen=True)
class Hardware:
    """The job's cluster and software in the units of the formulas."""

    kernels: Kernels
    constants: KernelConstants
    links: Links
    intra_j_per_byte: float
    inter_j_per_byte: float
    # results of `collective_cost`, where several jobs on the same constants and layouts keep them for each other
    cache: dict[tuple[object, ...], Floats] | None = field(default=None, compare=False, repr=False)


def hardware(job: Job, constants: KernelConstants) -> Hardware:
    """The job's kernels and links; the framework's ``network_efficiency`` lowers the bandwidth between nodes."""
    cluster, profile = job.cluster, job.training.framework
    between = cluster.inter_node_gbytes_per_s * GB * profile.network_efficiency
    links = Links(cluster.intra_node_gbytes_per_s * GB, between, cluster.inter_node_latency_us * MICRO)
    intra_j, inter_j = (
        pj_per_bit * BITS_PER_BYTE * PICO
        for pj_per_bit in (cluster.intra_node_pj_per_bit, cluster.inter_node_pj_per_bit)
    )
    return Hardware(kernels(job, constants), constants, links, intra_j, inter_j)


COLLECTIVE_SMS = 0.25  # share of the SMs that collectives run on: NCCL has at most 32 channels, of 108-132 SMs


@dataclass(frozen=True)
class Traffic:
    """Collectives of one layer: exposed seconds of the forward and of the backward pass, joules of both, (L,).

    ``slowed_s``: of those seconds, in which kernels fill the GPU, but are slower for what hides under them.
    """

    forward_s: Floats
    backward_s: Floats
    joules: Floats
    slowed_s: Floats | float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def over(self, layers: Floats) -> Traffic:
        """The collectives of ``layers`` (L, pp) of these layers on each stage."""
        return Traffic(*(np.asarray(getattr(self, f.name))[..., None] * layers for f in fields(self)))


def collective_sm_s(exposed: Mapping[str, Traffic]) -> Floats:
    """Seconds of kernels that fill the GPU in both passes, of several kinds of collectives; copies to the host none."""
    collectives = [one for name, one in exposed.items() if name != "offload"]
    shares = (COLLECTIVE_SMS * (t.forward_s + t.backward_s) + (1.0 - COLLECTIVE_SMS) * t.slowed_s for t in collectives)
    return np.asarray(sum(shares))


def collective_cost(hw: Hardware, kind: str, moved: Floats, group: Group) -> Floats:
    """(seconds, joules) of one collective of ``moved`` bytes, (2, ...)."""
    key: tuple[object, ...] = ()
    if hw.cache is not None:
        rates = hw.links, hw.intra_j_per_byte, hw.inter_j_per_byte
        key = *rates, kind, moved.shape, moved.tobytes(), group.size.tobytes(), group.local.tobytes()
        if key in hw.cache:
            return hw.cache[key]
    time = collective_time_s(kind, moved, group.size, group.local, hw.constants.collectives, hw.links)
    intra, inter = link_bytes(kind, moved, group.size, group.local)
    found = np.stack([time, intra * hw.intra_j_per_byte + inter * hw.inter_j_per_byte])
    if hw.cache is not None:
        hw.cache[key] = found
    return found


def _exposed(once: Floats, forward: Floats | float, backward: Floats, overlap: Floats | float, over: Pass) -> Traffic:
    """A layer's traffic of ``once`` (2, L) s and J, ``forward`` and ``backward`` times, less what ``over`` hides."""
    seconds, joules = once
    return _less_hidden(forward * seconds, backward * seconds, (forward + backward) * joules, overlap, over)


def _less_hidden(forward: Floats, backward: Floats, joules: Floats, overlap: Floats | float, over: Pass) -> Traffic:
    """Traffic of ``forward`` and ``backward`` seconds, (L,), less what hides under the kernels of ``over``.

    The share ``overlap`` may hide, but not under more compute (at its top clock) than there is.
    """
    passes = (forward, over.forward.time_s), (backward, over.backward.time_s)
    forward_s, backward_s = (np.asarray(time_s - np.minimum(overlap * time_s, window_s)) for time_s, window_s in passes)
    return Traffic(forward_s, backward_s, joules)


def tp_traffic(
    job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: Pass, kind: Layer
) -> Traffic:
    """Tensor parallelism: two all-reduces of the residual stream per pass, two more where a layer is recomputed.

    Attention or an MLP alone has one. Shoeybi et al. 2019 (arXiv:1909.08053) section 3; under SP each is an all-gather
    and a reduce-scatter (Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2). Under SP layers with experts
    have one of them less, as routed experts take each rank's slice of tokens; shared experts take them all. Hides under
    the kernels of the ``layer``. Where tp exceeds the KV heads, queries, keys and values are gathered too, and wait
    (Megatron Core's get_query_key_value_tensors).
    """
    moved = hidden_bytes(job.model, lay.tokens, hw.kernels.element_bytes)
    if efficiency := job.training.framework.tp_network_efficiency:  # the network as tensor parallelism uses it
        between = job.cluster.inter_node_gbytes_per_s * GB * efficiency
        hw = replace(hw, links=replace(hw.links, inter_bytes_per_s=between))
    reduced, gathered, scattered = (
        collective_cost(hw, kind, moved, groups["tp"]) for kind in ("all_reduce", "all_gather", "reduce_scatter")
    )
    pair = np.where(lay.sp, gathered + scattered, reduced)
    if job.training.framework.tp_hop_s:
        pair[0] += ring_delay_s(groups["tp"], job.training.framework.tp_hop_s)
    parts, routed = float(kind.parts), kind.ffn == "experts"
    pairs = np.where(lay.sp & (routed and not job.model.num_shared_experts), parts - 1.0, parts)
    # pairs of collectives that are redone: all, or the one of a module (a checkpointed MLP gathers its input again)
    module = np.where(lay.recompute.has("moe" if routed else "mlp"), 1.0, 0.0)
    again = np.minimum(parts * lay.recompute.full_share + module, pairs)
    overlap = overlap_share(job.training.framework, "tp", lay.layouts["overlap"])
    streams = _exposed(pair, pairs, pairs + again, overlap, layer)
    if has_latents(kind) or not has_scores(kind) or not np.any(lay.tp > job.model.num_query_groups):
        return streams
    shared = lay.tp > job.model.num_query_groups
    heads = (job.model.num_attention_heads + 2 * job.model.num_query_groups) * job.model.head_dim
    moved = hw.kernels.element_bytes * lay.tokens * heads
    gathered, scattered = (
        np.where(shared, collective_cost(hw, kind, moved, groups["tp"]), 0.0)
        for kind in ("all_gather", "reduce_scatter")
    )
    return (
        streams
        + _exposed(gathered, 1.0, lay.recompute.full_share, 0.0, layer)
        + _exposed(scattered, 0.0, np.ones_like(lay.tp), 0.0, layer)
    )


def ring_delay_s(group: Group, hop_s: float) -> Floats:
    """Seconds (...) that an all-reduce, or an all-gather and a reduce-scatter, take longer by ``hop_s`` per step.

    A ring of n ranks has 2 (n - 1) steps (Patarasuk and Yuan 2009). Inside a node there is no delay.
    """
    return np.where(group.size > group.local, 2.0 * (group.size - 1.0) * hop_s, 0.0)


def adapter_traffic(job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], kind: Layer) -> Traffic:
    """Collectives of the adapters of one layer over the ranks that cut it, of which nothing hides (Megatron-Bridge).

    Its peft/utils.py: beside a column-parallel layer what the first product makes is gathered, and the gradient of its
    input, a residual stream, reduced (scattered under SP). Beside a row-parallel one the first product is reduced, the
    second gathered to the whole width; backward the first again, and under SP the gradient of the whole is gathered.
    """
    total = Traffic(*np.zeros((3, len(lay.tp))))
    element = hw.kernels.element_bytes
    for one in adapters(job.model, job.training, kind, *lay.adapter_cuts):
        group, sp = groups["etp" if one.routed else "tp"], lay.sp & (not one.routed)
        low, wide = (element * one.tokens * width for width in (job.training.lora_dim or 0, job.model.hidden_size))
        again = np.maximum(
            lay.recompute.full_share, lay.recompute.has("moe" if kind.ffn == "experts" else "mlp") if one.mlp else 0.0
        )
        whole, cut, gathered = (
            collective_cost(hw, name, wide, group) for name in ("all_reduce", "reduce_scatter", "all_gather")
        )
        reduced, low_gathered = (collective_cost(hw, name, low, group) for name in ("all_reduce", "all_gather"))
        forward = reduced + gathered if one.row else low_gathered
        backward = reduced + np.where(sp, gathered, 0.0) if one.row else np.where(sp, cut, whole)
        total = total + Traffic(forward[0], backward[0] + again * forward[0], (1.0 + again) * forward[1] + backward[1])
    return total


def cp_traffic(job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], core: Pass, kind: Layer) -> Traffic:
    """Context parallelism: keys and values gathered forward; gathered again and their gradients scattered backward.

    Megatron Core's all-gather form; ring attention (Liu et al. 2023, arXiv:2310.01889) moves as many bytes. Hides under
    the attention ``core``. Attention without scores has all-to-alls from tokens to heads and back in its place, both
    ways (Megatron Core's mamba_context_parallel.py), of which nothing hides. None without attention.
    """
    found, profile = Traffic(*np.zeros((3, len(lay.tp)))), job.training.framework
    if has_scores(kind):
        moved = context_bytes(job.model, lay.tokens, lay.cp, lay.tp, hw.kernels.element_bytes)
        once = collective_cost(hw, "all_gather", moved, groups["cp"])
        found = _exposed(once, 1.0, 2.0 + lay.recompute.full_share, profile.cp_overlap, core)
    if sent := sum(evaluated(job.model, mixer, "context") for mixer in kind.mixers):
        moved = hw.kernels.element_bytes * lay.tokens * float(sent) / lay.tp
        turned = collective_cost(hw, "all_to_all", moved, groups["cp"])
        found = found + _exposed(turned, 1.0, 1.0 + lay.recompute.full_share, 0.0, core)
    return found


def weight_traffic(
    job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], of: Parameters, again: Floats, layer: Pass
) -> Traffic:
    """Generalised tensor parallelism: gathers of the weights ``of`` a layer, (L,), and the scatter of their gradients.

    Of every micro-batch, one gather forward and ``again`` (L,) backward, where full recompute needs one more. Weights
    are prefetched one by one, and gradients scattered one late, under the kernels of the ``layer`` (Megatron Core,
    docs/api-guide/core/generalized_tensor_parallel.md, sections 1.1 and 1.3), up to the share of ZeRO's that hides.
    """
    forward, backward, joules = np.zeros((3, len(lay.tp)))
    for count, group in ((of.dense, groups["gtp"]), (of.expert, groups["egtp"])):
        gathered = collective_cost(hw, "all_gather", count * job.training.weight_gather_bytes, group)
        scattered = collective_cost(hw, "reduce_scatter", count * job.training.gradient_comm_bytes, group)
        forward = forward + gathered[0]
        backward = backward + again * gathered[0] + scattered[0]
        joules = joules + (1.0 + again) * gathered[1] + scattered[1]
    return _less_hidden(forward, backward, joules, usual_overlap_share(job.training.framework, "dp"), layer)


def gradient_traffic(
    job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], params: Parameters, trained: Parameters
) -> tuple[Floats, Floats, Floats, Floats]:
    """(once per iteration s, J) and (ZeRO-3 gathers per micro-batch: one pass s, both passes J), (L, pp).

    Before overlap; frozen weights, which are not ``trained``, are gathered by ZeRO-3 alone. Rajbhandari et al. 2020
    (arXiv:1910.02054) section 7: without ZeRO gradients are all-reduced over dp·cp; ZeRO-1, 2 scatter them and gather
    updated weights; ZeRO-3 gathers weights in every pass. Experts apart. With replicas (HSDP: Zhao et al. 2023,
    arXiv:2304.11277, section 3.2.2) both happen within a replica, and each rank's share of the gradients is all-reduced
    between them.
    """
    zero = lay.zero[:, None]
    reduced = gathered = np.zeros((2, *params.dense.shape))
    messages = np.maximum(job.training.framework.messages_per_layer * lay.layers, 1.0)
    for _, kind, size_bytes, group, sent in gradient_messages(job, lay, groups, params, trained):
        if np.any(sent & (group.size > 1)):
            cost = np.where(sent, messages * collective_cost(hw, kind, size_bytes / messages, group), 0.0)
            reduced, gathered = (reduced, gathered + cost) if kind == "all_gather" else (reduced + cost, gathered)
    # ZeRO-2 and ZeRO-3 scatter gradients after every micro-batch
    repeats = np.where(zero >= 2, lay.micro_batches[:, None], 1.0)
    once_s, once_j = reduced * repeats + np.where(zero == 3, 0.0, gathered)
    gather_s, gather_j = np.where(zero == 3, gathered, 0.0)
    return once_s, once_j, gather_s, 2.0 * gather_j


# A collective over gradients or weights of data-parallel ranks: of which parameters (dense or expert), its kind (of
# `KINDS`), bytes (L, pp) of one rank's full buffer, its group (L, 1), and which layouts (L, 1) send it.
GradientMessage = tuple[str, str, Floats, Group, Bools]


def gradient_messages(
    job: Job, lay: LayoutArrays, groups: dict[str, Group], params: Parameters, trained: Parameters
) -> Iterator[GradientMessage]:
    """Collectives that `gradient_traffic` prices: of dense parameters, and of experts where there are any."""
    zero, weight_bytes = lay.zero[:, None], job.training.weight_gather_bytes
    whole = (zero == 0) | (zero == 1) & job.training.framework.zero1_reduces_whole
    for of, held, count, name, kind in (
        ("dense", params.dense, trained.dense, "dp_cp", ""),
        ("expert", params.expert, trained.expert, "expert_dp", "expert_"),
    ):
        if not np.any(held):
            continue
        ranks, shard, replica = (
            Group(groups[key].size[:, None], groups[key].local[:, None])
            for key in (name, f"{kind}shard", f"{kind}replica")
        )
        gradients, weights = count * job.training.gradient_comm_bytes, np.where(zero == 3, held, count) * weight_bytes
        yield of, "all_reduce", gradients, ranks, whole
        yield of, "reduce_scatter", gradients, shard, ~whole
        yield of, "all_reduce", gradients / shard.size, replica, ~whole
        yield of, "all_gather", weights, shard, zero > 0


def pipeline_traffic(job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group]) -> tuple[Floats, Floats]:
    """(seconds, joules) of one send across one stage boundary, (L,); zero without a pipeline.

    Where a framework splits sends over the tensor ranks without sequence parallelism, these gather what arrives
    (Narayanan et al. 2021, arXiv:2104.04473, section 4.1; DeepSpeed's ``pipe_partitioned``).
    """
    if (lay.pp == 1).all():
        return np.zeros_like(lay.tp), np.zeros_like(lay.tp)
    gathered = ~lay.sp & job.training.framework.splits_sends
    moved = pipeline_bytes(job.model, lay.tokens, lay.tp, np.where(gathered, 1.0, lay.sp), hw.kernels.element_bytes)
    sent = collective_cost(hw, "p2p", moved, groups["pp"])
    whole = hidden_bytes(job.model, lay.tokens, hw.kernels.element_bytes)
    sent = sent + np.where(gathered, collective_cost(hw, "all_gather", whole, groups["tp"]), 0.0)
    seconds, joules = np.where(lay.pp > 1, sent, 0.0)
    return seconds, joules


# Traffic of experts: tokens to the ranks of their experts and back, and to the parts of cut experts.


_FP8_BYTES = 1.0 + 4.0 / 128.0  # an element and its share of an fp32 scale per 128 (arXiv:2412.19437, section 3.3.2)


@functools.lru_cache(maxsize=4096)
def places_per_token(model: Model, places: int) -> float:
    """Expected number of ``places`` (ranks or nodes), each with as many experts, on which a token's experts lie.

    Top-k of all experts drawn at random, or of ``moe_router_group_topk`` of ``moe_router_num_groups`` groups at random:
    node-limited routing where groups are nodes (arXiv:2412.19437, section 2.1.2). Derived here: hypergeometric.
    """
    groups = max(model.moe_router_num_groups, 1)
    chosen, in_group = model.moe_router_group_topk or groups, model.num_experts / groups
    on_place = model.num_experts / places
    own_groups = max(round(on_place / in_group), 1)  # groups of which a place holds experts
    hit = 0.0
    for taken in range(1, min(own_groups, chosen) + 1):
        ways = math.comb(own_groups, taken) * math.comb(groups - own_groups, chosen - taken)
        # none of the token's experts, of those in the chosen groups, is one of the place's
        own, of = taken * min(on_place, in_group), chosen * in_group
        missed = math.prod(max(of - own - i, 0.0) / (of - i) for i in range(model.moe_router_topk))
        hit += ways / math.comb(groups, chosen) * (1.0 - missed)
    return places * hit


def ep_traffic(job: Job, hw: Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: Pass) -> Traffic:
    """Expert parallelism: all-to-alls that dispatch and combine, forward and backward (again under full recompute).

    Lepikhin et al. 2020 (GShard, arXiv:2006.16668) section 3; until the most loaded rank has its tokens. Under SP cut
    experts (etp) gather the tokens of their ranks and scatter the outputs, as Megatron Core's token dispatchers do.
    Hides under kernels of the MoE ``layer``: of another micro-batch, forward beside backward, so not in the fill and
    drain of the pipeline. Experts get elements in fp8 with their scales where the framework sends them so.
    """
    training, recipe = job.training, job.training.fp8_recipe
    dispatcher = training.token_dispatcher or training.framework.token_dispatcher
    sent = routed_bytes(job.model, lay.tokens, lay.token_share, 1.0) / lay.expert_tp  # each rank its slice of tokens
    element = dispatched = hw.kernels.element_bytes
    if training.framework.fp8_dispatch and training.dtype in ("fp8", "fp4"):
        dispatched = _FP8_BYTES if recipe is None or recipe.dtype != "fp8" else recipe.operand_bytes
    dispatch, combine = (
        _all_to_all(job, hw, lay, groups["ep"], size * sent, dispatcher) for size in (dispatched, element)
    )
    once = dispatch + combine
    if np.any(lay.sp & (lay.expert_tp > 1)):  # without SP each rank has all tokens already
        gathered = element * sent * lay.expert_tp
        pair = sum(_most_loaded(hw, lay, kind, gathered, groups["etp"]) for kind in ("all_gather", "reduce_scatter"))
        once = once + np.where(lay.sp, pair, 0.0)
    # share of the SMs that a hidden all-to-all keeps from the kernels beside it; at most half, a judgement
    kept = min(training.framework.dispatcher_sms.get(dispatcher, 0) / hw.kernels.gemm.sm_count, 0.5)
    apart = groups["ep"].size > groups["ep"].local  # experts on several scale-up domains
    share = training.framework.ep_overlap * np.where(apart, training.framework.network_ep_share, 1.0)
    return _beside_other_micro_batches(lay, once, layer, kept, share)


def _all_to_all(job: Job, hw: Hardware, lay: LayoutArrays, group: Group, sent: Floats, dispatcher: str) -> Floats:
    """(seconds, joules) of one dispatch or combine, (2, L); ``sent`` is the bytes of a copy for every expert."""
    if dispatcher == "alltoall":
        return _most_loaded(hw, lay, "all_to_all", sent, group)
    token = sent / job.model.moe_router_topk  # a token is sent once to a rank, and once over the network to a node
    local = np.minimum(group.local, group.size)
    hosts = group.size / local
    ranks, nodes = (token * _per_token(job.model, places) for places in (lay.ep, hosts))
    intra, inter = dispatch_bytes(ranks, nodes, group.size, local)
    most = lay.expert_load * ranks, most_loaded(job.model, hosts, lay.expert_spread) * nodes
    seconds = dispatch_time_s(*most, group.size, local, hw.constants.collectives, hw.links)
    return np.stack([seconds, intra * hw.intra_j_per_byte + inter * hw.inter_j_per_byte])


def _per_token(model: Model, places: Floats) -> Floats:
    """`places_per_token` of each number of places, (L,)."""
    values, back = np.unique(np.ceil(places), return_inverse=True)
    return np.array([places_per_token(model, int(value)) for value in values.tolist()])[back]


def _most_loaded(hw: Hardware, lay: LayoutArrays, kind: str, moved: Floats, group: Group) -> Floats:
    """(seconds, joules) of a collective that ends when the most loaded rank has its share; joules are a mean rank's."""
    seconds, joules = collective_cost(hw, kind, moved * lay.expert_load, group)
    return np.stack([seconds, joules / lay.expert_load])


def _beside_other_micro_batches(
    lay: LayoutArrays, once: Floats, layer: Pass, kept: float, overlap: Floats | float
) -> Traffic:
    """The exposed part of traffic that takes ``once`` (2, L) per pass, and what the hidden part slows kernels by.

    At most a share ``overlap`` (L,) hides. While it is sent, ``kept`` = t/n of n SMs copy and kernels run on the rest:
    H hidden seconds make them take H·t/n longer, and C seconds of kernels hide up to C·n/(n - t). Derived here; all
    kernels are taken to slow, the memory-bound ones too.
    """
    seconds, joules = once
    forward, backward = seconds, seconds * (1.0 + lay.recompute.dispatches_again())
    # forward passes of the first and backward passes of the last micro-batches have no other one beside them
    alone = np.minimum(np.maximum(lay.layouts["pp"] - 1, 1) / np.maximum(lay.micro_batches, 1), 1.0)
    whole, window = forward + backward, (layer.forward.time_s + layer.backward.time_s) / (1.0 - kept)
    hidden = np.minimum(overlap * whole, window) * (1.0 - alone)
    left = 1.0 - np.divide(hidden * (1.0 - kept), whole, out=np.zeros_like(whole), where=whole > 0)
    return Traffic(forward * left, backward * left, (2.0 + lay.recompute.dispatches_again()) * joules, kept * hidden)
