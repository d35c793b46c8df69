"""Features of a plan for a learner: shares of its time, its shape, and how its time would move.

No model, cluster or GPU is named, so that they transfer; framework and attention kernel are columns of ones.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jointopt.core.schema import DOUBLINGS, SWITCHES, Columns, Floats, Ints
from jointopt.physics.breakdown import time_parts
from jointopt.physics.cost_model import CostModel, iteration_times_s
from jointopt.physics.costs import with_host_of
from jointopt.spec.job import ATTENTIONS, DTYPES, Job

SHARES = ("compute", "tp_comm", "pp_comm", "dp_comm", "bubble", "host", "zero_comm", "cp_comm", "ep_comm", "optimizer")
CATEGORY, UNKNOWN = "=", "unknown"  # "framework=nemo": 1 where a run has that framework
STEP = 0.1  # of a logarithm, for finite differences


def shape_columns(job: Job, layouts: Columns, stage_clock_mhz: Floats) -> Columns:
    """Logarithms and categories of plan, model and cluster, (n,) each, none with a unit.

    ``log2_<name>`` of the plan's `DOUBLINGS`, its `SWITCHES` as they are, ``clock`` as a share of the GPU's highest.
    """
    model, training, cluster = job.model, job.training, job.cluster
    n = len(layouts["pp"])
    batches = training.global_batch_size / (layouts["dp"] * layouts["micro_batch_size"])
    out = {f"log2_{name}": np.log2(layouts[name]) for name in DOUBLINGS}
    out["log2_micro_batches"] = np.log2(batches)
    out |= _sizes(job, out)
    out |= {name: layouts[name].astype(float) for name in SWITCHES}
    same = {
        "log2_hidden": np.log2(model.hidden_size),
        "log2_layers": np.log2(model.num_layers),
        "log2_seq_length": np.log2(training.seq_length),
        "log2_gpus": np.log2(cluster.num_gpus),
        "log2_head_dim": np.log2(model.head_dim),
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


def _sizes(job: Job, logs: Columns) -> Columns:
    """Logarithms of what one rank holds, and of the nodes that its tensor and data groups reach over, (n,) each."""
    model, per_node = job.model, np.log2(job.cluster.gpus_per_node)
    inner = logs["log2_tp"] + logs["log2_cp"]
    over = logs["log2_dp"] + inner - per_node
    return {
        "log2_stage_layers": np.log2(model.num_layers) - logs["log2_pp"],
        "log2_width": np.log2(model.hidden_size) - logs["log2_tp"],
        "log2_rank_tokens": np.log2(job.training.seq_length) + logs["log2_micro_batch_size"] - logs["log2_cp"],
        "log2_tp_nodes": np.maximum(logs["log2_tp"] - per_node, 0.0),
        "log2_dp_nodes": np.maximum(np.minimum(logs["log2_dp"], over), 0.0),
    }


def share_columns(physics: CostModel, index: Ints, stage_clock_mhz: Floats) -> Columns:
    """Shares of the predicted time by part, (n,) each, named ``share_<part>``; they need no clock sweep."""
    out = {f"share_{name}": np.zeros(len(index)) for name in SHARES}
    for g, at, rows, depth in physics.parts(index):
        t = physics.times(g, rows, stage_clock_mhz[at, :depth])
        for name, seconds in time_parts(physics.groups[g], rows, t).items():
            if name in SHARES:
                out[f"share_{name}"][at] = seconds / t.total_s
    return out


def _profile(job: Job, **figures: Any) -> Job:
    framework = replace(job.training.framework, **figures)
    return replace(job, training=replace(job.training, framework=framework))


def _links(job: Job, **figures: Any) -> Job:
    return replace(job, cluster=replace(job.cluster, **figures))


def _host(job: Job) -> Job:
    f = job.training.framework
    floor, piped = (own + STEP * max(own, 5e-4) for own in (f.host_floor_s, f.host_floor_pp_s))
    per_tp = f.host_floor_pp_tp_s * (1.0 + STEP)
    return _profile(job, host_floor_s=floor, host_floor_pp_s=piped, host_floor_pp_tp_s=per_tp)


# What differs between clusters and software stacks, as one step of each: a tenth of the logarithm of a speed or a
# cost, 1 ms per micro-batch, 20 ms per iteration, a tenth of an overlap.
_STEPS: Mapping[str, Callable[[Job], Job]] = {
    "compute": lambda j: _profile(j, compute_factor=j.training.framework.compute_factor * np.exp(STEP)),
    "elementwise": lambda j: _profile(j, elementwise_factor=j.training.framework.elementwise_factor * np.exp(STEP)),
    "intra_node": lambda j: _links(j, intra_node_gbytes_per_s=j.cluster.intra_node_gbytes_per_s * np.exp(-STEP)),
    "inter_node": lambda j: _links(j, inter_node_gbytes_per_s=j.cluster.inter_node_gbytes_per_s * np.exp(-STEP)),
    "host": _host,
    "micro_batch": lambda j: _profile(j, micro_batch_overhead_s=j.training.framework.micro_batch_overhead_s + 1e-3),
    "iteration": lambda j: _profile(j, iteration_overhead_s=j.training.framework.iteration_overhead_s + 0.02),
    "dp_overlap": lambda j: _profile(j, dp_overlap=abs(j.training.framework.dp_overlap - STEP)),
    "tp_overlap": lambda j: _profile(j, tp_overlap=min(j.training.framework.tp_overlap + STEP, 1.0)),
    "loss": lambda j: _profile(j, loss_passes=j.training.framework.loss_passes * np.exp(STEP)),
}  # fmt: skip
CONSTANTS = tuple(_STEPS)
_AFTER_PRICING = ("host", "micro_batch", "iteration", "dp_overlap")  # leave kernels and collectives as they are


def sensitivities(physics: CostModel, index: Ints, stage_clock_mhz: Floats, time_s: Floats) -> Floats:
    """Derivative of the logarithm of time with respect to the physics' own constants, (n, `CONSTANTS`).

    By finite differences of `STEP` (see the list of steps for the unit of each); ``time_s`` (n,) is the prediction.
    """
    models = []
    for name, step in _STEPS.items():
        job = step(physics.job)
        if name in _AFTER_PRICING:  # to price layouts takes most of the time, and is spared where they cost the same
            moved = copy.copy(physics)
            moved.job, moved.groups = job, [with_host_of(job, costs, physics.job) for costs in physics.groups]
        else:
            moved = CostModel(job, physics.layouts, physics.hardware.constants)
        models.append(moved)
    return np.log(iteration_times_s(models, index, stage_clock_mhz) / time_s).T / STEP
