"""What a machine has: GPUs that programs started here would see, and no others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jointopt.measure.devices.machine import _metered_gpus, _named_gpus, found_machine


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
