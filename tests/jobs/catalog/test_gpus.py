"""The GPU catalogue: every figure sourced, names resolved, published figures, blanks that speak."""

from __future__ import annotations

import csv
import gzip
import re

import pytest

from jointopt.core.errors import CatalogError
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.gpus import FIGURES, fitting_gpus, gpu_ids, load_gpu
from tests.each import each
from tests.places import DATA

WANTED = {
    "v100-sxm2-16gb",
    "v100-sxm2-32gb",
    "v100-pcie-32gb",
    "a40",
    "a100-sxm4-40gb",
    "a100-sxm4-80gb",
    "a100-pcie-40gb",
    "a100-pcie-80gb",
    "a800-sxm4-80gb",
    "h100-sxm5-80gb",
    "h800-sxm5-80gb",
    "h100-sxm-96gb",
    "h100-pcie-80gb",
    "h100-nvl-94gb",
    "h200-sxm-141gb",
    "gh200-96gb",
    "b200-sxm-180gb",
    "b300-sxm-270gb",
    "gb200",
    "gb300",
    "mi250x",
    "mi300x",
    "l40s",
    "rtx-3090",
    "rtx-4090",
    "rtx-5090",
    "rtx-a6000",
    "rtx-6000-ada",
    "l4",
    "h20-sxm-96gb",
    "mi210",
    "mi250",
    "mi325x",
    "mi350x",
    "mi355x",
}

# Independent of the catalogue: the vendors' public product pages
PUBLISHED = {
    "v100-sxm2-16gb": {"fp16": 125, "bandwidth": 900, "tdp_w": 300},
    "a100-sxm4-80gb": {"fp32": 156, "bf16": 312, "bandwidth": 2039, "tdp_w": 400},
    "h100-sxm5-80gb": {"bf16": 989, "fp8": 1979, "bandwidth": 3350, "tdp_w": 700},
    "h100-pcie-80gb": {"bf16": 756, "fp8": 1513, "bandwidth": 2000, "tdp_w": 350},
    "h200-sxm-141gb": {"bf16": 989, "bandwidth": 4800, "tdp_w": 700},
    "b200-sxm-180gb": {"bf16": 2250, "fp8": 4500, "fp4": 9000, "tdp_w": 1000},
    "gb200": {"bf16": 2500, "fp8": 5000, "fp4": 10000, "tdp_w": 1200},
    "mi300x": {"bf16": 1307, "fp8": 2615, "bandwidth": 5300, "tdp_w": 750},
    "l40s": {"bf16": 362, "bandwidth": 864, "tdp_w": 350},
    "rtx-3090": {"bf16": 71, "bandwidth": 936, "tdp_w": 350},
    "rtx-4090": {"bf16": 165.2, "fp8": 330.3, "bandwidth": 1008, "tdp_w": 450},
    "rtx-5090": {"bf16": 209.5, "bandwidth": 1792, "tdp_w": 575},
    "rtx-a6000": {"bf16": 154.8, "bandwidth": 768, "tdp_w": 300},
    "rtx-6000-ada": {"bf16": 364.2, "bandwidth": 960, "tdp_w": 300},
    "l4": {"bf16": 121, "fp8": 242, "bandwidth": 300, "tdp_w": 72},
    "mi210": {"bf16": 181, "bandwidth": 1600, "tdp_w": 300},
    "mi325x": {"bf16": 1307, "fp8": 2615, "bandwidth": 6000, "tdp_w": 1000},
    "mi350x": {"bf16": 2307, "fp8": 4614, "bandwidth": 8000, "tdp_w": 1000},
    "mi355x": {"bf16": 2516.6, "fp8": 5033, "bandwidth": 8000, "tdp_w": 1400},
}

BOARDS = [gpu_id for gpu_id in gpu_ids() if gpu_id != "cpu-core"]  # a core of a server is no board


def test_every_wanted_gpu_is_in_the_catalogue() -> None:
    assert set(gpu_ids()) >= WANTED


