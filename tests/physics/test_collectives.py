import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jointopt.core.errors import UsageError
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.kernels import Links
from jointopt.physics.traffic import KINDS, collective_time_s, link_bytes
from tests.places import DATA

TABLE = DATA / "nccl_collectives.csv"
LINKS = {"a100-sxm4-80gb": Links(300e9, 25e9, 2e-6), "h100-sxm5-80gb": Links(450e9, 50e9, 2e-6)}
GIB = 2.0**30

kinds = st.sampled_from(KINDS)
gpus = st.sampled_from(list(LINKS))
messages = st.floats(1.0, 1e12)
groups = st.tuples(st.integers(0, 7), st.integers(0, 6)).map(lambda g: (2 ** sum(g), 2 ** g[1]))


def time_s(kind, message, size, local, gpu="h100-sxm5-80gb", links=None):
    constants = kernel_constants(load_gpu(gpu)).collectives
    return collective_time_s(kind, message, size, local, constants, links or LINKS[gpu])


@given(kinds, messages, gpus)
def test_a_group_of_one_sends_nothing_and_takes_no_time(kind, message, gpu):
    assert time_s(kind, message, 1, 1, gpu) == 0.0
    assert link_bytes(kind, message, 1, 1) == (0.0, 0.0)


@given(kinds, groups)
def test_an_empty_message_takes_no_time(kind, group):
    assert time_s(kind, 0.0, *group) == 0.0


@given(kinds, messages, st.floats(1.0, 1e3), groups, gpus)
def test_more_bytes_never_arrive_earlier(kind, message, growth, group, gpu):
    assert time_s(kind, message * growth, *group, gpu) >= time_s(kind, message, *group, gpu) * (1 - 1e-9)


@given(kinds, messages, groups, gpus)
def test_no_gpu_sends_faster_than_its_links(kind, message, group, gpu):
    """NVLink SHARP is the exception inside a domain: the switch reduces, so a GPU sends half as much."""
    size, local = group
    intra, inter = link_bytes(kind, message, size, local)
    sent_in_switch = 0.5 if kind == "all_reduce" else 1.0
    floor_s = max(sent_in_switch * intra / LINKS[gpu].intra_bytes_per_s, inter / LINKS[gpu].inter_bytes_per_s)
    assert time_s(kind, message, size, local, gpu) >= floor_s * (1 - 1e-9)


def test_an_array_of_groups_equals_each_one_alone():
    message, size, local = np.array([1e3, 1e7, 1e9]), np.array([1, 8, 64]), np.array([1, 8, 4])
    for kind in KINDS:
        together = time_s(kind, message, size, local)
        alone = [float(time_s(kind, *group)) for group in zip(message, size, local, strict=True)]
        assert together == pytest.approx(alone)


@given(messages, groups)
def test_an_all_reduce_sends_what_a_reduce_scatter_and_an_all_gather_send(message, group):
    parts = np.add(link_bytes("reduce_scatter", message, *group), link_bytes("all_gather", message, *group))
    assert link_bytes("all_reduce", message, *group) == pytest.approx(tuple(parts))


@given(kinds, messages, groups)
def test_a_group_inside_one_domain_leaves_the_network_alone(kind, message, group):
    size, local = group
    assert link_bytes(kind, message, local, local)[1] == 0.0
    assert link_bytes(kind, message, size, 1)[0] == 0.0


def test_a_ring_sends_the_textbook_volume():
    """Ring all-reduce: 2 (n-1)/n M per member, of which one hop in eight crosses the network."""
    intra, inter = link_bytes("all_reduce", 16.0, 32, 8)
    assert intra + inter == pytest.approx(2 * 31 / 32 * 16)
    assert inter == pytest.approx((intra + inter) / 8)


def test_an_all_to_all_across_nodes_is_bound_by_each_gpus_own_nic():
    remote_s = GIB * (64 - 8) / 64 / (0.85 * 50e9)
    assert time_s("all_to_all", GIB, 64, 8) == pytest.approx(remote_s, rel=0.01)


def test_more_gpus_per_node_open_more_nics():
    times = time_s("all_gather", GIB, 64, np.array([1, 2, 4, 8]))
    assert np.all(np.diff(times) < 0)
    assert times[0] / times[2] == pytest.approx(4, rel=0.05)


