"""One attention kernel for a job that names none and the runs that its predictions rest on."""

from __future__ import annotations

import pandas as pd
import pytest

from jointopt.jobs.jobfile import job_from_options, with_changes
from jointopt.surrogate.job_model import JobModel

JOB = job_from_options("llama-2-13b", "a100-sxm4-80gb", 16, 64, 4096, dtype="bf16", framework="megatron-lm")


def runs(**cells: object) -> pd.DataFrame:
    return pd.DataFrame([{
        "model": "llama-2-13b", "gpu": "a100-sxm4-80gb", "gpus_per_node": 8, "num_gpus": 16, "seq_length": 4096,
        "global_batch_size": 64, "dtype": "bf16", "framework": "megatron-lm", "dp": dp, "tp": 16 // dp, "pp": 1,
        "micro_batch_size": 1, "status": "ok", "iteration_time_s": 20.0 + dp, **cells,
    } for dp in (4, 8)])  # fmt: skip


def kernels(job, table: pd.DataFrame) -> tuple[str, set[str]]:
    model = JobModel.of(job, measured=table)
    works = [work for priced in model.evidence.priced for work in priced.works]
    return model.job.training.attention, {work.job.training.attention for work in works}


def test_rows_that_name_no_kernel_ran_the_job_s() -> None:
    assert JOB.training.attention == "flash2"
    assert kernels(JOB, runs()) == ("flash2", {"flash2"})
    stated = with_changes(JOB, {"training.attention": "unfused"})
    assert kernels(stated, runs()) == ("unfused", {"unfused"})


@pytest.mark.parametrize("kernel", ["fused", "flash1"])
def test_a_job_that_names_no_kernel_is_priced_by_that_of_its_rows(kernel: str) -> None:
    assert kernels(JOB, runs(attention=kernel)) == (kernel, {kernel})
    stated = with_changes(JOB, {"training.attention": "flash2"})
    assert kernels(stated, runs(attention=kernel)) == ("flash2", {kernel})


def test_rows_of_an_old_release_and_a_job_without_one_are_as_old() -> None:
    assert kernels(JOB, runs(framework="Megatron-LM 2.4")) == ("fused", {"fused"})
    assert kernels(JOB, runs(framework="Megatron-LM core_v0.12.0")) == ("flash2", {"flash2"})