@each("gpu_id", gpu_ids())
def test_every_figure_has_a_source_and_every_source_a_figure(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    stated = {f for f in FIGURES if getattr(gpu, f) is not None}
    peaks = {f"peak_tflops.{dtype}" for dtype in gpu.peak_tflops}
    assert set(gpu.sources) == stated | peaks
    assert all(len(source) > 10 for source in gpu.sources.values())


def test_the_file_has_no_key_that_nothing_reads() -> None:
    known = {"name", "vendor", "architecture", "aliases", "peak_tflops", *FIGURES}
    for gpu_id, entry in read_yaml("gpus.yaml")["gpus"].items():
        assert set(entry) <= known, gpu_id


def test_every_source_of_the_file_is_cited() -> None:
    catalogue = read_yaml("gpus.yaml")
    cells = [c for e in catalogue["gpus"].values() for c in (*e.values(), *e["peak_tflops"].values())]
    assert {c[1] for c in cells if isinstance(c, list) and len(c) > 1} == set(catalogue["sources"])


@each("gpu_id", PUBLISHED)
def test_figures_are_the_published_ones(gpu_id: str) -> None:
    gpu, published = load_gpu(gpu_id), dict(PUBLISHED[gpu_id])
    assert gpu.tdp_w == published.pop("tdp_w")
    assert gpu.memory_gbytes_per_s == published.pop("bandwidth", gpu.memory_gbytes_per_s)
    for dtype, peak in published.items():
        assert gpu.peak_tflops[dtype] == pytest.approx(peak, rel=1e-3)


@each("gpu_id", gpu_ids())
def test_tensor_peaks_double_as_the_format_halves(gpu_id: str) -> None:
    peaks = load_gpu(gpu_id).peak_tflops
    if "bf16" in peaks:
        assert peaks["bf16"] == peaks["fp16"]
    if "fp8" in peaks:
        assert peaks["fp8"] == pytest.approx(2 * peaks["bf16"], rel=0.02)
    if load_gpu(gpu_id).architecture in ("Ampere", "Hopper", "Ada Lovelace"):
        assert peaks["fp32"] == pytest.approx(peaks["bf16"] / 2, rel=0.02)


@each("gpu_id", BOARDS)
def test_figures_are_in_the_units_of_their_names(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    assert 50 < gpu.peak_tflops["fp16"] < 3000
    assert 15 < gpu.memory_gib < 300
    assert 250 < gpu.memory_gbytes_per_s < 9000
    assert 10 < gpu.need("intra_node_gbytes_per_s", "test") <= 900
    assert gpu.usual_inter_node_gbytes_per_s is None or 1 < gpu.usual_inter_node_gbytes_per_s <= 100
    assert 1300 < gpu.need("clock_max_mhz", "test") < 2600
    assert gpu.clock_min_mhz is None or gpu.clock_min_mhz < 400


@each("gpu_id", BOARDS)
def test_power_rises_from_idle_over_waiting_to_the_limit_and_the_power_model_stays_below_it(gpu_id: str) -> None:
    gpu = load_gpu(gpu_id)
    assert gpu.power is not None
    assert 0 < gpu.power.static_w <= gpu.power.wait_w < gpu.need("tdp_w", "test")
    known = [w for w in (gpu.idle_w, gpu.wait_w, gpu.tdp_w) if w is not None]
    assert known == sorted(known)
    assert 50 < known[-1] <= 1400


@pytest.mark.parametrize(("gpu_id", "cus", "tflops"), [("mi250x", 110, 383), ("mi250", 104, 362.1)])
def test_a_die_of_the_mi250_series_is_a_gpu_with_half_of_the_module(gpu_id: str, cus: int, tflops: float) -> None:
    die = load_gpu(gpu_id)
    assert (die.memory_gib, die.memory_gbytes_per_s, die.tdp_w) == (64, 3200 / 2, 560 / 2)
    assert (die.sm_count, die.peak_tflops["bf16"]) == (cus, tflops / 2)


def test_a_frontier_node_is_eight_gpus_behind_four_links() -> None:
    die = load_gpu("mi250x")
    assert die.usual_gpus_per_node == 8
    assert die.need("usual_inter_node_gbytes_per_s", "test") * 8 == 4 * 25  # 200 Gb/s each


def test_volta_has_no_bf16() -> None:
    assert "bf16" not in load_gpu("v100-sxm2-16gb").peak_tflops


@pytest.mark.parametrize("gpu_id", ["gb200", "gb300"])
def test_rack_scale_parts_share_one_link_domain_of_72(gpu_id: str) -> None:
    assert load_gpu(gpu_id).scale_up_gpus == 72


@each(
    "name",
    ["V100", "A40", "NVIDIA H100 80GB HBM3", "A100-SXM4-80GB", "h200", "B200", "MI300X", "H20", "rtx 3090",
     "NVIDIA GeForce RTX 4090", "A6000", "MI250"],
)  # fmt: skip
def test_a_name_that_fits_one_gpu_is_resolved(name: str) -> None:
    assert load_gpu(name).id in gpu_ids()


def test_case_and_separators_do_not_matter() -> None:
    assert load_gpu("A100_SXM4_80GB") is load_gpu("a100-sxm4-80gb")


def test_an_ambiguous_name_lists_its_candidates() -> None:
    with pytest.raises(CatalogError, match="h100-sxm5-80gb, h100-sxm-96gb, h100-pcie-80gb, h100-nvl-94gb"):
        load_gpu("h100")


@pytest.mark.parametrize("name", ["l40", "h2", "mi300", "a10", "4080", ""])
def test_a_name_of_another_gpu_is_not_taken_for_a_longer_one(name: str) -> None:
    with pytest.raises(CatalogError, match="not in the catalogue"):
        load_gpu(name)


H100 = "', '".join(fitting_gpus("h100")[:-1]) + f"' or '{fitting_gpus('h100')[-1]}"  # several, of which none is meant


@each(
    ("name", "meant"),
    [("hh100", H100), ("H-100", H100), ("nvida h100", H100), ("MI300", "mi300x"), ("GH200 480GB", "gh200-96gb"),
     ("b200-sxm-192gb", "b200-sxm-180gb"), ("cpu-cor", "cpu-core"),
     *((other, "") for other in ("gtx1080", "RTX 3080", "P100", "NVIDIA B100", "A10G", "L20", "MI308X",
                             "Quadro RTX 6000", "100", "x"))],
)  # fmt: skip
def test_a_misspelt_gpu_is_refused_with_the_one_meant_and_another_gpu_with_none(name: str, meant: str) -> None:
    with pytest.raises(CatalogError) as error:
        load_gpu(name)
    assert re.findall(r"did you mean '(.*?)'\?", str(error.value)) == [meant] * bool(meant)


def test_an_unknown_name_is_answered_with_the_nearest_one_and_the_listing() -> None:
    with pytest.raises(CatalogError, match=r"'a100-sxm4-90gb'.*did you mean 'a100-sxm4-80gb'.*jointopt catalog gpus"):
        load_gpu("a100-sxm4-90gb")


def test_a_blank_cell_is_an_error_that_names_what_it_makes_impossible() -> None:
    with pytest.raises(CatalogError, match=r"no clock_min_mhz for GPU 'b200-sxm-180gb'.*sweep the SM clock"):
        load_gpu("b200-sxm-180gb").need("clock_min_mhz", "sweep the SM clock")


def test_a_gpu_is_read_once() -> None:
    assert load_gpu("gb200") is load_gpu("gb200")


def test_every_gpu_of_the_measured_tables_is_known() -> None:
    if not DATA.is_dir():
        pytest.skip("the recorded measurements are not beside the repository")
    measured = [path for path in sorted(DATA.glob("*.csv*")) if path.name != "gpu_specs.csv"]
    assert measured
    for path in measured:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for name in {row["gpu"] for row in csv.DictReader(lines)}:
                load_gpu(name)


def test_the_host_of_grace_is_the_same_beside_hopper_and_blackwell_and_slower_than_x86() -> None:
    factors = {gpu: load_gpu(gpu).host_time_factor for gpu in ("gh200-96gb", "gb200", "gb300", "h100-sxm5-80gb")}
    assert factors.pop("h100-sxm5-80gb") is None
    assert set(factors.values()) == {1.4}
