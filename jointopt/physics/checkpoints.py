"""What a checkpoint writes, and how many replicas hold the same state."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Columns, Floats
from jointopt.core.units import GB
from jointopt.jobs.job import Job
from jointopt.physics.layouts import LayoutArrays, by_depth
from jointopt.physics.memory import adapter_parameters, stage_parameters

_CELLS = 32_768  # layouts x stages in one pass: each array then takes 256 KiB of the cache


def checkpoint_bytes(job: Job, layouts: Columns) -> Floats:
    """Bytes (L,) that the heaviest rank of each layout writes: trained weights and optimizer states.

    Each state is written once: what replicas hold alike they share out, as Megatron Core's fully parallel save and
    PyTorch's distributed checkpoints do. Where a framework does not, its first replica writes more.
    """
    each, out = job.training.weight_bytes + job.training.optimizer_bytes, np.empty(len(layouts["pp"]))
    for rows, group in by_depth(layouts, _CELLS):
        lay = LayoutArrays(job, group)
        trained = adapter_parameters(job, lay) if job.training.frozen else stage_parameters(job, lay)
        out[rows] = each * trained.sharded(0, *lay.zero_shards).max(axis=1)
    return out


def checkpoint_s(job: Job, layouts: Columns, storage_gbytes_per_s: float) -> Floats:
    """Seconds (L,) in which a node with the heaviest ranks writes a checkpoint at that rate, in GB/s per node."""
    return checkpoint_bytes(job, layouts) * job.cluster.gpus_per_node / (storage_gbytes_per_s * GB)


def state_copies(job: Job, layouts: Columns) -> Floats:
    """Replicas (L,) that hold the same state, experts' and optimizer's too: 1 where ZeRO shards it over all of them."""
    lay = LayoutArrays(job, layouts)
    sharded = lay.zero >= 1
    dense = lay.dp * lay.cp / (lay.gtp * np.where(sharded, lay.shards, 1.0))
    if job.model.is_moe:
        experts = lay.expert_dp / (lay.egtp * np.where(sharded, lay.expert_shards, 1.0))
        dense = np.minimum(dense, experts)
    return np.asarray(np.maximum(np.minimum(dense, lay.dp), 1.0))
