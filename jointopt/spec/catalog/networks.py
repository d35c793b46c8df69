"""Bandwidths of links as people write them, and those that no GPU is known to have."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from typing import Any

from jointopt.core.errors import JobError, nearest
from jointopt.core.units import BITS_PER_BYTE
from jointopt.spec.catalog.architectures import slot_gbytes_per_s
from jointopt.spec.catalog.gpus import read_yaml
from jointopt.spec.catalog.limits import limits
from jointopt.spec.check import Section, is_number
from jointopt.spec.cluster import Cluster, Gpu

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


def bandwidth(section: Section, key: str, gpus_per_node: int) -> float:
    """GB/s per GPU of a text under a key: ``400Gb/s``, ``50GB/s``, ``3.2Tb/s per node``; of ports, ``8x400G per node``.

    JobError for other text.
    """
    text = str(section.values[key]).strip()
    form = _FORM.fullmatch(text)
    gbytes = None if form is None else _of_one(form["one"])
    if form is None or not gbytes:
        names = read_yaml("links.yaml")["ports"]
        raise section.refuse(
            key, "a number in GB/s of one GPU in one direction, a figure with its unit (400Gb/s, 50GB/s, 3.2Tb/s per "
            f"node), or a port: 400G, {', '.join(names)}{nearest(text, names) if text[:1].isalpha() else ''}",
        )  # fmt: skip
    of_node = (form["of"] or "").lower() == "node"
    return gbytes * int(form["ports"] or 1) / (gpus_per_node if of_node else 1)


def _of_one(text: str) -> float | None:
    """GB/s of a figure with its unit, or of one port by its name; None for neither.

    ``400G`` is a port of 400 Gb/s. Bits and bytes differ by one letter, so that ``gb/s`` is neither.
    """
    ports: Mapping[str, list[Any]] = read_yaml("links.yaml")["ports"]
    if text.lower() in ports:
        return float(ports[text.lower()][0]) / BITS_PER_BYTE
    figure = _FIGURE.fullmatch(text)
    if figure is None:
        return None
    in_bytes = (figure["unit"] or "b")[0] == "B" or figure["unit"] == "byte"
    return float(figure["number"]) * _GIGA[figure["prefix"]] / (1.0 if in_bytes else BITS_PER_BYTE)


def link_of(gpu: Gpu) -> str:
    """The link between the GPUs of one node: ``nvlink``, ``pcie`` or ``xgmi``."""
    links: dict[str, list[str]] = read_yaml("links.yaml")["links"]
    return next((link for link, gpus in links.items() if gpu.kin in gpus), "nvlink")


def most_gbytes_per_s(gpu: Gpu, key: str) -> float:
    """The most GB/s of a link of that GPU that is taken as a bare number."""
    table, rated = read_yaml("limits.yaml"), _rated_gbytes_per_s(gpu, key)
    if gpu.is_cpu or (gpu.written and not rated):
        return limits()[f"gpu.{_FIGURES[key]}"].most
    if key == "intra_node_gbytes_per_s":
        bridge = float(table["pcie_link_gbytes_per_s"][0]) if link_of(gpu) == "pcie" else 0.0
        return max(float(table["link_factor"][0]) * rated, bridge) if rated else limits()[f"cluster.{key}"].most
    return max(float(table["network_factor"][0]) * rated, slot_gbytes_per_s(gpu))


def _rated_gbytes_per_s(gpu: Gpu, key: str) -> float:
    """What the GPU has by its sheet, or usually; 0 where that is not known, or is another's that it is like."""
    name = _FIGURES[key]
    return 0.0 if gpu.written and name not in gpu.written else float(getattr(gpu, name) or 0.0)


def check_links(cluster: Cluster, stated: Mapping[str, Any], where: str = "cluster") -> None:
    """JobError for a bandwidth that a job states as a bare number beyond what its GPU is known to have.

    One beyond what it usually has is remarked on.
    """
    for key in LINKS:
        if not _is_beyond(cluster.gpu, key, stated.get(key)):
            _remark_on(cluster.gpu, key, stated.get(key))
            continue
        value, most = float(stated[key]), most_gbytes_per_s(cluster.gpu, key)
        raise JobError(
            f"{where}.{key} is in GB/s of one GPU in one direction, and {value:,.15g} is more than the {most:g} that "
            f"{cluster.gpu.id} may have ({_usual(cluster.gpu, key)}); {_meant(value, key, most, cluster)}"
            f"{value:g}GB/s if it is really {value:g} GB/s."
        )


def _is_beyond(gpu: Gpu, key: str, value: Any) -> bool:
    return key in LINKS and is_number(value) and float(value) > most_gbytes_per_s(gpu, key)


def _remark_on(gpu: Gpu, key: str, value: Any) -> None:
    usual = _rated_gbytes_per_s(gpu, key)
    if is_number(value) and not gpu.is_cpu and 0.0 < usual < float(value):
        _warn_once(
            f"{key} is {float(value):g} GB/s of one GPU in one direction, and {gpu.id} usually has {usual:g}; "
            f"{float(value):g} Gb/s would be {float(value) / BITS_PER_BYTE:g}."
        )


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)


def _usual(gpu: Gpu, key: str) -> str:
    usual = _rated_gbytes_per_s(gpu, key)
    return f"usually {usual:g}" if usual else "no source states more"


def _meant(value: float, key: str, most: float, cluster: Cluster) -> str:
    """The beginning of a question: what else the number may be, in its right words."""
    per_gpu = value / BITS_PER_BYTE
    if key == "intra_node_gbytes_per_s" and value / 2 <= most:
        return f"both directions together are twice one: write {value / 2:g}, or "
    if per_gpu <= most:
        return f"{value:g} Gb/s are {per_gpu:g}: write {value:g}Gb/s, or "
    if (of_node := per_gpu / cluster.gpus_per_node) <= most:
        return f"{value:g} Gb/s of a node are {of_node:g}: write '{value:g}Gb/s per node', or "
    return "write the figure with its unit, such as 400Gb/s, or "


def written(cluster: Cluster, key: str, value: Any) -> Any:
    """A bandwidth as a job file has it: with its unit where the bare number would be refused; others as they are."""
    return f"{value:.15g}GB/s" if _is_beyond(cluster.gpu, key, value) else value
