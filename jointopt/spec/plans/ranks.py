"""Orders in which programs number the ranks of a plan, and the pipeline stage of each rank.

An order names the parallelisms from the innermost, whose ranks are neighbours, outwards, as the strings of Megatron
Core's ``RankGenerator`` do (megatron/core/parallel_state.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import Ints

# Megatron-LM's own; with tp, cp and dp inside of pp also that of torchtitan's mesh, of DeepSpeed's and nanotron's grids
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
TP_PP_DP_ORDER = "tp-cp-ep-pp-dp"  # Megatron-LM's --use-tp-pp-dp-mapping
NANOTRON_EXPERTS_ORDER = "tp-cp-pp-dp"  # nanotron's development branch for models with experts (ParallelContext)
NANOTRON_04_EXPERTS_ORDER = "tp-cp-dp-pp-ep"  # nanotron 0.4: whole pipelines for each part of the experts
_AXES = ("tp", "cp", "dp", "pp")


def check_order(order: str) -> str:
    """``order`` itself, in small letters. UsageError where it is no order of tp, cp, dp, pp and perhaps ep."""
    found = order.lower().split("-")
    if sorted(set(found) - {"ep"}) != sorted(_AXES) or len(set(found)) != len(found):
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
    axes = check_order(order).split("-")
    sizes = {name: int(plan[name]) for name in _AXES}
    inside = axes[: axes.index("pp")]
    if "ep" in axes and "ep" not in inside:
        sizes["dp"] //= math.gcd(sizes["dp"], int(plan.get("ep") or 1))
    stride = math.prod(sizes.get(name, 1) for name in inside)
    return np.asarray(ranks, np.int64) // stride % sizes["pp"]


def same_stages(plan: Mapping[str, Any], first: str, second: str) -> bool:
    """Whether two orders put all ranks of a plan on the same stages."""
    ranks = np.arange(math.prod(int(plan[name]) for name in _AXES))
    return bool((stage_of_rank(plan, ranks, first) == stage_of_rank(plan, ranks, second)).all())
