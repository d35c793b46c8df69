"""Training programs, and torchrun on one machine or on the nodes of a batch job."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from jointopt.core.errors import LauncherError
from jointopt.core.schema import COLUMNS, NEUTRAL, inside
from jointopt.jobs.job import Job
from jointopt.measure.launchers.rows import is_blank

NODE_VARIABLES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURMD_NODENAME")
_TORCHRUN = ("-m", "torch.distributed.run")


class Program(Protocol):
    """One training program: on this machine in ``cwd`` with ``environment`` added, or once per node of a batch job."""

    name: str
    environment: Mapping[str, str] = {}
    cwd: Path | None = None  # None = that of this process
    missing: str = "the program ended well and left no result"  # the failure of such a run, in words
    contained: bool = False  # whether it runs in the container of the job file's section slurm
    behind_s: float = 0.0  # see `EndsEarly`; a program that does not read it is judged by its log
    behind_both: Sequence[tuple[float, float]] = ()  # see `EndsDominated`
    shows_ranks: bool = True  # whether its ranks are known to show which stages they run (`jointopt exec`)

    def check(self, job: Job) -> None:
        """Raises LauncherError for a job that the program cannot run, whatever the plan."""
        return

    def narrowed(self, job: Job) -> Job:
        """The job with the part of its search that the program runs. Raises LauncherError where it runs none."""
        return job

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

    def iteration_s(self, job: Job, log: str) -> Sequence[float]:
        """Seconds of the measured iterations in the ``log`` of a run that goes on; none where a log does not tell."""
        return ()

    def so_far(self, job: Job, log: str) -> Mapping[str, Any]:
        """Result columns that the ``log`` of a run that goes on tells already, such as its memory."""
        return {}


def without(job: Job, program: str, names: Iterable[str]) -> Job:
    """The job without plans that use these layout columns. LauncherError where its search lists nothing else."""
    kept: dict[str, Any] = {}
    for name in names:
        column, listed, unused = COLUMNS[name], getattr(job.search, name), NEUTRAL.get(name, 1)
        if listed is not None and unused not in inside(name, listed):
            raise LauncherError(_lacks(program, name, listed[0]))
        kept[name] = (column.outside(unused),)
    return replace(job, search=replace(job.search, **kept))


def refuse(program: str, plan: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raises LauncherError for a plan that uses one of these layout columns."""
    for name in names:
        if not is_blank(cell := plan.get(name)) and inside(name, [cell])[0] != NEUTRAL[name]:
            raise LauncherError(_lacks(program, name, cell))


def _lacks(program: str, name: str, value: Any) -> str:
    usual = COLUMNS[name].outside(NEUTRAL.get(name, 1))
    expected = "blank" if usual == "" else usual
    return f"{program} does not run plans with {name} {value}; expected {expected}, or another launcher."


def node_torchrun(job: Job, contained: bool = False) -> list[str]:
    """torchrun on one of several nodes, with a fixed meeting point, so that ranks follow the nodes' order.

    ``contained``: by the Python of a container, whatever that of the nodes.
    """
    python = "python" if contained else job.slurm.python or sys.executable
    return [
        python, *_TORCHRUN, "--nnodes=${NNODES}", "--node-rank=${NODE_RANK}",
        "--master-addr=${MASTER_ADDR}", "--master-port=${MASTER_PORT}",
        f"--nproc-per-node={job.cluster.gpus_per_node}",
    ]  # fmt: skip


def local_torchrun(processes: int, folder: Path) -> list[str]:
    """torchrun on this machine; ports are its own choice, so that several can run side by side.

    What it leaves goes to ``folder``; by default that is a folder in /tmp that is not removed.
    """
    return [sys.executable, *_TORCHRUN, "--standalone", f"--log-dir={folder}", f"--nproc-per-node={processes}"]
