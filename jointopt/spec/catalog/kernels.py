"""Constants of matrix products and collectives per GPU from ``kernels.yaml``; siblings stand in by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import CatalogError
from jointopt.core.facts import Assumption
from jointopt.core.units import GB, MICRO, TERA
from jointopt.spec.catalog.gpus import read_yaml
from jointopt.spec.cluster import Gpu
from jointopt.spec.kernels import (
    CollectiveConstants,
    GemmConstants,
    KernelConstants,
    NetworkProtocol,
    Protocol,
    TileKind,
)

# Tile quantisation hardly depends on it: GPUs of the catalogue have 80 to 304.
_SM_COUNT_STAND_IN = 128


def kernel_constants(gpu: Gpu) -> KernelConstants:
    """The constants of the kernel formulas for that GPU; ``assumed`` has the fits that come from a sibling.

    Raises `CatalogError` if the GPU has no 16-bit peak.
    """
    entry = _assignment(gpu)
    return KernelConstants(_gemm(gpu, entry), _collectives(entry["collectives"]), _assumed(gpu, entry))


def _assignment(gpu: Gpu) -> Mapping[str, Any]:
    table = read_yaml("kernels.yaml")
    found: Mapping[str, Any] = (
        table["gpus"].get(gpu.id) or table["architectures"].get(gpu.architecture) or table["default"]
    )
    return found


def _gemm(gpu: Gpu, entry: Mapping[str, Any]) -> GemmConstants:
    table = read_yaml("kernels.yaml")
    fit, rate = table["gemm"][entry["gemm"]], entry.get("gemm_rate", 1.0)
    return GemmConstants(
        peak_flops=_peak_16_bit_flops(gpu),
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
        dtype_time_factor=_dtype_time_factors(gpu),
        dtype_bytes={dtype: float(size) for dtype, size in table["dtype_bytes"].items()},
    )


def _peak_16_bit_flops(gpu: Gpu) -> float:
    peaks = gpu.peak_tflops
    if "bf16" not in peaks and "fp16" not in peaks:
        raise CatalogError(
            f"The catalogue has no bf16 or fp16 peak for GPU {gpu.id!r}, which is needed to time matrix "
            f"products; expected one of them in gpus.yaml, got {', '.join(peaks) or 'none'}."
        )
    return float(peaks.get("bf16", peaks.get("fp16", 0.0))) * TERA


def _dtype_time_factors(gpu: Gpu) -> Mapping[str, float]:
    """Only dtypes that the GPU has a peak for; one without a measured factor takes the ratio of the peaks."""
    measured = read_yaml("kernels.yaml")["dtype_time_factor"]
    peak = _peak_16_bit_flops(gpu)
    return {d: float(measured.get(d, peak / (rate * TERA))) for d, rate in gpu.peak_tflops.items()}


@functools.cache
def _collectives(fit_name: str) -> CollectiveConstants:
    table = read_yaml("kernels.yaml")
    fit, network = table["collectives"][fit_name], table["network"]
    return CollectiveConstants(
        protocols={kind: tuple(_protocol(row) for row in rows) for kind, rows in fit["protocols"].items()},
        fitted_intra_bytes_per_s=fit["fitted_intra_gbytes_per_s"] * GB,
        ring=_network_protocols(network["ring"]),
        tree=_network_protocols(network["tree"]),
        peer_s=network["peer_us"] * MICRO,
        inter_fraction=network["bandwidth_fraction"],
    )


def _protocol(row: list[float]) -> Protocol:
    latency_us, member_us, two, four, eight = row
    return Protocol(latency_us * MICRO, member_us * MICRO, (two * GB, four * GB, eight * GB))


def _network_protocols(entry: Mapping[str, list[float]]) -> tuple[NetworkProtocol, ...]:
    columns = zip(entry["start_us"], entry["intra_hop_us"], entry["inter_hop_us"], entry["bandwidth"], strict=True)
    return tuple(NetworkProtocol(s * MICRO, intra * MICRO, inter * MICRO, share) for s, intra, inter, share in columns)


def _assumed(gpu: Gpu, entry: Mapping[str, Any]) -> tuple[Assumption, ...]:
    measured = entry.get("measured", ())
    assumed = []
    if "gemm" not in measured:
        scaled = f" at {entry['gemm_rate']:g} times its share of the peak" if "gemm_rate" in entry else ""
        reason = f"matrix products of {gpu.id}: constants of {entry['gemm']} stand in{scaled}, none measured"
        assumed.append(Assumption("gemm", entry["gemm"], reason))
    if "collectives" not in measured:
        fit = entry["collectives"]
        reason = f"collectives of {gpu.id}: NCCL timings of {fit} stand in, scaled by link speed"
        assumed.append(Assumption("collectives", fit, reason))
    if gpu.sm_count is None:
        reason = f"SM count of {gpu.id}: {_SM_COUNT_STAND_IN} stands in, none stated"
        assumed.append(Assumption("sm_count", _SM_COUNT_STAND_IN, reason))
    network = "network: NCCL's own latency table and 85 % of the nominal bandwidth, not measured here"
    return (*assumed, Assumption("network", None, network))
