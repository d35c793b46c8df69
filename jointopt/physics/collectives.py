"""Time and traffic of one collective among ``size`` members, ``local`` of them in each scale-up domain.

``message_bytes`` is one rank's full buffer: result of an all-gather, input of a reduce-scatter, all of an all-to-all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import UsageError, nearest_hint
from jointopt.core.schema import Floats
from jointopt.jobs.kernels import CollectiveConstants, Links, NetworkProtocol, Protocol

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
    """Seconds to send so many bytes inside the domain and, at the same time, to remote peers."""
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
