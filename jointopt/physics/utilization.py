"""How busy one plan keeps GPUs and links: outputs alone, which nothing of time or energy reads."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Floats
from jointopt.core.units import GB
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import stage_costs
from jointopt.physics.stage_costs import StageCosts


@dataclass(frozen=True)
class Utilization:
    """Shares of an iteration, (pp,) of a GPU of each stage.

    ``kernels``: compute and optimizer kernels run (NVIDIA's profiling counters call it SM activity). ``occupied``: they
    or passes that wait for collectives and for the host inside them, all but bubbles and the end of the iteration.
    ``links``: bytes that a GPU sends over each class of link, over what the link carries in that time.
    """

    kernels: Floats
    occupied: Floats
    links: dict[str, Floats]  # intra_node (the scale-up domain) and inter_node
    link_bytes: dict[str, Floats]


def utilization(physics: CostModel, index: int, stage_clock_mhz: Floats) -> Utilization:
    """Utilization of layout row ``index`` at one clock per stage (pp,) in MHz; corrections of time stretch links."""
    g, row = int(physics.group_of[index]), physics.row_of[[index]]
    costs, cluster = physics.groups[g], physics.job.cluster
    t = physics.times(g, row, np.asarray(stage_clock_mhz, float)[None, : costs.depth])
    batches, total = float(costs.num_micro_batches[row[0]]), float(t.total_s[0])
    whole, step = total * float(physics.time_factor[index]), costs.optimizer_s[row[0]]
    sent = _sent_bytes(physics, index)
    speed = {"intra_node": cluster.intra_node_gbytes_per_s, "inter_node": cluster.inter_node_gbytes_per_s}
    return Utilization(
        kernels=(batches * t.kernel_s[0] + step) / total,
        occupied=(batches * (t.forward_s[0] + t.backward_s[0]) + step) / total,
        links={link: moved / (speed[link] * GB * whole) for link, moved in sent.items()},
        link_bytes=sent,
    )


def _sent_bytes(physics: CostModel, index: int) -> dict[str, Floats]:
    """Bytes (pp,) that a GPU of each stage sends in one iteration by class of link: joules at one joule per byte."""
    layout = {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS}
    found = {}
    for link, (intra, inter) in {"intra_node": (1.0, 0.0), "inter_node": (0.0, 1.0)}.items():
        counting = replace(physics.hardware, intra_j_per_byte=intra, inter_j_per_byte=inter)
        found[link] = _whole_bytes(stage_costs(physics.job, counting, layout))
    return found


def _whole_bytes(costs: StageCosts) -> Floats:
    return np.asarray(float(costs.num_micro_batches[0]) * costs.link_j[0] + costs.iteration_link_j[0])
