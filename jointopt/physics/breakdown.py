"""One plan taken apart: time on the critical path, energy and memory by part; the parts add up to the totals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.physics import costs as pc
from jointopt.physics.estimate import Estimator, StageTimes
from jointopt.schema import Floats


@dataclass(frozen=True)
class Breakdown:
    """Parts of one plan. Stage arrays have shape (pp,); energy is of all GPUs, memory of the heaviest rank (bytes)."""

    time_s: dict[str, float]
    energy_j: dict[str, float]
    memory_bytes: dict[str, float]
    layers: Floats
    clock_mhz: Floats  # reached, which a power or temperature limit may hold below the requested one
    busy_s: Floats
    idle_s: Floats
    stage_energy_j: Floats
    stage_memory_bytes: Floats
    stage_power_w: Floats
    stage_temperature_c: Floats


def breakdown(estimator: Estimator, index: int, stage_clock_mhz: Floats) -> Breakdown:
    """Take apart layout row ``index`` at one clock per stage, (pp,) in MHz."""
    g, rows = int(estimator.group_of[index]), estimator.row_of[[index]]
    costs = estimator.groups[g]
    t = estimator.times(g, rows, np.asarray(stage_clock_mhz, dtype=float)[None, : len(costs.layers)])
    parts = {k: v[0] for k, v in estimator.energy_parts(g, rows, t).items()}
    replicas = int(costs.replicas[rows[0]])
    per_rank = np.sum(list(parts.values()), axis=0)
    layout = {k: v[rows] for k, v in costs.layouts.items()}
    memory = {k: v[0] for k, v in pc.memory_parts(estimator.job, layout).items()}
    stage_memory = np.sum(list(memory.values()), axis=0)
    heaviest = int(stage_memory.argmax())
    batches = int(costs.num_micro_batches[rows[0]])
    busy = batches * (t.forward_s[0] + t.backward_s[0]) + costs.optimizer_s[rows[0]]
    total = float(t.total_s[0])
    return Breakdown(
        time_s=_time_parts(costs, int(rows[0]), t),
        energy_j={k: float(v.sum() * replicas) for k, v in parts.items()},
        memory_bytes={k: float(v[heaviest]) for k, v in memory.items()},
        layers=costs.layers,
        clock_mhz=t.clock_mhz[0],
        busy_s=busy,
        idle_s=total - busy,
        stage_energy_j=per_rank * replicas,
        stage_memory_bytes=stage_memory,
        stage_power_w=per_rank / total,
        stage_temperature_c=estimator.cooler.temperature_c((per_rank - parts["leakage"]) / total),
    )


def _time_parts(costs: pc.StageCosts, row: int, t: StageTimes) -> dict[str, float]:
    """Seconds on the critical path: what the slowest stage does all along, then what no stage can hide."""
    forward, backward = t.forward_s[0], t.backward_s[0]
    slowest = int((forward + backward).argmax())
    batches = int(costs.num_micro_batches[row])
    step = float(forward[slowest] + backward[slowest])
    kernels = batches * float(t.kernel_s[0, slowest])
    comm = {name: batches * float(s[row, slowest]) for name, s in costs.comm_parts_s.items()}
    pp_comm = 2.0 * batches * float(costs.p2p_s[row])
    gather = batches * float(np.broadcast_to(t.gather_exposed_s, t.kernel_s.shape)[0, slowest])
    parts = {"compute": kernels, **comm, "pp_comm": pp_comm, "zero_comm": gather}
    parts["host"] = batches * step - sum(parts.values())
    parts["bubble"] = float(t.makespan_s[0]) - batches * step
    parts["dp_comm"] = float(t.dp_exposed_s[0])
    parts["optimizer"] = float(t.optimizer_s[0])
    parts["other"] = float(t.total_s[0]) - sum(parts.values())
    return parts
