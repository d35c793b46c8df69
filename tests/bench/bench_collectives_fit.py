"""Errors of `jointopt.physics.traffic` against 504 NCCL timings within a node; ``--fit`` fits them anew.

Run as ``python tests/bench/bench_collectives_fit.py [--fit]``.
"""

from __future__ import annotations

import pathlib
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from jointopt.core.units import GB, MICRO
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.kernels import CollectiveConstants, Links, Protocol
from jointopt.physics.traffic import collective_time_s

TABLE = pathlib.Path(__file__).resolve().parents[3] / "shared/data/nccl_collectives.csv"
FP16_BYTES, PROTOCOLS = 2.0, 3
KINDS = {"alltoall": "all_to_all"}  # the table's name, where it differs
# Per protocol: latency and latency per member in us, bus bandwidth of 2, 4, 8 members as a share of the link.
LOW = (2.0, 0.05, 0.003, 0.003, 0.003)
HIGH = (100.0, 20.0, 1.0, 1.0, 1.0)
START = ((8.0, 0.8, 0.01, 0.01, 0.02), (15.0, 1.6, 0.25, 0.35, 0.45), (25.0, 2.4, 0.6, 0.65, 0.7))


def main() -> None:
    if not TABLE.exists():
        print(f"skipped: the measured collectives are not here ({TABLE.name} beside the repository)")
        return
    table = pd.read_csv(TABLE)
    table["kind"] = table.collective.replace(KINDS)
    errors = []
    for (gpu, kind), rows in table.groupby(["gpu", "kind"]):
        constants = kernel_constants(load_gpu(str(gpu))).collectives
        errors.append(log_error(str(kind), rows, constants))
        report(f"{gpu} {kind}", errors[-1], rows)
        if "--fit" in sys.argv:
            print_protocols(fitted(str(kind), rows, constants))
    report("all", np.concatenate(errors), pd.concat(rows for _, rows in table.groupby(["gpu", "kind"])))


def log_error(kind: str, rows: pd.DataFrame, constants: CollectiveConstants) -> np.ndarray:
    links = Links(constants.fitted_intra_bytes_per_s, 1.0, 0.0)
    message, size = FP16_BYTES * rows.message_elements.to_numpy(), rows.num_gpus.to_numpy()
    return np.log(collective_time_s(kind, message, size, size, constants, links) / rows.time_s.to_numpy())


def report(name: str, error: np.ndarray, rows: pd.DataFrame) -> None:
    error, large = np.abs(error), FP16_BYTES * rows.message_elements.to_numpy() >= 2**20
    p90 = np.quantile(error, 0.9)
    print(f"{name:32s} median {np.median(error):.1%}, from 1 MiB {np.median(error[large]):.1%}, p90 {p90:.1%}")


def fitted(kind: str, rows: pd.DataFrame, constants: CollectiveConstants) -> list[Protocol]:
    """Three protocols by least squares on the log ratio (soft L1 at 5 %), messages from 256 KiB weighted by 1.7."""
    weight = np.where(FP16_BYTES * rows.message_elements.to_numpy() >= 2**18, 1.3, 1.0)
    low, high = np.log(LOW * PROTOCOLS), np.log(HIGH * PROTOCOLS)

    def residual(x: np.ndarray) -> np.ndarray:
        return weight * log_error(kind, rows, with_protocols(constants, kind, protocols(x, constants)))

    fits = []
    for seed in range(6):
        guess = np.log(np.concatenate(START))
        guess = guess + np.random.default_rng(seed).normal(0, 0.4, len(guess)) * (seed > 0)
        guess = np.clip(guess, low + 0.01, high - 0.01)
        fits.append(least_squares(residual, guess, bounds=(low, high), loss="soft_l1", f_scale=0.05, max_nfev=150))
    return protocols(min(fits, key=lambda fit: fit.cost).x, constants)


def protocols(x: np.ndarray, constants: CollectiveConstants) -> list[Protocol]:
    link = constants.fitted_intra_bytes_per_s
    rows = np.exp(x).reshape(PROTOCOLS, 5)
    found = [Protocol(r[0] * MICRO, r[1] * MICRO, (r[2] * link, r[3] * link, r[4] * link)) for r in rows]
    return sorted(found, key=lambda p: p.bus_bytes_per_s[-1])


def with_protocols(constants: CollectiveConstants, kind: str, found: list[Protocol]) -> CollectiveConstants:
    return replace(constants, protocols={kind: tuple(found)})


def print_protocols(found: list[Protocol]) -> None:
    for p in found:
        bus = ", ".join(f"{b / GB:.4g}" for b in p.bus_bytes_per_s)
        print(f"        - [{p.latency_s / MICRO:.3g}, {p.member_s / MICRO:.3g}, {bus}]")


if __name__ == "__main__":
    main()
