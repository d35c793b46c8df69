"""A training on something else than the job's GPU is refused before it runs, and where it would run."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jointopt.core.errors import LauncherError
from jointopt.jobs.catalog.clusters import build_cluster
from jointopt.jobs.job import Job
from jointopt.measure.base import Launcher
from jointopt.measure.framework_launchers import framework_launcher
from jointopt.measure.hardware import host as devices
from jointopt.measure.hardware.host import FOR_TESTS, check_devices, device_remarks, wrong_device
from jointopt.measure.torchrun import TorchrunLauncher, TorchrunProgram

PLAN = {
    "dp": 2, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 1, "stage_clock_mhz": [1410.0],
}  # fmt: skip
H100 = "NVIDIA H100 80GB HBM3"
CHECKOUT = Path(__file__).parents[1] / "launchers"  # a stand-in for Megatron-LM's script


@pytest.fixture(autouse=True)
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOR_TESTS, raising=False)
    devices._pytorch_gpus.cache_clear()


def test_gpus_of_the_job_count_and_others_are_named_beside_it() -> None:
    assert wrong_device("h100-sxm5-80gb", [H100, H100]) == ""
    assert wrong_device("h100-sxm5-80gb", ["NVIDIA A100-SXM4-80GB"]) == (
        "The job runs on h100-sxm5-80gb, and this machine has NVIDIA A100-SXM4-80GB; run it where such GPUs are, or "
        "give the job gpu: a100-sxm4-80gb."
    )


def test_cores_count_for_a_job_on_cores_alone() -> None:
    assert wrong_device("cpu-core", []) == wrong_device("cpu-core", [H100]) == ""
    assert "so that it would train on cores" in wrong_device("h100-sxm5-80gb", [])


def test_a_job_on_cores_queries_no_driver_for_gpus(monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    monkeypatch.setattr(devices, "_pytorch_gpus", lambda: pytest.fail("PyTorch is started to no purpose"))
    check_devices(replace(job, cluster=build_cluster({"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 2})))


def test_under_the_variable_for_tests_cores_count_and_other_gpus_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOR_TESTS, "1")
    assert wrong_device("h100-sxm5-80gb", []) == ""
    assert "this machine has NVIDIA A100" in wrong_device("h100-sxm5-80gb", ["NVIDIA A100-SXM4-80GB"])


def test_a_gpu_that_the_catalogue_does_not_know_is_remarked_on_and_so_is_a_precision_that_cores_lack() -> None:
    assert wrong_device("h100-sxm5-80gb", ["NVIDIA Unheard Of"]) == ""
    assert device_remarks("h100-sxm5-80gb", "bf16", "NVIDIA Unheard Of") == [
        "on NVIDIA Unheard Of, which the catalogue does not know, taken for h100-sxm5-80gb"
    ]
    assert device_remarks("h100-sxm5-80gb", "bf16", H100) == device_remarks("cpu-core", "fp32", "") == []
    assert device_remarks("cpu-core", "bf16", "") == ["cores train in fp32, not bf16"]


@pytest.mark.parametrize("make", [TorchrunLauncher, lambda: framework_launcher("megatron", CHECKOUT)])
def test_launchers_refuse_to_train_a_job_of_gpus_on_cores(make: type[Launcher], job: Job, torch: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("PyTorch sees a GPU here")
    here = build_cluster({"gpu": "a100-sxm4-40gb", "nodes": 1, "gpus_per_node": 2})
    with pytest.raises(LauncherError, match="a100-sxm4-40gb, and PyTorch finds no GPU here"):
        make().run(replace(job, cluster=here), PLAN)
    check_devices(replace(job, cluster=build_cluster({"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 2})))


@pytest.mark.usefixtures("torch")
def test_the_trainer_itself_refuses_where_a_scheduler_starts_it(job: Job, tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(TorchrunProgram(1, 0).spec(job, PLAN).text())
    words = [sys.executable, "-m", "jointopt.measure.trainer", "spec.json", "result.json"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode != 0
    assert "PyTorch finds no GPU here" in ran.stderr
