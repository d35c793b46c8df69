"""Frameworks that a command of the user's starts, in whose place a program writes a log."""

from __future__ import annotations

import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from jointopt.core.facts import FailureKind
from jointopt.jobs.catalog.models import load_model
from jointopt.jobs.job import Job
from jointopt.jobs.slurm import Slurm
from jointopt.measure.base import load_launcher

PLAN: dict[str, Any] = {
    "dp": 2, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": False,
    "recompute": "none", "zero_stage": 2, "stage_clock_mhz": [1410.0],
}  # fmt: skip
STEPS = "".join(
    f"[rank0]:[titan] 2026-11-22 04:16:36,380 - root - INFO - step: {step:2}  loss:  8.2  grad_norm: 2.4  memory: "
    f"61.25GiB(77.40%)  tps: {tps}  tflops: 400.50  mfu: 40.49%\n" for step, tps in ((1, 8), (2, 64), (3, 32))
)  # fmt: skip
WRITES = "import sys; open(sys.argv[2], 'w').write(sys.argv[3]); print(sys.argv[4]); sys.exit(int(sys.argv[5]))"


def run(job: Job, folder: Path, log: str, printed: str = "", code: int = 0) -> dict[str, Any]:
    """The row of a run whose program leaves this log, on two nodes of one GPU that nothing meters."""
    cluster = replace(job.cluster, nodes=2, gpus_per_node=1)
    training = replace(job.training, seq_length=32, global_batch_size=4)
    llama, plain = load_model("llama-3-8b"), Slurm(gpu_request="none")
    job = replace(job, model=llama, training=training, cluster=cluster, slurm=plain)
    command = [sys.executable, "-c", WRITES, "{start}", "{log}", log, printed, str(code)]
    options = {"iterations": 2, "warmup_iterations": 1, "command": command, "folder": folder}
    return dict(load_launcher("torchtitan", **options).run(job, PLAN))


def test_the_log_that_a_command_writes_is_the_row(job: Job, tmp_path: Path) -> None:
    row = run(job, tmp_path, STEPS, "torchtitan version: 0.2.2 (0.0.0 means __version__ is not defined)")
    # 4 sequences of 32 tokens on 2 GPUs: 64 tokens of each, at 64 and 32 tokens a second
    assert (row["status"], row["iteration_time_s"], row["peak_memory_gib"]) == ("ok", 1.5, 61.25)
    assert row["framework_release"] == "0.2.2"
    assert "clocks were not set" in row["notes"]


def test_a_failure_is_read_from_what_was_printed_and_from_the_log(job: Job, tmp_path: Path) -> None:
    row = run(job, tmp_path, "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n", code=1)
    assert row["status"] == "oom"
    row = run(job, tmp_path, STEPS, "ValueError: bad flag", code=3)
    assert (row["status"], row["failure"].kind) == ("failed", FailureKind.EXIT_CODE)
    assert row["notes"].startswith("exit code 3: ValueError: bad flag")


def test_other_users_of_the_nodes_can_start_what_the_folder_of_a_run_holds(job: Job, tmp_path: Path) -> None:
    run(job, tmp_path, STEPS)
    (folder,) = tmp_path.iterdir()
    start = folder / "start.sh"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, start)] == [0o755, 0o755]
    lines = start.read_text().splitlines()
    assert "NNODES=2" in lines[2]
    assert 20_000 <= int(lines[2].rsplit(":-", 1)[1].rstrip("}")) < 32_000
