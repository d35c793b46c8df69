"""Time of one dense matrix product on one GPU: tiles, waves, prologue, power, HBM and launch floor."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from jointopt.core.errors import CatalogError
from jointopt.core.schema import Floats
from jointopt.jobs.kernels import GemmConstants

OUTPUT_BYTES = 2.0  # 8- and 4-bit products still write 16-bit results


def gemm_time_s(
    m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, constants: GemmConstants, dtype: str = "bf16", batch:
    npt.ArrayLike = 1.0, throttled: bool = True, m_spread: npt.ArrayLike = 0.0,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Seconds of an m x k by k x n product at the maximum SM clock: (bound by the SMs, by device memory); they add up.

    ``batch`` products run grouped (experts), equal but for their m, whose standard deviation ``m_spread`` is.
    ``throttled`` includes the power limit as measured boards had it. A roofline (Williams et al. 2009) with tiles,
    waves and a prologue, fitted to m 256-32768, n and k 32-65536 in bf16 on A100, H100, H200, idle and with warm
    caches; training takes 1.0-1.3 times as long. What was measured on the machine itself multiplies it, one factor per
    dtype. Raises `CatalogError` for a dtype that the GPU has no rate for.
    """
    c = constants
    m, n, k, batch = (np.asarray(x, dtype=np.float64) for x in (m, n, k, batch))
    factor = dtype_time_factor(c, dtype)
    quantised, spread = _best_waves(m, n, batch, c, np.asarray(m_spread, dtype=np.float64))
    deep = k + c.prologue_k
    # the best tiling, or a split along k where the tiles would leave SMs idle
    sm_s = factor * np.minimum(quantised * deep, spread * deep + c.split_k_s)
    memory_s = gemm_bytes(m, n, k, c.dtype_bytes[dtype], batch) * (1.0 / (c.hbm_bytes_per_s * c.hbm_fraction))
    # the roofline maximum, rounded (4-norm: 19 % above it where the sides are equal), split by who binds
    memory_4 = np.square(np.square(memory_s))
    total_4 = np.square(np.square(sm_s)) + memory_4
    total_s = np.sqrt(np.sqrt(total_4))
    memory_bound_s = total_s * memory_4 / total_4
    sm_bound_s = c.launch_s + (total_s - memory_bound_s)
    if throttled and c.sustained_fraction is not None:
        # the rate that the board's power sustains falls slowly for ever larger products
        flop = 2.0 * (batch * m * n * k)
        slowed = 1.0 + c.throttle_slope * np.log1p(flop / c.throttle_flop)
        sustained_s = factor * (flop * slowed / (c.peak_flops * c.sustained_fraction))
        total_s = sm_bound_s + memory_bound_s
        # a rounded maximum, 9 % above it where the two are equal: power averages over a product's phases
        larger, smaller = np.maximum(total_s, sustained_s), np.minimum(total_s, sustained_s)
        sm_bound_s = sm_bound_s + (larger * (1.0 + (smaller / larger) ** 8) ** 0.125 - total_s)
    measured = c.measured_time_factor.get(dtype, 1.0)
    return sm_bound_s * measured, memory_bound_s * measured


def dtype_time_factor(constants: GemmConstants, dtype: str) -> float:
    """SM time of a product in ``dtype`` relative to bf16 (catalogue); `CatalogError` where the GPU cannot run it."""
    if dtype not in constants.dtype_time_factor:
        known = ", ".join(sorted(constants.dtype_time_factor))
        raise CatalogError(f"The GPU has no rate for products in {dtype!r}; expected one of {known}.")
    return constants.dtype_time_factor[dtype]


def gemm_bytes(m: Floats, n: Floats, k: Floats, operand_bytes: float, batch: Floats | float = 1.0) -> Floats:
    """Bytes that a product must move at least: both operands in, the result out (the roofline's compulsory traffic)."""
    return batch * (operand_bytes * k * (m + n) + max(operand_bytes, OUTPUT_BYTES) * (m * n))


def expected_tiles(m: Floats, m_spread: Floats, rows: int) -> Floats:
    """Mean number of tiles of ``rows`` rows that m rows need, where m has the standard deviation ``m_spread``.

    m as uniform: the integral of its ceiling over its range; half a tile is wasted where the range is several of them.
    """
    whole = m * (1.0 / rows)
    if not m_spread.any():
        return np.asarray(np.ceil(whole))
    half = np.minimum(np.sqrt(3.0) * m_spread / rows, whole)
    ends = np.stack([whole - half, whole + half])
    full = np.floor(ends)
    low, high = 0.5 * full * (full + 1.0) + (ends - full) * (full + 1.0)  # integrals of the ceiling from 0
    apart = half > 1e-6
    return np.where(apart, (high - low) / np.where(apart, 2.0 * half, 1.0), np.ceil(whole))


def _best_waves(m: Floats, n: Floats, batch: Floats, c: GemmConstants, m_spread: Floats) -> tuple[Floats, Floats]:
    """Seconds per unit of k of the best tiling: with partial waves priced, and with all SMs kept busy."""
    quantised = spread = np.asarray(np.inf)
    down = {rows: expected_tiles(m, m_spread, rows) for rows in {tile.rows for tile in c.tiles}}
    across = {columns: batch * np.ceil(n * (1.0 / columns)) for columns in {tile.columns for tile in c.tiles}}
    for tile in c.tiles:
        wave_s = 2.0 * tile.rows * tile.columns * c.sm_count / (c.peak_flops * tile.peak_fraction)
        # Divided, not multiplied by the inverse: a whole number of waves must stay one.
        waves = down[tile.rows] * across[tile.columns] / c.sm_count
        even = waves * wave_s
        spread = np.minimum(spread, even)
        # Schedulers overlap the tail of one wave with the next, so a partial wave costs less than a full one.
        partial = (1.0 - c.wave_quantisation) * even + (c.wave_quantisation * wave_s) * np.ceil(waves)
        quantised = np.minimum(quantised, partial)
    return quantised, spread
