"""One plan taken apart: time on the critical path, energy and memory by part; the parts add up to the totals.

Memory traffic and links are split by pricing again: free links between nodes, a micro-batch twice as large, tp 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Columns, Floats, Ints
from jointopt.core.units import PICO
from jointopt.physics.cooling import electrical_limit_w, power_limit_w
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import stage_costs
from jointopt.physics.drawn import limit_left_w
from jointopt.physics.heat import peak_w, stage_positions_c, temperature_c
from jointopt.physics.makespan import StageTimes
from jointopt.physics.memory import memory_parts
from jointopt.physics.stage_costs import StageCosts


@dataclass(frozen=True)
class Breakdown:
    """Parts of one plan. Stage arrays have shape (pp,); energy is of all GPUs, memory of the heaviest rank (bytes)."""

    time_s: dict[str, float]
    energy_j: dict[str, float]
    memory_bytes: dict[str, float]
    layers: Floats
    clock_mhz: Floats  # reached, which a power or temperature limit may hold below the requested one
    held_by: tuple[str, ...]  # power_limit or temperature where it does, else empty
    busy_s: Floats
    idle_s: Floats
    stage_energy_j: Floats
    stage_energy_parts_j: dict[str, Floats]
    memory_energy_j: dict[str, float]  # of the part memory, by what was read and written
    communication_energy_j: dict[str, dict[str, float]]  # of the part communication, by kind and link
    gpus_per_stage: int
    stage_memory_bytes: Floats
    stage_power_w: Floats
    stage_peak_power_w: Floats  # while kernels run, of the hottest GPU
    stage_power_limit_w: Floats  # what a GPU may draw: the cluster's limit, or the plan's
    stage_temperature_c: Floats  # of the hottest position
    stage_position_c: dict[str, Floats]  # inlet, and exhaust where the node has one


def breakdown(physics: CostModel, index: int, stage_clock_mhz: Floats) -> Breakdown:
    """Take apart layout row ``index`` at one clock per stage (pp,) in MHz; what corrects totals corrects parts."""
    stretch, factor = float(physics.time_factor[index]), float(physics.power_factor[index])
    g, rows, at = int(physics.group_of[index]), physics.row_of[[index]], np.array([index])
    costs = physics.groups[g]
    queried_mhz = np.asarray(stage_clock_mhz, dtype=float)[: costs.depth]
    t = physics.times(g, rows, queried_mhz[None, :])
    parts = {k: v[0] for k, v in physics.energy_parts(g, rows, t).items()}
    parts["static"] = parts["static"] + float(physics.power_offset_w[index]) / factor * float(t.total_s[0])
    replicas = int(costs.replicas[rows[0]])
    per_rank = np.sum(list(parts.values()), axis=0)
    layout = {k: v[rows] for k, v in costs.layouts.items()}
    memory = {k: physics.memory_factor * v[0] for k, v in memory_parts(physics.job, layout).items()}
    stage_memory = np.sum(list(memory.values()), axis=0)
    heaviest = int(stage_memory.argmax())
    batches = int(costs.num_micro_batches[rows[0]])
    busy = batches * (t.forward_s[0] + t.backward_s[0]) + costs.optimizer_s[rows[0]]
    total = float(t.total_s[0])
    scale = replicas * stretch * factor
    limit_w = power_limit_w(physics.job.cluster, physics.layouts, at, len(busy))
    limit_w = np.broadcast_to(limit_w, (1, len(busy)))[0]
    left_w = np.broadcast_to(physics.limits_w[g], physics.ceilings[g].shape)[rows[0]]
    met_w = electrical_limit_w(limit_left_w(physics, at, len(busy)), physics.cooler)
    hot = left_w < np.broadcast_to(met_w, (1, len(busy)))[0] * (1.0 - 1e-9)
    exhaust = physics.in_exhaust(g, rows)[0]
    why = np.where(hot & exhaust, "temperature", "power_limit")
    return Breakdown(
        time_s={name: stretch * float(v[0]) for name, v in time_parts(costs, rows, t).items()},
        energy_j={k: float(v.sum() * scale) for k, v in parts.items()},
        memory_bytes={k: float(v[heaviest]) for k, v in memory.items()}, layers=costs.layers[rows[0]],
        clock_mhz=t.clock_mhz[0],
        held_by=tuple(np.where(t.clock_mhz[0] < queried_mhz * (1.0 - 1e-9), why, "").tolist()),
        busy_s=busy * stretch, idle_s=(total - busy) * stretch, stage_energy_j=per_rank * scale,
        stage_energy_parts_j={k: v * scale for k, v in parts.items()},
        memory_energy_j={k: float(v.sum() * scale) for k, v in memory_traffic_j(physics, index).items()},
        communication_energy_j={
            kind: {link: float(v.sum() * scale) for link, v in links.items()}
            for kind, links in communication_j(physics, index).items()
        },
        gpus_per_stage=replicas, stage_memory_bytes=stage_memory,
        stage_power_w=factor * per_rank / total,
        stage_peak_power_w=peak_w(physics, at, t)[0], stage_power_limit_w=limit_w,
        stage_temperature_c=temperature_c(physics, at, t)[0],
        stage_position_c=stage_positions_c(physics, at, t),
    )  # fmt: skip


def time_parts(costs: StageCosts, rows: Ints, t: StageTimes) -> dict[str, Floats]:
    """Seconds (n,) on the critical path: what the slowest stage does all along, then what no stage can hide.

    ``bubble``: the makespan less the slowest stage's own work, (p - 1)/m of it for equal stages (Narayanan et al.
    2021, arXiv:2104.04473, section 2.2.1); the split of the rest is derived here.
    """
    step = t.forward_s + t.backward_s
    slowest = step.argmax(axis=1)
    batches = costs.num_micro_batches[rows]

    def of_slowest(values: Floats) -> Floats:
        return np.asarray(np.broadcast_to(values, step.shape)[np.arange(len(rows)), slowest])

    parts = {"compute": batches * of_slowest(t.kernel_s)}
    parts |= {name: batches * of_slowest(seconds[rows]) for name, seconds in costs.comm_parts_s.items()}
    parts["pp_comm"] = 2.0 * batches * costs.p2p_s[rows]
    parts["zero_comm"] = batches * of_slowest(t.gather_exposed_s)
    running = batches * of_slowest(step)
    parts["host"] = running - sum(parts.values(), np.zeros(len(rows)))
    parts["bubble"] = t.makespan_s - running
    parts["dp_comm"] = t.dp_exposed_s
    parts["optimizer"] = t.optimizer_s
    parts["other"] = t.total_s - sum(parts.values(), np.zeros(len(rows)))
    return parts


def memory_traffic_j(physics: CostModel, index: int) -> dict[str, Floats]:
    """Energy of device-memory traffic of one rank of each stage in one iteration by purpose, (pp,) J.

    ``weights`` (read, and their gradients written), ``activations``, ``tensor_parallel_rereads`` (activations that
    every rank of a tensor group reads and writes in full, beyond what tp 1 would), ``optimizer``. Derived here: the
    same stages priced with twice the micro-batch and with tp 1.
    """
    layout = {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS}
    pj = physics.power.pj_per_hbm_byte * PICO
    costs = physics.groups[int(physics.group_of[index])]
    row = int(physics.row_of[index])
    batches = float(costs.num_micro_batches[row])
    weights, activations = _affine(physics, layout)
    whole = {"tp": np.ones(1, np.int64), "etp": np.minimum(layout["etp"], 1), "sequence_parallel": np.zeros(1, bool)}
    alone = _affine(physics, layout | whole)[1]
    reread = np.maximum(activations - alone / float(layout["tp"][0]), 0.0)
    return {
        "weights": pj * batches * weights,
        "activations": pj * batches * (activations - reread),
        "tensor_parallel_rereads": pj * batches * reread,
        "optimizer": pj * costs.iteration_hbm_bytes[row],
    }


def communication_j(physics: CostModel, index: int) -> dict[str, dict[str, Floats]]:
    """Link energy of one rank of each stage in one iteration by kind of parallelism and by link, (pp,) J.

    Kinds as in the parts of the time (``tp_comm``, ...), by `collectives.link_bytes`; ``intra_node`` is the scale-up
    domain, the part left where links between nodes are free.
    """
    g, row = int(physics.group_of[index]), int(physics.row_of[index])
    free = replace(physics.hardware, inter_j_per_byte=0.0)
    layout = {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS}
    inside = _link_parts(stage_costs(physics.job, free, layout), 0)
    whole = _link_parts(physics.groups[g], row)
    return {
        kind: {"intra_node": inside[kind], "inter_node": np.maximum(joules - inside[kind], 0.0)}
        for kind, joules in whole.items()
    }


def _link_parts(costs: StageCosts, row: int) -> dict[str, Floats]:
    batches, stages = float(costs.num_micro_batches[row]), np.ones(costs.depth)
    parts = {kind: batches * joules[row] * stages for kind, joules in costs.link_parts_j.items()}
    return parts | {"dp_comm": costs.iteration_link_j[row] * stages}


def _affine(physics: CostModel, layout: Columns) -> tuple[Floats, Floats]:
    """Bytes (pp,) of one micro-batch that do not and that do grow with its size."""
    larger = layout | {"micro_batch_size": 2 * layout["micro_batch_size"]}
    plans = [stage_costs(physics.job, physics.hardware, plan) for plan in (layout, larger)]
    once, twice = (costs.hbm_bytes[0] for costs in plans)
    return 2.0 * once - twice, twice - once
