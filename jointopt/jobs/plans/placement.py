"""Which links the communication groups of a layout use: how many members share a scale-up domain.

Ranks are numbered as Megatron-LM's default order tp-cp-ep-dp-pp does: tp innermost, then cp, then dp, pp
outermost; experts number the ranks of a stage anew, etp innermost, then ep. Ranks that gather weights come right after
tp, of experts after ep (Megatron Core's _inject_gtp_remat_axis). A domain (NVLink switch, or the node) holds
consecutive ranks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import DEGREES, SPLIT_COLUMNS, Columns, Ints
from jointopt.jobs.cluster import Cluster


class Group(NamedTuple):
    """One kind of group for n plans: members, and how many of them share a domain in the worst place."""

    size: Ints
    local: Ints  # fewest members in any domain that a group touches: their links carry its traffic into it


def placement(layouts: Columns, domain: int, experts_span_tp: bool = True) -> dict[str, Group]:
    """Groups ``tp, cp, dp, dp_cp, etp, ep, expert_dp, pp`` of n layouts on domains of ``domain`` GPUs; arrays are (n,).

    ``dp_cp`` reduces the gradients of dense parameters, ``expert_dp`` those of experts; ``shard`` and ``expert_shard``
    are the parts of these that hold one copy of sharded states (consecutive members, as in Megatron Core and in
    PyTorch's HSDP), ``replica`` and ``expert_replica`` join the ``dp_replicate`` parts. ``gtp`` and ``egtp`` gather
    weights; the copies of what such a rank stores are the others of ``dp_cp`` and ``expert_dp``. ``pp`` is the pair of
    neighbouring stages: size 2 (1 without pipeline), local 2 only where all boundaries are inside a domain. Experts
    lie over all ranks of a stage, etp innermost, then ep, as Megatron Core's RankGenerator numbers them; where a
    framework keeps them inside dp*cp (not ``experts_span_tp``), ep has tp's ranks in between.
    """
    one = np.ones_like(layouts["tp"])
    layouts = {"etp": layouts["tp"], **dict.fromkeys(("dp_replicate", "gtp", "egtp"), one), **layouts}
    degrees = np.stack([np.asarray(layouts[name], np.int64) for name in SPLIT_COLUMNS])
    # Neighbouring layouts mostly differ in columns that placement does not read: work on the first of each run.
    starts = np.flatnonzero(np.any(np.diff(degrees, axis=1, prepend=0) != 0, axis=0))
    lengths = np.diff(starts, append=degrees.shape[1])
    groups = _groups(degrees[:, starts], domain, experts_span_tp)
    return {name: Group(*(np.repeat(part, lengths) for part in group)) for name, group in groups.items()}


def _groups(degrees: Ints, domain: int, experts_span_tp: bool) -> dict[str, Group]:
    dp, tp, pp, cp, ep, etp, replicas, gtp, egtp = degrees
    gpus, ranks, etp = tp * cp * dp * pp, tp * dp * cp, np.maximum(etp, 1)
    inner = etp if experts_span_tp else tp
    # copies of a weight and of an expert; one of plans that no framework starts, whose ranks are too few
    dp, copies = np.maximum(dp // gtp, 1), np.maximum(ranks // (inner * ep * egtp), 1)
    strides = _from_innermost(tp=tp, gtp=gtp, cp=cp, dp=dp)
    strides |= _from_innermost(inner=inner, ep=ep, egtp=egtp, expert_dp=copies)
    strides |= {"dp_cp": (cp * dp, tp * gtp), "etp": (etp, np.ones_like(tp)), "pp": (pp, ranks)}
    for name, whole in (("", "dp_cp"), ("expert_", "expert_dp")):
        members, stride = strides[whole]
        parts = np.minimum(replicas, members)
        strides[f"{name}shard"] = members // parts, stride
        strides[f"{name}replica"] = parts, stride * (members // parts)
    groups = {name: Group(n, members_per_domain(n, stride, gpus, domain)) for name, (n, stride) in strides.items()}
    chain = groups["pp"]
    pair_local = np.where((chain.size > 1) & (chain.local == chain.size), 2, 1)
    return groups | {"pp": Group(np.minimum(pp, 2), pair_local)}


def _from_innermost(**sizes: Ints) -> dict[str, tuple[Ints, Ints]]:
    """(size, stride) of groups along each axis of a grid of ranks, the first innermost, (n,) each."""
    found, stride = {}, np.ones_like(next(iter(sizes.values())))
    for name, size in sizes.items():
        found[name], stride = (size, stride), stride * size
    return found


def members_per_domain(size: Ints, stride: Ints, gpus: Ints, domain: int) -> Ints:
    """Fewest members of any group in any domain it touches; all arrays (n,).

    Groups tile the ranks 0..``gpus``-1: members are ``start + j*stride``, j < ``size``, and blocks of
    ``size*stride`` ranks follow each other.
    """
    block = size * stride
    inside = (gpus <= domain) | (domain % block == 0)
    aligned = (domain % stride == 0) & (block % domain == 0)
    local = np.where(inside, size, np.where(aligned, domain // stride, 1))
    # a border cuts one of the groups at least, which leaves a member of three or fewer alone
    odd = np.flatnonzero(~inside & ~aligned & (stride < domain) & (size > 3))
    for total in np.unique(gpus[odd]).tolist():  # rows that no shortcut answers, each distinct triple once
        rows = odd[gpus[odd] == total]
        pairs, back = np.unique(size[rows] << 32 | stride[rows], return_inverse=True)
        counts = [_fewest(pair >> 32, pair & 0xFFFFFFFF, total, domain) for pair in pairs.tolist()]
        local[rows] = np.asarray(counts, np.int64)[back]
    return local


def even_domain(cluster: Cluster) -> int:
    """The scale-up domain as a scheduler fills it, in GPUs: whole nodes, spread evenly over domains.

    A job of 512 GPUs on racks of 72 takes 64 in each of 8 racks rather than 72 in 7 and 8 in the last. Where no
    equal share fills at least half a rack, as few racks as possible hold the nodes, the last a little less.
    """
    most = max(cluster.scale_up_gpus // cluster.gpus_per_node, 1)
    equal = next(n for n in range(most, 0, -1) if cluster.nodes % n == 0)
    racks = -(-cluster.nodes // most)
    nodes = equal if 2 * equal >= most else -(-cluster.nodes // racks)
    return nodes * cluster.gpus_per_node


@functools.lru_cache(maxsize=65536)
def _fewest(size: int, stride: int, gpus: int, domain: int) -> int:
    """`members_per_domain` for one triple, over all places where a group can start in a domain."""
    common = math.gcd(stride, domain)  # ranks of one such bundle share their domain
    stride, gpus, domain = stride // common, gpus // common, domain // common
    if stride >= domain:
        return 1
    blocks = np.arange(0, gpus, size * stride) % domain
    starts = np.unique((np.unique(blocks)[:, np.newaxis] + np.arange(stride)) % domain)
    borders = np.arange(0, size * stride + 2 * domain, domain)
    first = np.clip(-(-(borders - starts[:, np.newaxis]) // stride), 0, size)  # member at or past it
    members = np.diff(first, axis=1)
    return int(members[members > 0].min())


# Orders in which programs number the ranks of a plan, and the pipeline stage of each rank.


# Megatron-LM's own; with tp, cp and dp inside of pp also that of torchtitan's mesh, of DeepSpeed's and nanotron's grids
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
TP_PP_DP_ORDER = "tp-cp-ep-pp-dp"  # Megatron-LM's --use-tp-pp-dp-mapping
NANOTRON_EXPERTS_ORDER = "tp-cp-pp-dp"  # nanotron's development branch for models with experts (ParallelContext)
NANOTRON_04_EXPERTS_ORDER = "tp-cp-dp-pp-ep"  # nanotron 0.4: whole pipelines for each part of the experts


def check_order(order: str) -> str:
    """``order`` itself, in small letters. UsageError where it is no order of tp, cp, dp, pp and perhaps ep."""
    found = order.lower().split("-")
    if sorted(set(found) - {"ep"}) != sorted(DEGREES) or len(set(found)) != len(found):
        raise UsageError(
            "An order of ranks holds each of tp, cp, dp and pp once, and perhaps ep, from the innermost outwards, as "
            f"in {DEFAULT_ORDER}; got {order!r}."
        )
    return order.lower()


def stage_of_rank(plan: Mapping[str, Any], ranks: Ints, order: str = DEFAULT_ORDER) -> Ints:
    """The pipeline stage of each global rank, as ``ranks`` in shape, of a plan (columns tp, cp, dp, pp, perhaps ep).

    Experts share the ranks of dp and cp, so that ``ep`` in an order has no size of its own, as in Megatron's generator
    of dense groups; outside of a pp that has dp inside, it takes its ranks out of dp, as nanotron 0.4 does.
    """
    axes, sizes = check_order(order).split("-"), {name: int(plan[name]) for name in DEGREES}
    inside = axes[: axes.index("pp")]
    if "ep" in axes and "ep" not in inside:
        sizes["dp"] //= math.gcd(sizes["dp"], int(plan.get("ep") or 1))
    stride = math.prod(sizes.get(name, 1) for name in inside)
    return np.asarray(ranks, np.int64) // stride % sizes["pp"]


def same_stages(plan: Mapping[str, Any], first: str, second: str) -> bool:
    """Whether two orders put all ranks of a plan on the same stages."""
    ranks = np.arange(math.prod(int(plan[name]) for name in DEGREES))
    return bool((stage_of_rank(plan, ranks, first) == stage_of_rank(plan, ranks, second)).all())
