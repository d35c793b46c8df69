"""What training kernels reach per architecture: complete for every GPU, plausible, and equal to published ratios."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jointopt.core.schema import ATTENTIONS
from jointopt.jobs.catalog.gpus import gpu_ids, load_gpu
from jointopt.jobs.catalog.kernels import attention_constants, attention_kernel, fp32_time_factor, training_factor
from tests.each import each


@each("gpu", gpu_ids())
def test_every_gpu_has_the_constants_of_its_architecture(gpu: str) -> None:
    sheet = load_gpu(gpu)
    assert 1.0 <= training_factor(sheet) <= 1.5
    for kernel in ATTENTIONS:
        constants = attention_constants(sheet, kernel)
        assert 0 < constants.backward <= constants.forward < 1
        assert constants.half_length > 0


@pytest.mark.parametrize(
    ("gpu", "ratio"),
    [
        ("a100-sxm4-80gb", 312 / 19.5),  # NVIDIA A100 data sheet
        ("h100-sxm5-80gb", 989.4 / 66.9),  # NVIDIA H100 architecture white paper, dense
        ("v100-sxm2-16gb", 125 / 15.7),  # NVIDIA V100 data sheet
    ],
)
def test_fp32_without_tf32_is_as_much_slower_as_the_data_sheets_state(gpu: str, ratio: float) -> None:
    assert fp32_time_factor(load_gpu(gpu)) == pytest.approx(ratio, rel=0.02)


def test_fp32_of_a_gpu_of_unknown_multiprocessor_count_is_unknown() -> None:
    assert fp32_time_factor(replace(load_gpu("h100-nvl-94gb"), sm_count=None)) is None


def test_every_gpu_with_tf32_has_a_slower_fp32() -> None:
    sheets = [load_gpu(gpu) for gpu in gpu_ids()]
    assert [sheet.id for sheet in sheets if sheet.has_tf32 and fp32_time_factor(sheet) is None] == []
    assert {sheet.architecture for sheet in sheets if sheet.vendor == "AMD" and sheet.has_tf32} == {"CDNA 3"}


def test_fp32_without_tf32_runs_at_the_stated_vector_rate() -> None:
    assert fp32_time_factor(load_gpu("mi300x")) == pytest.approx(1307.4 / 163.4, rel=0.02)


def test_a_kernel_that_an_architecture_lacks_falls_back() -> None:
    ampere = load_gpu("a100-sxm4-80gb")
    assert attention_constants(ampere, "flash3") == attention_constants(ampere, "flash2")
    assert attention_constants(ampere, "unfused") == attention_constants(ampere, "flash1")


def test_newer_kernels_are_faster_on_hopper() -> None:
    shares = [attention_constants(load_gpu("h200-sxm-141gb"), f"flash{n}").forward for n in (1, 2, 3)]
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    ("gpu", "tokens", "forward", "backward"),
    [
        ("b200-sxm-180gb", 8192, 1502, 1255),
        ("b200-sxm-180gb", 32768, 1781, 1582),
        ("gb200", 8192, 1894, 1263),
        ("h200-sxm-141gb", 8192, 964, 430),
    ],
)
def test_fp8_attention_reaches_what_cudnn_publishes(gpu: str, tokens: int, forward: float, backward: float) -> None:
    sheet = load_gpu(gpu)
    found = attention_constants(sheet, "fp8_attention")
    reached = (sheet.peak_16_bit_tflops or 0.0) * tokens / (tokens + found.half_length)
    assert found.forward * reached == pytest.approx(forward, rel=0.15)
    assert found.backward * reached == pytest.approx(backward, rel=0.15)


@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "mi300x", "mi355x"])
def test_attention_stays_in_16_bit_where_no_fp8_kernel_is_published(gpu: str) -> None:
    assert attention_kernel(load_gpu(gpu), "flash2", in_fp8=True) == "flash2"


def test_scores_that_go_through_memory_stay_in_16_bit() -> None:
    assert attention_kernel(load_gpu("gb200"), "unfused", in_fp8=True) == "unfused"
