"""Figures of a cluster fitted to the times that `jointopt.measure.trainer.probe` read.

Links are nominal ones, as the job file has them, so that what the library loses on the way is counted once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from jointopt.core.schema import Floats
from jointopt.core.units import GB, MICRO
from jointopt.jobs.catalog.clusters import link_defaults
from jointopt.jobs.catalog.kernels import kernel_constants
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.kernels import CollectiveConstants, Links
from jointopt.physics.layers import STREAMED, gemm_time_s
from jointopt.physics.traffic import collective_time_s

Reading = Mapping[str, Any]
_BYTES_PER_S = (1e5, 1e14)  # of links that are looked for
_LATENCY_S = (1e-8, 0.1)
_ROUNDS = 4  # in which bandwidth and latency are solved for in turn


@dataclass(frozen=True)
class MachineFigures:
    """Figures by their names in the job file, and the median error in percent of the times that they give."""

    figures: Mapping[str, float]
    product_time_factor: Mapping[str, float]
    error_percent: Mapping[str, float]


def fit(readings: Reading, gpu: Gpu) -> MachineFigures:
    """The cluster figures that the readings of a probe determine; others are left out.

    A factor per dtype is the geometric mean of measured over modelled time of its products. The bandwidth of a link is
    that at which the largest message of each collective takes as long as measured, in the geometric mean; the latency
    between nodes that at which the smallest does.
    """
    copy = readings["copy"]
    gpu = replace(gpu, memory_gbytes_per_s=copy["bytes"] / copy["time_s"] / STREAMED / GB)
    factors, errors = _products(readings["products"], gpu)
    links, more_errors = _links(readings, gpu)
    figures = {"memory_gbytes_per_s": gpu.memory_gbytes_per_s, **links}
    figures, factors = ({name: float(f"{x:.4g}") for name, x in part.items()} for part in (figures, factors))
    return MachineFigures(figures, factors, errors | more_errors)


def _percent(log_ratio: Floats) -> float:
    return round(100.0 * float(np.median(np.abs(np.expm1(log_ratio)))), 1)


def _products(readings: Sequence[Reading], gpu: Gpu) -> tuple[dict[str, float], dict[str, float]]:
    """(factor on the time of products, median error in percent after it), by dtype that the GPU has a rate for."""
    gemm = kernel_constants(gpu).gemm
    factors, errors = {}, {}
    for dtype in sorted({one["dtype"] for one in readings} & gemm.dtype_time_factor.keys()):
        own = [one for one in readings if one["dtype"] == dtype]
        m, n, k, time_s = (np.array([one[name] for one in own], float) for name in ("m", "n", "k", "time_s"))
        ratio = np.log(time_s / np.add(*gemm_time_s(m, n, k, gemm, dtype)))
        factors[dtype] = float(np.exp(ratio.mean()))
        errors[f"products in {dtype}"] = _percent(ratio.mean() - ratio)
    return factors, errors


def _links(readings: Reading, gpu: Gpu) -> tuple[dict[str, float], dict[str, float]]:
    """(figures of links, median error in percent of the collectives that they give)."""
    inside, across = list[Reading](), list[Reading]()
    for one in readings["collectives"]:
        # members in one scale-up domain, which may be larger than a node
        domain_nodes = max((gpu.scale_up_gpus or 0) // readings["gpus_per_node"], 1)
        local = one["size"] // one["nodes"] * min(one["nodes"], domain_nodes)
        (inside if local == one["size"] else across).append({**one, "local": local})
    constants = kernel_constants(gpu).collectives
    latency_s = link_defaults(gpu)["inter_node_latency_us"].value * MICRO
    links, figures = Links((gpu.intra_node_gbytes_per_s or 1.0) * GB, GB, latency_s), {}
    if speed := _solved(inside, constants, "intra_bytes_per_s", links):
        links = replace(links, intra_bytes_per_s=speed)
        figures["intra_node_gbytes_per_s"] = speed / GB
    for _ in range(_ROUNDS):
        if not (speed := _solved(across, constants, "inter_bytes_per_s", links)):
            break
        links = replace(links, inter_bytes_per_s=speed)
        links = replace(links, inter_latency_s=_solved(across, constants, "inter_latency_s", links) or 0.0)
        figures["inter_node_gbytes_per_s"] = speed / GB
        figures["inter_node_latency_us"] = links.inter_latency_s / MICRO
    errors = {
        f"{kind} {where}": _percent(_log_ratio(own, constants, links))
        for where, found in (("inside a node", inside), ("between nodes", across))
        for kind, own in _by_kind(found).items()
    }
    return figures, errors


def _log_ratio(readings: Sequence[Reading], constants: CollectiveConstants, links: Links) -> Floats:
    """log(modelled / measured) of each reading of a collective, (n,)."""
    modelled = [
        collective_time_s(one["kind"], one["bytes"], one["size"], one["local"], constants, links) for one in readings
    ]
    return np.asarray(np.log(modelled) - np.log([one["time_s"] for one in readings]))


def _solved(readings: Sequence[Reading], constants: CollectiveConstants, name: str, links: Links) -> float | None:
    """The value of ``name`` in the links at which readings take as long as measured in the mean; None: there is none.

    A bandwidth follows from the largest messages of each kind, a latency from the smallest.
    """
    end, span = (min, _LATENCY_S) if name == "inter_latency_s" else (max, _BYTES_PER_S)
    some = [one for of in _by_kind(readings).values() for one in of if one["bytes"] == end(x["bytes"] for x in of)]

    def error(log_value: float) -> float:
        return float(_log_ratio(some, constants, replace(links, **{name: math.exp(log_value)})).mean())

    low, high = map(math.log, span)
    if not some or error(low) * error(high) > 0:
        return None
    return math.exp(brentq(error, low, high))


def _by_kind(readings: Sequence[Reading]) -> dict[str, list[Reading]]:
    """The readings of each kind of collective."""
    kinds = dict.fromkeys(one["kind"] for one in readings)
    return {kind: [one for one in readings if one["kind"] == kind] for kind in kinds}
