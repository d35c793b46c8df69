"""Training programs, and torchrun on one machine or on the nodes of a batch job."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from jointopt.spec.job import Job

NODE_VARIABLES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_TORCHRUN = ("-m", "torch.distributed.run")


class Program(Protocol):
    """One training program: on this machine in ``cwd`` with ``environment`` added, or once per node of a batch job."""

    name: str
    environment: Mapping[str, str] = {}
    cwd: Path | None = None  # None = that of this process
    missing: str = "the program ended well and left no result"  # the failure of such a run, in words

    def check(self, job: Job) -> None:
        """Raises LauncherError for a job that the program cannot run, whatever the plan."""
        return

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The command of one node, with files in ``folder``; words may hold ``${NODE_RANK}`` and `NODE_VARIABLES`."""

    def local_words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The command on one machine."""
        return self.words(job, plan, folder)

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path, least_s: float = 0.0) -> None:
        """Writes into ``folder`` what the command reads there; it is to measure for at least ``least_s``."""
        return

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """Result columns of a run that ended well, from its files and its ``log``; None where it left none.

        Where it knows, also ``measured_s``, the start and the end of its measured ``iterations``, in s since 1970.
        """


def node_torchrun(job: Job) -> list[str]:
    """torchrun on one of several nodes, with a fixed meeting point, so that ranks follow the nodes' order."""
    return [
        job.slurm.python or sys.executable, *_TORCHRUN, "--nnodes=${NNODES}", "--node-rank=${NODE_RANK}",
        "--master-addr=${MASTER_ADDR}", "--master-port=${MASTER_PORT}",
        f"--nproc-per-node={job.cluster.gpus_per_node}",
    ]  # fmt: skip


def local_torchrun(processes: int) -> list[str]:
    """torchrun on this machine; ports are its own choice, so that several can run side by side."""
    return [sys.executable, *_TORCHRUN, "--standalone", f"--nproc-per-node={processes}"]
