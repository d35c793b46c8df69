"""One matrix product by hand: tiles and waves, prologue, splits along k, memory, launch, power."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from jointopt.jobs.kernels import GemmConstants, TileKind
from jointopt.physics.layers import gemm_time_s
from tests.physics.hand.plain_machine import gpu_constants

# 100 SMs that together run 1e14 flop/s; a tile of 100 x 200 sustains half of that
TILED = replace(gpu_constants(1e14).gemm, sm_count=100, tiles=(TileKind(100, 200, 0.5),), wave_quantisation=1.0)
WAVE_S = 2 * 100 * 200 * 100 / (0.5 * 1e14)  # per unit of k


def taken_s(m: float, n: float, k: float, constants: GemmConstants = TILED, **options: Any) -> float:
    return float(sum(gemm_time_s(m, n, k, constants, **{"throttled": False} | options)))


def test_tiles_that_fill_their_waves_take_the_waves_times_the_depth() -> None:
    # 20 x 10 tiles on 100 SMs: two waves
    assert taken_s(2000, 2000, 1000) == pytest.approx(2 * WAVE_S * 1000)
    assert taken_s(2000, 2000, 1000) == pytest.approx(2 * 2000 * 2000 * 1000 / 0.5e14)


def test_a_cut_tile_counts_as_whole_and_a_partial_wave_as_the_share_that_does_not_overlap() -> None:
    # 21 x 11 tiles: 2.31 waves, priced as 3 or as the mean of both
    assert taken_s(2001, 2001, 1000) == pytest.approx(3 * WAVE_S * 1000)
    half = replace(TILED, wave_quantisation=0.5)
    assert taken_s(2001, 2001, 1000, half) == pytest.approx((3 + 2.31) / 2 * WAVE_S * 1000)


def test_each_tile_pays_its_prologue() -> None:
    assert taken_s(2000, 2000, 1000, replace(TILED, prologue_k=150)) == pytest.approx(2 * WAVE_S * 1150)


def test_a_split_along_k_keeps_all_sms_busy_for_a_price() -> None:
    split = replace(TILED, split_k_s=2e-6)
    assert taken_s(100, 200, 1e4, split) == pytest.approx(WAVE_S / 100 * 1e4 + 2e-6)


def test_the_best_tile_is_taken() -> None:
    small = TileKind(50, 50, 0.25)
    both = replace(TILED, tiles=(*TILED.tiles, small))
    # 12 tiles or 1 of the large kind: both less than a wave; a wave of small tiles takes a quarter as long
    assert taken_s(100, 200, 1000, both) == pytest.approx(WAVE_S * 1000 / 4)
    assert taken_s(2000, 2000, 1000, both) == pytest.approx(2 * WAVE_S * 1000)


def test_a_group_of_products_fills_waves_together() -> None:
    assert taken_s(100, 200, 1000, batch=150.0) == pytest.approx(2 * WAVE_S * 1000)


def test_operands_and_result_cross_the_memory_bus_at_the_share_it_achieves() -> None:
    # 16-bit m x k, k x n and m x n of each of 3 products
    moved = 3 * 2 * (1000 * 500 + 500 * 2000 + 1000 * 2000)
    found = taken_s(1000, 2000, 500, gpu_constants(hbm_bytes_per_s=1e12).gemm, batch=3.0)
    assert found == pytest.approx(moved / (0.8 * 1e12))


@pytest.mark.parametrize(("dtype", "size"), [("fp8", 1.0), ("fp4", 0.5)])
def test_narrow_operands_shrink_and_their_result_stays_16_bit_wide(dtype: str, size: float) -> None:
    moved = size * 500 * 3000 + 2 * 1000 * 2000
    found = taken_s(1000, 2000, 500, gpu_constants(hbm_bytes_per_s=1e12).gemm, dtype=dtype)
    assert found == pytest.approx(moved / (0.8 * 1e12))


@pytest.mark.parametrize(("dtype", "factor"), [("fp8", 0.5), ("fp4", 0.25), ("fp32", 8.0)])
def test_a_product_takes_its_dtype_s_factor(dtype: str, factor: float) -> None:
    found = taken_s(2000, 2000, 1000, dtype=dtype)
    assert found == pytest.approx(factor * 2 * WAVE_S * 1000)


def test_where_compute_and_memory_are_equal_they_take_the_fourth_root_of_two_together() -> None:
    compute_s = 2 * WAVE_S * 1000
    moved = 2 * (2000 * 1000 + 1000 * 2000 + 2000 * 2000)
    balanced = replace(TILED, hbm_bytes_per_s=moved / compute_s / 0.8)
    sm_s, memory_s = gemm_time_s(2000, 2000, 1000, balanced, throttled=False)
    assert float(sm_s + memory_s) == pytest.approx(2**0.25 * compute_s)
    assert float(sm_s) == pytest.approx(float(memory_s))


def test_a_kernel_is_launched_once_however_many_products_it_groups() -> None:
    launched = replace(TILED, launch_s=4e-6)
    assert taken_s(2000, 2000, 1000, launched) == pytest.approx(4e-6 + 2 * WAVE_S * 1000)
    assert taken_s(100, 200, 1000, launched, batch=200.0) == pytest.approx(4e-6 + 2 * WAVE_S * 1000)


def test_a_large_product_runs_at_the_rate_that_the_board_s_power_sustains() -> None:
    # flop x (1 + 0.05 ln(1 + flop / 1e9)) at 0.2 of the peak, far below the 0.5 of the tiles
    flop = 2 * 2000 * 2000 * 1000
    limited = replace(TILED, sustained_fraction=0.2, throttle_flop=1e9, throttle_slope=0.05)
    sustained_s = flop * (1 + 0.05 * math.log(1 + flop / 1e9)) / (0.2 * 1e14)
    free_s = 2 * WAVE_S * 1000
    expected = (sustained_s**8 + free_s**8) ** (1 / 8)
    assert taken_s(2000, 2000, 1000, limited, throttled=True) == pytest.approx(expected)
    assert taken_s(2000, 2000, 1000, limited) == pytest.approx(free_s)
