"""Launchers of training frameworks: on this machine, as Slurm jobs, or started by a command of the user's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError, UsageError
from jointopt.core.facts import joined_notes
from jointopt.core.quote import sh_command, sh_file, sh_word
from jointopt.core.schema import STATUSES
from jointopt.frameworks.failures import failure_of
from jointopt.frameworks.slurm import shell_words
from jointopt.jobs.job import Job
from jointopt.jobs.slurm import NO_GPU_REQUEST
from jointopt.measure.base import Launcher
from jointopt.measure.framework_program import FrameworkProgram
from jointopt.measure.hardware import conditions
from jointopt.measure.local import (
    FIELDS,
    RESULT_FIELD,
    EarlyEnd,
    LocalLauncher,
    Template,
    command_values,
    failure_without_result,
)
from jointopt.measure.process import Program, run_program, whole_log
from jointopt.measure.slurm import DEFAULT_FOLDER as SLURM_FOLDER
from jointopt.measure.slurm import SlurmLauncher
from jointopt.runs.rows import outcome, with_log

BY = ("local", "slurm", "command")
START, LOG = "start", "log"
START_FIELDS = (*(name for name in FIELDS if name != RESULT_FIELD), START, LOG)
_FOLDER = Path("jointopt-runs")
_FILE, _LOG = "start.sh", "log.txt"
_TEMPLATE = """\
#!/bin/bash
# One node of a run of jointopt; started once on each, with NODE_RANK, or the variables of Slurm.
export NNODES={nodes} NODE_RANK=${{NODE_RANK:-${{SLURM_NODEID:-0}}}} MASTER_PORT=${{MASTER_PORT:-{port}}}
: "${{MASTER_ADDR:=$([ -z "$SLURM_JOB_NODELIST" ] || scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}}"
export MASTER_ADDR=${{MASTER_ADDR:-127.0.0.1}}
exec {command}
"""


class FrameworkLauncher(LocalLauncher):
    """Runs plans with a training framework on the GPUs of this machine."""

    program: FrameworkProgram
    on_nodes = "start it with --by slurm, or with a --command of yours"

    def script(self, job: Job, plan: Mapping[str, Any]) -> str:
        """The lines of a shell that do what `run` does but for the GPUs' clocks."""
        self.candidates(job)
        here = self.program.cwd or Path.cwd()
        words = sh_command(self.program.words(job, plan, here, alone=True))
        files = "".join(sh_file(name, text) for name, text in self.program.export(job, plan).files.items())
        return f"cd {sh_word(str(here))}\n{files}{words}\n"


