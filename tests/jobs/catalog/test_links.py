"""Stand-ins for what a cluster does not state."""

from __future__ import annotations

import pytest

from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.clusters import link_defaults
from jointopt.jobs.catalog.gpus import gpu_ids, load_gpu
from jointopt.jobs.catalog.networks import link_of
from jointopt.jobs.cluster import Cluster
from tests.each import each


@each("gpu_id", gpu_ids())
def test_every_stand_in_is_a_field_of_the_cluster_with_a_source(gpu_id: str) -> None:
    for field, assumption in link_defaults(load_gpu(gpu_id)).items():
        assert field in Cluster.__dataclass_fields__
        assert assumption.value > 0 or field == "exhaust_rise_k"
        assert len(assumption.source) > 10


def test_a_bit_between_racks_costs_fifteen_times_a_bit_over_nvlink() -> None:
    facts = link_defaults(load_gpu("gh200-96gb"))
    assert facts["inter_node_pj_per_bit"].value / facts["intra_node_pj_per_bit"].value == pytest.approx(15, rel=0.05)


# Watts of nodes of 8 and of one of their GPUs: the table in links.yaml
NODES = {
    ("h100-sxm5-80gb", "air", 8160.0): 700.0, ("h100-sxm5-80gb", "liquid", 6990.0): 700.0,
    ("h100-sxm5-80gb", "air", 7752.0): 690.0, ("h100-sxm5-80gb", "liquid", 6953.0): 4909 / 8,
    ("h100-sxm5-80gb", "liquid", 5708.0): 3771 / 8, ("h100-sxm5-80gb", "liquid", 4985.0): 3310 / 8,
    ("b200-sxm-180gb", "liquid", 9610.0): 7563 / 8,
}  # fmt: skip


def drawn_w(gpu: str, cooling: str, gpu_w: float) -> float:
    host = link_defaults(load_gpu(gpu), 8, cooling)
    return host["host_power_w"].value + (1 + host["host_load_share"].value) * 8 * gpu_w


@pytest.mark.parametrize(("gpu", "cooling", "watts"), NODES)
def test_nodes_draw_what_was_measured_by_what_cools_them(gpu: str, cooling: str, watts: float) -> None:
    assert drawn_w(gpu, cooling, NODES[gpu, cooling, watts]) == pytest.approx(watts, rel=0.08)


def test_nodes_that_were_measured_are_right_in_the_median() -> None:
    errors = [drawn_w(gpu, cooling, gpu_w) / watts - 1 for (gpu, cooling, watts), gpu_w in NODES.items()]
    assert sorted(errors)[3] == pytest.approx(0, abs=0.005)


def test_fans_draw_eleven_hundredths_of_gpus_in_air_and_nothing_in_liquid() -> None:
    air, liquid = (link_defaults(load_gpu("h100-sxm5-80gb"), 8, cooling) for cooling in ("air", "liquid"))
    assert air["host_load_share"].value - liquid["host_load_share"].value == pytest.approx(0.11)
    assert air["host_power_w"] == liquid["host_power_w"]
    assert "cooled by air" in air["host_load_share"].source


@pytest.mark.parametrize(("gpu", "usual"), [("h100-sxm5-80gb", "air"), ("gb200", "liquid"), ("gb300", "liquid")])
def test_nodes_are_cooled_as_usual_where_nothing_is_stated(gpu: str, usual: str) -> None:
    assert link_defaults(load_gpu(gpu)) == link_defaults(load_gpu(gpu), cooling=usual)


def test_host_power_follows_the_node_size() -> None:
    gpu = load_gpu("a100-sxm4-80gb")
    assert link_defaults(gpu, 4)["host_power_w"].value == link_defaults(gpu)["host_power_w"].value / 2


@pytest.mark.parametrize(("gpu_id", "link"), [("a40", "pcie"), ("mi300x", "xgmi"), ("gb200", "nvlink")])
def test_the_link_of_a_node_is_known(gpu_id: str, link: str) -> None:
    assert link_of(load_gpu(gpu_id)) == link


def test_the_file_names_only_gpus_of_the_catalogue() -> None:
    facts = read_yaml("links.yaml")
    named = {g for gpus in facts["links"].values() for g in gpus} | set(facts["host_power_w_per_gpu"])
    named = (named | set(facts["host_load_share"]) | set(facts["cooling"])) - {"other"}
    assert named <= set(gpu_ids())
