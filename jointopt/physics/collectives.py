"""Time and traffic of one collective: fitted NCCL timings inside a scale-up domain, rings and trees across.

Sources: 504 timings of 2, 4 and 8 GPUs within a node (tests/bench/bench_collectives_fit.py) in the form of the
latency-bandwidth model (Hockney; Thakur et al. 2005 for rings); NCCL's tuning model across nodes.

A group has ``size`` members, ``local`` of them in each scale-up domain. ``message_bytes`` is always the full
(unsharded) buffer of one rank: the result of an all-gather, the input of a reduce-scatter, all that a rank
hands to an all-to-all including its own share, the activation that a p2p sends (size 2; local 2 or 1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import UsageError, nearest
from jointopt.core.schema import Floats
from jointopt.spec.kernels import CollectiveConstants, Links, NetworkProtocol, Protocol

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
FITTED_MEMBERS = 8.0


def collective_time_s(
    kind: str,
    message_bytes: npt.ArrayLike,
    size: npt.ArrayLike,
    local: npt.ArrayLike,
    constants: CollectiveConstants,
    links: Links,
) -> Floats:
    """Seconds of one collective on idle links; zero for one member or an empty message. Arrays broadcast.

    Inside a domain: NCCL timings of 2, 4, 8 GPUs (2 % median error), extrapolated to larger domains with the
    bus bandwidth of 8 and a latency that grows with the logarithm. Across nodes: the form and latencies of
    NCCL's own tuning model, a ring through every NIC or, for all-reduce, a tree; not fitted to measurements.
    Raises `UsageError` for an unknown kind.
    """
    _check_kind(kind)
    message, size, local = _floats(message_bytes, size, local)
    inside = np.minimum(local, size)
    intra = _intra_s(kind, message, np.maximum(size, 2.0), constants, links)
    inter = _inter_s(kind, message, np.maximum(size, 2.0), inside, constants, links)
    time = np.where(inside >= size, intra, inter)
    return np.where((size > 1.0) & (message > 0.0), time, 0.0)


def link_bytes(
    kind: str, message_bytes: npt.ArrayLike, size: npt.ArrayLike, local: npt.ArrayLike
) -> tuple[Floats, Floats]:
    """Bytes that each GPU sends over (the scale-up link, the network) in one collective, group average, (...) each.

    Rings send (n - 1)/n of the buffer per direction, twice in an all-reduce (Patarasuk and Yuan 2009); of a domain's
    ``local`` hops one crosses the network. In-network reduction (SHARP) would send half of that.
    """
    _check_kind(kind)
    message, size, local = _floats(message_bytes, size, local)
    sent, inside = _ring_factor(kind, size) * message, np.minimum(local, size)
    remote = np.where(inside >= size, 0.0, _remote_share(kind, size, inside))
    return sent * (1.0 - remote), sent * remote


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise UsageError(
            f"The collective {kind!r} is unknown{nearest(kind, KINDS)}; expected one of {', '.join(KINDS)}."
        )


def _floats(*arrays: npt.ArrayLike) -> tuple[Floats, ...]:
    return tuple(np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in arrays)))


def _ring_factor(kind: str, size: Floats) -> Floats:
    """Bytes that a member sends per byte of the full buffer."""
    if kind == "p2p":
        return np.where(size > 1.0, 1.0, 0.0)
    return (2.0 if kind == "all_reduce" else 1.0) * (size - 1.0) / size


def _remote_share(kind: str, size: Floats, local: Floats) -> Floats:
    """Share of what a member sends that leaves its domain."""
    if kind == "p2p":
        return np.ones_like(size)
    if kind == "all_to_all":
        return (size - local) / np.maximum(size - 1.0, 1.0)
    return 1.0 / local


def _intra_s(kind: str, message: Floats, size: Floats, c: CollectiveConstants, links: Links) -> Floats:
    """Seconds inside one domain: latency plus bytes over bus bandwidth, of the fastest of NCCL's protocols."""
    if kind == "p2p":  # an all-to-all of two, each of which sends half of twice the message
        return _intra_s("all_to_all", 2.0 * message, np.full_like(size, 2.0), c, links)
    sent = _ring_factor(kind, size) * message
    scale = links.intra_bytes_per_s / c.fitted_intra_bytes_per_s
    return _fastest(
        [_domain_latency_s(p, size) + sent / (scale * _bus_bytes_per_s(p, size)) for p in c.protocols[kind]]
    )


