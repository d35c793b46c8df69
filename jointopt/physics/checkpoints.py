"""What a checkpoint writes, and how many replicas hold the same state."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Columns, Floats
from jointopt.core.units import GB
from jointopt.jobs.job import Job
from jointopt.physics.layouts import LayoutArrays, by_depth
from jointopt.physics.memory import adapter_parameters, stage_parameters

_CELLS = 32_768  # layouts x stages in one pass: each array then takes 256 KiB of the cache


def checkpoint_bytes(job: Job, layouts: Columns) -> tuple[Floats, Floats]:
    """Bytes (L,) of trained weights and optimizer states that the heaviest rank of each layout writes; and the mean.

    Each state is written once: what replicas hold alike they share out, as Megatron Core's fully parallel save and
    PyTorch's distributed checkpoints do. Where a framework does not, its first replica writes more.
    """
    each, shape = job.training.weight_bytes + job.training.optimizer_bytes, len(layouts["pp"])
    heaviest, mean = np.empty(shape), np.empty(shape)
    for rows, group in by_depth(layouts, _CELLS):
        lay = LayoutArrays(job, group)
        trained = adapter_parameters(job, lay) if job.training.frozen else stage_parameters(job, lay)
        written = each * trained.sharded(0, *lay.zero_shards)
        heaviest[rows], mean[rows] = written.max(axis=1), written.mean(axis=1)
    return heaviest, mean


def checkpoint_s(
    job: Job, layouts: Columns, storage_gbytes_per_s: float | None, total_gbytes_per_s: float | None = None
) -> Floats:
    """Seconds (L,) of a checkpoint, at what a node with the heaviest ranks writes and at what all do together.

    Rates in GB/s, of which None is no bound.
    """
    heaviest, mean = checkpoint_bytes(job, layouts)
    of_node = heaviest * job.cluster.gpus_per_node / ((storage_gbytes_per_s or np.inf) * GB)
    of_all = mean * job.cluster.num_gpus / ((total_gbytes_per_s or np.inf) * GB)
    return np.asarray(np.maximum(of_node, of_all))


def state_copies(job: Job, layouts: Columns) -> Floats:
    """Replicas (L,) that hold the same state, experts' and optimizer's too: 1 where ZeRO shards it over all of them."""
    lay = LayoutArrays(job, layouts)
    sharded = lay.zero >= 1
    dense = lay.dp * lay.cp / (lay.gtp * np.where(sharded, lay.shards, 1.0))
    if job.model.is_moe:
        experts = lay.expert_dp / (lay.egtp * np.where(sharded, lay.expert_shards, 1.0))
        dense = np.minimum(dense, experts)
    return np.asarray(np.maximum(np.minimum(dense, lay.dp), 1.0))
