"""What a surrogate sees of plans: features, sensitivities, and what makes runs comparable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.physics.cost_model import CostModel
from jointopt.physics.describe import sensitivities, shape_columns, share_columns
from jointopt.spec.cluster import Gpu
from jointopt.spec.job import Job
from jointopt.spec.plans.clocks import uniform_stage_clocks
from jointopt.surrogate.residual_gp import Runs


def described(physics: CostModel, stage_clock_mhz: Floats, layout: Ints) -> tuple[Columns, Floats]:
    """(features by name (n,), sensitivities (n, `CONSTANTS`)) of plans of the ``layout`` (n,) of ``physics``.

    Shares and sensitivities are those of the layout at the GPU's top clock, the only one that runs of many layouts were
    recorded at: so what is learned moves a layout by one factor at every clock, and time still falls with the clock as
    the physics says (with those of the plan's own clock it rose by up to 0.6 % from one clock to the next).
    """
    every = np.arange(len(physics.layouts["pp"]))
    top = uniform_stage_clocks(physics.layouts["pp"], physics.top_mhz)
    moved = sensitivities(physics, every, top, physics.iteration_time_s(every, top))
    shares = share_columns(physics, every, top)
    features = shape_columns(physics.job, _at(physics.layouts, layout), stage_clock_mhz) | _at(shares, layout)
    return features | _speeds(physics.job.cluster.gpu, len(layout)), moved[layout]


def _at(columns: Columns, rows: Ints) -> Columns:
    return {name: values[rows] for name, values in columns.items()}


def _speeds(gpu: Gpu, count: int) -> Columns:
    """What tells GPUs apart: logarithms of peak flops and of memory speed, (count,) each."""
    speeds = {"peak": gpu.peak_tflops.get("bf16", gpu.peak_tflops.get("fp16", 1.0)), "memory": gpu.memory_gbytes_per_s}
    return {f"log2_{name}": np.full(count, np.log2(speed)) for name, speed in speeds.items()}


def group_key(job: Job) -> str:
    """What runs must share to be of one group: model, batch, GPUs and sequence length."""
    return f"{job.model.name}|{job.training.global_batch_size}|{job.cluster.num_gpus}|{job.training.seq_length}"


def together(parts: Sequence[Runs]) -> Runs:
    """Runs of several workloads as one; a feature that only some have is 0 in the others."""
    if len(parts) == 1:
        return parts[0]
    names = {name: None for runs in parts for name in runs.features}
    zeros = [np.zeros(len(runs)) for runs in parts]
    return Runs(
        np.concatenate([runs.sensitivity for runs in parts]),
        {n: np.concatenate([r.features.get(n, z) for r, z in zip(parts, zeros, strict=True)]) for n in names},
        np.concatenate([runs.source for runs in parts]),
        np.concatenate([runs.group for runs in parts]),
    )
