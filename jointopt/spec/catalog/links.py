"""Figures that stand in for what a cluster does not state: link latency and energy, host power, PUE, inlet air."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jointopt.spec.catalog.gpus import cite, read_yaml
from jointopt.spec.cluster import Gpu

_FILE = "links.yaml"
_USUAL_GPUS_PER_NODE = 8


class StandIn(NamedTuple):
    """A value for what a cluster does not state, and its source."""

    value: float
    source: str


def link_defaults(gpu: Gpu, gpus_per_node: int | None = None) -> Mapping[str, StandIn]:
    """The fields of `jointopt.spec.cluster.Cluster` that no catalogue of GPUs has, by field name.

    ``host_power_w`` is per node of ``gpus_per_node`` GPUs (the GPU's usual node, else 8). Energies are of the link
    alone, in pJ per bit and hop; the latency is per step of a ring between nodes, in microseconds.
    """
    facts, link = read_yaml(_FILE), link_of(gpu)
    hosts = facts["host_power_w_per_gpu"]
    host = _stand_in(hosts.get(gpu.id, hosts["other"]))
    node_gpus = gpus_per_node or gpu.usual_gpus_per_node or _USUAL_GPUS_PER_NODE
    return {
        "inter_node_latency_us": _stand_in(facts["inter_node_latency_us"][link]),
        "intra_node_pj_per_bit": _stand_in(facts["intra_node_pj_per_bit"][link]),
        "inter_node_pj_per_bit": _stand_in(facts["inter_node_pj_per_bit"]),
        "inlet_temperature_c": _stand_in(facts["inlet_temperature_c"]),
        "exhaust_rise_k": _stand_in(facts["exhaust_rise_k"]),
        "host_power_w": StandIn(host.value * node_gpus, host.source),
        "pue": _stand_in(facts["pue"]),
    }


def link_of(gpu: Gpu) -> str:
    """The link between the GPUs of one node: ``nvlink``, ``pcie`` or ``xgmi``."""
    links: dict[str, list[str]] = read_yaml(_FILE)["links"]
    return next((link for link, gpus in links.items() if gpu.id in gpus), "nvlink")


def _stand_in(cell: list[Any]) -> StandIn:
    return StandIn(float(cell[0]), cite(cell, _FILE))
