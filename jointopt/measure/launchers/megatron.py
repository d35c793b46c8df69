"""Megatron-LM, on this machine or on the nodes of a batch system: the command line of a plan, and the log read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError
from jointopt.core.facts import Failure, FailureKind
from jointopt.measure.exports.intent import intent_of
from jointopt.measure.exports.megatron import (
    ENVIRONMENT,
    SCRIPT,
    checkout_version,
    megatron_environment,
    megatron_words,
)
from jointopt.measure.exports.options import NEWEST
from jointopt.measure.launchers.local import LocalLauncher
from jointopt.measure.launchers.program import Program, local_torchrun, node_torchrun, without
from jointopt.measure.launchers.rows import failed_row
from jointopt.measure.logs.iterations import NAN, SKIPPED, measured
from jointopt.measure.logs.megatron import read_log
from jointopt.spec.job import Job

# --- the command line -----------------------------------------------------------------------------------------------


def megatron_arguments(job: Job, plan: Mapping[str, Any], iterations: int, version: str = NEWEST) -> list[str]:
    """Arguments of ``pretrain_gpt.py`` for one plan: mock data, no checkpoint, every iteration logged with its energy.

    LauncherError for what that version of Megatron Core (0.12 and later) has no words for.
    """
    return list(megatron_words(intent_of(job, plan, iterations=iterations), version)[0])


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
        self.version = checkout_version(self.cwd)

    def narrowed(self, job: Job) -> Job:
        """The job without schedules that Megatron-LM does not have."""
        return without(job, "Megatron-LM", ("schedule",))

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start Megatron-LM on every node."""
        script = str((self.cwd / SCRIPT).resolve())
        return self._started(node_torchrun(job), script, job, plan)

    def local_words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        """The words that start Megatron-LM on this machine alone."""
        return self._started(local_torchrun(job.cluster.gpus_per_node), str(self.cwd / SCRIPT), job, plan)

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """The row of a run that has ended, from its log."""
        try:
            return measured(read_log(log, self.warmup_iterations), job.cluster.num_gpus)
        except ValueError as error:
            if "Traceback" in log or not re.search(f"{SKIPPED}|{NAN}", str(error)):
                return None  # the failure says more
            return failed_row(Failure(FailureKind.RESULT, f"no iteration counts: {error}"))

    def _started(self, launcher: list[str], script: str, job: Job, plan: Mapping[str, Any]) -> list[str]:
        intent = intent_of(job, plan, iterations=self.warmup_iterations + self.iterations)
        wanted = megatron_environment(intent)
        unset = [word for name in ENVIRONMENT if name not in wanted for word in ("-u", name)]
        variables = [*unset, *(f"{name}={value}" for name, value in wanted.items())]
        return ["env", *variables, *launcher, script, *megatron_words(intent, self.version)[0]]


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
