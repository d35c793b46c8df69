"""Constants of matrix products and collectives per GPU from ``kernels.yaml``; siblings stand in by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jointopt.core.errors import CatalogError
from jointopt.core.facts import Assumption
from jointopt.core.schema import ATTENTIONS, FP8_RECIPES
from jointopt.core.units import GB, KIB, MICRO, TERA
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.job import ScalingRecipe
from jointopt.jobs.kernels import (
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
    entry = table["gpus"].get(gpu.catalogue_id) or table["architectures"].get(gpu.architecture) or table["default"]
    known = {*entry.get("measured", ()), *(() if gpu.sm_count is None else ("sm_count",))}
    scaled = f" at {entry['gemm_rate']:g} times its share of the peak" if "gemm_rate" in entry else ""
    gemm, collectives = entry["gemm"], entry["collectives"]
    stand_ins = (
        ("gemm", gemm, "matrix products", f"constants of {gemm} stand in{scaled}, none measured"),
        ("collectives", collectives, "collectives", f"NCCL timings of {collectives} stand in, scaled by link speed"),
        ("sm_count", _SM_COUNT_STAND_IN, "SM count", f"{_SM_COUNT_STAND_IN} stands in, none stated"),
    )  # fmt: skip
    assumed = [
        Assumption(key, value, f"{part} of {gpu.id}: {text}", f"kernels of {gpu.id}", f"{part}: {text}")
        for key, value, part, text in stand_ins if key not in known
    ]  # fmt: skip
    if "network" not in known:
        network = "network: NCCL's own latency table and 85 % of the nominal bandwidth, not measured here"
        assumed.append(Assumption("network", None, network))
    return KernelConstants(_gemm(gpu, entry), _collectives(collectives), tuple(assumed))


def _gemm(gpu: Gpu, entry: Mapping[str, Any]) -> GemmConstants:
    if gpu.peak_16_bit_tflops is None:
        raise CatalogError(
            f"The catalogue has no bf16 or fp16 peak for GPU {gpu.id!r}, which is needed to time matrix "
            f"products; expected one of them in gpus.yaml, got {', '.join(gpu.peak_tflops) or 'none'}."
        )
    table, peak = read_yaml("kernels.yaml"), gpu.peak_16_bit_tflops * TERA
    fit, rate = table["gemm"][entry["gemm"]], entry.get("gemm_rate", 1.0)
    measured = table["dtype_time_factor"] | fit.get("dtype_time_factor", {})
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


@functools.cache
def _collectives(fit_name: str) -> CollectiveConstants:
    fit, network = read_yaml("kernels.yaml")["collectives"][fit_name], read_yaml("kernels.yaml")["network"]
    send = network["send"]
    protocols = {
        kind: tuple(
            Protocol(latency_us * MICRO, member_us * MICRO, (two * GB, four * GB, eight * GB))
            for latency_us, member_us, two, four, eight in rows
        )
        for kind, rows in fit["protocols"].items()
    }
    across: dict[str, tuple[NetworkProtocol, ...]] = {}
    for kind in ("ring", "tree"):
        columns = (network[kind][key] for key in ("start_us", "intra_hop_us", "inter_hop_us", "bandwidth"))
        across[kind] = tuple(
            NetworkProtocol(start * MICRO, intra * MICRO, inter * MICRO, share)
            for start, intra, inter, share in zip(*columns, strict=True)
        )
    return CollectiveConstants(
        protocols=protocols,
        fitted_intra_bytes_per_s=fit["fitted_intra_gbytes_per_s"] * GB,
        ring=across["ring"],
        tree=across["tree"],
        peer_s=network["peer_us"] * MICRO,
        inter_fraction=network["bandwidth_fraction"],
        send=SendConstants(
            send["ll_kib"] * KIB, send["chunk_kib"] * KIB, send["channels"], send["channel_gbytes_per_s"] * GB
        ),
    )


# Speed of training kernels on each GPU architecture, beside bare matrix products.


ALIGNMENTS = (1, 2, 4, 8, 16)  # elements; 16 and more are alike


@dataclass(frozen=True)
class AttentionConstants:
    """Speed of a flash kernel on one architecture."""

    forward: float  # share of the dense 16-bit peak, causal work only
    backward: float
    half_length: float  # tokens

    def slower(self, factor: float) -> AttentionConstants:
        """The constants of a kernel that takes ``factor`` times as long."""
        return replace(self, forward=self.forward / factor, backward=self.backward / factor)


@functools.cache
def _architecture(name: str) -> dict[str, Any]:
    """The row of an architecture; Ampere's where it is unknown."""
    rows = read_yaml("architectures.yaml")
    row = rows.get(name.lower(), rows["ampere"])
    return {**_architecture(row["like"]), **row} if "like" in row else row


def attention_kernels(gpu: Gpu) -> tuple[str, ...]:
    """The attention kernels that run on that GPU; on one of an unknown architecture, all of them."""
    known = gpu.architecture.lower() in read_yaml("architectures.yaml")
    return tuple(_architecture(gpu.architecture)["attention_kernels"]) if known else ATTENTIONS


def runnable_attention(gpu: Gpu, wanted: str) -> str:
    """The wanted kernel where it runs; else flash2, the newest that most GPUs run; else fused."""
    able = attention_kernels(gpu)
    return next(kernel for kernel in (wanted, "flash2", "fused") if kernel in able)


