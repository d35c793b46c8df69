"""What a checkpoint writes, and how many replicas hold the same state."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Columns, Floats
from jointopt.core.units import GB
from jointopt.jobs.job import Job
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.memory import adapter_parameters, stage_parameters


def checkpoint_bytes(job: Job, layouts: Columns) -> Floats:
    """Bytes (L, pp) that a rank of each stage writes, of layouts of one depth: trained weights and optimizer states.

    Each state is written once: what replicas hold alike they share out, as Megatron Core's fully parallel save and
    PyTorch's distributed checkpoints do. Where a framework does not, its first replica writes more.
    """
    lay = LayoutArrays(job, layouts)
    trained = adapter_parameters(job, lay) if job.training.frozen else stage_parameters(job, lay)
    each = job.training.weight_bytes + job.training.optimizer_bytes
    return np.asarray(each * trained.sharded(0, *lay.zero_shards))


def checkpoint_s(
    job: Job, layouts: Columns, storage_gbytes_per_s: float | None, total_gbytes_per_s: float | None = None
) -> Floats:
    """Seconds (L,) of a checkpoint, at what a node with the heaviest ranks writes and at what all do together.

    Rates in GB/s, of which None is no bound.
    """
    written = checkpoint_bytes(job, layouts)
    of_node = written.max(axis=1) * job.cluster.gpus_per_node / ((storage_gbytes_per_s or np.inf) * GB)
    of_all = written.mean(axis=1) * job.cluster.num_gpus / ((total_gbytes_per_s or np.inf) * GB)
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
