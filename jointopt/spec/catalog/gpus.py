"""GPUs as the rest of the package gets them: the figures of ``gpus.yaml`` with the power model of ``power.yaml``."""

from __future__ import annotations

import dataclasses
import functools

from jointopt.core.errors import CatalogError
from jointopt.spec.catalog.gpu_sheet import FIGURES, cite, gpu_ids, gpu_sheet, read_yaml
from jointopt.spec.catalog.power import power_constants
from jointopt.spec.cluster import Gpu

__all__ = ["FIGURES", "cite", "gpu_id", "gpu_ids", "load_gpu", "read_yaml"]


def load_gpu(name: str) -> Gpu:
    """The GPU of that catalogue id, of the driver's name, or of a shorter name that fits exactly one (``h200``).

    Raises `CatalogError` for a name that no GPU has, naming the nearest one, or that several have, listing them.
    """
    return _with_power(gpu_sheet(name).id)


def gpu_id(name: object) -> str:
    """The catalogue id that ``name`` means, blank where it means none."""
    try:
        return gpu_sheet(str(name)).id
    except CatalogError:
        return ""


@functools.cache
def _with_power(name: str) -> Gpu:
    gpu = gpu_sheet(name)
    return dataclasses.replace(gpu, power=power_constants(gpu))
