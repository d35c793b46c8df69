"""Features of a plan for a learner: shares of its time, its shape, and how its time would move.

No model, cluster or GPU is named, so that they transfer; framework and attention kernel are columns of ones.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jointopt.core.schema import ATTENTIONS, CONSTANTS, DTYPES, LOG_COLUMNS, OCCUPANCY, SWITCHES, Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import CostModel
from jointopt.physics.costs import SharedCosts, with_host_of
from jointopt.physics.makespan import Makespan, least_makespan_s, time_parts
from jointopt.physics.stage_costs import Pipelines, StageCosts

SHARES = ("compute", "tp_comm", "pp_comm", "dp_comm", "bubble", "host", "zero_comm", "cp_comm", "ep_comm", "optimizer")
CATEGORY, UNKNOWN = "=", "unknown"  # "framework=nemo": 1 where a run has that framework
STEP = 0.1  # of a logarithm, for finite differences


def shape_columns(job: Job, layouts: Columns, stage_clock_mhz: Floats) -> Columns:
    """Logarithms and categories of plan, model and cluster, (n,) each, none with a unit.

    ``log2_<name>`` of the plan's `LOG_COLUMNS`, its `SWITCHES` as they are, ``clock`` as a share of the GPU's highest;
    what one rank holds, and the nodes that its tensor and data groups reach over. ``log2_aligned_width``: the largest
    power of two that divides a rank's hidden size, by which products fill tiles (Anthony et al. 2024, The case for
    co-designing model architectures with hardware); ``log2_queries_per_key``: query heads that share keys and values.
    """
    model, training, cluster = job.model, job.training, job.cluster
    n, per_node = len(layouts["pp"]), np.log2(cluster.gpus_per_node)
    width = np.maximum(model.hidden_size // layouts["tp"], 1).astype(np.int64)
    batches = training.global_batch_size / (layouts["dp"] * layouts["micro_batch_size"])
    out = {f"log2_{name}": np.log2(layouts[name]) for name in LOG_COLUMNS}
    out["log2_micro_batches"] = np.log2(batches)
    inner = out["log2_tp"] + out["log2_cp"]
    out |= {
        "log2_stage_layers": np.log2(model.num_layers) - out["log2_pp"],
        "log2_width": np.log2(model.hidden_size) - out["log2_tp"],
        "log2_aligned_width": np.log2(width & -width),
        "log2_rank_tokens": np.log2(training.seq_length) + out["log2_micro_batch_size"] - out["log2_cp"],
        "log2_tp_nodes": np.maximum(out["log2_tp"] - per_node, 0.0),
        "log2_dp_nodes": np.maximum(np.minimum(out["log2_dp"], out["log2_dp"] + inner - per_node), 0.0),
    }
    out |= {name: layouts[name].astype(float) for name in SWITCHES}
    same = {
        "log2_hidden": np.log2(model.hidden_size),
        "log2_layers": np.log2(model.num_layers),
        "log2_seq_length": np.log2(training.seq_length),
        "log2_gpus": np.log2(cluster.num_gpus),
        "log2_head_dim": np.log2(model.head_dim),
        "log2_queries_per_key": np.log2(max(model.num_attention_heads, 1) / max(model.num_query_groups, 1)),
        "log2_nodes": np.log2(cluster.nodes),
        "attention": float(ATTENTIONS.index(training.attention)),
        "fused_norm": float(training.fused_norm),
        "dtype": float(DTYPES.index(training.dtype)),
        "moe": float(model.is_moe),
    }
    out |= {name: np.full(n, value) for name, value in same.items()}
    framework = training.framework.name if training.framework.fitted else UNKNOWN
    attention = UNKNOWN if training.attention_assumed else training.attention
    out |= {f"framework{CATEGORY}{framework}": np.ones(n), f"attention{CATEGORY}{attention}": np.ones(n)}
    out["clock"] = np.nanmin(stage_clock_mhz, axis=1) / (cluster.gpu.clock_max_mhz or 1.0)
    return out


def share_columns(physics: CostModel, index: Ints, stage_clock_mhz: Floats) -> Columns:
    """Shares of the predicted time by part, (n,) each, named ``share_<part>``, and `OCCUPANCY`; without clock sweep.

    ``occupancy``: share of the time that kernels of passes run, ``efficiency``: of the peak of bf16 (else fp16) that
    their operations reach meanwhile; means over stages. ``communication``: over compute, of exposed time.
    """
    out = {name: np.zeros(len(index)) for name in (*(f"share_{part}" for part in SHARES), *OCCUPANCY)}
    tflops = physics.job.cluster.gpu.peak_tflops
    peak = 1e12 * tflops.get("bf16", tflops.get("fp16", 1.0))
    for g, at, rows, depth in physics.blocks(index):
        t = physics.times(g, rows, stage_clock_mhz[at, :depth], least_makespan_s)
        for name, seconds in time_parts(physics.groups[g], rows, t).items():
            if name in SHARES:
                out[f"share_{name}"][at] = seconds / t.total_s
        moving = sum((out[f"share_{part}"][at] for part in SHARES if part.endswith("_comm")), np.zeros(len(rows)))
        out["communication"][at] = moving / np.maximum(out["share_compute"][at], 1e-9)
        batches, flops = physics.groups[g].num_micro_batches[rows], physics.groups[g].flops[rows]
        out["occupancy"][at] = batches * t.kernel_s.mean(axis=1) / t.total_s
        out["efficiency"][at] = (flops / np.maximum(t.kernel_s, 1e-12)).mean(axis=1) / peak
    return out


def _profile(job: Job, **figures: Any) -> Job:
    framework = replace(job.training.framework, **figures)
    return replace(job, training=replace(job.training, framework=framework))


_FACTORS = {
    "compute": "compute_factor", "elementwise": "elementwise_factor", "loss": "loss_passes",
    "attention": "attention_factor",
}  # fmt: skip
_SPEEDS = {"intra_node": "intra_node_gbytes_per_s", "inter_node": "inter_node_gbytes_per_s"}
_OVERHEADS = {"micro_batch": ("micro_batch_overhead_s", 1e-2), "iteration": ("iteration_overhead_s", 0.2)}
NETWORK, HOST = CONSTANTS.index("inter_node"), CONSTANTS.index("host")
_AFTER_PRICING = frozenset(("host", "micro_batch", "dp_overlap"))  # leave kernels and collectives as is


def _with_constant(job: Job, name: str, by: float) -> Job:
    """The job with one of the `CONSTANTS`, ``name``, changed by ``by``."""
    f, factor = job.training.framework, float(np.exp(by))
    if name in _SPEEDS:
        slower: dict[str, Any] = {_SPEEDS[name]: getattr(job.cluster, _SPEEDS[name]) * float(np.exp(-by))}
        return replace(job, cluster=replace(job.cluster, **slower))
    if name in _FACTORS:
        return _profile(job, **{_FACTORS[name]: getattr(f, _FACTORS[name]) * factor})
    if name in _OVERHEADS:
        field, unit_s = _OVERHEADS[name]
        return _profile(job, **{field: max(getattr(f, field) + by * unit_s, 0.0)})
    if name == "host":
        more = float(np.expm1(by))
        floor, piped = (max(own + more * max(own, 5e-4), 0.0) for own in (f.host_floor_s, f.host_floor_pp_s))
        per_rank_s, moe_s = (own * (1.0 + more) for own in (f.host_floor_pp_tp_s, f.moe_host_s))
        return _profile(job, host_floor_s=floor, host_floor_pp_s=piped, host_floor_pp_tp_s=per_rank_s, moe_host_s=moe_s)
    if name == "dp_overlap":
        return _profile(job, dp_overlap=abs(f.dp_overlap - by), chosen_dp_overlap=abs(f.chosen_dp_overlap - by))
    return _profile(job, tp_overlap=min(f.tp_overlap + by, 1.0))


def with_constants(job: Job, by: Floats) -> Job:
    """The job with the physics' own constants changed by ``by`` (`CONSTANTS`,), in the units of their list."""
    for name, amount in zip(CONSTANTS, by.tolist(), strict=True):
        job = _with_constant(job, name, amount) if amount else job
    return job


