"""GPUs: the figures of ``gpus.yaml`` with the power model of ``power.yaml``, as frozen `jointopt.jobs.cluster.Gpu`.

A figure in a file is ``[value, source]``, the source a key of the file's own ``sources`` (a third entry is a remark).
Power constants are measured, or scaled from a named relative. What no source states is ``None``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import SequenceMatcher
from typing import Any

from jointopt.core.errors import CatalogError, JobError, close_words, did_you_mean
from jointopt.core.facts import Assumption
from jointopt.core.schema import DTYPES
from jointopt.jobs.catalog.catalog_files import cite, read_yaml
from jointopt.jobs.catalog.limits import limited_number, limited_whole
from jointopt.jobs.cluster import Gpu, PowerConstants
from jointopt.jobs.reading import Section

_IDENTITY = ("id", "name", "vendor", "architecture")
_NO_FIGURES = (*_IDENTITY, "peak_tflops", "power", "product_time_factor", "sources", "like", "own_figures")
_NOT_TELLING = {"nvidia", "amd", "instinct", "tesla", "geforce"}
FIGURES = tuple(f.name for f in fields(Gpu) if f.name not in _NO_FIGURES)
POWER_FIGURES = tuple(f.name for f in fields(PowerConstants) if f.name != "assumed")


def gpu_ids() -> tuple[str, ...]:
    """Every GPU id of the catalogue, in the order of the file (by vendor and generation)."""
    return tuple(read_yaml("gpus.yaml")["gpus"])


def load_gpu(name: str) -> Gpu:
    """The GPU of that catalogue id, of the driver's name, or of a shorter name that fits exactly one (``h200``).

    Raises `CatalogError` for a name that no GPU has, naming the nearest one, or that several have, listing them.
    """
    found = fitting_gpus(str(name))
    if len(found) == 1:
        return _gpu(found[0])
    if found:
        raise CatalogError(
            f"The GPU name {name!r} fits {len(found)} GPUs of the catalogue; expected one of {', '.join(found)}."
        )
    raise CatalogError(
        f"The GPU {name!r} is not in the catalogue{did_you_mean(_nearly(str(name)))}; "
        f"`jointopt catalog gpus` lists the {len(gpu_ids())} known ones."
    )


def known_gpu(name: object) -> Gpu | None:
    """`load_gpu`, or None where the name means no GPU or several."""
    try:
        return load_gpu(str(name))
    except CatalogError:
        return None


def known_gpus(names: Iterable[object]) -> dict[object, Gpu]:
    """The GPUs that names mean, by these; names that mean none or several are left out."""
    return {name: gpu for name in names if (gpu := known_gpu(name))}


def gpu_id(name: object) -> str:
    """The catalogue id that ``name`` means, blank where it means none."""
    gpu = known_gpu(name)
    return gpu.id if gpu else ""


def fitting_gpus(name: str) -> tuple[str, ...]:
    """Ids of the GPUs that a driver's name, or a shorter one, may mean; none where the catalogue knows no such GPU."""
    words, known = _words(name), _known_words()
    exact = tuple(gpu_id for gpu_id, names in known.items() if words in names)
    return exact or tuple(gpu_id for gpu_id in known if words and set(words) <= set(_words(gpu_id)))


def _nearly(name: str) -> tuple[str, ...]:
    """The id of the GPU that a name nearly is, or all that have its model number in a slightly different spelling.

    Another number, or another letter before it, is another GPU and no slip: an A10 is no A100, a P100 no V100.
    """
    words = _words(name)
    near: set[str] = set()
    for known in gpu_ids():
        # the word that holds the model's number (`a6000` of rtx-a6000), else the first
        model = next((word for word in _words(known) if re.search(r"\d", word)), _words(known)[0])
        number = re.findall(r"\d+", model)[:1]
        for word in (*words, "".join(words[:2])):  # h 100
            alike = word.startswith(model) or SequenceMatcher(None, word, model).ratio() >= 0.8
            if word[:1].isalpha() and re.findall(r"\d+", word)[:1] == number and alike:
                near |= {known, model}
    return tuple(gpu for found in close_words(name, near, alike=0.5) for gpu in fitting_gpus(found))


@functools.cache
def _known_words() -> Mapping[str, tuple[tuple[str, ...], ...]]:
    """Per GPU the words of its id, of the name the driver gives it, and of its aliases."""
    gpus = read_yaml("gpus.yaml")["gpus"]
    return {i: tuple(_words(n) for n in (i, e["name"], *e.get("aliases", ()))) for i, e in gpus.items()}


