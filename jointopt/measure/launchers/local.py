"""A training program on this machine: each run under the clocks of its plan, with a meter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from jointopt.core.errors import ExportError, LauncherError, PlanError
from jointopt.core.facts import Failure, FailureKind
from jointopt.core.schema import Columns
from jointopt.jobs.job import Job
from jointopt.measure.devices.conditions import Conditions, under_plan, unmetered
from jointopt.measure.devices.identity import check_devices
from jointopt.measure.guard.scratch import scratch_folder
from jointopt.measure.launchers.early import Early, OfProgram
from jointopt.measure.launchers.failures import failure_of, is_full, why_unreadable
from jointopt.measure.launchers.process import files_of_a_run, run_program, whole_log
from jointopt.measure.launchers.program import Program
from jointopt.measure.launchers.rows import WINDOW, failed_row, new_log, outcome, with_log


class LocalLauncher(OfProgram):
    """Runs ``program`` for at most ``limit_s`` on this machine's GPUs, or on its cores where the job's GPU is cpu-core.

    Logs stay in the folder ``logs`` where one is given. GPUs run at the clock of their stage, or at what the driver
    chooses (``default_clocks``), and energy is measured.
    """

    name: str
    on_nodes = "use --launcher slurm"  # the advice for several nodes

    def __init__(self, program: Program, limit_s: float, logs: Path | None, default_clocks: bool) -> None:
        self.program, self.limit_s, self.logs = program, limit_s, logs
        self.default_clocks = default_clocks

    @property
    def behind_both(self) -> Sequence[tuple[float, float]]:
        """As of `EndsDominated`."""
        return self.program.behind_both

    @behind_both.setter
    def behind_both(self, bounds: Sequence[tuple[float, float]]) -> None:
        """Set them."""
        self.program.behind_both = bounds

    def candidates(self, job: Job) -> Columns | None:
        """Any plan; LauncherError where the job needs more than this machine, or the program cannot run it."""
        if job.cluster.nodes != 1:
            raise LauncherError(
                f"The launcher {self.name} runs on one machine, and job {job.name!r} has {job.cluster.nodes} nodes; "
                f"{self.on_nodes}."
            )
        self.program.check(job)
        return None

    def narrowed(self, job: Job) -> Job:
        """As `Program.narrowed`."""
        return self.program.narrowed(job)

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """``plan`` with its measurement, or with how it failed."""
        self.check(job)
        with files_of_a_run(), self.files(plan) as (folder, log):
            try:
                with self.conditions(job, plan) as conditions:
                    self.program.prepare(job, plan, folder, conditions.measure_s)
                    row = self._measured(job, plan, folder, Early(self.program, job, log, conditions.meter))
            except PlanError as error:  # the GPUs here have no such clock
                return dict(plan) | failed_row(Failure(FailureKind.CLOCKS, str(error)))
            except ExportError as error:  # another plan may have words
                return dict(plan) | failed_row(Failure(FailureKind.EXPORT, str(error)))
            window, iterations = (row.pop(name, usual) for name, usual in zip(WINDOW, (None, 1), strict=True))
            return dict(plan) | conditions.added_to(row, window, iterations)

    def check(self, job: Job) -> None:
        """Raises LauncherError where no run of ``job`` counts here."""
        self.candidates(job)
        check_devices(job)

    @contextmanager
    def files(self, plan: Mapping[str, Any]) -> Iterator[tuple[Path, Path]]:
        """A folder for the files of one run of ``plan``, and its empty log, which stays where ``logs`` is given."""
        with scratch_folder() as scratch:
            yield scratch, new_log(self.logs or scratch, plan)

    def conditions(self, job: Job, plan: Mapping[str, Any]) -> AbstractContextManager[Conditions]:
        """Clocks and meter of a run; a training on cores neither sets nor reads the GPUs beside them."""
        on_cores = job.cluster.gpu.id == "cpu-core"
        return unmetered(plan) if on_cores else under_plan(plan, self.default_clocks)

    def _measured(self, job: Job, plan: Mapping[str, Any], folder: Path, early: Early) -> dict[str, Any]:
        program, log = self.program, early.log
        ended = run_program(
            program.local_words(job, plan, folder), log, limit_s=self.limit_s, env=program.environment,
            cwd=program.cwd, over=early.over if self.behind_s or self.behind_both else None,
        )  # fmt: skip
        if early.row is not None:
            return with_log(early.row, log, self.logs is not None)
        if why := why_unreadable(folder):
            return with_log(failed_row(Failure(FailureKind.RESULT, why)), log, self.logs is not None)
        whole = ended.code == 0 and not ended.timed_out
        failure = failure_of(ended.tail, ended.code, ended.timed_out, self.limit_s)
        failure = failure_without_result(program, folder, failure, whole)
        try:
            found = program.results(job, folder, whole_log(log))
        except OSError as error:  # of files that are the program's to write
            words = f"{Path(str(error.filename or folder)).name} cannot be read: {error.strerror or error}"
            return with_log(failed_row(Failure(FailureKind.RESULT, words)), log, self.logs is not None)
        row = outcome(found, whole, failure)
        return with_log(row, log, self.logs is not None)


def failure_without_result(program: Program, folder: Path, failure: Failure, whole: bool) -> Failure:
    """The failure of a run that has left no result; of one that ended well (``whole``), that it left none."""
    if not whole or failure.status != "failed":
        return failure
    if is_full(folder):
        return Failure(FailureKind.DISK_FULL, f"{program.missing}, the disk is full")
    return Failure(FailureKind.RESULT, program.missing)
