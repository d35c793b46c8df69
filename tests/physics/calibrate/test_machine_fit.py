"""Figures of a machine from readings, and what they do to the physics."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jointopt.core.units import GB, MICRO
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.cluster import Gpu, Machine
from jointopt.jobs.job import on_machine
from jointopt.jobs.jobfile import shipped_job
from jointopt.jobs.kernels import Links
from jointopt.jobs.plans.text import parse_plan
from jointopt.physics.calibrate.machine_fit import fit
from jointopt.physics.cost_model import CostModel
from jointopt.physics.layers import gemm_time_s
from jointopt.physics.traffic import collective_time_s

A100 = load_gpu("a100-sxm4-80gb")
SHAPES = ((4096, 6144, 4096), (8192, 14336, 4096), (8192, 4096, 14336))


def probed(gpu: Gpu, links: Links, nodes: int = 2, local: int = 8, slower: float = 1.0) -> dict[str, Any]:
    """Readings of a machine of which the physics is exactly right, but for products ``slower`` than the catalogue's."""
    constants = kernel_constants(gpu)
    scopes = [(local, 1)] * (local > 1) + [(local * nodes, nodes)] * (nodes > 1)

    def taken(kind: str, size: int, spanned: int, bytes_: int) -> dict[str, Any]:
        members = size // spanned * min(spanned, max((gpu.scale_up_gpus or 0) // local, 1))
        seconds = float(collective_time_s(kind, bytes_, size, members, constants.collectives, links))
        return {"kind": kind, "bytes": bytes_, "size": size, "nodes": spanned, "time_s": seconds}

    collectives = [
        taken(kind, 2 if kind == "p2p" else size, spanned, bytes_)
        for size, spanned in scopes
        for bytes_ in (2**16, 2**20, 2**24, 2**27)
        for kind in ("all_reduce", "all_gather", "p2p")
    ]
    products = [
        {"dtype": dtype, "m": m, "n": n, "k": k}
        | {"time_s": slower * float(sum(gemm_time_s(m, n, k, constants.gemm, dtype)))}
        for dtype in ("bf16", "fp16")
        for m, n, k in SHAPES
    ]
    copy = {"bytes": 2**31, "time_s": 2**31 / (0.85 * gpu.memory_gbytes_per_s * GB)}
    return {"gpus_per_node": local, "products": products, "copy": copy, "collectives": collectives}


def test_the_links_behind_the_readings_are_found() -> None:
    found = fit(probed(A100, Links(210 * GB, 6.25 * GB, 11 * MICRO)), A100)
    assert found.figures["intra_node_gbytes_per_s"] == pytest.approx(210, rel=0.005)
    assert found.figures["inter_node_gbytes_per_s"] == pytest.approx(6.25, rel=0.005)
    assert found.figures["inter_node_latency_us"] == pytest.approx(11, rel=0.01)
    assert max(found.error_percent.values()) < 1


def test_a_machine_as_the_catalogue_has_it_has_its_figures_and_factors_of_one() -> None:
    gpu = A100
    links = Links(gpu.intra_node_gbytes_per_s * GB, gpu.usual_inter_node_gbytes_per_s * GB, 4 * MICRO)
    found = fit(probed(gpu, links), gpu)
    assert found.figures == pytest.approx(
        {"memory_gbytes_per_s": gpu.memory_gbytes_per_s, "intra_node_gbytes_per_s": 300.0,
         "inter_node_gbytes_per_s": 25.0, "inter_node_latency_us": 4.0}, rel=0.01,
    )  # fmt: skip
    assert found.product_time_factor == {"bf16": 1.0, "fp16": 1.0}


def test_products_half_as_fast_have_a_factor_of_two() -> None:
    readings = probed(A100, Links(300 * GB, 25 * GB, 4 * MICRO), slower=2.0)
    assert fit(readings, A100).product_time_factor == {"bf16": 2.0, "fp16": 2.0}
    assert fit(readings, load_gpu("v100-sxm2-32gb")).product_time_factor.keys() == {"fp16"}


