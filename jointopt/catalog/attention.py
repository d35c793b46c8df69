"""How fast attention kernels run, by GPU architecture and kernel."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from typing import Any

import yaml

from jointopt.spec.cluster import Gpu

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class AttentionConstants:
    forward: float  # share of the dense 16-bit peak, causal work only
    backward: float
    half_length: float  # tokens


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    text = resources.files("jointopt.catalog").joinpath("attention.yaml").read_text("utf-8")
    raw: dict[str, dict[str, Any]] = yaml.load(text, Loader=_LOADER)
    return {arch: raw[rows["like"]] if "like" in rows else rows for arch, rows in raw.items()}


def attention_constants(gpu: Gpu, kernel: str) -> AttentionConstants:
    """Constants of a flash kernel; one that an architecture lacks (flash3 before Hopper) falls back to flash2.

    Unfused and fused-softmax attention is priced by its traffic and needs none: they get the flash1 row.
    """
    rows = _table().get(gpu.architecture, _table()["ampere"])
    fallback = "flash1" if kernel in ("unfused", "fused") else "flash2"
    return AttentionConstants(**rows.get(kernel, rows[fallback]))
