"""Megatron-LM, on this machine or on the nodes of a batch system: the command line of a plan, and the log read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError
from jointopt.core.facts import Failure, FailureKind
from jointopt.measure.launchers.local import LocalLauncher
from jointopt.measure.launchers.megatron_words import ENVIRONMENT, megatron_arguments, megatron_environment
from jointopt.measure.launchers.program import Program, local_torchrun, node_torchrun, without
from jointopt.measure.launchers.rows import failed_row
from jointopt.measure.logs.iterations import NAN, SKIPPED, measured
from jointopt.measure.logs.megatron import read_log
from jointopt.spec.job import Job

SCRIPT = "pretrain_gpt.py"

# --- running it -----------------------------------------------------------------------------------------------------


class MegatronProgram(Program):
    """``pretrain_gpt.py`` of the ``checkout`` of Megatron-LM, which every node sees.

    ``iterations`` are measured after ``warmup_iterations``. LauncherError where the folder holds no such script.
    """

    name = "megatron"
    cwd: Path
    missing = "the log holds no measured iteration"

    def __init__(self, checkout: Path, iterations: int = 10, warmup_iterations: int = 5) -> None:
        self.cwd = Path(checkout).absolute()
        if not (self.cwd / SCRIPT).is_file():
            raise LauncherError(
                f"{checkout} holds no {SCRIPT}; expected a checkout of Megatron-LM, given as --checkout."
            )
        self.iterations, self.warmup_iterations = iterations, warmup_iterations

    def narrowed(self, job: Job) -> Job:
        """The job without schedules that Megatron-LM does not have."""
        return without(job, "Megatron-LM", ("schedule",))

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start Megatron-LM on every node."""
        script = str((self.cwd / SCRIPT).resolve())
        return [*_env(plan), *node_torchrun(job), script, *self._arguments(job, plan)]

    def local_words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start Megatron-LM on this machine alone."""
        start = local_torchrun(job.cluster.gpus_per_node)
        return [*_env(plan), *start, str(self.cwd / SCRIPT), *self._arguments(job, plan)]

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """The row of a run that has ended, from its log."""
        try:
            return measured(read_log(log, self.warmup_iterations), job.cluster.num_gpus)
        except ValueError as error:
            if "Traceback" in log or not re.search(f"{SKIPPED}|{NAN}", str(error)):
                return None  # the failure says more
            return failed_row(Failure(FailureKind.RESULT, f"no iteration counts: {error}"))

    def _arguments(self, job: Job, plan: Mapping[str, Any]) -> list[str]:
        return megatron_arguments(job, plan, self.warmup_iterations + self.iterations)


def _env(plan: Mapping[str, Any]) -> list[str]:
    """The words that start a command with the variables of a plan, and without those that it must not have."""
    wanted = megatron_environment(plan)
    unset = [word for name in ENVIRONMENT if name not in wanted for word in ("-u", name)]
    return ["env", *unset, *(f"{name}={value}" for name, value in wanted.items())]


class MegatronLauncher(LocalLauncher):
    """Runs plans with the Megatron-LM in ``checkout`` on the GPUs of this machine."""

    name = "megatron"
    program: MegatronProgram

    def __init__(
        self, checkout: Path, limit_s: float = 1800.0, iterations: int = 10, warmup_iterations: int = 5,
        logs: Path | None = None, default_clocks: bool = False,
    ) -> None:  # fmt: skip
        program = MegatronProgram(checkout, iterations, warmup_iterations)
        super().__init__(program, limit_s, logs, default_clocks)

    def script(self, job: Job, plan: Mapping[str, Any]) -> str:
        """The lines of a shell that do what `run` does but for the GPUs' clocks."""
        self.candidates(job)
        words = shlex.join(self.program.local_words(job, plan, self.program.cwd))
        return f"cd {shlex.quote(str(self.program.cwd))}\n{words}\n"
