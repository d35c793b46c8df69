"""Bandwidths of links as people write them, and those that no GPU is known to have."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import JobError, nearest_hint
from jointopt.core.units import BITS_PER_BYTE
from jointopt.jobs.catalog.catalog_files import read_yaml
from jointopt.jobs.catalog.kernels import slot_gbytes_per_s
from jointopt.jobs.catalog.limits import limits
from jointopt.jobs.cluster import Cluster, Gpu
from jointopt.jobs.reading import Section, is_number

_log = logging.getLogger(__name__)
# keys of a cluster, and of its GPU the figure of the same link
_FIGURES = {
    "intra_node_gbytes_per_s": "intra_node_gbytes_per_s",
    "inter_node_gbytes_per_s": "usual_inter_node_gbytes_per_s",
}
LINKS = tuple(_FIGURES)
_FORM = re.compile(
    r"(?:(?P<ports>\d{1,4})\s*[x*]\s*)?(?P<one>.+?)(?:\s*(?:per\s+|/\s*)(?P<of>gpu|node))?", re.IGNORECASE | re.ASCII
)
_FIGURE = re.compile(
    r"(?P<number>\d{1,9}(?:\.\d{1,9})?)\s*(?P<prefix>[MGT])(?:(?P<unit>b|bit|B|[Bb]yte)s?(?:/s|ps))?", re.ASCII
)
_GIGA = {"M": 1e-3, "G": 1.0, "T": 1e3}


def bandwidth_in(text: str) -> tuple[float, str, bool] | None:
    """(GB/s, ``gpu`` or ``node`` or blank for whose it is, whether the text is in bytes); None for unclear text.

    ``400G`` is a port of 400 Gb/s. ``gb/s`` is unclear, since bits and bytes differ by one letter, and so are several
    ports without a word for whose they are.
    """
    form = _FORM.fullmatch(text.strip())
    if form is None or (form["ports"] and not form["of"]):
        return None
    ports: Mapping[str, list[Any]] = read_yaml("links.yaml")["ports"]
    name, figure = form["one"].lower(), _FIGURE.fullmatch(form["one"])
    if name not in ports and figure is None:
        return None
    in_bytes = figure is not None and (figure["unit"] or "b") in ("B", "byte", "Byte")
    giga = float(ports[name][0]) if figure is None else float(figure["number"]) * _GIGA[figure["prefix"]]
    each = giga / (1.0 if in_bytes else BITS_PER_BYTE)
    return each * int(form["ports"] or 1), (form["of"] or "").lower(), in_bytes


def bandwidth(section: Section, key: str, gpus_per_node: int) -> float:
    """GB/s per GPU of a text under a key: ``400Gb/s``, ``50GB/s``, ``3.2Tb/s per node``, ``ndr``, ``8x400G per node``.

    JobError for other text.
    """
    text = str(section.values[key])
    found = bandwidth_in(text)
    if found is None or not found[0]:
        names = read_yaml("links.yaml")["ports"]
        raise section.refuse(
            key, "a number in GB/s of one GPU in one direction, a figure with its unit (400Gb/s, 50GB/s, 3.2Tb/s per "
            f"node), or a port of each GPU (400G, {', '.join(names)}) or node (8x400G per node)"
            f"{nearest_hint(text, names) if text[:1].isalpha() else ''}",
        )  # fmt: skip
    return found[0] / (gpus_per_node if found[1] == "node" else 1)


def link_of(gpu: Gpu) -> str:
    """The link between the GPUs of one node: ``nvlink``, ``pcie`` or ``xgmi``."""
    links: dict[str, list[str]] = read_yaml("links.yaml")["links"]
    return next((link for link, gpus in links.items() if gpu.catalogue_id in gpus), "nvlink")


def most_gbytes_per_s(gpu: Gpu, key: str) -> float:
    """The most GB/s of a link of that GPU that is taken as a bare number."""
    table, rated = read_yaml("limits.yaml"), _rated_gbytes_per_s(gpu, key)
    if gpu.is_cpu or (gpu.own_figures and not rated):
        return limits()[f"gpu.{_FIGURES[key]}"].most
    if key == "intra_node_gbytes_per_s":
        bridge = float(table["pcie_link_gbytes_per_s"][0]) if link_of(gpu) == "pcie" else 0.0
        return max(float(table["link_factor"][0]) * rated, bridge) if rated else limits()[f"cluster.{key}"].most
    return max(float(table["network_factor"][0]) * rated, slot_gbytes_per_s(gpu))


def _rated_gbytes_per_s(gpu: Gpu, key: str) -> float:
    """GB/s that the GPU has by its sheet, or usually; 0 where that is not known, or is another's that it is like."""
    name = _FIGURES[key]
    return 0.0 if gpu.own_figures and name not in gpu.own_figures else float(getattr(gpu, name) or 0.0)


