"""Seconds of one collective by hand: latency, hops and bytes over bandwidth, inside a domain and across nodes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from jointopt.jobs.kernels import CollectiveConstants, Links, NetworkProtocol, Protocol
from jointopt.physics.traffic import collective_time_s, link_bytes
from tests.each import each
from tests.physics.hand.plain_machine import NIC, WIRE_S, across_s, collective_constants, inside_s

M = 64e6
LINKS = Links(300e9, NIC, WIRE_S)
PLAIN = collective_constants()
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def taken_s(
    kind: str, size: float, local: float, constants: CollectiveConstants = PLAIN, links: Links = LINKS,
    message: float = M,
) -> float:  # fmt: skip
    return float(collective_time_s(kind, message, size, local, constants, links))


def one_protocol(*bus_gbytes_per_s: float) -> CollectiveConstants:
    bus = tuple(rate * 1e9 for rate in bus_gbytes_per_s)
    return replace(PLAIN, protocols={"all_gather": (Protocol(10e-6, 3e-6, (bus[0], bus[1], bus[2])),)})


@each("size", [2, 4, 8])
@each("kind", KINDS)
def test_inside_a_node_it_takes_a_latency_and_the_ring_s_bytes_over_the_bus(kind: str, size: int) -> None:
    assert taken_s(kind, size, size) == pytest.approx(inside_s(kind, M, size))


def test_each_size_of_group_has_its_own_bus_bandwidth_and_each_member_adds_latency() -> None:
    # (n - 1)/n of 64 MB over 100, 200, 400 GB/s; 10 us of two members and 3 us for each further one
    found = [taken_s("all_gather", n, n, one_protocol(100, 200, 400)) for n in (2, 4, 8)]
    assert found == pytest.approx([10e-6 + 32e6 / 100e9, 10e-6 + 6e-6 + 48e6 / 200e9, 10e-6 + 18e-6 + 56e6 / 400e9])


def test_a_domain_of_more_than_eight_keeps_the_bus_of_eight_and_adds_latency_by_the_logarithm() -> None:
    latency_s = 10e-6 + 3e-6 * (6 + 8 * math.log(32 / 8))
    found = taken_s("all_gather", 32, 32, one_protocol(100, 200, 400))
    assert found == pytest.approx(latency_s + 31 / 32 * M / 400e9)


def test_a_faster_scale_up_link_speeds_up_the_bytes_and_not_the_latency() -> None:
    twice = Links(600e9, NIC, WIRE_S)
    saved = taken_s("all_gather", 8, 8) - taken_s("all_gather", 8, 8, links=twice)
    assert saved == pytest.approx(7 / 8 * M / 100e9 / 2)


def test_a_send_inside_a_node_takes_the_latency_and_the_bus_of_a_pair_s_all_to_all() -> None:
    assert taken_s("p2p", 2, 2) == pytest.approx(40e-6 + M / 80e9)


def test_two_equal_protocols_together_beat_each_by_the_eighth_root_of_two() -> None:
    # (t^-8 + t^-8)^(-1/8)
    protocol = Protocol(10e-6, 0.0, (100e9, 100e9, 100e9))
    both = replace(PLAIN, protocols={"all_gather": (protocol, protocol)})
    assert taken_s("all_gather", 2, 2, both) == pytest.approx((10e-6 + M / 2 / 100e9) / 2 ** (1 / 8))


@each(("size", "local"), [(16, 8), (64, 8), (16, 4), (4, 1)])
@each("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_across_nodes_a_ring_pays_every_hop_and_sends_through_every_nic(kind: str, size: int, local: int) -> None:
    assert taken_s(kind, size, local) == pytest.approx(across_s(kind, M, size, local))


def test_a_ring_across_nodes_in_numbers() -> None:
    # 16 members on 2 nodes: 50 us to start, 14 hops inside of 2 us, 1 between of 5 + 7 us, 60 MB over 8 x 5 GB/s
    assert taken_s("all_gather", 16, 8) == pytest.approx(50e-6 + 14 * 2e-6 + 12e-6 + 60e6 / 40e9)


def test_a_protocol_s_share_of_the_bandwidth_slows_the_bytes() -> None:
    half = replace(PLAIN, ring=(replace(PLAIN.ring[0], bandwidth_fraction=0.5),))
    assert taken_s("all_gather", 16, 8, half) == pytest.approx(50e-6 + 40e-6 + 2 * 60e6 / 40e9)


def test_the_fastest_protocol_across_nodes_is_taken() -> None:
    quick = NetworkProtocol(1e-6, 0.0, 0.0, 0.01)  # nothing to start, a hundredth of the bandwidth
    both = replace(PLAIN, ring=(PLAIN.ring[0], quick))
    assert taken_s("all_gather", 4, 1, both, message=4.0) == pytest.approx(1e-6 + 3 * 7e-6 + 3 / (5e9 / 100))
    assert taken_s("all_gather", 4, 1, both) == pytest.approx(across_s("all_gather", M, 4, 1))


def test_a_tree_goes_up_and_down_log2_of_the_nodes_and_sends_the_message_twice() -> None:
    # 6 nodes of 4: 3 hops of a chain, 3 levels of 5 + 7 us, both ways; 2 x 64 kB over 4 NICs of 5 GB/s
    tree = replace(PLAIN, tree=(NetworkProtocol(4e-6, 2e-6, 5e-6, 1.0),))
    expected = 4e-6 + 2 * (3 * 2e-6 + 3 * 12e-6) + 2 * 64e3 / 20e9
    assert taken_s("all_reduce", 24, 4, tree, message=64e3) == pytest.approx(expected)
    assert taken_s("all_reduce", 24, 4, tree) == pytest.approx(across_s("all_reduce", M, 24, 4))


def test_a_gather_never_runs_as_a_tree() -> None:
    tree = replace(PLAIN, tree=(NetworkProtocol(0.0, 0.0, 0.0, 1.0),))
    assert taken_s("all_gather", 64, 8, tree) == pytest.approx(across_s("all_gather", M, 64, 8))


def test_a_ring_across_nodes_is_never_faster_than_the_scale_up_link_of_more_than_one_gpu() -> None:
    # the NICs would carry 8 x 500 GB/s, the bus of an all-gather 100 GB/s; alone in its node a GPU needs no bus
    fast = Links(300e9, 1000e9, WIRE_S)
    hops_s = 50e-6 + 14 * 2e-6 + 12e-6
    assert taken_s("all_gather", 16, 8, links=fast) == pytest.approx(hops_s + 60e6 / 100e9)
    assert taken_s("all_gather", 2, 1, links=fast) == pytest.approx(50e-6 + 12e-6 + 32e6 / 500e9)


def test_an_all_to_all_across_nodes_sends_remote_shares_through_the_gpu_s_own_nic() -> None:
    # 16 members, 8 of them remote: 15/16 of 64 MB, of which 8/15 leave through 5 GB/s; 8 peers at 3 us
    expected = 7e-6 + 8 * 3e-6 + 50e-6 + 5e-6 + 32e6 / 5e9
    assert taken_s("all_to_all", 16, 8) == pytest.approx(expected)


def test_an_all_to_all_with_a_fast_network_waits_for_the_shares_inside_the_node() -> None:
    # 7/16 of 64 MB stay inside, over the all-to-all's 80 GB/s
    found = taken_s("all_to_all", 16, 8, links=Links(300e9, 1e15, WIRE_S))
    assert found == pytest.approx(7e-6 + 8 * 3e-6 + 28e6 / 80e9)


@pytest.mark.parametrize(("local", "bus"), [(2, 40e9), (4, 80e9), (8, 160e9)])
def test_with_a_fast_network_shares_inside_a_node_take_the_bus_of_as_many_members(local: int, bus: float) -> None:
    protocol = Protocol(0.0, 0.0, (40e9, 80e9, 160e9))
    constants = replace(PLAIN, protocols={"all_to_all": (protocol,), "all_gather": (protocol,)})
    fast, peers, nodes = Links(300e9, 1e15, WIRE_S), 16 - local, 16 // local
    found = taken_s("all_to_all", 16, local, constants, fast)
    assert found == pytest.approx(WIRE_S + peers * 3e-6 + (local - 1) / 16 * M / bus)
    hops_s = 50e-6 + (16 - nodes) * 2e-6 + (nodes - 1) * 12e-6
    assert taken_s("all_gather", 16, local, constants, fast) == pytest.approx(hops_s + 60e6 / bus)


def test_a_send_between_nodes_takes_start_hop_wire_and_the_bytes_over_one_nic() -> None:
    assert taken_s("p2p", 2, 1) == pytest.approx(50e-6 + 5e-6 + 7e-6 + M / 5e9)


@pytest.mark.parametrize(
    ("kind", "inside", "outside"),
    [
        ("all_reduce", 105e6, 15e6),  # 2·15/16 of 64 MB, one hop in eight crosses
        ("all_gather", 52.5e6, 7.5e6),
        ("reduce_scatter", 52.5e6, 7.5e6),
        ("all_to_all", 28e6, 32e6),  # 7 and 8 of 16 shares
        ("p2p", 0.0, 64e6),
    ],
)
def test_each_kind_sends_its_bytes_over_the_two_links(kind: str, inside: float, outside: float) -> None:
    size, local = (2, 1) if kind == "p2p" else (16, 8)
    assert [float(sent) for sent in link_bytes(kind, M, size, local)] == pytest.approx([inside, outside])
