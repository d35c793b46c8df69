"""Figures that stand in for what a cluster does not state: link latency and energy, host power, PUE, inlet air."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jointopt.spec.catalog.gpu_sheet import cite, read_yaml
from jointopt.spec.cluster import Gpu

_FILE = "links.yaml"
_USUAL_GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Assumption:
    """A value that was not stated for this cluster, and the source of what stands in for it."""

    value: float
    source: str


def link_defaults(gpu: Gpu, gpus_per_node: int | None = None) -> Mapping[str, Assumption]:
    """The fields of `jointopt.spec.cluster.Cluster` that no catalogue of GPUs has, by field name.

    ``host_power_w`` is per node of ``gpus_per_node`` GPUs (the GPU's usual node, else 8). Energies are of the link
    alone, in pJ per bit and hop; the latency is per step of a ring between nodes, in microseconds.
    """
    facts, link = read_yaml(_FILE), link_of(gpu)
    hosts = facts["host_power_w_per_gpu"]
    host = _assumption(hosts.get(gpu.id, hosts["other"]))
    node_gpus = gpus_per_node or gpu.usual_gpus_per_node or _USUAL_GPUS_PER_NODE
    return {
        "inter_node_latency_us": _assumption(facts["inter_node_latency_us"][link]),
        "intra_node_pj_per_bit": _assumption(facts["intra_node_pj_per_bit"][link]),
        "inter_node_pj_per_bit": _assumption(facts["inter_node_pj_per_bit"]),
        "inlet_temperature_c": _assumption(facts["inlet_temperature_c"]),
        "exhaust_rise_k": _assumption(facts["exhaust_rise_k"]),
        "host_power_w": Assumption(host.value * node_gpus, host.source),
        "pue": _assumption(facts["pue"]),
    }


def link_of(gpu: Gpu) -> str:
    """The link between the GPUs of one node: ``nvlink``, ``pcie`` or ``xgmi``."""
    links: dict[str, list[str]] = read_yaml(_FILE)["links"]
    return next((link for link, gpus in links.items() if gpu.id in gpus), "nvlink")


def _assumption(cell: list[Any]) -> Assumption:
    return Assumption(float(cell[0]), cite(cell, _FILE))
