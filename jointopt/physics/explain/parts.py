"""One plan taken apart: time on the critical path, energy and memory by part; the parts add up to the totals.

Memory traffic and links are split by pricing again: free links between nodes, a micro-batch twice as large, tp 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jointopt.core.schema import LAYOUT_COLUMNS, Floats
from jointopt.core.units import GB, PICO
from jointopt.jobs.job import ScalingRecipe
from jointopt.jobs.plans.placement import Group
from jointopt.physics import traffic
from jointopt.physics.cooling import electrical_limit_w, power_limit_w
from jointopt.physics.cost_model import CostModel, limit_in_physics_w, peak_w, stage_positions_c, temperature_c
from jointopt.physics.costs import LayoutParts, stage_costs
from jointopt.physics.makespan import time_parts
from jointopt.physics.memory import layer_parameters, memory_parts
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
    factor = float(physics.power_factor[index])
    g, rows, at = int(physics.group_of[index]), physics.row_of[[index]], np.array([index])
    costs = physics.groups[g]
    queried_mhz = np.asarray(stage_clock_mhz, dtype=float)[: costs.depth]
    t = physics.times(g, rows, queried_mhz[None, :])
    parts = {k: v[0] for k, v in physics.energy_parts(g, rows, t).items()}
    stretch, mean_w = float(physics.stretch(at, t.total_s)[0]), np.mean(sum(parts.values())) / t.total_s
    offset_w = float(((physics.power_scale(at, mean_w) - factor) * mean_w)[0])  # of power beside its line
    parts["static"] = parts["static"] + offset_w / factor * float(t.total_s[0])
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
    kernel_w = np.broadcast_to(physics.limits_w[g], physics.ceilings[g].shape)[rows[0]]
    met_w = electrical_limit_w(limit_in_physics_w(physics, at, len(busy)), physics.cooler)
    hot = kernel_w < np.broadcast_to(met_w, (1, len(busy)))[0] * (1.0 - 1e-9)
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


def memory_traffic_j(physics: CostModel, index: int) -> dict[str, Floats]:
    """Energy of device-memory traffic of one rank of each stage in one iteration by purpose, (pp,) J.

    ``weights`` (read, and their gradients written), ``activations``, ``tensor_parallel_rereads`` (activations that
    every rank of a tensor group reads and writes in full, beyond what tp 1 would), ``optimizer``. Derived here: the
    same stages priced with twice the micro-batch and with tp 1.
    """
    layout, pj = {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS}, physics.power.pj_per_hbm_byte * PICO
    costs, row = physics.groups[int(physics.group_of[index])], int(physics.row_of[index])
    batches = float(costs.num_micro_batches[row])

    def growing(**cells: Any) -> tuple[Floats, Floats]:
        """Bytes (pp,) of one micro-batch, and those of them that grow with its size."""
        once = _priced_anew(physics, index, **cells).hbm_bytes[0]
        larger = cells | {"micro_batch_size": 2 * layout["micro_batch_size"]}
        return once, _priced_anew(physics, index, **larger).hbm_bytes[0] - once

    once, activations = growing()
    alone = growing(tp=np.ones(1, np.int64), etp=np.minimum(layout["etp"], 1), sequence_parallel=np.zeros(1, bool))[1]
    reread = np.maximum(activations - alone / float(layout["tp"][0]), 0.0)
    return {
        "weights": pj * batches * (once - activations),
        "activations": pj * batches * (activations - reread),
        "tensor_parallel_rereads": pj * batches * reread,
        "optimizer": pj * costs.iteration_hbm_bytes[row],
    }


def _priced_anew(physics: CostModel, index: int, hardware: traffic.Hardware | None = None, **cells: Any) -> StageCosts:
    """Costs of layout row ``index`` with other ``cells``, or on other hardware."""
    layout = {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS}
    return stage_costs(physics.job, hardware or physics.hardware, layout | cells)


def communication_j(physics: CostModel, index: int) -> dict[str, dict[str, Floats]]:
    """Link energy of one rank of each stage in one iteration by kind of parallelism and by link, (pp,) J.

    Kinds as in the parts of the time (``tp_comm``, ...), by `traffic.link_bytes`; ``intra_node`` is the scale-up
    domain, the part left where links between nodes are free.
    """
    free = _priced_anew(physics, index, replace(physics.hardware, inter_j_per_byte=0.0))
    whole, found = physics.groups[int(physics.group_of[index])], dict[str, dict[str, Floats]]()
    both = (free, 0), (whole, int(physics.row_of[index]))
    batches, stages = float(free.num_micro_batches[0]), np.ones(free.depth)
    for kind in (*whole.link_parts_j, "dp_comm"):
        inside, every = (
            (batches * costs.link_parts_j[kind][row] if kind != "dp_comm" else costs.iteration_link_j[row]) * stages
            for costs, row in both
        )
        found[kind] = {"intra_node": inside, "inter_node": np.maximum(every - inside, 0.0)}
    return found


# How busy one plan keeps GPUs and links: outputs alone, which nothing of time or energy reads.


@dataclass(frozen=True)
class Utilization:
    """Shares of an iteration, (pp,) of a GPU of each stage.

    ``kernels``: compute and optimizer kernels run (DCGM's SM active, were each on all SMs). ``running``: they or
    collectives and receives, whose kernels NVML's utilization.gpu counts while they wait: all but what the host takes.
    ``occupied``: passes, waits for launches among them: all but bubbles and the end of the iteration.
    ``links``: bytes that a GPU sends over each class of link, over what the link carries in that time.
    """

    kernels: Floats
    running: Floats
    occupied: Floats
    links: dict[str, Floats]  # intra_node (the scale-up domain) and inter_node
    link_bytes: dict[str, Floats]


def utilization(physics: CostModel, index: int, stage_clock_mhz: Floats) -> Utilization:
    """Utilization of layout row ``index`` at one clock per stage (pp,) in MHz; corrections of time stretch links."""
    g, row = int(physics.group_of[index]), physics.row_of[[index]]
    costs, cluster = physics.groups[g], physics.job.cluster
    t = physics.times(g, row, np.asarray(stage_clock_mhz, float)[None, : costs.depth])
    batches, total = float(costs.num_micro_batches[row[0]]), float(t.total_s[0])
    stretch = float(physics.stretch(np.array([index]), t.total_s)[0])
    whole, step = total * stretch, costs.optimizer_s[row[0]]
    passes_s = t.forward_s[0] + t.backward_s[0]
    sends_s = (costs.forward_comm_s + costs.backward_comm_s + 2.0 * costs.p2p_s[:, None])[row[0]]
    profile = physics.job.training.framework
    sends_s = sends_s + t.gather_exposed_s[0] - profile.micro_batch_overhead_s
    launches_s = batches * np.maximum(passes_s - t.kernel_s[0] - sends_s, 0.0) + profile.iteration_overhead_s
    sent, speed = {}, {"intra_node": cluster.intra_node_gbytes_per_s, "inter_node": cluster.inter_node_gbytes_per_s}
    for link, (intra, inter) in {"intra_node": (1.0, 0.0), "inter_node": (0.0, 1.0)}.items():
        # joules at one joule per byte that a GPU sends over this class of link
        counting = replace(physics.hardware, intra_j_per_byte=intra, inter_j_per_byte=inter)
        counted = _priced_anew(physics, index, counting)
        sent[link] = np.asarray(batches * counted.link_j[0] + counted.iteration_link_j[0])
    return Utilization(
        kernels=(batches * t.kernel_s[0] + step) / total,
        running=1.0 - launches_s / total,
        occupied=(batches * passes_s + step) / total,
        links={link: moved / (speed[link] * GB * whole) for link, moved in sent.items()},
        link_bytes=sent,
    )


# Seconds that casts to fp8 and fp4 take within one plan: outputs alone, which nothing of time or energy reads.


_FREE = ScalingRecipe("", "", 0.0, copies=0.0, reads=0.0, launches=0)


def cast_times_s(physics: CostModel, index: int) -> Floats:
    """Seconds of one iteration in which a GPU of each stage of layout row ``index`` casts operands of products, (pp,).

    The same stages priced once more with casts that move nothing; memory-bound, so that no clock changes them.
    """
    free = replace(physics.hardware, kernels=replace(physics.hardware.kernels, recipe=_FREE))
    costs = [_priced_anew(physics, index, hardware) for hardware in (physics.hardware, free)]
    whole, without = (each.forward_memory_s + each.backward_memory_s for each in costs)
    return np.asarray(float(costs[0].num_micro_batches[0]) * (whole - without)[0])


# Bandwidth that links reach with the messages of one plan: outputs alone, which nothing of time or energy reads.


@dataclass(frozen=True)
class Message:
    """One collective of a plan; ``link`` is the slowest class that it crosses, intra_node or inter_node."""

    parallelism: str  # tp, cp, ep, pp, gtp, egtp, dp, expert_dp (data parallelism of experts)
    kind: str  # of `traffic.KINDS`
    size_bytes: float  # one rank's full buffer
    members: int
    time_s: float
    link: str
    reached_gbytes_per_s: float  # that a GPU sends over that link, on average over the collective
    share: float  # of the link's nominal bandwidth


def messages(physics: CostModel, index: int) -> list[Message]:
    """The largest message of each collective of layout row ``index``, alone on its links.

    Gradients and weights of data parallelism count as one message of a stage's; frameworks send them in buckets.
    """
    laid = LayoutParts.of(physics.job, {name: physics.layouts[name][[index]] for name in LAYOUT_COLUMNS})
    cluster, hw, found = physics.job.cluster, physics.hardware, []
    for name, kind, moved, group in _largest_messages(physics, laid):
        size_bytes, size, local = (float(np.ravel(x)[0]) for x in (moved, group.size, group.local))
        if size <= 1:
            continue
        seconds = float(traffic.collective_time_s(kind, size_bytes, size, local, hw.constants.collectives, hw.links))
        within, between = (float(sent) for sent in traffic.link_bytes(kind, size_bytes, size, local))
        link, sent, nominal = "intra_node", within, cluster.intra_node_gbytes_per_s
        if local < size:
            link, sent, nominal = "inter_node", between, cluster.inter_node_gbytes_per_s
        reached = sent / seconds / GB if seconds else 0.0
        found.append(Message(name, kind, size_bytes, int(size), seconds, link, reached, reached / nominal))
    return found


def _largest_messages(physics: CostModel, laid: LayoutParts) -> Iterator[tuple[str, str, Floats, Group]]:
    """(parallelism, kind of collective, bytes, group) as `traffic` has them."""
    job, lay, groups, element = physics.job, laid.lay, laid.groups, physics.hardware.kernels.element_bytes
    yield (
        "tp",
        "all_gather" if lay.sp.any() else "all_reduce",
        traffic.hidden_bytes(job.model, lay.tokens, element),
        (groups["tp"]),
    )
    if job.model.has_attention:
        yield "cp", "all_gather", traffic.context_bytes(job.model, lay.tokens, lay.cp, lay.tp, element), groups["cp"]
    if job.model.is_moe:
        yield "ep", "all_to_all", traffic.routed_bytes(job.model, lay.tokens, lay.token_share, element), groups["ep"]
    yield "pp", "p2p", traffic.pipeline_bytes(job.model, lay.tokens, lay.tp, lay.sp, element), groups["pp"]
    layer = layer_parameters(job.model, lay)[-1]
    for name, count in (("gtp", layer.dense), ("egtp", layer.expert)):
        yield name, "all_gather", job.training.weight_gather_bytes * count, groups[name]
    for of, kind, moved, group, sent in traffic.gradient_messages(job, lay, groups, laid.parameters, laid.trained):
        if sent.any():
            yield "dp" if of == "dense" else "expert_dp", kind, moved.max(axis=1), group


# Dynamic energy of a plan's kernels by level of the memory hierarchy: an attribution, which nothing reads.


LEVELS = ("arithmetic", "registers", "l2", "memory_read", "memory_written")
# pJ/bit of a K40, measured (GPUJoule: Arunkumar et al., HPCA'19): device memory to L2, and L2 to L1. With the
# catalogue's 60 pJ/byte for both, memory itself takes 5.0 pJ/bit; HBM2 has 3.9 (O'Connor et al., MICRO'17)
_TO_L2, _FROM_L2 = 30.55, 15.48
_L2_SHARE = _FROM_L2 / (_TO_L2 + _FROM_L2)
# Instruction fetch, decode and operand reads add 22 % to a tensor-core instruction (HMMA; Dally, Hot Chips 2023)
_REGISTER_SHARE = 0.22 / 1.22
_TILE = (128.0, 256.0)  # of results at a time, whose operands come from L2: NVIDIA's guide to matrix products
# Of bytes that are no operand and no result of a product: a norm reads one stream for each written, a residual two
_STREAMS_WRITTEN = 0.4
_STEP_WRITTEN = 0.5  # Adam reads gradients, master weights, moments, and writes weights, master weights, moments


def energy_by_level(physics: CostModel, index: int, parts: Breakdown) -> dict[str, Floats]:
    """Joules (pp,) of all GPUs of each stage by level; they add up to the parts compute and memory of ``parts``.

    ``registers`` has instructions too; ``l2`` what caches pass on, be it from memory or again to the next tile.
    """
    g, row = int(physics.group_of[index]), int(physics.row_of[index])
    costs, k, kernels = physics.groups[g], physics.power, physics.hardware.kernels
    compute_j, memory_j = (parts.stage_energy_parts_j[name] for name in ("compute", "memory"))
    batches, step = float(costs.num_micro_batches[row]), costs.iteration_hbm_bytes[row]
    operands, results, streams = _operand_bytes(physics, index)
    written = batches * (results + _STREAMS_WRITTEN * streams) + _STEP_WRITTEN * step
    whole = batches * costs.hbm_bytes[row] + step
    # every operation's operands, two of them for two operations, from tiles; what comes from memory passes L2 anyway
    per_flop = kernels.gemm.dtype_bytes[kernels.dtype] * sum(1.0 / side for side in _TILE) / 2.0
    flops = costs.flops[row] / kernels.flop_energy
    again = np.maximum(per_flop * flops - operands, 0.0) * k.pj_per_hbm_byte * _L2_SHARE
    tiles_j = compute_j * np.minimum(_ratio(again, k.pj_per_flop * costs.flops[row]), 1.0)
    device_j, stored = (1.0 - _L2_SHARE) * memory_j, _ratio(written, whole)
    out = {
        "arithmetic": (1.0 - _REGISTER_SHARE) * (compute_j - tiles_j),
        "registers": _REGISTER_SHARE * (compute_j - tiles_j),
        "l2": tiles_j + _L2_SHARE * memory_j, "memory_read": device_j * (1.0 - stored),
        "memory_written": device_j * stored,
    }  # fmt: skip
    return {name: np.asarray(out[name]) for name in LEVELS}


def _operand_bytes(physics: CostModel, index: int) -> tuple[Floats, Floats, Floats]:
    """Bytes (pp,) of one micro-batch: operands of products, their results, and everything else.

    Derived here: the same stages priced with operands of 0, 2 and 4 bytes and none cast to fewer bits, results being as
    wide but never below 2.
    """
    kernels, found = physics.hardware.kernels, []
    for width in (0.0, 2.0, 4.0):
        gemm = replace(kernels.gemm, dtype_bytes=dict.fromkeys(kernels.gemm.dtype_bytes, width))
        hardware = replace(physics.hardware, kernels=replace(kernels, gemm=gemm, dtype=kernels.wide_dtype))
        found.append(np.asarray(_priced_anew(physics, index, hardware).hbm_bytes[0]))
    none, two, four = found
    rest = two - (four - two)
    width = kernels.gemm.dtype_bytes[kernels.dtype]
    results, operands = (none - rest) * max(width, 2.0) / 2.0, (two - none) * width / 2.0
    whole = physics.groups[int(physics.group_of[index])].hbm_bytes[int(physics.row_of[index])]
    return operands, results, np.maximum(whole - operands - results, 0.0)


# Power of one plan's GPUs by what they do: kernels bound by compute, by memory, collectives and sends, and waiting.


PHASES = ("compute_bound", "memory_bound", "communication", "waiting")


@dataclass(frozen=True)
class Phase:
    """Seconds of an iteration that a GPU of each stage spends in a phase, and watts that it draws then, (pp,) each."""

    time_s: Floats
    power_w: Floats  # NaN where the phase takes no time


def phases(physics: CostModel, index: int, stage_clock_mhz: Floats, parts: Breakdown | None = None) -> dict[str, Phase]:
    """`PHASES` of layout row ``index`` at one clock per stage (pp,) in MHz; times and energies add up to ``parts``.

    Derived here from the parts of `clock_law.energy_parts_j`: operations, and the bytes of products, are of the time
    that follows the clock, all other bytes and the optimizer step of the time that does not. Traffic that hides under
    kernels counts with them, as does what it draws. A limit holds the mean of a micro-batch's kernels, above which are
    those bound by compute.
    """
    parts = parts or breakdown(physics, index, stage_clock_mhz)
    of_gpu = {name: joules / parts.gpus_per_stage for name, joules in parts.stage_energy_parts_j.items()}
    g, rows = int(physics.group_of[index]), physics.row_of[[index]]
    costs, row = physics.groups[g], rows[0]
    t = physics.times(g, rows, np.asarray(stage_clock_mhz, float)[None, : costs.depth])
    stretch = float(physics.stretch(np.array([index]), t.total_s)[0])
    batches, step_bytes = float(costs.num_micro_batches[row]), costs.iteration_hbm_bytes[row]
    # kernels that do not follow the clock and those that do, exposed traffic, and SMs in it
    memory_s = batches * (costs.forward_memory_s + costs.backward_memory_s)[row] + costs.optimizer_s[row]
    compute_s = batches * t.kernel_s[0] + costs.optimizer_s[row] - memory_s
    kinds_s = np.sum([seconds[row] for seconds in costs.comm_parts_s.values()], axis=0)
    comm_s = batches * (kinds_s + 2.0 * costs.p2p_s[row] + t.gather_exposed_s[0]) + t.dp_exposed_s[0]
    seconds = compute_s, memory_s, comm_s, batches * costs.collective_sm_s[row]
    compute_s, memory_s, comm_s, collective_s = (stretch * each for each in np.broadcast_arrays(*seconds))
    total_s = parts.busy_s + parts.idle_s
    waiting_s = np.maximum(total_s - compute_s - memory_s - comm_s, 0.0)
    sent_j = of_gpu["communication"]
    hidden_j = np.where(comm_s > 0.0, 0.0, sent_j)
    always_w = (of_gpu["static"] + of_gpu["leakage"] + hidden_j) / total_s
    active_w = _ratio(of_gpu["active"], compute_s + memory_s + collective_s)
    blocked_w = _ratio(of_gpu["waiting"], comm_s + waiting_s)
    operands, results, _ = _operand_bytes(physics, index)
    products = _ratio(batches * (operands + results), batches * costs.hbm_bytes[row] + step_bytes)
    found = {
        "compute_bound": (compute_s, active_w + _ratio(of_gpu["compute"] + products * of_gpu["memory"], compute_s)),
        "memory_bound": (memory_s, active_w + _ratio((1.0 - products) * of_gpu["memory"], memory_s)),
        "communication": (comm_s, blocked_w + _ratio(sent_j - hidden_j + active_w * collective_s, comm_s)),
        "waiting": (waiting_s, blocked_w),
    }
    return {name: Phase(time, np.where(time > 0.0, always_w + watts, np.nan)) for name, (time, watts) in found.items()}


def _ratio(part: Floats, whole: Floats) -> Floats:
    """Part over whole, and 0 over nothing: a stage may have no layers, a phase no time."""
    return np.asarray(part / np.where(whole > 0.0, whole, np.inf))