def _domain_latency_s(protocol: Protocol, size: Floats) -> Floats:
    """Linear in the ring up to the sizes measured, logarithmic from there with the same slope, as trees are."""
    ring = np.minimum(size, FITTED_MEMBERS) - 2.0
    beyond = FITTED_MEMBERS * np.log(np.maximum(size / FITTED_MEMBERS, 1.0))
    return protocol.latency_s + protocol.member_s * (ring + beyond)


def _bus_bytes_per_s(protocol: Protocol, size: Floats) -> Floats:
    """Bus bandwidth as nccl-tests defines it, by the logarithm of the size between 2, 4 and 8 members."""
    return np.interp(np.log2(size), (1.0, 2.0, 3.0), protocol.bus_bytes_per_s)


def _fastest(times: Sequence[Floats]) -> Floats:
    """The 8-norm minimum: near a crossover NCCL mixes protocols and beats each of the straight lines."""
    rates = sum((np.square(np.square(np.square(1.0 / t))) for t in times), np.zeros(()))
    return np.asarray(1.0 / np.sqrt(np.sqrt(np.sqrt(rates))))


def _inter_s(kind: str, message: Floats, size: Floats, local: Floats, c: CollectiveConstants, links: Links) -> Floats:
    if kind in ("all_to_all", "p2p"):
        return _direct_s(kind, message, size, local, c, links)
    rings = _least([_ring_s(kind, message, size, local, p, c, links) for p in c.ring])
    if kind != "all_reduce":
        return rings
    return np.minimum(rings, _least([_tree_s(message, size, local, p, c, links) for p in c.tree]))


def _least(times: Sequence[Floats]) -> Floats:
    return np.asarray(np.minimum.reduce(times))


def _ring_s(
    kind: str, message: Floats, size: Floats, local: Floats, p: NetworkProtocol, c: CollectiveConstants, links: Links
) -> Floats:
    """A ring through every NIC: all hops in turn, at the speed of the slower of network and scale-up link."""
    nodes, rounds = size / local, 2.0 if kind == "all_reduce" else 1.0
    hops_s = (size - nodes) * p.intra_hop_s + (nodes - 1.0) * (p.inter_hop_s + links.inter_latency_s)
    speed = p.bandwidth_fraction * _spanning_bytes_per_s(kind, local, c, links)
    return p.start_s + rounds * hops_s + _ring_factor(kind, size) * message / speed


def _tree_s(
    message: Floats, size: Floats, local: Floats, p: NetworkProtocol, c: CollectiveConstants, links: Links
) -> Floats:
    """A binary tree over nodes, a chain inside each, up and down: latency grows with log2(nodes)."""
    hops_s = (local - 1.0) * p.intra_hop_s + np.ceil(np.log2(size / local)) * (p.inter_hop_s + links.inter_latency_s)
    speed = p.bandwidth_fraction * _spanning_bytes_per_s("all_reduce", local, c, links)
    return p.start_s + 2.0 * hops_s + 2.0 * message / speed


def _spanning_bytes_per_s(kind: str, local: Floats, c: CollectiveConstants, links: Links) -> Floats:
    """Bus bandwidth across domains: one NIC per local member, never more than the scale-up link carries."""
    network = local * links.inter_bytes_per_s * c.inter_fraction
    scale = links.intra_bytes_per_s / c.fitted_intra_bytes_per_s
    inside = scale * _bus_bytes_per_s(c.protocols[kind][-1], np.maximum(local, 2.0))
    return np.where(local > 1.0, np.minimum(network, inside), network)


def _direct_s(kind: str, message: Floats, size: Floats, local: Floats, c: CollectiveConstants, links: Links) -> Floats:
    """Each member sends to each peer: remote shares through its own NIC, while local ones use the domain."""
    remote = _remote_share(kind, size, local)
    sent = _ring_factor(kind, size) * message
    peers_s = c.peer_s * (size - local) if kind == "all_to_all" else 0.0
    inside_speed = (
        links.intra_bytes_per_s
        / c.fitted_intra_bytes_per_s
        * _bus_bytes_per_s(c.protocols["all_to_all"][-1], np.maximum(local, 2.0))
    )
    inside_s = sent * (1.0 - remote) / inside_speed
    nic = links.inter_bytes_per_s * c.inter_fraction
    outside_s = _least([p.start_s + p.inter_hop_s + sent * remote / (nic * p.bandwidth_fraction) for p in c.ring])
    return links.inter_latency_s + peers_s + np.maximum(inside_s, outside_s)
