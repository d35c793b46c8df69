"""Collectives inside layers of each kind, and their sums over the layers of a stage."""

from __future__ import annotations

import functools
import operator

from jointopt.jobs.job import Job
from jointopt.jobs.plans.placement import Group
from jointopt.physics import traffic
from jointopt.physics.layer_costs import LayerCosts
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.traffic import ep_traffic

PerLayer = tuple[traffic.Traffic | None, ...]  # by kind of layer, as `Split.kinds`


def layer_traffic(
    job: Job, hw: traffic.Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: LayerCosts
) -> dict[str, PerLayer]:
    """Collectives of one micro-batch inside one layer, by kind of parallelism; None where a layer has none.

    Of each kind those of a dense and of an MoE layer, and of either that looks back a window: keys and values of the
    whole sequence go to all context-parallel ranks all the same, as Transformer Engine's all-gather form has it.
    """
    found = _layer_traffic(job, hw, lay, groups, layer)
    if layer.windowed is None:
        return found
    windowed = _layer_traffic(job, hw, lay, groups, layer.windowed)
    return {name: of_kinds + windowed[name] for name, of_kinds in found.items()}


def _layer_traffic(
    job: Job, hw: traffic.Hardware, lay: LayoutArrays, groups: dict[str, Group], layer: LayerCosts
) -> dict[str, PerLayer]:
    """Collectives of a dense and of an MoE layer whose queries meet the same keys."""
    core = traffic.cp_traffic(job, hw, lay, groups, layer.core)
    dense = traffic.tp_traffic(job, hw, lay, groups, layer.dense)
    if job.training.frozen:
        dense = dense + traffic.adapter_traffic(job, hw, lay, groups, "dense")
    found: dict[str, PerLayer] = {"tp_comm": (dense, None), "cp_comm": (core, None)}
    if job.model.is_moe:
        routed = traffic.tp_traffic(job, hw, lay, groups, layer.moe, routed=True)
        if job.training.frozen:
            routed = routed + traffic.adapter_traffic(job, hw, lay, groups, "moe")
        found["tp_comm"], found["cp_comm"] = (dense, routed), (core, core)
        found["ep_comm"] = (None, ep_traffic(job, hw, lay, groups, layer.moe))
    return found


def over_stages(lay: LayoutArrays, one: PerLayer) -> traffic.Traffic:
    """The collectives of all layers of each stage, (L, pp)."""
    parts = [part.over(count) for part, count in zip(one, lay.layers_of_kinds, strict=True) if part is not None]
    return functools.reduce(operator.add, parts)
