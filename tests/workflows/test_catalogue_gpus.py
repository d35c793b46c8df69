"""A small job on every GPU of the catalogue: whatever the GPU, a front comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jointopt.jobs.catalog.gpus import gpu_ids, load_gpu
from jointopt.jobs.jobfile import parse_job
from jointopt.workflows.propose import propose
from tests.each import each

BOARDS = [gpu for gpu in gpu_ids() if load_gpu(gpu).power is not None]


@each("gpu", BOARDS)
def test_a_small_job_on_each_gpu_has_a_front_of_finite_times_and_energies_in_its_memory(gpu: str) -> None:
    sheet = load_gpu(gpu)
    top = sheet.need("clock_max_mhz", "test")
    job = parse_job(
        {
            "model": "opt-125m",
            "training": {"seq_length": 1024, "global_batch_size": 16, "dtype": "fp16"},
            "cluster": {"gpu": gpu, "nodes": 2, "gpus_per_node": 2, "inter_node_gbytes_per_s": 12.5},
            "search": {"clock_mhz": [top - 300, top - 150, top], "micro_batch_size": [1, 4], "cp": 1, "zero_stage": 1},
        },
        gpu, Path(),
    )  # fmt: skip
    front = propose(job, surrogate="none").front
    assert np.isfinite([front["iteration_time_s"], front["energy_j"]]).all()
    assert (np.diff(front["energy_j"]) < 0).all()
    assert (front["peak_memory_gib"] < sheet.memory_gib).all()
    assert (front["avg_power_w"] <= 1.001 * sheet.need("tdp_w", "test")).all()
