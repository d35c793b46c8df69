"""Combinations of recorded runs: how far a job is from them, and how far off times are there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from jointopt.jobs.catalog.frameworks import framework_names, release_numbers
from jointopt.jobs.catalog.gpus import gpu_ids, load_gpu
from jointopt.jobs.catalog.recorded_runs import OTHER_SOFTWARE, RecordedRuns, combination_of, recorded_runs
from jointopt.jobs.jobfile import job_from_options, with_changes

ROWS = [
    ["nemo", "hopper", "fp8", "dense", 0.1, 0.2, 1, "24.09"],
    ["nemo", "hopper", "bf16", "experts", 0.3, 0.4, 2, "25.02"],
    ["torchtitan", "ampere", "bf16", "dense", 0.5, 0.6, 1, "0.2"],
    ["generic", "ampere", "bf16", "dense", 0.7, 0.8, 1, ""],
    ["generic", "hopper", "fp16", "dense", 0.9, 1.0, 3, ""],
]
FEW = RecordedRuns.of(ROWS, {"dense": [1.0, 2.0]})


def test_software_without_recorded_runs_is_named_as_all_other() -> None:
    assert FEW.named(("nemo", "volta", "fp4", "dense")) == ("nemo", "volta", "fp4", "dense")
    assert FEW.named(("megatron-lm", "hopper", "fp8", "dense")) == (OTHER_SOFTWARE, "hopper", "fp8", "dense")


@pytest.mark.parametrize(
    ("combination", "steps"),
    [
        (("nemo", "hopper", "fp8", "dense"), 0),
        (("nemo", "hopper", "bf16", "dense"), 1),
        (("nemo", "ampere", "bf16", "dense"), 1),  # torchtitan's
        (("nemo", "volta", "fp4", "dense"), 2),
        (("torchtitan", "volta", "fp4", "adapters"), 3),
        (("megatron-lm", "ampere", "bf16", "dense"), 0),  # as any other software
        (("megatron-lm", "hopper", "fp8", "dense"), 1),
    ],
)
def test_steps_are_in_how_many_of_four_the_nearest_recorded_combination_differs(combination: Any, steps: int) -> None:
    assert FEW.steps(combination) == steps


def test_half_widths_are_root_mean_squares_of_like_runs_that_count_less_the_less_alike() -> None:
    def mean(counts: Sequence[float], sides: Sequence[float]) -> float:
        return math.sqrt(sum(c * s * s for c, s in zip(counts, sides, strict=True)) / sum(counts))

    # differ in nothing; in precision and kind, of two tables; in software, GPU and precision
    counts = 1.0, 2 / 4 / 16, 1 / 64
    found = FEW.half_widths(("nemo", "hopper", "fp8", "dense"))
    assert found == pytest.approx((mean(counts, (0.1, 0.3, 0.5)), mean(counts, (0.2, 0.4, 0.6))))
    other = FEW.half_widths(("internevo", "ampere", "bf16", "dense"))  # of runs without a profile alone
    assert other == pytest.approx((mean((1.0, 3 / 16), (0.7, 0.9)), mean((1.0, 3 / 16), (0.8, 1.0))))


def test_a_release_is_newer_than_recorded_ones_of_its_own_software_and_kind_alone() -> None:
    newer = {"25.04": True, "25.02": False, "24.12": False, "3.0": False, "": False}  # 3: not of a container
    assert {release: FEW.is_newer("nemo", release_numbers(release)) for release in newer} == newer
    assert FEW.is_newer("torchtitan", (0, 3))
    assert not FEW.is_newer("generic", (99,))


def test_values_are_looked_for_side_by_side() -> None:
    assert FEW.has(0, "nemo")
    assert FEW.has(2, "bf16", "experts")
    assert not FEW.has(2, "fp8", "experts")


def test_the_catalogue_has_each_combination_once_of_names_it_knows_and_widens_with_every_step() -> None:
    runs = recorded_runs()
    names = [tuple(one) for one in runs.names]
    assert len({*names}) == len(names)
    software, architectures, precisions, kinds = (set(column) for column in runs.names.T)
    assert software <= {*framework_names()}
    assert architectures <= {load_gpu(name).architecture.lower() for name in gpu_ids()}
    assert precisions <= {"bf16", "fp16", "tf32", "fp8", "fp4"}
    assert kinds == runs.wider.keys() == {"dense", "experts", "adapters"}
    assert (np.minimum(runs.below, runs.above) > 0.0).all()
    assert (runs.tables >= 1).all()
    for factors in runs.wider.values():
        assert factors[0] >= 1.0
        assert sorted(factors) == list(factors)


def test_a_combination_is_a_job_s_software_architecture_precision_and_kind() -> None:
    job = job_from_options("llama-3-8b", "h100-sxm5-80gb", 8, 64, 4096, dtype="bf16", framework="nemo")
    assert combination_of(job) == ("nemo", "hopper", "bf16", "dense")
    assert combination_of(with_changes(job, {"training.dtype": "fp8"}))[2] == "fp8"
    assert combination_of(with_changes(job, {"training.lora_dim": 16}))[3] == "adapters"
    assert combination_of(job_from_options("mixtral-8x7b", "h100-sxm5-80gb", 8, 64, 4096))[3] == "experts"