def check_links(cluster: Cluster, stated: Mapping[str, Any]) -> None:
    """JobError for a bandwidth of a job beyond what its GPU is known to have, where it may have been meant otherwise.

    That is a bare number, or bits per second of which it is not said whether a GPU or a node has them, which are mostly
    a node's. A bare number beyond what the GPU usually has is remarked on.
    """
    gpu = cluster.gpu
    for key in (key for key in LINKS if stated.get(key) is not None):
        value, place = stated[key], f"cluster.{key}"
        most, usual = most_gbytes_per_s(gpu, key), _rated_gbytes_per_s(gpu, key)
        may_have = f"{gpu.id} may have ({f'usually {usual:g}' if usual else 'no source states more'})"
        if isinstance(value, str):
            text, (gbytes, of, in_bytes) = value.strip(), bandwidth_in(value) or (0.0, "", False)
            if gbytes > most and not (of or in_bytes):
                raise JobError(
                    f"{place} {value!r} is {gbytes:g} GB/s, more than the {most:g} that {may_have}; write "
                    f"'{text} per node' ({gbytes / cluster.gpus_per_node:g} GB/s of each GPU), or "
                    f"'{text} per GPU' if each has as much."
                )
        elif is_number(value) and value > most:
            number = float(value)
            raise JobError(
                f"{place} is in GB/s of one GPU in one direction, and {number:,.15g} is more than the {most:g} that "
                f"{may_have}; {_meant(number, key, most, cluster)}{number:g}GB/s if it is really {number:g} GB/s."
            )
        elif is_number(value) and not gpu.is_cpu and 0.0 < usual < value:
            _warn_once(
                f"{key} is {float(value):g} GB/s of one GPU in one direction, and {gpu.id} usually has {usual:g}; "
                f"{float(value):g} Gb/s would be {float(value) / BITS_PER_BYTE:g}."
            )


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def _meant(value: float, key: str, most: float, cluster: Cluster) -> str:
    """The part of a refusal that says what else the number may mean, and how to write that."""
    per_gpu = value / BITS_PER_BYTE
    of_node = per_gpu / cluster.gpus_per_node
    if key == "intra_node_gbytes_per_s" and value / 2 <= most:
        return f"both directions together are twice one: write {value / 2:g}, or "
    if per_gpu <= most:
        return f"{value:g} Gb/s are {per_gpu:g}: write {value:g}Gb/s, or "
    if of_node <= most:
        return f"{value:g} Gb/s of a node are {of_node:g}: write '{value:g}Gb/s per node', or "
    return "write the figure with its unit, such as 400Gb/s, or "


def link_with_unit(cluster: Cluster, key: str, value: Any) -> Any:
    """The value of a key as a job file has it: with its unit where `check_links` refuses the bare number."""
    beyond = key in LINKS and is_number(value) and value > most_gbytes_per_s(cluster.gpu, key)
    return f"{value:.15g}GB/s" if beyond else value
