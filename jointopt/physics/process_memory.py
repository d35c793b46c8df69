"""Device memory that a process holds beside its training: communicators, workspaces of kernels, the CUDA context."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats
from jointopt.core.units import GIB
from jointopt.jobs.catalog.kernels import workspaces_mib
from jointopt.jobs.framework import share
from jointopt.jobs.job import Job
from jointopt.physics.layout_arrays import LayoutArrays

_MIB = 2.0**20
_GROUPED_STREAMS = 4  # on each of which Transformer Engine runs products of experts, with a workspace of its own
# Transformer Engine's initialize_ub: forward and backward of qkv, proj, fc1, fc2, and weights' gradients of qkv and fc1
_USER_BUFFERS = 10


def process_bytes(job: Job, lay: LayoutArrays) -> dict[str, Floats]:
    """Bytes that a process holds beside its training by part, (L,): communication, workspaces and other.

    But for user buffers the parts add up to what the framework's profile was fitted to (``memory_overhead_gib``).
    A communicator takes ``communicator_gib``: 10 MB per channel and peer connection of its simple, LL and LL128
    buffers (NCCL's NCCL_BUFFSIZE, 4 MiB, and its siblings) over 16 to 32 channels; at most half of what was fitted.
    """
    profile, held_gib = job.training.framework, job.cluster.gpu.process_memory_gib
    total = (profile.memory_overhead_gib if held_gib is None else held_gib) * GIB
    groups = sum((n > 1).astype(float) for n in (lay.tp, lay.cp, lay.dp, lay.ep, lay.pp))
    buffers = np.minimum(groups * profile.communicator_gib * GIB, total / 2.0)
    workspaces = np.minimum(_workspace_bytes(job), total - buffers)
    return {
        "communication": buffers, "workspaces": workspaces + user_buffer_bytes(job, lay),
        "other": total - buffers - workspaces,
    }  # fmt: skip


def _workspace_bytes(job: Job) -> float:
    """Workspaces of cuBLAS: of PyTorch's handle and, where the framework has Transformer Engine, of its streams."""
    torch_mib, engine_mib = workspaces_mib(job.cluster.gpu)
    streams = 0 if not job.training.framework.quantized_inputs else _GROUPED_STREAMS if job.model.is_moe else 1
    return _MIB * (torch_mib + streams * engine_mib)


def user_buffer_bytes(job: Job, lay: LayoutArrays) -> Floats:
    """Transformer Engine's user buffers for tensor-parallel collectives that overlap with products, (L,) bytes.

    Each holds a micro-batch's tokens of a context-parallel rank, whole (Megatron Core's initialize_tp_communicators);
    half of them gather, in 8 bit where products read 8 bit. They stay within a node and need sequence parallelism.
    """
    low = job.training.dtype in ("fp8", "fp4")
    framework = job.training.framework
    codes = lay.layouts["overlap"]
    hides = np.asarray(share(framework, "tp", codes)) > 0.0
    # a plan that turns the overlap on takes those of a framework whose buffers they are
    stated = hides & (framework.user_buffers | (framework.family == "megatron-core"))
    buffered = np.where(codes > 0, stated, framework.user_buffers)
    used = buffered & lay.sp & (lay.tp > 1) & (lay.tp <= job.cluster.gpus_per_node)
    each = lay.tokens * job.model.hidden_size * (1.5 if low else 2.0)
    return np.where(used, _USER_BUFFERS * each, 0.0)