def flash_is_usual(gpu: Gpu) -> bool:
    """Whether the GPU came with libraries that choose a flash kernel by themselves (Ada, Hopper and later)."""
    return bool(_architecture(gpu.architecture).get("flash_is_usual"))


def workspaces_mib(gpu: Gpu) -> tuple[float, float]:
    """MiB of cuBLAS' workspace in PyTorch, and in Transformer Engine per stream; none where no CUDA runs."""
    torch, engine = _architecture(gpu.architecture)["workspace_mib"] if gpu.vendor == "NVIDIA" else (0.0, 0.0)
    return float(torch), float(engine)


def training_factor(gpu: Gpu) -> float:
    """Time of products within a training step over that of the same products timed alone."""
    return float(_architecture(gpu.architecture)["training_factor"])


def unaligned_factors(gpu: Gpu) -> tuple[float, ...]:
    """Time of a 16-bit product over an aligned one's where 1, 2, 4, 8 and 16 is the largest power of two in a width."""
    slower = _architecture(gpu.architecture)["unaligned"]
    return tuple(float(slower.get(power, 1.0)) for power in ALIGNMENTS)


def host_bytes_per_s(gpu: Gpu) -> float:
    """Bandwidth of the GPU's link to host memory, one direction: its own, else its architecture's PCIe x16."""
    return GB * float(gpu.host_gbytes_per_s or _architecture(gpu.architecture)["host_gbytes_per_s"])


def slot_gbytes_per_s(gpu: Gpu) -> float:
    """GB/s that a slot of PCIe x16 of the GPU's architecture carries in one direction."""
    return float(_architecture(gpu.architecture)["host_gbytes_per_s"])


def fp32_time_factor(gpu: Gpu) -> float | None:
    """Time of an fp32 product without TF32 over its bf16 time; None where the cores per SM are not known."""
    lanes = _architecture(gpu.architecture)["fp32_lanes_per_sm"]
    if lanes is None or gpu.sm_count is None or gpu.clock_max_mhz is None:
        return None
    peak = gpu.need("peak_16_bit_tflops", "time its fp32 products")
    return peak * TERA / (2.0 * float(lanes) * gpu.sm_count * gpu.clock_max_mhz * 1e6)


def attention_kernel(gpu: Gpu, kernel: str, in_fp8: bool) -> str:
    """The row of a kernel of attention: fp8's where a flash kernel runs in it on an architecture that has one."""
    able = in_fp8 and kernel.startswith("flash") and _architecture(gpu.architecture).get("fp8_attention")
    return "fp8_attention" if able else kernel


def attention_constants(gpu: Gpu, kernel: str) -> AttentionConstants:
    """Constants of a flash kernel; one that an architecture lacks (flash3 before Hopper) falls back to flash2.

    Unfused and fused-softmax attention is priced by its traffic and needs none: they get the flash1 row.
    """
    rows = _architecture(gpu.architecture)
    fallback = "flash1" if kernel in ("unfused", "fused") else "flash2"
    return AttentionConstants(**rows.get(kernel, rows[fallback]))


# Recipes of fp8 and fp4 scaling per GPU from ``scaling.yaml``.


def scaled_dtype(name: str) -> str:
    """The precision of the products that a recipe scales: fp8 or fp4."""
    return str(read_yaml("scaling.yaml")["recipes"][name]["dtype"])


def architectures_of(name: str) -> tuple[str, ...]:
    """The architectures on which a recipe runs."""
    return tuple(read_yaml("scaling.yaml")["recipes"][name]["runs_on"])


def recipes_of(dtype: str, gpu: Gpu) -> tuple[str, ...]:
    """The recipes by which that GPU runs products in ``dtype``; on an unknown architecture, all of them."""
    if dtype not in gpu.peak_tflops:
        return ()
    runs = {name: gpu.architecture in architectures_of(name) for name in FP8_RECIPES}
    return tuple(n for n in FP8_RECIPES if scaled_dtype(n) == dtype and (runs[n] or not any(runs.values())))


def only_recipe(dtype: str, gpu: Gpu) -> ScalingRecipe | None:
    """The recipe of ``dtype`` where the GPU's architecture is known to run it and no other: nvfp4 on Blackwell."""
    able = recipes_of(dtype, gpu)
    known = len(able) == 1 and gpu.architecture in architectures_of(able[0])
    return scaling_recipe(able[0], gpu) if known else None


def scaling_recipe(name: str, gpu: Gpu) -> ScalingRecipe:
    """The recipe of that name as it runs on a GPU."""
    row: dict[str, Any] = read_yaml("scaling.yaml")["recipes"][name]
    # a scale in bytes and the elements of its block
    shares = {key: row[key][0] / row[key][1] if row.get(key) else 0.0 for key in ("scale", "weight_scale")}
    return ScalingRecipe(
        name=name, dtype=row["dtype"], value_bytes=kernel_constants(gpu).gemm.dtype_bytes[row["dtype"]],
        scale_bytes=shares["scale"], weight_scale_bytes=shares["weight_scale"],
        scale_passes=float(row.get("scale_passes", 1)),
        copies=1.0 if gpu.architecture in row.get("one_copy_on", ()) else 2.0,
        frozen_copies=1.0 if gpu.architecture in row.get("frozen_once_on", ()) else 2.0,
        reads=float(row["reads"]), second_reads=float(row.get("second_reads", 0)), launches=row["launches"],
        product_time_factor=float(row.get("product_time_factor", {}).get(gpu.architecture, 1.0)),
        gathers_16_bit=bool(row.get("gathers_16_bit")),
    )  # fmt: skip
