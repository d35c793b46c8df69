"""Recipes of fp8 and fp4 scaling per GPU from ``scaling.yaml``."""

from __future__ import annotations

from typing import Any

from jointopt.core.schema import FP8_RECIPES
from jointopt.spec.catalog.gpus import read_yaml
from jointopt.spec.catalog.kernels import kernel_constants
from jointopt.spec.cluster import Gpu
from jointopt.spec.scaling import ScalingRecipe


def _row(name: str) -> dict[str, Any]:
    row: dict[str, Any] = read_yaml("scaling.yaml")["recipes"][name]
    return row


def scaled_dtype(name: str) -> str:
    """The precision of the products that a recipe scales: fp8 or fp4."""
    return str(_row(name)["dtype"])


def recipes_of(dtype: str, gpu: Gpu) -> tuple[str, ...]:
    """The recipes by which that GPU runs products in ``dtype``; on an unknown architecture, all of them."""
    known = {gpu.architecture} & {name for recipe in FP8_RECIPES for name in _row(recipe)["runs_on"]}
    if dtype not in gpu.peak_tflops:
        return ()
    found = (name for name in FP8_RECIPES if scaled_dtype(name) == dtype)
    return tuple(name for name in found if not known or gpu.architecture in _row(name)["runs_on"])


def only_recipe(dtype: str, gpu: Gpu) -> ScalingRecipe | None:
    """The recipe of ``dtype`` where the GPU's architecture is known to run it and no other: nvfp4 on Blackwell."""
    able = recipes_of(dtype, gpu)
    known = len(able) == 1 and gpu.architecture in architectures_of(able[0])
    return scaling_recipe(able[0], gpu) if known else None


def architectures_of(name: str) -> tuple[str, ...]:
    """The architectures on which a recipe runs."""
    return tuple(_row(name)["runs_on"])


def scaling_recipe(name: str, gpu: Gpu) -> ScalingRecipe:
    """The recipe of that name as it runs on a GPU."""
    row = _row(name)
    scale, weight_scale = (_share(row.get(key)) for key in ("scale", "weight_scale"))
    return ScalingRecipe(
        name=name, dtype=row["dtype"], value_bytes=kernel_constants(gpu).gemm.dtype_bytes[row["dtype"]],
        scale_bytes=scale, weight_scale_bytes=weight_scale, scale_passes=float(row.get("scale_passes", 1)),
        copies=1.0 if gpu.architecture in row.get("one_copy_on", ()) else 2.0,
        reads=float(row["reads"]), second_reads=float(row.get("second_reads", 0)), launches=row["launches"],
        product_time_factor=float(row.get("product_time_factor", {}).get(gpu.architecture, 1.0)),
        gathers_16_bit=bool(row.get("gathers_16_bit")),
    )  # fmt: skip


def _share(scale: list[float] | None) -> float:
    return float(scale[0]) / float(scale[1]) if scale else 0.0
