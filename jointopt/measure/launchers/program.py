"""The protocol of training programs, on this machine or on every node of a batch system's job."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from jointopt.spec.job import Job

NODE_VARIABLES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_TORCHRUN = ("-m", "torch.distributed.run")


class Program(Protocol):
    """One training program, whatever starts it."""

    name: str

    def check(self, job: Job) -> None:
        """Raises LauncherError for a job that the program cannot run, whatever the plan."""

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The command that is run once per node, with files in ``folder``.

        Words may hold ``${NODE_RANK}`` and the other `NODE_VARIABLES`.
        """

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path) -> None:
        """Writes into ``folder`` what the command reads there."""

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """Result columns of a run that ended well, from its files and its ``log``; None where it left none.

        Where it knows, also ``measured_s``, the start and the end of its measured ``iterations``, in s since 1970.
        """


class LocalProgram(Program, Protocol):
    """A program that `LocalLauncher` starts too, in ``cwd`` and with ``environment`` added to that of this process."""

    environment: Mapping[str, str]
    missing: str  # the failure of a run that ended well and left no result, in words

    @property
    def cwd(self) -> Path | None:
        """The folder in which it starts; None = that of this process."""

    def local_words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The command on one machine."""

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path, least_s: float = 0.0) -> None:
        """Writes into ``folder`` what the command reads there; ``least_s`` is how long to measure at least, in s."""


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
