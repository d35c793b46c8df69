import pytest

from jointopt.core.errors import CatalogError, JobError, UsageError
from jointopt.jobs.catalog.clusters import FIGURES, build_cluster, cluster_names, load_cluster
from jointopt.jobs.catalog.gpus import load_gpu

A100 = {"gpu": "a100-sxm4-40gb", "nodes": 2, "gpus_per_node": 4}


@pytest.mark.parametrize("name", cluster_names())
def test_every_catalogue_cluster_loads_with_its_gpus(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.num_gpus >= 8


def test_a_catalogue_cluster_can_be_taken_in_part() -> None:
    cluster = build_cluster({"catalog": "alps", "nodes": 8})
    assert (cluster.num_gpus, cluster.inter_node_gbytes_per_s) == (32, 25.0)


def test_every_figure_that_is_not_given_is_either_in_the_catalogue_or_assumed() -> None:
    cluster = build_cluster(A100)
    looked_up = {"intra_node_gbytes_per_s", "power_limit_w"}
    assert {assumption.key for assumption in cluster.assumed} == set(FIGURES) - looked_up
    assert all(assumption.value == getattr(cluster, assumption.key) for assumption in cluster.assumed)


def test_a_cluster_that_states_everything_assumes_nothing() -> None:
    figures = dict.fromkeys(FIGURES, 40.0) | {"pue": 1.1, "power_limit_w": 300, "host_load_share": 0.1}
    assert build_cluster(A100 | figures).assumed == ()


def test_the_power_limit_is_the_rated_power_of_the_gpu_unless_given() -> None:
    assert build_cluster(A100).power_limit_w == load_gpu("a100-sxm4-40gb").tdp_w
    assert build_cluster(A100 | {"power_limit_w": 250}).power_limit_w == 250


def test_a_single_node_assumes_nothing_of_a_network_it_lacks() -> None:
    cluster = build_cluster(A100 | {"nodes": 1})
    assert not any(assumption.key.startswith("inter_node") for assumption in cluster.assumed)


def test_a_gpu_without_a_reference_network_needs_the_bandwidth_between_nodes() -> None:
    with pytest.raises(JobError, match="inter_node_gbytes_per_s is missing"):
        build_cluster({"gpu": "l40s", "nodes": 2, "gpus_per_node": 4})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nodes", 0),
        ("nodes", True),
        ("pue", 0.5),
        ("power_limit_w", 4000),
        ("power_limit_w", 5),
        ("inlet_temperature_c", 300),
        ("inter_node_gbytes_per_s", float("nan")),
    ],
)
def test_a_figure_out_of_range_is_refused_by_its_key(key: str, value: object) -> None:
    gpu = {"gpu": "a100-sxm4-80gb"}  # its idle power is known
    with pytest.raises(JobError, match=f"cluster.{key} must be"):
        build_cluster(A100 | gpu | {key: value})


def test_an_unknown_key_an_unknown_gpu_and_an_unknown_cluster_name_what_was_meant() -> None:
    for mapping, meant in (
        (A100 | {"node": 2}, "nodes"),
        (A100 | {"gpu": "a100-sxm4-41gb"}, "a100-sxm4-40gb"),
        ({"catalog": "alp"}, "alps"),
    ):
        with pytest.raises(UsageError, match=f"did you mean '{meant}'"):
            build_cluster(mapping)


def test_an_unknown_gpu_is_reported_under_its_key() -> None:
    with pytest.raises(CatalogError, match=r"^cluster\.gpu: "):
        build_cluster(A100 | {"gpu": "tpu-v5"})


@pytest.mark.parametrize("key", ["intra_node_gbytes_per_s", "inter_node_gbytes_per_s"])
def test_a_link_slower_than_any_that_trains_is_refused_with_its_unit(key: str) -> None:
    assert getattr(build_cluster(A100 | {key: 0.001}), key) == 0.001
    with pytest.raises(JobError, match=rf"{key} must be at least 0.001 GB/s, 8 Mb/s .*; got 1e-09"):
        build_cluster(A100 | {key: 1e-9})
