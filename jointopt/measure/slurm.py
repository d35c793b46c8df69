"""The launcher for a Slurm cluster: one job per run, which is found again when the tool itself was restarted."""

from __future__ import annotations

import atexit
import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from jointopt.errors import LauncherError, UsageError, nearest
from jointopt.jobfile import job_mapping
from jointopt.measure import node_meters
from jointopt.measure import slurm_control as control
from jointopt.measure.command import CommandProgram
from jointopt.measure.failures import Failure, failure_of, is_full
from jointopt.measure.launcher import judged
from jointopt.measure.process import tail
from jointopt.measure.program import MegatronProgram, Program, TorchrunProgram
from jointopt.measure.slurm_control import SlurmJob
from jointopt.measure.slurm_script import EXIT, LOG, script
from jointopt.plans.clocks import plain_number
from jointopt.schema import COLUMNS, Columns
from jointopt.spec.job import Job
from jointopt.spec.slurm import NO_GPU_REQUEST

DEFAULT_FOLDER = Path("jointopt-slurm")
DEFAULT_LIMIT_S = 1800.0
PROGRAMS = ("torchrun", "megatron", "command")
_STATE, _DONE, _SCRIPT = "state.json", "done", "job.sh"
_MOST_RESTARTS = 3
_GRACE_S = 20.0  # files of another node may come late over a shared folder


