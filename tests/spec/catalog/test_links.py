"""Stand-ins for what a cluster does not state."""

from __future__ import annotations

import pytest

from jointopt.spec.catalog.clusters import link_defaults, link_of
from jointopt.spec.catalog.gpus import gpu_ids, load_gpu, read_yaml
from jointopt.spec.cluster import Cluster


@pytest.mark.parametrize("gpu_id", gpu_ids())
def test_every_stand_in_is_a_field_of_the_cluster_with_a_source(gpu_id: str) -> None:
    for field, assumption in link_defaults(load_gpu(gpu_id)).items():
        assert field in Cluster.__dataclass_fields__
        assert assumption.value > 0 or field == "exhaust_rise_k"
        assert len(assumption.source) > 10


def test_a_bit_between_racks_costs_fifteen_times_a_bit_over_nvlink() -> None:
    facts = link_defaults(load_gpu("gh200-96gb"))
    assert facts["inter_node_pj_per_bit"].value / facts["intra_node_pj_per_bit"].value == pytest.approx(15, rel=0.05)


def test_an_h100_node_draws_what_was_measured() -> None:
    gpu = load_gpu("h100-sxm5-80gb")
    host, gpus_w = link_defaults(gpu), 8 * 690.0  # in heavy training
    node_w = host["host_power_w"].value + (1 + host["host_load_share"].value) * gpus_w
    assert node_w == pytest.approx(0.76 * 10_200, rel=0.02)


def test_host_power_follows_the_node_size() -> None:
    gpu = load_gpu("a100-sxm4-80gb")
    assert link_defaults(gpu, 4)["host_power_w"].value == link_defaults(gpu)["host_power_w"].value / 2


@pytest.mark.parametrize(("gpu_id", "link"), [("a40", "pcie"), ("mi300x", "xgmi"), ("gb200", "nvlink")])
def test_the_link_of_a_node_is_known(gpu_id: str, link: str) -> None:
    assert link_of(load_gpu(gpu_id)) == link


def test_the_file_names_only_gpus_of_the_catalogue() -> None:
    facts = read_yaml("links.yaml")
    named = {g for gpus in facts["links"].values() for g in gpus} | set(facts["host_power_w_per_gpu"]) - {"other"}
    assert named <= set(gpu_ids())
