"""Weights, gradients and optimizer states in device memory where a plan keeps some of them in host memory."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats
from jointopt.jobs.job import Training
from jointopt.physics.layouts import LayoutArrays

_BUCKET = 5e8  # gradients on their way to the host together, DeepSpeed's reduce_bucket_size


def on_device(state: dict[str, Floats], lay: LayoutArrays, training: Training) -> dict[str, Floats]:
    """The bytes of ``state``, (L, pp) each, less an offloaded optimizer, and of ZeRO-2 and 3 its gradients.

    Those of frameworks that send gradients to the host as they come (DeepSpeed's ZeRO-Offload: Ren et al. 2021,
    arXiv:2101.06840, section 4.1), but for a bucket of them in 16 bit. One rank may have any stage: it shards nothing.
    """
    offloads = lay.offloads_optimizer[:, None]
    out = state | {"optimizer": np.where(offloads, 0.0, state["optimizer"])}
    if training.framework.offloads_gradients:
        sent, bucket = offloads & ((lay.zero >= 2) | (lay.shards == 1))[:, None], _BUCKET * training.weight_gather_bytes
        out["gradients"] = np.where(sent, np.minimum(state["gradients"], bucket), state["gradients"])
        out["main_gradients"] = np.where(sent, 0.0, state["main_gradients"])
    return out