class SlurmLauncher:
    """Runs each plan as one job on the nodes of the job's cluster; the job file's section ``slurm`` says how.

    ``program`` is torchrun (the project's trainer), megatron (with ``checkout``) or command (with ``command``), or an
    object of its own. ``folder`` must be seen by all nodes; each run has a folder in it with its script, log and
    result. GPUs run at the plan's clocks, or at what the driver chooses (``default_clocks``), and are metered, by
    `jointopt exec` on each node; without ``meter`` the program is started alone. ``limit_s`` is the longest that a run
    may take once it runs; in the queue it may wait for ever. A job outlives the tool, which finds it again by its
    plan; Ctrl-C cancels it.
    """

    name = "slurm"

    def __init__(
        self, folder: Path = DEFAULT_FOLDER, limit_s: float = DEFAULT_LIMIT_S, program: str | Program | None = None,
        command: str | Sequence[str] | None = None, checkout: Path | None = None, iterations: int = 10,
        warmup_iterations: int = 3, default_clocks: bool = False, meter: bool = True, poll_s: float = 15.0,
    ) -> None:  # fmt: skip
        self.folder, self.limit_s, self.poll_s = Path(folder).absolute(), limit_s, poll_s
        self.program = _program(program, command, checkout, iterations, warmup_iterations)
        self.default_clocks, self.meter = default_clocks, meter
        self._delivered: Path | None = None
        if "\n" in str(self.folder) or '"' in str(self.folder):
            raise UsageError(
                f"The folder {str(self.folder)!r} has a character that no #SBATCH line can hold."
            )

    def candidates(self, job: Job) -> Columns | None:
        """Any plan; LauncherError where nothing can be submitted from here, or the program cannot run the job."""
        control.check_installed()
        self.program.check(job)
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """The measurement of ``plan``, or how its job failed; an interrupt cancels the job."""
        self.candidates(job)
        self._accept()
        folder = self._open(job, plan)
        number = self._number(job, plan, folder)
        try:
            row = self._row(job, plan, folder, self._watched(number, folder))
        except KeyboardInterrupt:
            control.cancel(number)
            _close(folder)
            raise
        except LauncherError:
            _close(folder)
            raise
        self._deliver(folder)
        return dict(plan) | row

    def script(self, job: Job, plan: Mapping[str, Any], folder: Path | None = None) -> str:
        """What sbatch receives for ``plan``; nothing is written or submitted."""
        place = folder or self.folder / self._name(job, plan) / "1"
        words = self.program.words(job, plan, place)
        if self._metered(job):
            words = node_meters.metered_words(words, job, place, self.default_clocks)
        return script(self._name(job, plan), job.cluster, job.slurm, words, place, self.limit_s, _words(plan))

    # --- one submission

    def _open(self, job: Job, plan: Mapping[str, Any]) -> Path:
        """The folder of the last submission of the plan if nobody has its row, else a new one."""
        base = self.folder / self._name(job, plan)
        try:
            base.mkdir(parents=True, exist_ok=True)
            last = max((int(p.name) for p in base.iterdir() if p.name.isdigit()), default=0)
            if last and not (base / str(last) / _DONE).exists():
                return base / str(last)
            (base / str(last + 1)).mkdir()
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        return base / str(last + 1)

    def _number(self, job: Job, plan: Mapping[str, Any], folder: Path) -> int:
        """The Slurm job of the folder: the one that an earlier process submitted, or a new one."""
        known = _submitted(folder) or control.named(self._name(job, plan))
        if known and (_written(folder) or _is_named(control.state(known), self._name(job, plan))):
            return known
        try:
            self.program.prepare(job, plan, folder)
            node_meters.write_plan(plan, folder)
            (folder / _SCRIPT).write_text(self.script(job, plan, folder), encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from error
        number = control.submit(folder / _SCRIPT)
        with suppress(OSError):  # without it the job is found by its name
            (folder / _STATE).write_text(json.dumps({"job": number}), encoding="utf-8")
        return number

    def _name(self, job: Job, plan: Mapping[str, Any]) -> str:
        """The same for the same run in the same folder, whatever process asks; Slurm shows it as the job's name."""
        mapping = job_mapping(job)
        told = {key: mapping[key] for key in ("model", "training", "cluster")}
        asked = {name: _plain(plan[name]) for name in sorted(plan) if _is_asked(name, plan[name])}
        text = json.dumps([str(self.folder), self.program.name, told, asked], sort_keys=True, default=str)
        return f"jointopt-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    # --- watching

    def _watched(self, number: int, folder: Path) -> _End:
        """Waits until the job is over, in the queue without a limit."""
        waits = _backoff(self.poll_s)
        while True:
            written = _written(folder)
            job = _settled(number, next(waits))
            if written is not None and written.code == 0:
                return _End(job, written)
            if job is None or job.ended:
                return _End(job, _written(folder) or self._late(folder, job))
            if job.stuck or job.restarts > _MOST_RESTARTS:
                control.cancel(number)
                _refuse(job)
                return _End(job, None)
            time.sleep(next(waits))

    def _late(self, folder: Path, job: SlurmJob | None) -> _Written | None:
        """What the job wrote down at its end, where the shared folder shows it late."""
        until = time.monotonic() + (_GRACE_S if job is None or job.state in ("COMPLETED", "FAILED") else 0.0)
        while (found := _written(folder)) is None and time.monotonic() < until and not is_full(folder):
            time.sleep(0.5)
        return found

    def _metered(self, job: Job) -> bool:
        return self.meter and job.slurm.gpu_request != NO_GPU_REQUEST

    def _row(self, job: Job, plan: Mapping[str, Any], folder: Path, end: _End) -> dict[str, Any]:
        log = tail(folder / LOG) if (folder / LOG).is_file() else ""
        whole = end.code == 0 and (
            end.written is not None or (end.job is not None and end.job.state == "COMPLETED")
        )
        failure = _failure(end, log, folder, self.limit_s)
        row = judged(self.program.results(job, folder, log), whole, failure)
        if self._metered(job):
            node_meters.check_settable(folder, end.code, log)
            row = node_meters.with_readings(row, plan, job.cluster.nodes, folder, self.default_clocks)
        row = {name: value for name, value in row.items() if name in COLUMNS}
        return row | {"notes": "; ".join(filter(None, [str(row["notes"] or ""), end.words]))}

    # --- rows that were handed over

    def _deliver(self, folder: Path) -> None:
        """A row counts as handed over when the next run is asked for, or this process ends in peace."""
        if self._delivered is None:
            atexit.register(self._accept)
        self._delivered = folder

    def _accept(self) -> None:
        if self._delivered is not None:
            _close(self._delivered)


@dataclass(frozen=True)
class _Written:
    """What a job wrote down at its end."""

    code: int
    seconds: int


@dataclass(frozen=True)
class _End:
    """How a job ended: what Slurm says (None = it no longer knows), and what the job wrote down."""

    job: SlurmJob | None
    written: _Written | None

    @property
    def code(self) -> int:
        if self.written is not None:
            return self.written.code
        return -1 if self.job is None else self.job.exit_code

    @property
    def words(self) -> str:
        """For the row's notes."""
        if self.job is None:
            return ""
        job = self.job
        waited = f", {job.queued_s:.0f} s in the queue" if job.queued_s >= 1 else ""
        again = f", requeued {job.restarts} times" if job.restarts else ""
        return f"Slurm job {job.number} on {job.nodes or 'no node'}{waited}{again}"


_MAY_COME_BACK = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED")
# What each end that Slurm states means; COMPLETED and FAILED are told by what the program left.
_STATES = {
    "BOOT_FAIL": ("failed", "a node did not boot"),
    "CANCELLED": ("failed", "the job was cancelled, not by jointopt"),
    "DEADLINE": ("timeout", "the job met its deadline"),
    "NODE_FAIL": ("failed", "a node failed, through no fault of the plan"),
    "OUT_OF_MEMORY": ("oom", "a node ran out of memory"),
    "PREEMPTED": ("failed", "the job was preempted and not requeued"),
    "REVOKED": ("failed", "the job was revoked by its cluster"),
    "TIMEOUT": ("timeout", "Slurm's time limit ended it; slurm.time_limit_min sets it"),
}


def _failure(end: _End, log: str, folder: Path, limit_s: float) -> Failure:
    """Why there is no result, by the best witness: Slurm's state, the exit status, the end of the log."""
    state = "" if end.job is None else end.job.state
    if state in _STATES and failure_of(log, 1, False, limit_s).status != "oom":
        return Failure(*_STATES[state])
    if end.job is not None and not end.job.ended and end.written is None:
        return Failure("failed", f"given up after {end.job.restarts} requeues, the last for {end.job.reason}")
    if end.written is None and end.job is None:
        return Failure("failed", "Slurm no longer knows the job, and it wrote down no exit status")
    if end.code == 0:
        return _without_result(folder)
    timed_out = end.written is not None and end.code in (124, 137) and end.written.seconds >= limit_s
    if is_full(folder):
        log += "\nNo space left on device"
    failure = failure_of(log, end.code, timed_out, limit_s)
    # srun returns the largest exit code, often that of the tasks that it ended itself: the first one tells more
    first = _FIRST_TASK.search(log)
    return Failure("failed", first[1]) if first and failure.reason == f"exit code {end.code}" else failure


_FIRST_TASK = re.compile(r"^srun: error: (\S+: tasks? [\d,-]+: .+)$", re.MULTILINE)


def _without_result(folder: Path) -> Failure:
    if is_full(folder):
        return Failure("failed", f"the disk is full: {folder} has no room for the result")
    return Failure(
        "failed", f"the job ended well and left no result in {folder}; do all nodes see that folder?"
    )


def _refuse(job: SlurmJob) -> None:
    """LauncherError where no job of the kind can ever start; a job that broke its nodes is a run that failed."""
    if job.stuck and not job.reason.startswith("launch_failed"):
        raise LauncherError(
            f"Slurm job {job.number} can never start ({job.reason}) and was cancelled; change the section slurm of "
            "the job file, or its cluster."
        )


def _settled(number: int, wait_s: float) -> SlurmJob | None:
    """What Slurm says of the job, asked twice where it may be about to put the job back into the queue."""
    job = control.state(number)
    if job is not None and job.state in _MAY_COME_BACK:
        time.sleep(wait_s)
        return control.state(number) or job
    return job


def _backoff(most_s: float) -> Iterator[float]:
    """Waits between two looks: short at first, half as long again each time."""
    wait_s = min(0.5, most_s)
    while True:
        yield wait_s
        wait_s = min(wait_s * 1.5, most_s)


def _written(folder: Path) -> _Written | None:
    """The exit status that a job wrote down; None while there is none that can be read."""
    try:
        code, seconds = (folder / EXIT).read_text(encoding="utf-8").split()
        return _Written(int(code), int(seconds))
    except (OSError, ValueError):
        return None


def _submitted(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / _STATE).read_text(encoding="utf-8"))["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_named(job: SlurmJob | None, name: str) -> bool:
    """Whether Slurm knows the job, and under that name: numbers start again where a cluster is set up anew."""
    return job is not None and job.name == name


def _close(folder: Path) -> None:
    """The row is known to whoever asked: the next run of the plan is a new one."""
    with suppress(OSError):
        (folder / _DONE).touch()


def _unwritable(folder: Path, error: OSError) -> LauncherError:
    return LauncherError(
        f"{folder} cannot be written: {error.strerror or error}; name a folder that all nodes share with --folder."
    )


def _program(
    program: str | Program | None, command: str | Sequence[str] | None, checkout: Path | None, iterations: int,
    warmup_iterations: int,
) -> Program:  # fmt: skip
    """The program by name, or by what was given to it."""
    if program is not None and not isinstance(program, str):
        return program
    name = program or (
        "command" if command is not None else "megatron" if checkout is not None else "torchrun"
    )
    if name not in PROGRAMS:
        raise UsageError(
            f"--program must be one of {', '.join(PROGRAMS)}; got {name!r}{nearest(name, PROGRAMS)}."
        )
    if name == "command":
        if command is None:
            raise UsageError("The launcher slurm needs --command for the program command.")
        return CommandProgram(command)
    if name == "megatron":
        if checkout is None:
            raise UsageError("The launcher slurm needs --checkout for the program megatron.")
        return MegatronProgram(checkout, iterations, warmup_iterations)
    return TorchrunProgram(iterations, warmup_iterations)


def _is_asked(name: str, value: Any) -> bool:
    blank = not isinstance(value, list | tuple) and (value is None or pd.isna(value))
    return not blank and name in COLUMNS and COLUMNS[name].role == "plan"


def _plain(value: Any) -> Any:
    """The same text for equal values, whatever made them."""
    if isinstance(value, list | tuple):
        return ";".join(plain_number(float(clock)) for clock in value)
    if isinstance(value, str):
        return value
    number = float(value)
    return int(number) if number.is_integer() else number


def _words(plan: Mapping[str, Any]) -> str:
    """The plan for a comment of the script."""
    return " ".join(
        f"{name}={plan[name]}" for name in COLUMNS if name in plan and _is_asked(name, plan[name])
    )
