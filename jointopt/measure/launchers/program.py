"""What a batch system starts on every node of a run, and how its results are read: torchrun's trainer, Megatron-LM."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from jointopt.measure.launchers import megatron, torchrun
from jointopt.spec.job import Job

NODE_VARIABLES = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
_SPEC, _RESULT = "spec.json", "result.json"


class Program(Protocol):
    """One training program, whoever starts it; its words may hold ``${NODE_RANK}`` and the other `NODE_VARIABLES`."""

    name: str

    def check(self, job: Job) -> None:
        """Raises LauncherError for a job that the program cannot run, whatever the plan."""

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The command that is run once per node; its files are in ``folder``."""

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path) -> None:
        """Writes into ``folder`` what the command reads there."""

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """Result columns of a run that ended well, from what it left and its ``log``; None where it left none.

        Where it knows, also ``measured_s``, the start and the end of its measured ``iterations``, in s since 1970.
        """


class TorchrunProgram:
    """The project's own trainer, one process per GPU."""

    name = "torchrun"

    def __init__(self, iterations: int = 10, warmup_iterations: int = 3) -> None:
        self.iterations, self.warmup_iterations = iterations, warmup_iterations

    def check(self, job: Job) -> None:
        torchrun.check_model(job.model)

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        files = (str(folder / name) for name in (_SPEC, _RESULT))
        return [*torchrun_words(job), "-m", "jointopt.measure.trainer", *files]

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path) -> None:
        torchrun.train_spec(job, plan, self.iterations, self.warmup_iterations).write(folder / _SPEC)

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        return torchrun.read_result(folder / _RESULT, job.model)


class MegatronProgram:
    """``pretrain_gpt.py`` of a checkout of Megatron-LM that every node sees."""

    name = "megatron"

    def __init__(self, checkout: Path, iterations: int = 10, warmup_iterations: int = 5) -> None:
        self.launcher = megatron.MegatronLauncher(
            checkout, iterations=iterations, warmup_iterations=warmup_iterations
        )

    def check(self, job: Job) -> None:
        """Any job: what Megatron-LM has no flag for is said where its words are made."""

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        launcher = self.launcher
        own = (f"{name}={value}" for name, value in megatron.ENVIRONMENT.items())
        arguments = megatron.megatron_arguments(job, plan, launcher.warmup_iterations + launcher.iterations)
        return ["env", *own, *torchrun_words(job), str(launcher.script_file.resolve()), *arguments]

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path) -> None:
        """Nothing: Megatron-LM reads no file."""

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        try:
            return megatron.measured(
                megatron.read_log(log, self.launcher.warmup_iterations), job.cluster.num_gpus
            )
        except ValueError:
            return None


def torchrun_words(job: Job) -> list[str]:
    """torchrun with a fixed meeting point, so that ranks follow the nodes' order."""
    python = job.slurm.python or sys.executable
    return [
        python, "-m", "torch.distributed.run", "--nnodes=${NNODES}", "--node-rank=${NODE_RANK}",
        "--master-addr=${MASTER_ADDR}", "--master-port=${MASTER_PORT}",
        f"--nproc-per-node={job.cluster.gpus_per_node}",
    ]  # fmt: skip
