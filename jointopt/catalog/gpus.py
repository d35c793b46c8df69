"""The GPU catalogue: ``gpus.yaml`` read once into frozen `jointopt.spec.cluster.Gpu` objects.

A figure in the file is ``[value, source]``, the source a key of the file's own ``sources`` table (a third entry is a
remark). A figure that no source states is absent from the file and ``None`` in the object.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import fields
from importlib import resources
from typing import Any

import yaml

from jointopt.errors import CatalogError, nearest
from jointopt.spec.cluster import Gpu

# The C parser is 8 times faster; PyYAML is built without it on some platforms.
_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_IDENTITY = ("id", "name", "vendor", "architecture")
_NOT_IN_FILE = (*_IDENTITY, "peak_tflops", "power", "sources")
FIGURES = tuple(f.name for f in fields(Gpu) if f.name not in _NOT_IN_FILE)


@functools.cache
def read_yaml(file_name: str) -> Mapping[str, Any]:
    """One YAML file of the catalogue, parsed once per process."""
    text = resources.files("jointopt.catalog").joinpath(file_name).read_text(encoding="utf-8")
    parsed: dict[str, Any] = yaml.load(text, Loader=_YAML_LOADER)
    return parsed


def gpu_ids() -> tuple[str, ...]:
    """Every GPU id of the catalogue, in the order of the file (by vendor and generation)."""
    return tuple(read_yaml("gpus.yaml")["gpus"])


def load_gpu(name: str) -> Gpu:
    """The GPU of that catalogue id, or of a shorter name that fits exactly one GPU (``h200``, ``A100 SXM4 80GB``).

    Raises `CatalogError` for a name that no GPU has, naming the nearest one, or that several have, listing them.
    """
    return _gpu(_resolve(str(name)))


def _resolve(name: str) -> str:
    ids = gpu_ids()
    words = _words(name)
    exact = [i for i in ids if _words(i) == words or words in _aliases(i)]
    found = exact or [i for i in ids if words and set(words) <= set(_words(i))]
    if len(found) == 1:
        return found[0]
    if found:
        raise CatalogError(
            f"The GPU name {name!r} fits {len(found)} GPUs of the catalogue; expected one of {', '.join(found)}."
        )
    raise CatalogError(
        f"The GPU {name!r} is not in the catalogue{nearest(name, {*ids, *(_words(i)[0] for i in ids)})}; "
        f"`jointopt catalog gpus` lists the {len(ids)} known ones."
    )


def _words(name: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", name.lower()))


def _aliases(gpu_id: str) -> tuple[tuple[str, ...], ...]:
    return tuple(_words(a) for a in read_yaml("gpus.yaml")["gpus"][gpu_id].get("aliases", ()))


@functools.cache
def _gpu(gpu_id: str) -> Gpu:
    entry = read_yaml("gpus.yaml")["gpus"][gpu_id]
    peaks = entry["peak_tflops"]
    cells = {f"peak_tflops.{d}": c for d, c in peaks.items()} | {f: entry[f] for f in FIGURES if f in entry}
    known: dict[str, Any] = {key: entry[key] for key in _IDENTITY[1:]}
    known |= {figure: entry[figure][0] if figure in entry else None for figure in FIGURES}
    return Gpu(
        id=gpu_id,
        peak_tflops={dtype: float(cell[0]) for dtype, cell in peaks.items()},
        sources={figure: cite(cell, "gpus.yaml") for figure, cell in cells.items()},
        **known,
    )


def cite(cell: list[Any], file_name: str) -> str:
    """Where a catalogue cell ``[value, source key, remark]`` was found, as one sentence."""
    citation = str(read_yaml(file_name)["sources"][cell[1]])
    return f"{citation}; {cell[2]}" if len(cell) > 2 else citation
