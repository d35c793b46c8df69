"""A GPU that a job states itself: what it changes, what stands in, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jointopt.core.errors import UsageError
from jointopt.jobs.catalog.gpus import FIGURES, load_gpu, own_gpu
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_mapping, load_job, parse_job
from jointopt.jobs.reading import dump_yaml
from jointopt.workflows.explain import explain

LIKE = {"name": "mine", "like": "h100-sxm5-80gb"}
ALONE = {
    "name": "mine", "peak_tflops": {"bf16": 900}, "memory_gib": 80, "memory_gbytes_per_s": 3000,
    "intra_node_gbytes_per_s": 400, "clock_min_mhz": 300, "clock_max_mhz": 2000, "clock_step_mhz": 10, "tdp_w": 700,
}  # fmt: skip


def job(gpu: Any) -> Job:
    training = {"seq_length": 4096, "global_batch_size": 64}
    cluster = {"gpu": gpu, "nodes": 1, "gpus_per_node": 8}
    return parse_job({"model": "llama-3-8b", "training": training, "cluster": cluster}, "job", Path())


def test_a_gpu_like_another_is_predicted_as_that_one() -> None:
    found, catalogue = (explain(job(gpu), "dp=4 tp=2", surrogate="none") for gpu in (LIKE, "h100-sxm5-80gb"))
    assert found.iteration_time_s == pytest.approx(catalogue.iteration_time_s)
    assert found.energy_j == pytest.approx(catalogue.energy_j, rel=0.02)  # its own waiting power is scaled
    assert all(getattr(own_gpu(LIKE), name) == getattr(load_gpu("h100-sxm5-80gb"), name) for name in FIGURES)


def test_faster_memory_and_products_make_it_faster_and_more_power_costs_energy() -> None:
    usual, faster, hungry = (
        explain(job(LIKE | own), "dp=4 tp=2", surrogate="none")
        for own in ({}, {"peak_tflops": {"bf16": 1400}, "memory_gbytes_per_s": 5000}, {"tdp_w": 1000})
    )
    assert faster.iteration_time_s < usual.iteration_time_s
    assert hungry.energy_j > usual.energy_j


def test_a_gpu_without_a_like_has_the_power_of_its_kind() -> None:
    found = explain(job(ALONE), "dp=4 tp=2", surrogate="none")
    assert np.isfinite([found.iteration_time_s, found.energy_j]).all()
    assert max(job(ALONE).search.clock_mhz) == 2000


def test_its_job_is_written_and_read_again(tmp_path: Path) -> None:
    first = job(LIKE | {"memory_gib": 120})
    assert parse_job(job_mapping(first), "job", Path()) == first
    (tmp_path / "gpu.yaml").write_text(dump_yaml(LIKE | {"memory_gib": 120}))
    mapping = job_mapping(first)
    mapping["cluster"] |= {"gpu": "gpu.yaml"}
    (tmp_path / "job.yaml").write_text(dump_yaml(mapping))
    assert load_job(tmp_path / "job.yaml") == first


def test_what_stands_in_is_a_named_assumption() -> None:
    assert "mine: what is not given is that of h100-sxm5-80gb" in map(str, job(LIKE).cluster.assumed)


@pytest.mark.parametrize(
    ("gpu", "reason"),
    [
        (ALONE | {"memory_gbytes_per_s": 0}, "cluster.gpu.memory_gbytes_per_s must be a number above 0"),
        (ALONE | {"clock_min_mhz": 2100}, r"clock_min_mhz \(2100\) must not be above clock_max_mhz \(2000\)"),
        (ALONE | {"clock_step_mhz": 900, "clock_min_mhz": 1900}, "clock_step_mhz .900. must not be above the span"),
        (ALONE | {"idle_w": 700}, r"idle_w \(700\) must be below tdp_w \(700\)"),
        (ALONE | {"peak_tflops": {"fp8": 1}}, "with bf16 or fp16"),
        (ALONE | {"peak_tflops": {"bf61": 1}}, "did you mean 'bf16'"),
        (ALONE | {"sm_count": 1.5}, "cluster.gpu.sm_count must be a whole number"),
        ({"name": "mine", "memory_gib": 80}, "cluster.gpu.peak_tflops is missing|memory_gbytes_per_s is missing"),
        (ALONE | {"name": "h200-sxm-141gb"}, "is a GPU of the catalogue; choose another name"),
        (LIKE | {"like": "h100x"}, "cluster.gpu: The GPU 'h100x' is not in the catalogue"),
        (["a", "b"], "`jointopt scale` compares several GPUs"),
    ],
)
def test_figures_that_make_no_sense_are_one_sentence(gpu: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        job(gpu)
