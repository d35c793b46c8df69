"""Time of what lies in host memory: activations copied out and in again, an optimizer that runs on the host."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats
from jointopt.core.units import GB
from jointopt.jobs.catalog.kernels import host_bytes_per_s
from jointopt.jobs.job import Job
from jointopt.physics.layers import Pass
from jointopt.physics.layouts import LayoutArrays
from jointopt.physics.memory import Parameters, batch_bytes
from jointopt.physics.traffic import Hardware, Traffic

_HOST_MEMORY_GBYTES_PER_S = 50.0  # a GPU's share: eight to twelve DDR channels of 25 to 40 GB/s for four GPUs


def activation_traffic(job: Job, hw: Hardware, lay: LayoutArrays, work: Pass) -> Traffic:
    """Copies of a micro-batch's kept activations out (forward) and in (backward), less what kernels hide, (L, pp).

    As Megatron Core's offloading and PyTorch's save_on_cpu: one copy each way at the host link's rate, hidden under the
    kernels of the same pass; energy as over the scale-up link.
    """
    moved = np.where(lay.offloads_activations[:, None], batch_bytes(job, lay), 0.0)
    seconds = moved / host_bytes_per_s(job.cluster.gpu)
    forward, backward = (np.maximum(seconds - side.time_s, 0.0) for side in (work.forward, work.backward))
    return Traffic(forward, backward, 2.0 * hw.intra_j_per_byte * moved)


def optimizer_step_s(job: Job, lay: LayoutArrays, params: Parameters) -> Floats:
    """Seconds of an optimizer step on the host, (L, pp): gradients down, the step in host memory, weights up.

    Adam reads and writes its 12 bytes and reads the gradient (ZeRO-Offload: Ren et al. 2021, arXiv:2101.06840, section
    4), nothing hidden.
    """
    training = job.training
    shard = np.where(lay.zero >= 1, lay.shards, 1.0)[:, None]
    expert_shard = np.where(lay.zero >= 1, lay.expert_shards, 1.0)[:, None]
    own = params.dense / shard + params.expert / expert_shard
    link = (training.gradient_bytes + training.weight_gather_bytes) / host_bytes_per_s(job.cluster.gpu)
    memory = (2.0 * training.optimizer_bytes + training.gradient_bytes) / (_HOST_MEMORY_GBYTES_PER_S * GB)
    return np.asarray(own * (link + memory))
