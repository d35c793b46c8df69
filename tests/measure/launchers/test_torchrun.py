"""Real trainings under torchrun, and what becomes of those that fail."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from jointopt.core.errors import LauncherError
from jointopt.jobs.catalog.gpus import load_gpu
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import load_job
from jointopt.measure.base import EndsEarly
from jointopt.measure.torchrun import TorchrunLauncher
from jointopt.runs.rows import is_bounded
from tests.conftest import Driver

pytestmark = pytest.mark.usefixtures("torch")

PLAN: dict[str, Any] = {
    "dp": 2, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 2, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 1, "stage_clock_mhz": [3000.0],
}  # fmt: skip
FILE = {
    "model": {
        "num_layers": 2, "hidden_size": 64, "ffn_hidden_size": 128, "num_attention_heads": 4, "num_query_groups": 4,
        "vocab_size": 256, "gated_mlp": True,
    },
    "training": {"seq_length": 32, "global_batch_size": 8, "dtype": "fp32", "framework": "torchtitan"},
    "cluster": {"gpu": "cpu-core", "nodes": 1, "gpus_per_node": 2},
    "objectives": ["iteration_time_s"],
}  # fmt: skip


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(FILE))
    return load_job(tmp_path / "job.yaml")


def test_a_run_is_timed_and_learns_and_energy_without_a_meter_is_unknown_not_zero(job: Job, tmp_path: Path) -> None:
    row = TorchrunLauncher(iterations=4, warmup_iterations=1, logs=tmp_path / "logs").run(job, PLAN)
    assert row["status"] == "ok"
    assert 0 < row["iteration_time_s"] < 60
    assert 0.05 < row["peak_memory_gib"] < 4
    first, last = (float(word) for word in row["notes"].split("loss ")[1].split(" to "))
    assert first > last
    assert len(list((tmp_path / "logs").iterdir())) == 1
    assert math.isnan(row["energy_j"])
    assert math.isnan(row["avg_power_w"])


def test_a_run_over_its_time_is_a_timeout_and_leaves_no_process(job: Job) -> None:
    row = TorchrunLauncher(limit_s=1.0).run(job, PLAN)
    assert (row["status"], math.isnan(row["iteration_time_s"])) == ("timeout", True)
    children = psutil.Process().children(recursive=True)
    alive = [child for child in children if child.status() != psutil.STATUS_ZOMBIE]
    assert not [child for child in alive if "jointopt.measure.trainer" in " ".join(child.cmdline())]


def test_a_run_leaves_no_folder_of_its_own_among_temporary_files(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    assert TorchrunLauncher(iterations=1, warmup_iterations=1).run(job, PLAN)["status"] == "ok"
    assert [path.name for path in (tmp_path / "tmp").iterdir() if "inductor" not in path.name] == []  # a cache


@pytest.mark.parametrize(
    ("behind_s", "status", "iterations"), [(1e-6, "timeout", 3), (60.0, "ok", 12), (0.0, "ok", 12)]
)
def test_a_run_that_is_behind_ends_after_three_iterations_with_its_least_time_as_a_bound(
    job: Job, behind_s: float, status: str, iterations: int
) -> None:
    launcher = TorchrunLauncher(iterations=12, warmup_iterations=1)
    assert isinstance(launcher, EndsEarly)
    launcher.behind_s = behind_s
    row = launcher.run(job, PLAN)
    assert (row["status"], is_bounded(row)) == (status, status == "timeout")
    assert f"{iterations} iterations" in row["notes"]
    assert 1e-6 < row["iteration_time_s"] < 60


def test_a_run_whose_memory_does_not_suffice_is_out_of_memory(job: Job) -> None:
    huge = replace(job, model=replace(job.model, vocab_size=2**40))  # an embedding of 256 TiB
    row = TorchrunLauncher(limit_s=120).run(huge, PLAN)
    assert (row["status"], math.isnan(row["iteration_time_s"])) == ("oom", True)


def test_without_room_for_its_files_no_run_starts(job: Job, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    (small_disk / "taken").write_bytes(bytes(65_536))
    with pytest.raises(LauncherError, match="cannot be written: No space left on device; make room there"):
        TorchrunLauncher().run(job, PLAN)


def test_a_plan_that_the_trainer_cannot_lay_out_is_a_failure_with_its_cause(job: Job) -> None:
    one_group = replace(job, model=replace(job.model, num_query_groups=1))
    row = TorchrunLauncher(limit_s=120).run(one_group, PLAN | {"dp": 1, "tp": 2})
    assert row["status"] == "failed"
    assert "ValueError: tp 2 does not divide the 1 query groups" in row["notes"]


def test_a_process_that_breaks_while_it_ends_is_no_failure_of_its_run(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads of gloo have aborted interpreters that were ending, with the results written."""
    breaking = "import atexit, os\nif 'RANK' in os.environ:\n    atexit.register(os.abort)\n"
    (tmp_path / "sitecustomize.py").write_text(breaking)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    row = TorchrunLauncher(iterations=1, warmup_iterations=0).run(job, PLAN)
    assert row["status"] == "ok", row["notes"]


def test_more_than_one_machine_and_unknown_attention_are_refused(job: Job) -> None:
    launcher = TorchrunLauncher()
    with pytest.raises(LauncherError, match="use --launcher slurm"):
        launcher.candidates(replace(job, cluster=replace(job.cluster, nodes=2)))
    with pytest.raises(LauncherError, match="no multi-head latent attention"):
        launcher.candidates(replace(job, model=replace(job.model, kv_lora_rank=512)))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_launcher_of_one_machine_takes_jobs_of_one_node(job: Job, nodes: int) -> None:
    launcher = TorchrunLauncher()
    if nodes == 1:
        assert launcher.candidates(replace(job, cluster=replace(job.cluster, nodes=1))) is None
    else:
        with pytest.raises(LauncherError, match=r"runs on one machine, and job .* has 2 nodes; use --launcher slurm"):
            launcher.candidates(replace(job, cluster=replace(job.cluster, nodes=2)))


@pytest.fixture
def on_gpus(job: Job, driver: Driver) -> Job:
    """The job on two of the stand-in driver's GPUs, whose energy is measured."""
    gpu = load_gpu("h100-sxm5-80gb")
    return replace(job, cluster=replace(job.cluster, gpu=gpu), objectives=("iteration_time_s", "energy_j"))


def test_a_training_beyond_a_measured_time_and_energy_ends_with_bounds_of_both_and_its_clocks_given_back(
    on_gpus: Job, driver: Driver
) -> None:
    launcher = TorchrunLauncher(iterations=10**6, warmup_iterations=1, limit_s=120.0)
    launcher.behind_both = ((1e-6, 1e-3),)
    row = launcher.run(on_gpus, PLAN | {"stage_clock_mhz": [990.0]})
    assert is_bounded(row), row["notes"]
    watts = 2 * (90.0 + 600.0 / 8.0)  # of both GPUs at half their highest clock
    assert row["avg_power_w"] == pytest.approx(watts / 2, rel=0.03)
    assert 0.8 < row["energy_j"] / (watts * row["iteration_time_s"]) < 1.01  # at least: counters move every 100 ms
    assert 0.05 < row["peak_memory_gib"] < 4
    assert driver.held() == {}