def _words(name: str) -> tuple[str, ...]:
    """The words that distinguish GPUs; the generation of the SXM socket does not, the vendor does not."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return tuple(re.sub(r"^sxm\d$", "sxm", w) for w in words if w not in _NOT_TELLING)


@functools.cache
def _gpu(gpu_id: str) -> Gpu:
    entry = read_yaml("gpus.yaml")["gpus"][gpu_id]
    peaks = entry["peak_tflops"]
    cells = {f"peak_tflops.{d}": c for d, c in peaks.items()} | {f: entry[f] for f in FIGURES if f in entry}
    known: dict[str, Any] = {key: entry[key] for key in _IDENTITY[1:]}
    known |= {figure: entry[figure][0] if figure in entry else None for figure in FIGURES}
    gpu = Gpu(
        id=gpu_id,
        peak_tflops={dtype: float(cell[0]) for dtype, cell in peaks.items()},
        sources={figure: cite(cell, "gpus.yaml") for figure, cell in cells.items()},
        **known,
    )
    return replace(gpu, power=power_constants(gpu))


# --- power


def power_constants(gpu: Gpu) -> PowerConstants | None:
    """Constants of the GPU, or ``None`` where no figure scales to it (no TDP, no 16-bit peak).

    Where none were measured they are a relative's: unchanged for the same chip, else watts by TDP and pJ per flop by
    TDP over peak. A GPU that a job states itself has those of the GPU that it is like, or of its architecture, scaled.
    ``assumed`` has an entry by figure, or ``power`` with the GPU that stands in for all of them.
    """
    table = read_yaml("power.yaml")
    measured, same_chip, references = table["measured"], table["like"].get(gpu.catalogue_id), table["reference"]
    if gpu.id in measured and not gpu.own_figures:
        return _measured(gpu.id)
    if same_chip and not gpu.own_figures:
        reason = f"power constants are those of {same_chip}"
        return _with_own_readings(gpu, _measured(same_chip), same_chip, reason, " (same chip)")
    like = (same_chip or gpu.like) if gpu.own_figures else ""
    reference_id = str(like if like in measured else references.get(gpu.architecture, references["other"]))
    base, reference, peak = _measured(reference_id), load_gpu(reference_id), gpu.peak_16_bit_tflops
    if gpu.tdp_w is None or peak is None:
        return None
    why = "scale its power constants to other GPUs"
    watts = gpu.tdp_w / reference.need("tdp_w", why)
    constants = replace(
        base,
        **{figure: getattr(base, figure) * watts for figure in ("static_w", "wait_w", "active_w")},
        pj_per_flop=base.pj_per_flop * watts * reference.need("peak_16_bit_tflops", why) / peak,
    )
    reason = (
        f"no power measurement; watts of {reference_id} scaled by TDP, pJ per flop by TDP over peak, "
        f"voltage curve and pJ per byte as there"
    )
    return _with_own_readings(gpu, constants, reference_id, reason)


@functools.cache
def _measured(gpu_id: str) -> PowerConstants:
    entry = read_yaml("power.yaml")["measured"][gpu_id]
    values: dict[str, Any] = {figure: float(entry[figure][0]) for figure in POWER_FIGURES}
    remarks: dict[str, str] = {}  # by the first figure that each is about
    for figure, cell in entry.items():
        if cell[1] == "assumption" and cell[2] not in remarks.values():
            remarks[figure] = cell[2]
    assumed = (Assumption(name, values[name], f"{gpu_id}: {text}", gpu_id, text) for name, text in remarks.items())
    return PowerConstants(**values, assumed=tuple(assumed))


def response_figures(gpu: Gpu) -> dict[str, float]:
    """Knee, voltage ratio and static power where a fit of new measurements of that GPU starts; empty: not measured."""
    response, same_chip = read_yaml("power.yaml")["response"], read_yaml("power.yaml")["like"].get(gpu.id)
    entry = response.get(gpu.id) or response.get(same_chip) or {}
    return {figure: float(cell[0]) for figure, cell in entry.items()}


def _with_own_readings(
    gpu: Gpu, constants: PowerConstants, stand_in: str, reason: str, why: str = ""
) -> PowerConstants:
    """The GPU's own idle and waiting power in place of scaled ones, where the catalogue has them."""
    static_w = constants.static_w if gpu.idle_w is None else gpu.idle_w
    scaled_w = max(constants.wait_w, static_w * constants.wait_w / constants.static_w)
    wait_w = scaled_w if gpu.wait_w is None else gpu.wait_w
    own = [name for name in ("idle_w", "wait_w") if getattr(gpu, name) is not None]
    measured, there = f"; its own {' and '.join(own)} measured" if own else "", len(constants.assumed)
    brief = f"{reason}; {there} of these are assumed there too" if there else reason
    power = Assumption("power", stand_in, f"{gpu.id}: {reason}{why}{measured}", gpu.id, brief)
    assumed = (*(replace(assumption, brief="") for assumption in constants.assumed), power)
    return replace(constants, static_w=static_w, wait_w=wait_w, assumed=assumed)


# A GPU that a job file states itself, in place or in a file of its own, checked figure by figure.


_WHOLE = ("sm_count", "scale_up_gpus", "usual_gpus_per_node")
_NEEDED = ("memory_gib", "memory_gbytes_per_s", "intra_node_gbytes_per_s")
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
    like = load_gpu(section.text("like")) if section.has("like") else None
    figures: dict[str, Any] = {key: getattr(like, key, None) for key in FIGURES}
    for key in FIGURES:
        if section.has(key) or (key in _NEEDED and not like):
            figures[key] = (limited_whole if key in _WHOLE else limited_number)(section, key, f"gpu.{key}")
    if like and figures["tdp_w"] != like.tdp_w and not section.has("power_limit_min_w"):
        figures["power_limit_min_w"] = None  # of another TDP, a driver takes other limits
    peaks, stated = dict(like.peak_tflops) if like else {}, section.section("peak_tflops", DTYPES)
    peaks |= {dtype: limited_number(stated, dtype, "gpu.peak_tflops") for dtype in stated.values}
    if not {"bf16", "fp16"} & peaks.keys():  # one of 16 bit, as matrix products are timed by it
        raise section.refuse("peak_tflops", "dense TFLOP/s by precision, with bf16 or fp16, such as {bf16: 989}")
    gpu = Gpu(
        id=name, name=name, vendor=section.text("vendor", like.vendor if like else "unknown"),
        architecture=section.text("architecture", like.architecture if like else "unknown"),
        peak_tflops=peaks, **figures, like=like.id if like else "", own_figures=dict(mapping),
    )  # fmt: skip
    _check(section, gpu)
    return replace(gpu, power=power_constants(gpu))


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
