"""What a machine has: GPUs that programs started here would see, and no others."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from jointopt.core.errors import LauncherError
from jointopt.measure.hardware.host import (
    _metered_gpus,
    _named_gpus,
    found_machine,
    probe_readings,
    rank_variables,
    speeds,
)


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program ``nvidia-smi`` on the path that lists four GPUs of 40, 41, 42 and 43 GiB."""
    lines = [f"{i}, GPU-stand-in-{i}, NVIDIA H100, {1024 * (40 + i)}, 1980, [N/A]" for i in range(4)]
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\ncat << END\n" + "\n".join(lines) + "\nEND\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("shown", "gib"),
    [(None, [40, 41, 42, 43]), ("3,1", [43, 41]), ("GPU-stand-in-2", [42]), ("0,-1,2", [40]), ("", [])],
)
def test_gpus_are_those_that_are_visible_in_their_order(
    smi: None, monkeypatch: pytest.MonkeyPatch, shown: str | None, gib: list[float]
) -> None:
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert [gpu.memory_gib for gpu in _named_gpus()] == gib


def test_a_metered_gpu_has_its_own_memory(driver, smi: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    gpus, _ = _metered_gpus()
    assert [(gpu.memory_gib, gpu.clock_max_mhz) for gpu in gpus] == [(43, 1980), (41, 1980)]


def test_memory_is_in_gib_and_cores_are_those_that_this_process_may_use() -> None:
    machine = found_machine()
    assert machine.memory_gib == pytest.approx(
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, abs=0.1
    )
    assert machine.cores == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("writes", "code", "counts"), [(True, 0, True), (True, 3, False), (False, 0, False)])
def test_speeds_are_those_of_a_probe_that_writes_them_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool, code: int, counts: bool
) -> None:
    package = tmp_path / "torch" / "distributed"  # torchrun as a program of the test's own
    package.mkdir(parents=True)
    for name in (package.parent / "__init__.py", package / "__init__.py"):
        name.touch()
    text = "open(sys.argv[-1], 'w').write('{\"tflops\": 5}')" if writes else "pass"
    (package / "run.py").write_text(f"import sys\n{text}\nsys.exit({code})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with nullcontext() if counts else pytest.raises(LauncherError, match="The speeds could not be measured: "):
        assert probe_readings(2) == {"tflops": 5}


TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "n0", "MASTER_PORT": "1",
}  # fmt: skip
SRUN = {  # of the second of two tasks on the second node, spread cyclically
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "n0",
    "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_PROCID": "3", "SLURM_JOB_ID": "11999", "SLURM_STEP_ID": "2",
}  # fmt: skip


def test_a_process_knows_which_of_several_ranks_it_is() -> None:
    assert rank_variables({}) is None
    assert rank_variables({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None  # in a batch script, outside of srun
    assert rank_variables(TORCHRUN | SRUN) == {"RANK": "3"}
    first = {"MASTER_ADDR": "n0", "MASTER_PORT": "20001", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    assert rank_variables(SRUN) == first | {"RANK": "3", "LOCAL_RANK": "1"}
    assert rank_variables(SRUN | {"SLURM_PROCID": "2", "SLURM_LOCALID": "0"})["RANK"] == "2"
    with pytest.raises(LauncherError, match=r"2,1 tasks on its nodes; .*--ntasks-per-node"):
        rank_variables(SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2,1"})


def test_rates_are_those_of_the_best_product_and_the_best_ring() -> None:
    products = [{"dtype": "bf16", "m": 1000, "n": 1000, "k": 1000, "time_s": time_s} for time_s in (1e-4, 5e-5)]
    ring = {"kind": "all_reduce", "bytes": 4e9, "size": 4, "nodes": 1, "time_s": 0.1}
    same = {"processes": 4, "device": "a GPU", "torch": "2.14", "backends": ["nccl"]}
    readings = {"products": products, "copy": {"bytes": 2e9, "time_s": 0.001}, "collectives": [ring]} | same
    found = speeds(readings)
    assert found == {"matrix_tflops": {"bf16": 40.0}, "memory_gbytes_per_s": 2000.0, "link_gbytes_per_s": 60.0} | same
    assert "link_gbytes_per_s" not in speeds(readings | {"collectives": []})
