"""Constants of matrix products and collectives per GPU from ``kernels.yaml``; siblings stand in by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import CatalogError
from jointopt.core.facts import Assumption
from jointopt.core.units import GB, KIB, MICRO, TERA
from jointopt.spec.catalog.gpus import read_yaml
from jointopt.spec.cluster import Gpu
from jointopt.spec.kernels import (
    CollectiveConstants,
    GemmConstants,
    KernelConstants,
    NetworkProtocol,
    Protocol,
    SendConstants,
    TileKind,
)

# Tile quantisation hardly depends on it: GPUs of the catalogue have 80 to 304.
_SM_COUNT_STAND_IN = 128


def kernel_constants(gpu: Gpu) -> KernelConstants:
    """The constants of the kernel formulas for that GPU; ``assumed`` has the fits that come from a sibling.

    Raises `CatalogError` if the GPU has no 16-bit peak.
    """
    table = read_yaml("kernels.yaml")
    entry = table["gpus"].get(gpu.kin) or table["architectures"].get(gpu.architecture) or table["default"]
    return KernelConstants(_gemm(gpu, entry), _collectives(entry["collectives"]), _assumed(gpu, entry))


def _gemm(gpu: Gpu, entry: Mapping[str, Any]) -> GemmConstants:
    table, peak = read_yaml("kernels.yaml"), _peak_16_bit_flops(gpu)
    fit, rate, measured = table["gemm"][entry["gemm"]], entry.get("gemm_rate", 1.0), table["dtype_time_factor"]
    measured = measured | fit.get("dtype_time_factor", {})
    return GemmConstants(
        peak_flops=peak,
        hbm_bytes_per_s=gpu.memory_gbytes_per_s * GB,
        sm_count=gpu.sm_count or _SM_COUNT_STAND_IN,
        launch_s=fit["launch_us"] * MICRO,
        prologue_k=float(fit["prologue_k"]),
        tiles=tuple(TileKind(rows, columns, share * rate) for rows, columns, share in fit["tiles"]),
        wave_quantisation=fit["wave_quantisation"],
        split_k_s=fit["split_k_us"] * MICRO,
        hbm_fraction=fit["hbm_fraction"],
        sustained_fraction=fit["sustained_fraction"],
        throttle_flop=fit["throttle_gflop"] * GB,
        throttle_slope=float(fit["throttle_slope"]),
        # of dtypes that the GPU has a peak for; one without a measured factor takes the ratio of the peaks
        dtype_time_factor={d: float(measured.get(d, peak / (r * TERA))) for d, r in gpu.peak_tflops.items()},
        dtype_bytes={dtype: float(size) for dtype, size in table["dtype_bytes"].items()},
        measured_time_factor=gpu.product_time_factor,
    )


def _peak_16_bit_flops(gpu: Gpu) -> float:
    if gpu.peak_16_bit_tflops is None:
        raise CatalogError(
            f"The catalogue has no bf16 or fp16 peak for GPU {gpu.id!r}, which is needed to time matrix "
            f"products; expected one of them in gpus.yaml, got {', '.join(gpu.peak_tflops) or 'none'}."
        )
    return gpu.peak_16_bit_tflops * TERA


@functools.cache
def _collectives(fit_name: str) -> CollectiveConstants:
    table = read_yaml("kernels.yaml")
    fit, network = table["collectives"][fit_name], table["network"]
    return CollectiveConstants(
        protocols={kind: tuple(map(_protocol, rows)) for kind, rows in fit["protocols"].items()},
        fitted_intra_bytes_per_s=fit["fitted_intra_gbytes_per_s"] * GB,
        ring=_network_protocols(network["ring"]),
        tree=_network_protocols(network["tree"]),
        peer_s=network["peer_us"] * MICRO,
        inter_fraction=network["bandwidth_fraction"],
        send=_sends(network["send"]),
    )


def _protocol(row: list[float]) -> Protocol:
    latency_us, member_us, two, four, eight = row
    return Protocol(latency_us * MICRO, member_us * MICRO, (two * GB, four * GB, eight * GB))


def _sends(entry: Mapping[str, float]) -> SendConstants:
    return SendConstants(
        entry["ll_kib"] * KIB, entry["chunk_kib"] * KIB, entry["channels"], entry["channel_gbytes_per_s"] * GB
    )  # fmt: skip


def _network_protocols(entry: Mapping[str, list[float]]) -> tuple[NetworkProtocol, ...]:
    columns = zip(entry["start_us"], entry["intra_hop_us"], entry["inter_hop_us"], entry["bandwidth"], strict=True)
    return tuple(NetworkProtocol(s * MICRO, intra * MICRO, inter * MICRO, share) for s, intra, inter, share in columns)


def _assumed(gpu: Gpu, entry: Mapping[str, Any]) -> tuple[Assumption, ...]:
    known = {*entry.get("measured", ()), *(() if gpu.sm_count is None else ("sm_count",))}
    scaled = f" at {entry['gemm_rate']:g} times its share of the peak" if "gemm_rate" in entry else ""
    gemm, collectives = entry["gemm"], entry["collectives"]
    stand_ins = (
        ("gemm", gemm, "matrix products", f"constants of {gemm} stand in{scaled}, none measured"),
        ("collectives", collectives, "collectives", f"NCCL timings of {collectives} stand in, scaled by link speed"),
        ("sm_count", _SM_COUNT_STAND_IN, "SM count", f"{_SM_COUNT_STAND_IN} stands in, none stated"),
    )  # fmt: skip
    network = "network: NCCL's own latency table and 85 % of the nominal bandwidth, not measured here"
    assumed = [
        Assumption(key, value, f"{part} of {gpu.id}: {text}", f"kernels of {gpu.id}", f"{part}: {text}")
        for key, value, part, text in stand_ins
    ]
    return tuple(one for one in (*assumed, Assumption("network", None, network)) if one.key not in known)