def one_constant(constant: int, by: float) -> Floats:
    """An argument of `with_constants`, (`CONSTANTS`,): ``by`` at the position ``constant``, 0 elsewhere."""
    return np.where(np.arange(len(CONSTANTS)) == constant, by, 0.0)


def with_clock_shares(job: Job, compute: float, memory: float) -> Job:
    """The job whose kernels follow the SM clock with these shares of their time, by what bounds them at its top."""
    return _profile(job, compute_clock_share=compute, memory_clock_share=memory)


def _reusing_makespans(pieces: Iterable[tuple[Floats, Floats, Floats]]) -> Makespan:
    """`least_makespan_s` that reuses the makespans of another model of the same pipelines, called in the same order.

    ``pieces``: of each call there its forward and backward seconds (n, pp) and the makespan (n,). Only rows whose
    seconds differ are worked out again.
    """
    known = iter(pieces)

    def makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
        before_f, before_b, out_s = next(known)
        new = np.flatnonzero(((forward != before_f) | (backward != before_b)).any(axis=1))
        if len(new):
            out_s = out_s.copy()
            out_s[new] = least_makespan_s(pipes, rows[new], forward[new], backward[new])
        return out_s

    return makespan_s


def sensitivities(physics: CostModel, index: Ints, stage_clock_mhz: Floats) -> Floats:
    """Derivative of the logarithm of time with respect to the physics' own constants, (n, `CONSTANTS`).

    By finite differences of `STEP` (units as in the list of `CONSTANTS`) of `CostModel.least_time_s`: exact times of
    twelve schedules of each layout would take a search seconds.
    """
    common, pieces = (
        physics.common or SharedCosts(physics.hardware, physics.shapes),
        list[tuple[Floats, Floats, Floats]](),
    )

    def noted(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
        pieces.append((forward, backward, least_makespan_s(pipes, rows, forward, backward)))
        return pieces[-1][2]

    time_s = physics.least_time_s(index, stage_clock_mhz, noted)
    jobs, times = {name: _with_constant(physics.job, name, STEP) for name in CONSTANTS}, dict[str, Floats]()
    # the overhead of an iteration is added to what all else takes
    more_s, before_s = (one.training.framework.iteration_overhead_s for one in (jobs.pop("iteration"), physics.job))
    times["iteration"] = time_s + physics.time_factor[index] * (more_s - before_s)
    priced = [name for name in jobs if name not in _AFTER_PRICING]
    of_priced = least_times_s([jobs[name] for name in priced], physics, index, stage_clock_mhz, common)
    times |= zip(priced, of_priced, strict=True)
    for name in _AFTER_PRICING:  # to price layouts takes most of the time, and is spared here
        model, job = copy.copy(physics), jobs[name]
        model.job = job
        model.distinct = [replace(one, costs=with_host_of(job, one.costs, physics.job)) for one in physics.distinct]
        times[name] = model.least_time_s(index, stage_clock_mhz, _reusing_makespans(pieces))
    return np.log(np.array([times[name] for name in CONSTANTS]) / time_s).T / STEP


# Several jobs that price the same layouts as one model, as formulas on few layouts cost as much as on many.


_CELLS = 32_768  # plans x stages of all jobs in one model: each array then takes 256 KiB of the cache


def least_times_s(
    jobs: Sequence[Job], physics: CostModel, index: Ints, stage_clock_mhz: Floats, common: SharedCosts
) -> Iterator[Floats]:
    """`CostModel.least_time_s` (n,) of the layouts of ``physics`` for each of ``jobs``.

    Jobs differ from that of ``common`` in the speeds of kernels and links, and what of these hides: nothing that is
    read once the layouts are priced.
    """
    count, cells = len(physics.layouts["pp"]), int(physics.layouts["pp"][index].sum())
    most = max(_CELLS // max(cells, 1), 1)
    for start in range(0, len(jobs), most):
        some = jobs[start : start + most]
        at = (index + count * np.arange(len(some))[:, None]).reshape(-1)
        times = model_of_jobs(some, physics, common).least_time_s(at, np.tile(stage_clock_mhz, (len(some), 1)))
        yield from times.reshape(len(some), len(index))


def model_of_jobs(jobs: Sequence[Job], physics: CostModel, common: SharedCosts) -> CostModel:
    """One model of the L layouts of ``physics`` for all ``jobs``: its row l + j L is layout l of job j."""
    constants = physics.hardware.constants
    if len(jobs) == 1:
        return CostModel(jobs[0], physics.layouts, constants, common=common)
    each = [CostModel(job, physics.layouts, constants, lazily=True, common=common) for job in jobs]
    repeated = {name: np.concatenate([values] * len(jobs)) for name, values in physics.layouts.items()}
    model, every = CostModel(jobs[0], repeated, constants, lazily=True), np.arange(len(physics.layouts["pp"]))
    for lot in zip(*(one.priced_pieces(every) for one in each), strict=True):
        rows = np.stack([at for at, _ in lot]) + len(every) * np.arange(len(jobs))[:, None]
        costs, order = StageCosts.stacked([costs for _, costs in lot])
        model.add_groups(rows.reshape(-1)[order], costs)
    return model