@pytest.mark.parametrize(("nodes", "local", "links"), [(1, 8, ["intra"]), (2, 1, ["inter", "inter"]), (1, 1, [])])
def test_links_that_were_not_there_are_left_out(nodes: int, local: int, links: list[str]) -> None:
    figures = fit(probed(A100, Links(300 * GB, 12.5 * GB, 4 * MICRO), nodes, local), A100).figures
    assert [name[:5] for name in figures if name != "memory_gbytes_per_s"] == links


def test_nodes_of_one_scale_up_domain_show_its_link_and_no_network() -> None:
    rack = load_gpu("gb200")
    figures = fit(probed(rack, Links(800 * GB, 50 * GB, 4 * MICRO), local=4), rack).figures
    assert figures["intra_node_gbytes_per_s"] == pytest.approx(800, rel=0.005)
    assert "inter_node_gbytes_per_s" not in figures


def test_a_library_that_no_link_explains_leaves_its_figure_out() -> None:
    readings = probed(A100, Links(300 * GB, 25 * GB, 4 * MICRO), nodes=1)
    slow = json.loads(json.dumps(readings))
    for one in slow["collectives"]:
        one["time_s"] = 1e-9
    assert fit(slow, A100).figures.keys() == {"memory_gbytes_per_s"}


def measured(**figures: Any) -> CostModel:
    """The physics of one plan on a machine with these figures, of which ``products`` is the factor."""
    job = shipped_job("opt-350m-2x4-a100")
    job = replace(job, cluster=replace(job.cluster, stated=frozenset()))
    products = dict.fromkeys(("bf16", "fp16"), figures.pop("products", 1.0))
    machine = Machine(job.cluster.gpu.id, job.cluster.gpus_per_node, figures, products)
    return CostModel(on_machine(job, machine), parse_plan("dp=4 tp=2 mbs=1", job).layouts)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_twice_the_factor_is_twice_the_time_of_a_product(dtype: str) -> None:
    one, two = (measured(products=factor).hardware.kernels.gemm for factor in (1.0, 2.0))
    for throttled in (True, False):
        times = [sum(gemm_time_s(4096, 4096, 4096, c, dtype, throttled=throttled)) for c in (one, two)]
        assert times[1] == pytest.approx(2 * times[0])
    assert sum(gemm_time_s(512, 512, 512, two, "fp32")) == sum(gemm_time_s(512, 512, 512, one, "fp32"))


def test_a_link_of_half_the_bandwidth_doubles_the_time_of_a_large_collective() -> None:
    fast, slow = (measured(inter_node_gbytes_per_s=speed).hardware for speed in (20.0, 10.0))
    times = [
        float(collective_time_s("all_gather", 2**36, 8, 4, hw.constants.collectives, hw.links)) for hw in (fast, slow)
    ]
    assert times[1] == pytest.approx(2 * times[0], rel=1e-3)
    fast, slow = (measured(intra_node_gbytes_per_s=speed).hardware for speed in (300.0, 150.0))
    times = [
        float(collective_time_s("all_reduce", 2**36, 4, 4, hw.constants.collectives, hw.links)) for hw in (fast, slow)
    ]
    assert times[1] == pytest.approx(2 * times[0], rel=1e-3)


def test_latency_adds_to_each_hop_of_a_small_message() -> None:
    # 2 nodes: a ring of 8 has one hop between them per round, an all-gather one round
    near, far = (measured(inter_node_latency_us=us).hardware for us in (4.0, 104.0))
    times = [float(collective_time_s("all_gather", 8, 8, 4, hw.constants.collectives, hw.links)) for hw in (near, far)]
    assert times[1] - times[0] == pytest.approx(100e-6)


def test_slower_products_take_time_and_leave_the_energy_of_an_operation() -> None:
    one, two = measured(products=1.0), measured(products=2.0)
    assert two.hardware.kernels.flop_energy == one.hardware.kernels.flop_energy
    clocks = np.full((1, 1), 1410.0)
    seconds = [float(each.iteration_time_s(np.zeros(1, np.int64), clocks)[0]) for each in (one, two)]
    assert 1.1 * seconds[0] < seconds[1] < 2 * seconds[0]
