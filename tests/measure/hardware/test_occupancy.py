"""A run that finds memory of its GPUs taken is no evidence about its plan; real processes, stand-in driver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jointopt.core.facts import FailureKind
from jointopt.jobs.job import Job
from jointopt.measure.hardware.host import occupants
from jointopt.measure.local import CommandLauncher
from tests.processes import wait_until_begun

GIB = 2**30
PLAN = {
    "dp": 1, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 0, "stage_clock_mhz": [1410.0],
}  # fmt: skip
NEEDS_A_GPU = [sys.executable, "-c", "raise MemoryError('CUDA out of memory')", "{result}"]


@pytest.fixture
def one_gpu(job: Job) -> Job:
    return replace(job, cluster=replace(job.cluster, nodes=1, gpus_per_node=1))


@pytest.fixture
def other_process(driver) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds 60 GiB of GPU 0 while it lives."""
    with subprocess.Popen(["sleep", "600"]) as process:
        (driver.folder / "holds-0").write_text(f"{process.pid} {60 * GIB}\n")
        wait_until_begun(process.pid)
        yield process
        process.kill()


def test_a_process_is_named_with_its_memory_its_user_and_its_command(other_process) -> None:
    (found,) = occupants(range(4))
    assert found.startswith(f"60.0 GiB of GPU 0 taken by process {other_process.pid} (")
    assert found.endswith(": sleep 600)")


def test_gpus_of_others_do_not_matter(other_process) -> None:
    assert occupants([1, 2, 3]) == []


def test_memory_that_no_visible_process_holds_is_taken_all_the_same(driver) -> None:
    (driver.folder / "holds-2").write_text(f"0 {3 * GIB}\n")
    (found,) = occupants(range(4), patience_s=0.2)
    assert found == "3.5 GiB of GPU 2 taken by a process that cannot be seen from here"


def test_little_memory_is_no_occupant(driver) -> None:
    (driver.folder / "holds-0").write_text(f"1 {100 * 2**20}\n0 {GIB}\n")
    assert occupants(range(4)) == []


def test_out_of_memory_beside_another_process_is_a_failure_that_names_it(one_gpu: Job, other_process) -> None:
    row = CommandLauncher(NEEDS_A_GPU).run(one_gpu, PLAN)
    assert (row["status"], row["failure"].kind) == ("failed", FailureKind.OCCUPIED)
    assert f"out of memory, with 60.0 GiB of GPU 0 taken by process {other_process.pid}" in row["notes"]


def test_out_of_memory_without_another_process_counts(one_gpu: Job, driver) -> None:
    assert CommandLauncher(NEEDS_A_GPU).run(one_gpu, PLAN)["status"] == "oom"


def test_a_process_that_started_meanwhile_is_found_after_the_run(
    one_gpu: Job, driver, other_process, tmp_path: Path
) -> None:
    (driver.folder / "holds-0").rename(tmp_path / "later")
    come = f"import os; os.rename({str(tmp_path / 'later')!r}, {str(driver.folder / 'holds-0')!r}); raise MemoryError"
    row = CommandLauncher([sys.executable, "-c", come, "{result}"]).run(one_gpu, PLAN)
    assert (row["status"], str(other_process.pid) in row["notes"]) == ("failed", True)


def test_a_run_that_succeeds_beside_another_process_notes_it(one_gpu: Job, other_process) -> None:
    write = "import json, sys; json.dump({{'iteration_time_s': 1.0}}, open(sys.argv[1], 'w'))"
    row = CommandLauncher([sys.executable, "-c", write, "{result}"]).run(one_gpu, PLAN)
    assert row["status"] == "ok"
    assert f"not alone: 60.0 GiB of GPU 0 taken by process {other_process.pid}" in row["notes"]


GIB = 2**30
PID = 2**22 + 1  # of no process
SEEN, UNSEEN = f"GPU 0 taken by process {PID}", "GPU 0 taken by a process that cannot be seen from here"
HELD = [  # bytes that processes hold, all that is used and there is; what counts
    ({PID: GIB // 2}, GIB, 80 * GIB, [f"0.5 GiB of {SEEN}"]),
    ({PID: 255 * 2**20}, GIB, 80 * GIB, []),  # a display
    ({PID: 0}, 3 * GIB, 80 * GIB, [SEEN]),  # the driver does not report how much: it counts
    ({}, 2 * GIB + 1, 60 * GIB, [f"2.0 GiB of {UNSEEN}"]),  # beyond what a driver keeps for itself
    ({}, 2 * GIB, 60 * GIB, []),
    ({}, int(2.9 * GIB), 100 * GIB, []),  # 3 % of a large GPU
    ({}, int(3.1 * GIB), 100 * GIB, [f"3.1 GiB of {UNSEEN}"]),
    ({PID: 255 * 2**20}, 2 * GIB + 255 * 2**20, 60 * GIB, []),  # less what is seen
    ({PID: 9 * GIB}, 30 * GIB, 80 * GIB, [f"9.0 GiB of {SEEN}"]),
]


@pytest.mark.parametrize(("held", "used", "total", "found"), HELD)
def test_memory_counts_from_a_quarter_of_a_gib_on_or_beyond_what_a_driver_keeps(
    monkeypatch: pytest.MonkeyPatch, held: dict[int, int], used: int, total: int, found: list[str]
) -> None:
    one = type("One", (), {"__len__": lambda _: 1, "memory": lambda *_: (used, total, held)})
    monkeypatch.setattr("jointopt.measure.hardware.host.Gpus", one)
    assert occupants([0], patience_s=0.0) == found
