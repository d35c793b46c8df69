"""What the energy of memory traffic and of communication is spent on, for one layout: by purpose, kind and link.

Nothing here is a second model. The split comes from pricing the same stages again: with links between nodes that cost
nothing, with a micro-batch twice as large (weights are read as often, activations twice as much), and with tp 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats
from jointopt.core.units import PICO
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import StageCosts, stage_costs


def memory_traffic_j(physics: CostModel, index: int) -> dict[str, Floats]:
    """Energy of device-memory traffic of one rank of each stage in one iteration by purpose, (pp,) J.

    ``weights`` (read, and their gradients written), ``activations``, ``tensor_parallel_rereads`` (activations that
    every rank of a tensor group reads and writes in full, beyond what tp 1 would), ``optimizer``.
    """
    layout = _layout(physics, index)
    pj = physics.power.pj_per_hbm_byte * PICO
    costs = physics.groups[int(physics.group_of[index])]
    row = int(physics.row_of[index])
    batches = float(costs.num_micro_batches[row])
    weights, activations = _affine(physics, layout)
    alone = _affine(physics, layout | {"tp": np.ones(1, np.int64), "sequence_parallel": np.zeros(1, bool)})[1]
    reread = np.maximum(activations - alone / float(layout["tp"][0]), 0.0)
    return {
        "weights": pj * batches * weights,
        "activations": pj * batches * (activations - reread),
        "tensor_parallel_rereads": pj * batches * reread,
        "optimizer": pj * costs.iteration_hbm_bytes[row],
    }


def communication_j(physics: CostModel, index: int) -> dict[str, dict[str, Floats]]:
    """Link energy of one rank of each stage in one iteration by kind of parallelism and by link, (pp,) J.

    Kinds as in the parts of the time (``tp_comm``, ...); links are ``intra_node`` (the scale-up domain) and
    ``inter_node``.
    """
    g, row = int(physics.group_of[index]), int(physics.row_of[index])
    free = replace(physics.hardware, inter_j_per_byte=0.0)
    inside = _link_parts(stage_costs(physics.job, free, _layout(physics, index)), 0)
    whole = _link_parts(physics.groups[g], row)
    return {
        kind: {"intra_node": inside[kind], "inter_node": np.maximum(joules - inside[kind], 0.0)}
        for kind, joules in whole.items()
    }


def _layout(physics: CostModel, index: int) -> Columns:
    return {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS}


def _link_parts(costs: StageCosts, row: int) -> dict[str, Floats]:
    batches, stages = float(costs.num_micro_batches[row]), np.ones(len(costs.layers))
    parts = {kind: batches * joules[row] * stages for kind, joules in costs.link_parts_j.items()}
    return parts | {"dp_comm": costs.iteration_link_j[row] * stages}


def _affine(physics: CostModel, layout: Columns) -> tuple[Floats, Floats]:
    """Bytes (pp,) of one micro-batch that do not and that do grow with its size."""
    larger = layout | {"micro_batch_size": 2 * layout["micro_batch_size"]}
    once, twice = (stage_costs(physics.job, physics.hardware, plan).hbm_bytes[0] for plan in (layout, larger))
    return 2.0 * once - twice, twice - once
