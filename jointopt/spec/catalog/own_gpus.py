"""A GPU that a job file states itself, in place or in a file of its own, checked figure by figure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import JobError
from jointopt.core.schema import DTYPES
from jointopt.spec.catalog.gpus import FIGURES, gpu_ids, load_gpu, own_power_constants
from jointopt.spec.catalog.limits import number, whole
from jointopt.spec.check import Section
from jointopt.spec.cluster import Gpu

_WHOLE = ("sm_count", "scale_up_gpus", "usual_gpus_per_node")
KEYS = ("name", "like", "vendor", "architecture", "peak_tflops", *FIGURES)


def own_gpu(mapping: Mapping[str, Any], where: str = "cluster.gpu") -> Gpu:
    """The GPU that a mapping states: its ``name``, ``peak_tflops`` by precision (dense), memory, links, clocks, power.

    ``like`` names a GPU of the catalogue that has whatever is left out, and whose kernels and voltage curve stand in.
    Raises JobError with one sentence for a figure that makes no sense.
    """
    section = Section(mapping, where).only(KEYS)
    name = section.text("name", most=60)
    if name in gpu_ids():
        raise JobError(f"{section.at('name')}: {name!r} is a GPU of the catalogue; choose another name for your own.")
    like = _like(section)
    figures: dict[str, Any] = {key: getattr(like, key) for key in FIGURES} if like else dict.fromkeys(FIGURES)
    figures |= {key: _figure(section, key) for key in FIGURES if section.has(key) or (key in _NEEDED and not like)}
    if like and figures["tdp_w"] != like.tdp_w and not section.has("power_limit_min_w"):
        figures["power_limit_min_w"] = None  # of another TDP, a driver takes other limits
    gpu = Gpu(
        id=name, name=name, vendor=section.text("vendor", like.vendor if like else "unknown"),
        architecture=section.text("architecture", like.architecture if like else "unknown"),
        peak_tflops=_peaks(section, like), **figures, like=like.id if like else "", written=dict(mapping),
    )  # fmt: skip
    _check(section, gpu)
    return dataclasses.replace(gpu, power=own_power_constants(gpu))


_NEEDED = ("memory_gib", "memory_gbytes_per_s", "intra_node_gbytes_per_s")


def _like(section: Section) -> Gpu | None:
    if not section.has("like"):
        return None
    return load_gpu(section.text("like"))


def _figure(section: Section, key: str) -> float | int:
    if key in _WHOLE:
        return whole(section, key, f"gpu.{key}")
    return number(section, key, f"gpu.{key}")


def _peaks(section: Section, like: Gpu | None) -> dict[str, float]:
    """Dense rates by precision; one of 16 bit is needed, as matrix products are timed by it."""
    peaks = section.section("peak_tflops", DTYPES)
    found = dict(like.peak_tflops) if like else {}
    found |= {dtype: number(peaks, dtype, "gpu.peak_tflops") for dtype in peaks.values}
    if not {"bf16", "fp16"} & found.keys():
        raise section.refuse("peak_tflops", "dense TFLOP/s by precision, with bf16 or fp16, such as {bf16: 989}")
    return found


def _check(section: Section, gpu: Gpu) -> None:
    """Refuses figures that contradict each other."""
    low, high, step = gpu.clock_min_mhz, gpu.clock_max_mhz, gpu.clock_step_mhz
    if low is not None and high is not None and low > high:
        raise JobError(f"{section.at('clock_min_mhz')} ({low:g}) must not be above clock_max_mhz ({high:g}).")
    if low is not None and high is not None and step is not None and step > max(high - low, 1.0):
        raise JobError(
            f"{section.at('clock_step_mhz')} ({step:g}) must not be above the span of clocks ({high - low:g})."
        )
    for key in ("idle_w", "wait_w", "power_limit_min_w"):
        if (watts := getattr(gpu, key)) is not None and gpu.tdp_w is not None and watts >= gpu.tdp_w:
            raise JobError(f"{section.at(key)} ({watts:g}) must be below tdp_w ({gpu.tdp_w:g}).")
