"""Doubt of the time of plans with layers shorter than any recorded: launching their kernels may take longer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats
from jointopt.core.units import TERA
from jointopt.jobs.job import Job
from jointopt.physics.throughput import model_flops_per_token, peak_tflops


def may_wait_for_host(job: Job, columns: Columns, shortest_s: float) -> Bools:
    """Whether layers of plans (n,) take less than ``shortest_s`` at the GPU's peak, and the host's share is not known.

    A profile with a host floor states it, and captured graphs launch their kernels at once.
    """
    training = job.training
    known = training.framework.host_floor_s > 0.0 or training.cuda_graph or job.cluster.gpu.is_cpu
    return np.zeros(len(columns["pp"]), bool) if known else layer_peak_s(job, columns) < shortest_s


def layer_peak_s(job: Job, columns: Columns) -> Floats:
    """Seconds of one layer's flops, forward and backward of a micro-batch, at the peak of its precision, (n,).

    The mean over the layers, of model flops (`model_flops_per_token`): a kernel reaches half of the peak, seldom more.
    NaN without a peak. Degrees and sizes that ``columns`` lack are 1.
    """
    one = np.ones(len(columns["pp"]))
    size, tp, cp = (np.asarray(columns.get(name, one)) for name in ("micro_batch_size", "tp", "cp"))
    layers, training = replace(job.model, vocab_size=0), job.training
    flops = model_flops_per_token(layers, training.seq_length, training=training) / job.model.num_layers
    return np.asarray(flops * training.seq_length * size / (tp * cp) / (peak_tflops(job) * TERA), np.float64)