class CommandStartedLauncher(LocalLauncher):
    """Runs plans with ``program`` on any number of nodes, which a ``command`` of the user's starts.

    ``{start}`` in it is a script that starts one node, ``{log}`` a file for the output where the command does not print
    it. Both lie in a folder of their own in ``folder``, which all nodes see. Each node is started by `jointopt exec`,
    which sets clocks and meters, unless not ``meter``.
    """

    on_nodes = ""
    sets_clocks = False  # each node sets its own
    log_name = "output.txt"

    def __init__(
        self, program: Program, command: str | Sequence[str], folder: Path = _FOLDER, limit_s: float = 1800.0,
        default_clocks: bool = False, meter: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(program, limit_s, Path(folder).absolute(), default_clocks)
        self.template, self.meter = Template(command, START_FIELDS, START), meter

    def script(self, job: Job, plan: Mapping[str, Any]) -> str:
        """The command, and the script of one node that it starts."""
        folder = Path("FOLDER")
        return f"{sh_command(self._words(job, plan, folder))}\n\n# {_FILE}\n{self._start(job, plan, folder)}"

    def _measure(self, job: Job, plan: Mapping[str, Any], folder: Path, early: EarlyEnd) -> dict[str, Any]:
        conditions.write_plan(plan, folder)
        start, log = folder / _FILE, early.log
        folder.chmod(0o755)
        start.write_text(self._start(job, plan, folder), encoding="utf-8")
        start.chmod(0o755)
        ended = run_program(self._words(job, plan, folder), log, limit_s=self.limit_s)
        text = whole_log(log) + (whole_log(folder / _LOG) if (folder / _LOG).is_file() else "")
        whole = ended.code == 0 and not ended.timed_out
        failure = failure_of(text, ended.code, ended.timed_out, self.limit_s)
        failure = failure_without_result(self.program, folder, failure, whole)
        row = with_log(outcome(self.program.results(job, folder, text), whole, failure), log, True)
        if not self._is_metered(job):
            unset = "" if row["status"] != STATUSES[0] or self.default_clocks else "clocks were not set"
            return row | {"notes": joined_notes(row["notes"], unset)}
        conditions.check_settable(folder, ended.code, text)
        return conditions.with_readings(row, plan, job.cluster.nodes, folder, self.default_clocks, text)

    def _is_metered(self, job: Job) -> bool:
        return self.meter and job.cluster.gpu.id != "cpu-core" and job.slurm.gpu_request != NO_GPU_REQUEST

    def _words(self, job: Job, plan: Mapping[str, Any], folder: Path) -> list[str]:
        return self.template.fill({**command_values(job, plan, folder), START: folder / _FILE, LOG: folder / _LOG})

    def _start(self, job: Job, plan: Mapping[str, Any], folder: Path) -> str:
        bare = replace(job, slurm=replace(job.slurm, container=None))  # which is the command's own affair
        words = self.program.words(bare, plan, folder)
        if self._is_metered(job):
            words = conditions.exec_words(words, job, folder, self.default_clocks, self.program.shows_ranks)
        port = 20_000 + sum(map(ord, folder.name)) % 12_000
        return _TEMPLATE.format(nodes=job.cluster.nodes, port=port, command=shell_words(words))


def framework_launcher(
    name: str, checkout: Path | None = None, script: Path | None = None, arguments: str = "", version: str = "",
    by: str | None = None, command: str | Sequence[str] | None = None, folder: Path | None = None,
    limit_s: float = 1800.0, iterations: int = 10, warmup_iterations: int = 5, logs: Path | None = None,
    default_clocks: bool = False, meter: bool = True, poll_s: float = 15.0,
) -> Launcher:  # fmt: skip
    """The launcher of a framework, started ``by`` this machine (local), slurm, or the user's ``command``.

    Where ``by`` is not given: by the ``command`` if there is one, else here. Raises UsageError for another word, or a
    command without its use.
    """
    by = by or ("command" if command is not None else BY[0])
    if by not in BY:
        raise UsageError(f"by must be one of {', '.join(BY)}; got {by!r}.")
    if (command is None) == (by == "command"):
        wanted = "needs --command, which starts {start}" if command is None else "takes no --command"
        raise UsageError(f"The launcher {name} started by {by} {wanted}.")
    program = FrameworkProgram(name, checkout, script, arguments, version, iterations, warmup_iterations)
    if by == "slurm":
        return SlurmLauncher(folder or SLURM_FOLDER, limit_s, program, default_clocks=default_clocks, meter=meter,
                             poll_s=poll_s)  # fmt: skip
    if command is not None:
        return CommandStartedLauncher(program, command, folder or logs or _FOLDER, limit_s, default_clocks, meter)
    if folder is not None:
        raise LauncherError("--folder is for runs by slurm or by a command; logs of this machine are kept by --logs.")
    return FrameworkLauncher(program, limit_s, logs, default_clocks)


Make = Callable[..., Launcher]
megatron: Make = functools.partial(framework_launcher, "megatron")
megatron_bridge: Make = functools.partial(framework_launcher, "megatron-bridge")
torchtitan: Make = functools.partial(framework_launcher, "torchtitan")
nanotron: Make = functools.partial(framework_launcher, "nanotron")
deepspeed: Make = functools.partial(framework_launcher, "deepspeed")
