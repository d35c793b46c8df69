"""Clusters: a mapping of a job file, or a name of ``clusters.yaml``, into a fully filled `Cluster`.

What a mapping leaves open comes from the GPU catalogue, or is assumed in an entry of ``Cluster.assumed`` with its key.
No figure is silent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from jointopt.core.errors import CatalogError, JobError, nearest_hint
from jointopt.core.facts import Assumption
from jointopt.core.schema import COLUMNS, LEAST_LINK_GBYTES_PER_S
from jointopt.jobs.catalog.catalog_files import cite, read_yaml
from jointopt.jobs.catalog.gpus import load_gpu, own_gpu
from jointopt.jobs.catalog.limits import limited_number, limited_whole
from jointopt.jobs.catalog.networks import LINKS, bandwidth, link_of
from jointopt.jobs.cluster import Cluster, Gpu, parse_machine, with_machine
from jointopt.jobs.reading import Section, is_whole

FIGURES = (
    "intra_node_gbytes_per_s", "inter_node_gbytes_per_s", "inter_node_latency_us", "intra_node_pj_per_bit",
    "inter_node_pj_per_bit", "inlet_temperature_c", "exhaust_rise_k", "host_power_w", "host_load_share", "pue",
    "power_limit_w",
)  # fmt: skip
SIZES = ("gpu", "nodes", "gpus_per_node")
SITE = (
    "carbon_kg_per_kwh",
    "price_per_kwh",
    "price_per_gpu_hour",
    "currency",
    "exhaust_ranks",
    "cooling",
)  # of the site; all optional
COOLINGS = ("air", "liquid")  # fans carry the heat of GPUs away, or cold plates and immersion do
KEYS = ("catalog", "name", *SIZES, "memory_gib", *FIGURES, *SITE, "machine")
_UNITS = {  # of figures that may be zero, but for the PUE, which is 1 at the least
    "inter_node_latency_us": " µs", "intra_node_pj_per_bit": " pJ/bit", "inter_node_pj_per_bit": " pJ/bit",
    "inlet_temperature_c": " °C", "exhaust_rise_k": " K", "host_power_w": " W per node",
    "host_load_share": " W per W of its GPUs", "pue": "",
}  # fmt: skip


def cluster_names() -> tuple[str, ...]:
    """Every cluster name of the catalogue."""
    return tuple(read_yaml("clusters.yaml"))


def load_cluster(name: str) -> Cluster:
    """The cluster of that catalogue name in its full size; `CatalogError` names the nearest known one."""
    return build_cluster({"catalog": name})


def build_cluster(mapping: Mapping[str, Any]) -> Cluster:
    """The cluster that a job file describes: ``gpu``, ``nodes``, ``gpus_per_node``, any of `FIGURES`.

    ``memory_gib`` replaces the catalogue's memory of a GPU; ``catalog`` starts from an entry that other keys override;
    ``machine`` is what `jointopt.jobs.cluster.parse_machine` reads, whose figures stand in for what no key states.
    Raises JobError for a bad key or value, CatalogError for an unknown name or for a figure that neither the job nor
    the catalogue states.
    """
    given = section = Section(mapping, "cluster").only(KEYS)
    if given.has("catalog"):
        name, entries = given.text("catalog"), read_yaml("clusters.yaml")
        if name.lower() not in entries:
            raise CatalogError(
                f"The cluster {name!r} is not in the catalogue{nearest_hint(name, entries)}; expected one of "
                f"{', '.join(entries)}, or a mapping with gpu, nodes and gpus_per_node."
            )
        entry = {key: value for key, value in entries[name.lower()].items() if key in KEYS}
        own = {key: value for key, value in mapping.items() if key != "catalog" and value is not None}
        section = Section({"name": name.lower()} | entry | own, "cluster")
    gpu = _gpu(section)
    if isinstance(section.values.get("nodes"), list):
        raise JobError(
            f"{section.at('nodes')} is a list; `jointopt scale` compares several sizes, other verbs take one."
        )
    nodes = limited_whole(section, "nodes", "cluster.nodes")
    per_node, assumed = gpu.usual_gpus_per_node or 0, []
    if section.has("gpus_per_node") or not per_node:
        per_node = limited_whole(section, "gpus_per_node", "cluster.gpus_per_node")
    else:
        usual = f"the usual {per_node} of {gpu.id} are assumed"
        assumed.append(Assumption.not_given("gpus_per_node", per_node, str(per_node), usual))
    if gpu.like:
        assumed.append(Assumption("like", gpu.like, f"{gpu.id}: what is not given is that of {gpu.like}"))
    figures: dict[str, Any] = {}
    for key in FIGURES:
        figures[key], stand_in = _figure(section, key, gpu, nodes, per_node)
        assumed += [stand_in] if stand_in else []
    lowest, highest = gpu.power_limit_span_w
    if section.has("power_limit_w") and not lowest <= figures["power_limit_w"] <= highest:
        raise section.refuse("power_limit_w", f"at least {lowest:g} and at most {highest:g} W for {gpu.id}")
    figures |= _site(section, per_node) | {"name": section.text("name", "")}
    stated = frozenset(key for key in (*FIGURES, "memory_gib") if given.has(key))
    cluster = Cluster(
        gpu=gpu, nodes=nodes, gpus_per_node=per_node, assumed=tuple(assumed), stated=stated, **figures
    )  # fmt: skip
    machine = section.section("machine")
    return with_machine(cluster, parse_machine(machine.values, machine.where) if section.has("machine") else None)


def _gpu(section: Section) -> Gpu:
    """The catalogue's GPU, with the memory that the job states, or a GPU of the job's own."""
    given = section.values.get("gpu")
    if isinstance(given, list):
        raise JobError(f"{section.at('gpu')} is a list; `jointopt scale` compares several GPUs, other verbs take one.")
    try:
        gpu = own_gpu(given, section.at("gpu")) if isinstance(given, Mapping) else load_gpu(section.text("gpu"))
    except CatalogError as error:
        raise CatalogError(f"{section.at('gpu')}: {error}") from error
    if not section.has("memory_gib"):
        return gpu
    return dataclasses.replace(gpu, memory_gib=limited_number(section, "memory_gib", "cluster.memory_gib"))


def _site(section: Section, per_node: int) -> dict[str, Any]:
    """Carbon and price of electricity, price of a GPU, cooling and exhaust row, where they are given."""
    rates = ("carbon_kg_per_kwh", "price_per_kwh", "price_per_gpu_hour")
    site: dict[str, Any] = {
        key: limited_number(section, key, f"cluster.{key}", zero=True) for key in rates if section.has(key)
    }
    if section.has("cooling"):
        site["cooling"] = section.choice("cooling", COOLINGS)
    if section.has("currency"):
        if not {"price_per_kwh", "price_per_gpu_hour"} & site.keys():
            raise section.refuse("price_per_kwh", "a price of electricity (or price_per_gpu_hour) in that currency")
        site["currency"] = section.text("currency", most=12)
    if section.has("exhaust_ranks"):
        ranks = section.values["exhaust_ranks"]
        good = isinstance(ranks, list) and all(is_whole(rank) and 0 <= rank < per_node for rank in ranks)
        if not good or not 0 < len(set(ranks)) == len(ranks) < per_node:
            raise section.refuse(
                "exhaust_ranks", f"a list of some, not all, local ranks from 0 to {per_node - 1}, each once"
            )
        site["exhaust_ranks"] = tuple(sorted(int(rank) for rank in ranks))
    return site


def _figure(section: Section, key: str, gpu: Gpu, nodes: int, per_node: int) -> tuple[float, Assumption | None]:
    """(a figure, the assumption where it is neither stated nor looked up)."""
    if key == "host_load_share" and section.has("host_power_w") and not section.has(key):
        return 0.0, None  # what is stated of a host is all of it
    if not section.has(key):
        return _left_open(key, gpu, nodes, per_node, section.choice("cooling", COOLINGS, ""))
    if key in LINKS and isinstance(section.values[key], str):
        section = Section({key: bandwidth(section, key, per_node)}, section.where)
    if key == "inter_node_gbytes_per_s":  # which tables have too; `check_links` has what a job file may state
        value = section.number(key, COLUMNS[key].high)
    else:
        value = limited_number(section, key, f"cluster.{key}", zero=_UNITS.get(key, "") != "")
    if key == "pue" and value < 1:
        raise section.refuse(key, "a number from 1 (all power reaches the computers) to 10")
    if key in LINKS and value < LEAST_LINK_GBYTES_PER_S:
        raise section.refuse(key, f"at least {LEAST_LINK_GBYTES_PER_S:g} GB/s, 8 Mb/s (is it in GB/s, per GPU?)")
    return value, None


def _left_open(key: str, gpu: Gpu, nodes: int, per_node: int, cooling: str) -> tuple[float, Assumption | None]:
    """A figure that a mapping leaves open; silent where it is one of a link that the cluster does not have."""
    usual = gpu.usual_inter_node_gbytes_per_s
    no_network = usual or gpu.intra_node_gbytes_per_s or 1.0  # of a link between nodes that is never used
    if key == "inter_node_gbytes_per_s" and nodes == 1:
        return no_network, None
    if key == "inter_node_gbytes_per_s" and usual is None:
        raise JobError(
            f"cluster.inter_node_gbytes_per_s is missing, and no source states a usual figure for {gpu.id}; "
            f"expected the bandwidth between nodes, per GPU and direction, in GB/s "
            f"(without a job file: --network 400G, or --inter-node-gbytes-per-s)."
        )
    if key == "inter_node_gbytes_per_s":
        text = f"{usual:g} GB/s per GPU"
        source = f"{text} are assumed, as in the reference system of {gpu.id}"
        return usual or no_network, Assumption.not_given(key, usual, text, source)
    if key == "intra_node_gbytes_per_s":
        if per_node == 1 and gpu.intra_node_gbytes_per_s is None:  # no second GPU to talk to
            return _left_open("inter_node_gbytes_per_s", gpu, nodes, per_node, cooling)[0], None
        return gpu.need(key, "time collectives inside a node"), None
    if key == "power_limit_w" and gpu.is_cpu:  # nothing here caps its power, and nothing says what it is
        reason = "only times are predicted, and time is the only objective"
        return math.inf, Assumption(key, math.inf, f"nothing is known of the power of a {gpu.id}; {reason}")
    if key == "power_limit_w":
        return gpu.need("tdp_w", "cap the power of a GPU (give cluster.power_limit_w)"), None
    value, source = link_defaults(gpu, per_node, cooling)[key]
    if nodes == 1 and key.startswith("inter_node"):
        return value, None
    text = f"{value:g}{_UNITS[key]}"
    return value, Assumption.not_given(key, value, text, f"{text} is assumed ({source})")


# --- figures of links, hosts and air that no catalogue of GPUs has


class StandIn(NamedTuple):
    """A value for what a cluster does not state, and its source."""

    value: float
    source: str


def link_defaults(gpu: Gpu, gpus_per_node: int | None = None, cooling: str = "") -> Mapping[str, StandIn]:
    """The fields of `jointopt.jobs.cluster.Cluster` that no catalogue of GPUs has, by field name.

    ``host_power_w`` is the part of a host that does not follow its load, per node of ``gpus_per_node`` GPUs (the GPU's
    usual node, else 8), ``host_load_share`` the part that does, over the power of its GPUs: supplies, switches, and the
    fans of a node that is cooled by air (``cooling``, as usual for the GPU where it is blank). Energies are of the link
    alone, in pJ per bit and hop; the latency is per step of a ring between nodes, in microseconds.
    """
    facts, link = read_yaml("links.yaml"), link_of(gpu)
    of_all = ("inter_node_pj_per_bit", "inlet_temperature_c", "exhaust_rise_k", "pue")
    cells = {key: facts[key][link] for key in ("inter_node_latency_us", "intra_node_pj_per_bit")}
    cells |= {key: facts[key] for key in (*of_all, "fan_share")}
    of_node = ("host_power_w_per_gpu", "host_load_share", "cooling")
    nodes = {key: facts[key].get(gpu.catalogue_id, facts[key]["other"]) for key in of_node}
    cells |= {key: nodes[key] for key in of_node[:2]}
    found = {key: StandIn(float(cell[0]), cite(cell, "links.yaml")) for key, cell in cells.items()}
    host, supplies, fans = (found.pop(key) for key in ("host_power_w_per_gpu", "host_load_share", "fan_share"))
    by_air = StandIn(
        round(supplies.value + fans.value, 4), f"cooled by air: {supplies.source}; and fans: {fans.source}"
    )
    by_liquid = StandIn(supplies.value, f"cooled by liquid: {supplies.source}")
    return found | {
        "host_power_w": StandIn(host.value * (gpus_per_node or gpu.usual_gpus_per_node or 8), host.source),
        "host_load_share": by_liquid if (cooling or nodes["cooling"]) == "liquid" else by_air,
    }


def with_host_at(cluster: Cluster, end: str) -> Cluster:
    """The cluster with hosts at the ``low`` or ``high`` end of what nodes were measured at, where they are assumed."""
    factor, keys = float(read_yaml("links.yaml")["host_errors"][end]), ("host_power_w", "host_load_share")
    assumed: dict[str, Any] = {key: factor * getattr(cluster, key) for key in keys if cluster.origin(key) == "assumed"}
    return dataclasses.replace(cluster, **assumed)
