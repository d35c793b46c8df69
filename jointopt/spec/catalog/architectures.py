"""Speed of training kernels on each GPU architecture, beside bare matrix products."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from jointopt.core.schema import ATTENTIONS
from jointopt.core.units import GB, TERA
from jointopt.spec.catalog.gpus import read_yaml
from jointopt.spec.cluster import Gpu

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
def _table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = {}
    for name, row in read_yaml("architectures.yaml").items():
        table[name] = {**table[row["like"]], **row} if "like" in row else row
    return table


def _row(gpu: Gpu) -> dict[str, Any]:
    return _table().get(gpu.architecture.lower(), _table()["ampere"])


def attention_kernels(gpu: Gpu) -> tuple[str, ...]:
    """The attention kernels that run on that GPU; on one of an unknown architecture, all of them."""
    known = _table().get(gpu.architecture.lower())
    return tuple(known["attention_kernels"]) if known else ATTENTIONS


def runnable_attention(gpu: Gpu, wanted: str) -> str:
    """The wanted kernel where it runs; else flash2, the newest that most GPUs run; else fused."""
    able = attention_kernels(gpu)
    return next(kernel for kernel in (wanted, "flash2", "fused") if kernel in able)


def flash_is_usual(gpu: Gpu) -> bool:
    """Whether the GPU came with libraries that choose a flash kernel by themselves (Ada, Hopper and later)."""
    return bool(_row(gpu).get("flash_is_usual"))


def workspaces_mib(gpu: Gpu) -> tuple[float, float]:
    """MiB of cuBLAS' workspace in PyTorch, and in Transformer Engine per stream; none where no CUDA runs."""
    torch, engine = _row(gpu)["workspace_mib"] if gpu.vendor == "NVIDIA" else (0.0, 0.0)
    return float(torch), float(engine)


def training_factor(gpu: Gpu) -> float:
    """Time of products within a training step over that of the same products timed alone."""
    return float(_row(gpu)["training_factor"])


def unaligned_factors(gpu: Gpu) -> tuple[float, ...]:
    """Time of a 16-bit product over an aligned one's where 1, 2, 4, 8 and 16 is the largest power of two in a width."""
    slower = _row(gpu)["unaligned"]
    return tuple(float(slower.get(power, 1.0)) for power in ALIGNMENTS)


def host_bytes_per_s(gpu: Gpu) -> float:
    """Bandwidth of the GPU's link to host memory, one direction: its own, else its architecture's PCIe x16."""
    return GB * float(gpu.host_gbytes_per_s or _row(gpu)["host_gbytes_per_s"])


def slot_gbytes_per_s(gpu: Gpu) -> float:
    """GB/s that a slot of PCIe x16 of the GPU's architecture carries in one direction."""
    return float(_row(gpu)["host_gbytes_per_s"])


def fp32_time_factor(gpu: Gpu) -> float | None:
    """Time of an fp32 product without TF32 over its bf16 time; None where the cores per SM are not known."""
    lanes = _row(gpu)["fp32_lanes_per_sm"]
    if lanes is None or gpu.sm_count is None or gpu.clock_max_mhz is None:
        return None
    return (
        gpu.need("peak_16_bit_tflops", "time its fp32 products")
        * TERA
        / (2.0 * float(lanes) * gpu.sm_count * gpu.clock_max_mhz * 1e6)
    )


def attention_constants(gpu: Gpu, kernel: str) -> AttentionConstants:
    """Constants of a flash kernel; one that an architecture lacks (flash3 before Hopper) falls back to flash2.

    Unfused and fused-softmax attention is priced by its traffic and needs none: they get the flash1 row.
    """
    rows = _row(gpu)
    fallback = "flash1" if kernel in ("unfused", "fused") else "flash2"
    return AttentionConstants(**rows.get(kernel, rows[fallback]))
