"""Errors of `jointopt.physics.layers` against 39,220 measured products; ``--fit`` also fits the constants anew.

Run as ``python tests/bench/bench_gemm_fit.py [--fit]``.
"""

from __future__ import annotations

import pathlib
import sys
import timeit
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.kernels import GemmConstants, TileKind
from jointopt.physics.layers import gemm_time_s

TABLE = pathlib.Path(__file__).resolve().parents[3] / "shared/data/gemm_bf16.csv.gz"
# Fitted: launch_s, prologue_k, split_k_s, hbm_fraction, sustained_fraction, throttle_flop, throttle_slope,
# wave_quantisation, then one share of the peak per distinct share among the GPU's tiles.
LOW = (0.5e-6, 10, 0.2e-6, 0.5, 0.4, 1e10, 1e-4, 0.02, 0.3, 0.3, 0.3)
HIGH = (6e-6, 600, 15e-6, 1.0, 1.0, 3e13, 0.2, 1.0, 0.98, 0.98, 0.98)


def main() -> None:
    if not TABLE.exists():
        print(f"skipped: the measured products are not here ({TABLE.name} beside the repository)")
        return
    table = pd.read_csv(TABLE)
    for name, rows in table.groupby("gpu"):
        constants = kernel_constants(load_gpu(str(name))).gemm
        print_errors(str(name), rows, constants)
        if "--fit" in sys.argv:
            held_out = (rows.m * 7919 + rows.n * 104729 + rows.k * 1299709) % 5 == 0
            print_errors("  fitted on 4/5, tested on 1/5", rows[held_out], fitted(rows[~held_out], constants))
            print(f"  on all: {fitted(rows, constants)}")


def print_errors(name: str, rows: pd.DataFrame, constants: GemmConstants) -> None:
    predicted = predict(rows, constants)
    nanoseconds = min(timeit.repeat(lambda: predict(rows, constants), number=1, repeat=5)) / len(rows) * 1e9
    error = np.log(predicted / rows.time_s)
    smallest = rows[["m", "n", "k"]].min(axis=1)
    cells = [f"{name:28s} {len(rows):6d} rows {nanoseconds:4.0f} ns each"]
    for limit in (32, 512, 1024, 4096):
        kept = error[smallest >= limit]
        cells.append(
            f">={limit}: {np.median(kept.abs()):.1%} p90 {kept.abs().quantile(0.9):.1%} bias {kept.median():+.1%}"
        )
    print(" | ".join(cells))


def predict(rows: pd.DataFrame, constants: GemmConstants) -> np.ndarray:
    return np.sum(gemm_time_s(rows.m.to_numpy(), rows.n.to_numpy(), rows.k.to_numpy(), constants), axis=0)


def fitted(rows: pd.DataFrame, start: GemmConstants, limit: int = 6000) -> GemmConstants:
    """The constants that minimise the log ratio, training-like shapes weighted threefold; best of three starts."""
    rows = rows.sample(min(limit, len(rows)), random_state=0)
    weight, measured = np.sqrt(training_weight(rows)), np.log(rows.time_s.to_numpy())
    shares = sorted({t.peak_fraction for t in start.tiles}, reverse=True)
    low, high = np.log(LOW[: 8 + len(shares)]), np.log(HIGH[: 8 + len(shares)])
    first = np.clip(np.log(vector(start, shares)), low + 1e-3, high - 1e-3)

    def residual(x: np.ndarray) -> np.ndarray:
        return weight * (np.log(predict(rows, with_vector(start, shares, np.exp(x)))) - measured)

    fits = []
    for seed in range(3):
        guess = first + np.random.default_rng(seed).normal(0, 0.1, len(first)) * (seed > 0)
        guess = np.clip(guess, low + 1e-3, high - 1e-3)
        fits.append(
            least_squares(
                residual, guess, bounds=(low, high), loss="soft_l1", f_scale=0.05, diff_step=1e-3, max_nfev=60
            )
        )
    return with_vector(start, shares, np.exp(min(fits, key=lambda fit: fit.cost).x))


def training_weight(rows: pd.DataFrame) -> np.ndarray:
    like_training = np.where((rows.m >= 1024) & (rows.n >= 512) & (rows.k >= 512), 1.0, 0.35)
    huge = np.where((rows.n <= 32768) & (rows.k <= 32768), 1.0, 0.6)
    return like_training * huge * np.where((rows.n < 128) | (rows.k < 128), 0.4, 1.0)


def vector(c: GemmConstants, shares: list[float]) -> list[float]:
    slope, quantisation = max(c.throttle_slope, 2e-4), max(c.wave_quantisation, 0.03)
    power = [c.sustained_fraction or 0.99, max(c.throttle_flop, 2e10), slope]
    return [c.launch_s, c.prologue_k, c.split_k_s, c.hbm_fraction, *power, quantisation, *shares]


def with_vector(start: GemmConstants, shares: list[float], x: np.ndarray) -> GemmConstants:
    tiles = tuple(TileKind(t.rows, t.columns, float(x[8 + shares.index(t.peak_fraction)])) for t in start.tiles)
    return replace(
        start,
        launch_s=float(x[0]),
        prologue_k=float(x[1]),
        split_k_s=float(x[2]),
        hbm_fraction=float(x[3]),
        sustained_fraction=None if start.sustained_fraction is None else float(x[4]),
        throttle_flop=float(x[5]),
        throttle_slope=float(x[6]) if start.throttle_slope else 0.0,
        wave_quantisation=float(x[7]),
        tiles=tiles,
    )


if __name__ == "__main__":
    main()
