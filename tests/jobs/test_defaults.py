"""What blanks mean: one table for plans, rows of tables and job files."""

from dataclasses import replace

import numpy as np
import pytest

from jointopt.core.schema import ATTENTIONS, SCHEDULE
from jointopt.jobs.catalog.frameworks import framework_names, load_framework, recognise_framework
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.catalog.kernels import attention_kernels
from jointopt.jobs.defaults import completed, default_attention, default_dtype, default_plan
from jointopt.jobs.framework import Framework
from jointopt.jobs.jobfile import job_from_options
from tests.each import each


def plan(framework, gpus=16, batch=64, **given):
    job = job_from_options("llama-2-13b", "a100-sxm4-80gb", gpus, batch, 4096, gpus_per_node=4)  # of 40 layers
    default = default_plan(replace(job, training=replace(job.training, framework=framework)), given)
    return {name: values.tolist() for name, values in default.layouts.items()}, default.assumed


def test_one_blank_degree_is_what_the_others_leave_and_no_assumption():
    found, assumed = plan(Framework(), tp=[2, 2], pp=[2, np.nan], cp=[1, 1], dp=[np.nan, 2])
    assert (found["dp"], found["pp"]) == ([4, 2], [2, 4])
    assert not any(assumed[name].any() for name in ("dp", "tp", "pp", "cp"))


def test_several_blank_degrees_leave_the_gpus_to_data_parallelism():
    found, assumed = plan(Framework(), tp=[2])
    assert [found[name] for name in ("dp", "tp", "pp", "cp")] == [[8], [2], [1], [1]]
    assert {name for name, mask in assumed.items() if mask.any()} == {
        "pp", "cp", "micro_batch_size", "sequence_parallel", "recompute", "zero_stage",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("usual", "with_pipeline", "expected"), [(3, (0, 1), 1), (3, (0, 2, 3), 3), (1, (0, 2), 0), (0, (1, 2), 1)]
)
def test_pipelines_fall_back_to_the_next_lower_stage_that_they_can_have(usual, with_pipeline, expected):
    framework = Framework(default_zero_stage=usual, zero_stages_with_pipeline=with_pipeline)
    assert plan(framework, pp=[1, 2])[0]["zero_stage"] == [usual, expected]


def test_a_framework_that_interleaves_does_so_where_layers_and_micro_batches_allow_it():
    nemo = load_framework("nemo")  # chunks of two layers
    assert plan(nemo, tp=1, pp=[4, 8, 16, 1], batch=96)[0]["vpp"] == [5, 1, 1, 1]
    assert plan(nemo, tp=1, pp=[4], dp=[4], batch=100)[0]["vpp"] == [1]
    assert plan(load_framework("megatron-lm"), pp=[4])[0]["vpp"] == [1]


def test_sequence_parallelism_is_off_where_tokens_do_not_split():
    assert plan(Framework(), gpus=12, tp=[3, 2, 1])[0]["sequence_parallel"] == [False, True, False]


@each("name", framework_names())
def test_the_stages_and_modes_of_a_default_are_those_that_the_framework_has(name):
    framework = load_framework(name)
    found, _ = plan(framework, pp=[1, 2, 4])
    piped = set(framework.zero_stages) & set(framework.zero_stages_with_pipeline)
    assert found["zero_stage"][0] in framework.zero_stages
    assert set(found["zero_stage"][1:]) <= piped
    assert set(found["sequence_parallel"]) <= {False, *framework.sequence_parallel}


@pytest.mark.parametrize(
    ("gpu", "framework", "dtype", "row", "job"),
    [("v100-sxm2-16gb", "generic", "fp16", "fused", "fused"),
     ("a100-sxm4-80gb", "megatron-lm", "bf16", "fused", "flash2"),
     ("a100-sxm4-80gb", "nemo", "bf16", "flash2", "flash2"),
     ("h100-sxm5-80gb", "megatron-lm", "bf16", "flash2", "flash3"),
     ("h100-sxm5-80gb", "generic", "bf16", "flash2", "flash2"), ("b200-sxm-180gb", "nemo", "bf16", "flash2", "flash2")],
)  # fmt: skip
def test_a_row_has_the_kernel_of_its_framework_s_recorded_runs_and_a_job_that_of_today(gpu, framework, dtype, row, job):
    device, profile = load_gpu(gpu), load_framework(framework)
    assert default_dtype(device) == dtype
    assert [default_attention(profile, device, dtype, newer=newer) for newer in (False, True)] == [row, job]


@pytest.mark.parametrize(
    ("gpu", "text", "kernel"),
    [("a100-sxm4-80gb", "Megatron-LM 2.4", "fused"), ("a100-sxm4-80gb", "Megatron-LM core_v0.12.0", "flash2"),
     ("h100-sxm5-80gb", "NeMo 24.07", "flash2"), ("h100-sxm5-80gb", "NVIDIA NeMo Framework Release 25.04", "flash3")],
)  # fmt: skip
def test_software_of_a_named_release_has_its_kernel_in_a_row_and_in_a_job(gpu, text, kernel):
    profile, _ = recognise_framework(text)
    found = {default_attention(profile, load_gpu(gpu), "bf16", text, newer=newer) for newer in (False, True)}
    assert found == {kernel}


@each("framework", framework_names())
@each("gpu", ["a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "v100-sxm2-16gb", "mi300x"])
def test_no_default_kernel_is_slower_than_that_of_recorded_runs_or_does_not_run(framework, gpu):
    device, profile = load_gpu(gpu), load_framework(framework)
    row, job = (default_attention(profile, device, "bf16", newer=newer) for newer in (False, True))
    assert {row, job} <= {*attention_kernels(device)}
    assert ATTENTIONS.index(job) >= ATTENTIONS.index(row)


def test_a_schedule_with_its_own_number_of_chunks_has_it_where_none_is_stated():
    code = SCHEDULE.code
    found, assumed = plan(
        Framework(), pp=[4] * 4, schedule=[code(name) for name in ("zbv", "dualpipev", "zb-h1", "1f1b")]
    )
    assert found["vpp"] == [2, 2, 1, 1]
    assert assumed["vpp"].tolist() == [False, False, False, True]


def test_a_schedule_whose_chunks_a_plan_has_not_is_priced_as_1f1b():
    job = job_from_options("llama-2-13b", "a100-sxm4-80gb", 16, 64, 4096, gpus_per_node=4)
    schedule, vpp = (np.array(values) for values in zip(*[(SCHEDULE.code("zbv"), n) for n in (1, 2)], strict=True))
    layouts = {"pp": np.full(2, 4), "tp": np.ones(2, int), "vpp": vpp, "schedule": schedule}
    layouts |= {name: np.ones(2, int) for name in ("dp", "cp", "ep")}
    assert completed(job, layouts)["schedule"].tolist() == [0, SCHEDULE.code("zbv")]