def test_a_tree_keeps_the_latency_of_a_large_all_reduce_logarithmic():
    small = 1024.0
    assert time_s("all_reduce", small, 4096, 8) < 2.5 * time_s("all_reduce", small, 64, 8)
    assert time_s("all_gather", small, 4096, 8) > 30 * time_s("all_gather", small, 64, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_between_nodes_takes_longer_than_inside_one(kind):
    message = np.geomspace(1e6, 1e10, 9)
    assert np.all(time_s(kind, message, 8, 1) > time_s(kind, message, 8, 8))


def test_two_a100_nodes_all_reduce_as_fast_as_published():
    """NVIDIA/nccl issue 1048: 86 GB/s of bus bandwidth over 4 x 200 Gbit/s per node of 8 GPUs."""
    links = Links(300e9, 12.5e9, 2e-6)
    bus = 2 * 15 / 16 * 4 * GIB / time_s("all_reduce", 4 * GIB, 16, 8, "a100-sxm4-80gb", links)
    assert bus / 1e9 == pytest.approx(86, rel=0.05)


def test_32_h100_nodes_all_reduce_as_fast_as_published():
    """NVIDIA/nccl issue 1218: 340 GB/s of bus bandwidth over 8 x 400 Gbit/s per node of 8 GPUs."""
    assert 2 * 255 / 256 * 2 * GIB / time_s("all_reduce", 2 * GIB, 256, 8) / 1e9 == pytest.approx(340, rel=0.1)


def test_eight_h100_gather_as_fast_as_nccl_authors_report():
    """nccl-tests issue 212: about 370 GB/s of bus bandwidth at sizes beyond 256 MiB, 450 is the line rate."""
    assert 7 / 8 * 8 * GIB / time_s("all_gather", 8 * GIB, 8, 8) / 1e9 == pytest.approx(370, rel=0.1)


def test_a_faster_link_carries_the_fit_in_proportion():
    once, twice = (time_s("all_gather", 4 * GIB, 8, 8, links=Links(b, 50e9, 0.0)) for b in (450e9, 900e9))
    assert once / twice == pytest.approx(2, rel=0.01)


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'all_gather'"):
        time_s("allgather", 1.0, 2, 2)


@pytest.mark.skipif(not TABLE.exists(), reason="the recorded measurements are not beside the repository")
@pytest.mark.parametrize(("smallest", "bound"), [(0.0, 0.15), (2.0**20, 0.08)])
def test_nccl_timings_are_met(smallest, bound):
    import pandas as pd

    table = pd.read_csv(TABLE).assign(message=lambda t: 2.0 * t.message_elements).query("message >= @smallest")
    errors = []
    table = table[table.gpu.isin(LINKS)]  # those that the constants were fitted to
    for (gpu, kind), rows in table.groupby(["gpu", "collective"]):
        size = rows.num_gpus.to_numpy()
        predicted = time_s(kind.replace("alltoall", "all_to_all"), rows.message.to_numpy(), size, size, gpu)
        errors.extend(np.abs(predicted / rows.time_s.to_numpy() - 1.0))
    assert np.median(errors) < bound


def test_a_megabyte_to_another_node_by_hand():
    """Simple: 8.4 + 8.1 µs and the network's 2, two copies of 128 KiB at 18.3 GB/s, 0.85 of 50 GB/s."""
    by_hand = 18.5e-6 + 2 * 2**17 / 18.3e9 + 2**20 / (0.85 * 50e9)
    assert float(time_s("p2p", 2.0**20, 2, 1)) == pytest.approx(by_hand)


def test_a_short_message_to_another_node_goes_by_ll_by_hand():
    """Up to 16 KiB for each of two channels: 3.6 + 1.2 µs and the network's 2, a quarter of 0.85 of 50 GB/s."""
    assert float(time_s("p2p", 2.0**15, 2, 1)) == pytest.approx(6.8e-6 + 2**15 / (0.25 * 0.85 * 50e9))
    assert float(time_s("p2p", 2.0**15 + 1, 2, 1)) > 1.5 * float(time_s("p2p", 2.0**15, 2, 1))


@pytest.mark.parametrize(("message", "chunk"), [(40000.0, 2**15), (2.0**16, 2**15), (2.0**19, 2**16), (2.0**21, 2**17)])
def test_shorter_messages_between_nodes_have_smaller_chunks(message, chunk):
    copied = 2 * min(chunk, message / 2) / 18.3e9
    assert float(time_s("p2p", message, 2, 1)) == pytest.approx(18.5e-6 + copied + message / (0.85 * 50e9))


def test_a_link_is_half_used_by_a_message_as_large_as_what_it_could_carry_in_the_fixed_time():
    fixed_s, rate = 18.5e-6 + 2 * 2**17 / 18.3e9, 0.85 * 50e9
    half = fixed_s * rate  # 1.4 MB, in whole chunks
    assert half > 2**20
    assert half / float(time_s("p2p", half, 2, 1)) == pytest.approx(0.5 * rate)
