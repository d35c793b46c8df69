"""Which collectives hide under kernels, as a plan chooses it or as its framework does by itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jointopt.core.schema import OVERLAP, Bools, Floats, Ints
from jointopt.spec.framework import Framework

KINDS = tuple(name for name in OVERLAP.names if name != "none")


def usual_share(framework: Framework, kind: str) -> float:
    """The share that hides where a plan does not state it: 0 where the framework leaves that overlap off."""
    return framework.dp_overlap if kind == "dp" else framework.tp_overlap


def chosen_share(framework: Framework, kind: str) -> float:
    """The share that hides where a plan has that overlap on; 0 where the framework leaves no choice."""
    return framework.chosen_dp_overlap if kind == "dp" else framework.chosen_tp_overlap


def share(framework: Framework, kind: str, codes: Ints) -> Floats | float:
    """The share of a kind's collectives that may hide, of layouts with these ``overlap`` (n,), or one of all."""
    usual = usual_share(framework, kind)
    if not codes.any():
        return usual
    on = np.where(_has(codes, kind), chosen_share(framework, kind) or usual, 0.0)
    return np.asarray(np.where(codes > 0, on, usual))


def _has(codes: Ints, name: str) -> Bools:
    """Whether ``name`` is among the choices of ``overlap`` codes."""
    return (codes & OVERLAP.bit(name)).astype(bool)


def is_on(framework: Framework, kind: str, text: str) -> bool:
    """Whether a plan with this ``overlap`` has a kind's overlap on."""
    return float(np.max(share(framework, kind, np.array([OVERLAP.code(text)])))) > 0.0


def has_effect(layouts: Mapping[str, Ints], kind: str = "") -> Bools:
    """Where a layout has collectives of a kind; of any by default."""
    sharded, cut = layouts["dp"] * layouts["cp"] > 1, layouts["tp"] > 1
    return np.asarray({"dp": sharded, "tp": cut}.get(kind, sharded | cut))


def not_offered(framework: Framework, layouts: Mapping[str, Ints]) -> Bools:
    """Where a choice turns on or off what the framework leaves no choice of."""
    codes = layouts["overlap"]
    wrong = np.zeros(codes.shape, bool)
    if not codes.any():
        return wrong
    for kind in KINDS:
        turned = _has(codes, kind) != (usual_share(framework, kind) > 0.0)
        wrong = wrong | (codes > 0) & has_effect(layouts, kind) & turned & (chosen_share(framework, kind) == 0.0)
    return np.asarray(wrong)
