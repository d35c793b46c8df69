import dataclasses

import pytest

from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.gpus import POWER_FIGURES, gpu_ids, load_gpu, power_constants
from tests.each import each

MEASURED = tuple(read_yaml("power.yaml")["measured"])


@each("gpu_id", gpu_ids())
def test_constants_of_every_gpu_are_physical(gpu_id):
    k = power_constants(load_gpu(gpu_id))
    if k is None:
        pytest.skip("no TDP or no 16-bit peak in the catalogue")
    assert 0 < k.static_w <= k.wait_w < (load_gpu(gpu_id).tdp_w or k.wait_w + 1)
    assert 0 < k.knee_fraction < 1 < k.voltage_ratio
    assert k.active_w > 0
    assert 0.1 < k.pj_per_flop < 5


def test_every_figure_names_a_source_that_the_file_has():
    catalogue = read_yaml("power.yaml")
    for entry in catalogue["measured"].values():
        assert tuple(entry) == POWER_FIGURES
        assert all(cell[1] in catalogue["sources"] for cell in entry.values())


def test_relatives_are_measured_gpus_and_ids_are_known():
    catalogue = read_yaml("power.yaml")
    assert {*catalogue["like"].values(), *catalogue["reference"].values()} <= set(MEASURED) <= set(gpu_ids())
    assert set(catalogue["like"]) <= set(gpu_ids())


@each("gpu_id", [g for g in gpu_ids() if g not in MEASURED])
def test_a_gpu_without_a_measurement_names_what_stands_in(gpu_id):
    k = power_constants(load_gpu(gpu_id))
    if k is None:
        pytest.skip("no TDP or no 16-bit peak in the catalogue")
    assert k.assumed[-1].key == "power"
    assert k.assumed[-1].value in MEASURED


def test_a_gpu_without_a_tdp_has_no_constants_to_scale():
    unknown = dataclasses.replace(load_gpu("mi300x"), tdp_w=None)
    assert power_constants(unknown) is None


def test_a_gpu_of_twice_the_tdp_and_peak_keeps_its_energy_per_flop():
    small = dataclasses.replace(load_gpu("mi300x"), idle_w=None, wait_w=None)
    big = dataclasses.replace(
        small, tdp_w=2 * small.tdp_w, peak_tflops={d: 2 * p for d, p in small.peak_tflops.items()}
    )
    one, two = power_constants(small), power_constants(big)
    assert two.pj_per_flop == pytest.approx(one.pj_per_flop)
    assert two.static_w == pytest.approx(2 * one.static_w)


def test_the_same_chip_keeps_its_energy_per_flop():
    same = power_constants(load_gpu("gh200-96gb")), power_constants(load_gpu("h200-sxm-141gb"))
    assert same[0].pj_per_flop == same[1].pj_per_flop


def test_its_own_idle_reading_replaces_the_relatives():
    gpu = dataclasses.replace(load_gpu("h100-sxm5-80gb"), idle_w=74.4, wait_w=None)
    k = power_constants(gpu)
    assert k.static_w == 74.4
    assert k.wait_w > 74.4
    assert "idle_w" in str(k.assumed[-1])
