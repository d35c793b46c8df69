"""The figures of ``gpus.yaml``, read once into frozen `jointopt.spec.cluster.Gpu` objects without a power model.

A figure in the file is ``[value, source]``, the source a key of the file's own ``sources`` table (a third entry is a
remark). A figure that no source states is absent from the file and ``None`` in the object.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import fields
from difflib import SequenceMatcher
from importlib import resources
from typing import Any

import yaml

from jointopt.core.errors import CatalogError, nearest
from jointopt.spec.cluster import Gpu

# The C parser is 8 times faster; PyYAML is built without it on some platforms.
_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_IDENTITY = ("id", "name", "vendor", "architecture")
_NOT_TELLING = {"nvidia", "amd", "instinct", "tesla"}
_NOT_IN_FILE = (*_IDENTITY, "peak_tflops", "power", "sources")
FIGURES = tuple(f.name for f in fields(Gpu) if f.name not in _NOT_IN_FILE)


@functools.cache
def read_yaml(file_name: str) -> Mapping[str, Any]:
    """One YAML file of the catalogue, parsed once per process."""
    text = resources.files("jointopt.spec.catalog").joinpath(file_name).read_text(encoding="utf-8")
    parsed: dict[str, Any] = yaml.load(text, Loader=_YAML_LOADER)
    return parsed


def gpu_ids() -> tuple[str, ...]:
    """Every GPU id of the catalogue, in the order of the file (by vendor and generation)."""
    return tuple(read_yaml("gpus.yaml")["gpus"])


def gpu_sheet(name: str) -> Gpu:
    """The GPU of that catalogue id, of the driver's name, or of a shorter name that fits exactly one; no power model.

    Raises `CatalogError` for a name that no GPU has, naming the nearest one, or that several have, listing them.
    """
    return _gpu(_resolve(str(name)))


def fitting_gpus(name: str) -> tuple[str, ...]:
    """Ids of the GPUs that a driver's name, or a shorter one, may mean; none where the catalogue knows no such GPU."""
    words, known = _words(name), _known_words()
    exact = tuple(gpu_id for gpu_id, names in known.items() if words in names)
    return exact or tuple(gpu_id for gpu_id in known if words and set(words) <= set(_words(gpu_id)))


def _resolve(name: str) -> str:
    found, known = fitting_gpus(name), _known_words()
    if len(found) == 1:
        return found[0]
    if found:
        raise CatalogError(
            f"The GPU name {name!r} fits {len(found)} GPUs of the catalogue; expected one of {', '.join(found)}."
        )
    raise CatalogError(
        f"The GPU {name!r} is not in the catalogue{nearest(name, _near(_words(name)))}; "
        f"`jointopt catalog gpus` lists the {len(known)} known ones."
    )


def _near(words: tuple[str, ...]) -> set[str]:
    """The ids, and what they begin with, of GPUs whose model number ``words`` hold in a slightly different spelling.

    Another number, or another letter before it, is another GPU and no slip: an A10 is no A100, a P100 no V100.
    """
    spelled = (*words, "".join(words[:2]))  # h 100
    kin = {i: _words(i)[0] for i in gpu_ids() if any(_alike(word, _words(i)[0]) for word in spelled)}
    return {*kin, *kin.values()}


def _alike(word: str, model: str) -> bool:
    same_number = re.findall(r"\d+", word)[:1] == re.findall(r"\d+", model)[:1]
    lettered = word[:1].isalpha()
    return lettered and same_number and (word.startswith(model) or SequenceMatcher(None, word, model).ratio() >= 0.8)


@functools.cache
def _known_words() -> Mapping[str, tuple[tuple[str, ...], ...]]:
    """Per GPU the words of its id, of the name the driver gives it, and of its aliases."""
    gpus = read_yaml("gpus.yaml")["gpus"]
    return {i: tuple(_words(n) for n in (i, e["name"], *e.get("aliases", ()))) for i, e in gpus.items()}


def _words(name: str) -> tuple[str, ...]:
    """The words that tell GPUs apart; the generation of the SXM socket does not, the vendor does not."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return tuple(re.sub(r"^sxm\d$", "sxm", w) for w in words if w not in _NOT_TELLING)


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
