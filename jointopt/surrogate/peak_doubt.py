"""Doubt of times that measured runs have moved below what the GPU's peak allows."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Bools, Columns
from jointopt.core.units import TERA
from jointopt.jobs.job import Job
from jointopt.physics.throughput import model_flops_per_token, peak_tflops


def above_peak(job: Job, columns: Columns) -> Bools:
    """Whether the flops of the model, causal attention alone, would take longer at the peak than the times (n,).

    False where ``columns`` hold no time, and on a core of a CPU, whose peak has no bound.
    """
    if "iteration_time_s" not in columns or job.cluster.gpu.is_cpu:
        return np.zeros(len(columns["pp"]), bool)
    training = job.training
    flops = model_flops_per_token(job.model, training.seq_length, causal=True, training=training)
    tokens = training.seq_length * training.global_batch_size / job.cluster.num_gpus
    return np.asarray(columns["iteration_time_s"] < flops * tokens / (peak_tflops(job) * TERA))
