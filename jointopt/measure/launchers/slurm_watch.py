"""One submission on its way, by Slurm's record of it and the files of the job, until it is over."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jointopt.core.errors import LauncherError
from jointopt.core.facts import Failure, FailureKind
from jointopt.measure.launchers import slurm_control as control
from jointopt.measure.launchers.failures import failure_of, is_full
from jointopt.measure.launchers.slurm_control import SlurmJob
from jointopt.measure.launchers.slurm_script import EXIT

_MOST_RESTARTS = 3
_GRACE_S = 20.0  # files of another node may come late over a shared folder


@dataclass(frozen=True)
class Written:
    """The exit status that a job wrote down at its end, and how long it ran in s."""

    code: int
    seconds: int


@dataclass(frozen=True)
class End:
    """The end of a job: Slurm's record (None = it no longer knows the job), and what the job wrote down."""

    job: SlurmJob | None
    written: Written | None

    @property
    def code(self) -> int:
        """The exit code that is known best; -1 where none is."""
        if self.written is not None:
            return self.written.code
        return -1 if self.job is None else self.job.exit_code

    @property
    def whole(self) -> bool:
        """Whether the program itself came to its end."""
        completed = self.job is not None and self.job.state == "COMPLETED"
        return self.code == 0 and (self.written is not None or completed)

    @property
    def seconds(self) -> float:
        """Seconds for which the job held its GPUs: the queue costs none."""
        if self.job is not None:
            return self.job.ran_s
        return 0.0 if self.written is None else float(self.written.seconds)

    @property
    def remark(self) -> str:
        """The job, its nodes and its time in the queue, for the notes of the row."""
        if self.job is None:
            return ""
        job = self.job
        waited = f", {job.queued_s:.0f} s in the queue" if job.queued_s >= 1 else ""
        again = f", requeued {job.restarts} times" if job.restarts else ""
        return f"Slurm job {job.number} on {job.nodes or 'no node'}{waited}{again}"


class Submission:
    """A plan whose job is on its way, with files in ``folder``; ``report`` is called once for each state of the job.

    ``number`` is None until Slurm has taken it (``sent``), and for a job that left a result and has no number any more.
    """

    def __init__(self, plan: Mapping[str, Any], folder: Path, report: Callable[[str], None]) -> None:
        self.plan, self.folder, self.report = plan, folder, report
        self.number: int | None = None
        self.sent = False
        self._reported: set[str] = set()
        self._doubted = False
        self._late_until: float | None = None

    def look(self) -> End | None:
        """The end of the job, None while it waits or runs. Raises LauncherError where it can never start."""
        written = written_in(self.folder)
        job = None if self.number is None else control.state(self.number, self.report)
        if written is not None and written.code == 0:
            return End(job, written)
        if job is None or job.ended:
            return self._over(job)
        self._doubted, self._late_until = False, None
        if job.stuck or job.restarts > _MOST_RESTARTS:
            control.cancel([job.number])
            if job.stuck and not job.reason.startswith("launch_failed"):
                raise LauncherError(
                    f"Slurm job {job.number} can never start ({job.reason}) and was cancelled; change the section "
                    "slurm of the job file, or its cluster."
                )
            return End(job, None)  # a job that broke its nodes is a run that failed
        words = job.progress  # each state once: a queue may swap its reasons to and fro for hours
        if words and words not in self._reported:
            self._reported.add(words)
            self.report(f"Slurm job {job.number} {words}")
        return None

    def _over(self, job: SlurmJob | None) -> End | None:
        """The end, unless Slurm may be about to put the job back, or the shared folder may be late to show it."""
        if job is not None and job.state in _MAY_COME_BACK and not self._doubted:
            self._doubted = True
            return None
        written = written_in(self.folder)
        return None if written is None and self._may_be_late(job) else End(job, written)

    def _may_be_late(self, job: SlurmJob | None) -> bool:
        if (job is not None and job.state not in ("COMPLETED", "FAILED")) or is_full(self.folder):
            return False
        if self._late_until is None:
            self._late_until = time.monotonic() + _GRACE_S
        return time.monotonic() < self._late_until


def written_in(folder: Path) -> Written | None:
    """The exit status that a job wrote down; None while there is none that can be read."""
    try:
        # makes a client of NFS look anew: a file that it has once missed would be missing for a minute
        os.listdir(folder)
        code, seconds = (folder / EXIT).read_text(encoding="utf-8").split()
        return Written(int(code), int(seconds))
    except (OSError, ValueError):
        return None


_MAY_COME_BACK = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED")
# the ends that Slurm states; after COMPLETED and FAILED the cause is in what the program left
_STATES = {
    "BOOT_FAIL": Failure(FailureKind.CLUSTER, "a node did not boot"),
    "CANCELLED": Failure(FailureKind.CLUSTER, "the job was cancelled, not by jointopt"),
    "DEADLINE": Failure(FailureKind.TIMEOUT, "the job met its deadline"),
    "NODE_FAIL": Failure(FailureKind.CLUSTER, "a node failed, through no fault of the plan"),
    "OUT_OF_MEMORY": Failure(FailureKind.OOM, "a node ran out of memory"),
    "PREEMPTED": Failure(FailureKind.CLUSTER, "the job was preempted and not requeued"),
    "REVOKED": Failure(FailureKind.CLUSTER, "the job was revoked by its cluster"),
    "TIMEOUT": Failure(FailureKind.TIMEOUT, "Slurm's time limit ended it; slurm.time_limit_min sets it"),
}


def why_failed(end: End, log: str, folder: Path, limit_s: float) -> Failure:
    """The failure of a job without a result, from Slurm's state, else the exit status and the end of the log."""
    state = _state_in(log, end) if end.job is None else end.job.state
    if state in _STATES and failure_of(log, 1, False, limit_s).kind is not FailureKind.OOM:
        return _STATES[state]
    if end.job is not None and not end.job.ended and end.written is None:
        last = f"given up after {end.job.restarts} requeues, the last for {end.job.reason}"
        return Failure(FailureKind.CLUSTER, last)
    if end.written is None and end.job is None:
        return Failure(FailureKind.CLUSTER, "Slurm no longer knows the job, and it wrote down no exit status")
    if end.code == 0 and is_full(folder):
        return Failure(FailureKind.DISK_FULL, f"the disk is full: {folder} has no room for the result")
    if end.code == 0:
        missing = f"the job ended well and left no result in {folder}; do all nodes see that folder?"
        return Failure(FailureKind.RESULT, missing)
    timed_out = end.written is not None and end.code in (124, 137) and end.written.seconds >= limit_s
    if is_full(folder):
        log += "\nNo space left on device"
    failure = failure_of(log, end.code, timed_out, limit_s)
    # srun returns the largest exit code, often that of the tasks that it ended itself: the first one is the cause
    first = _FIRST_TASK.search(log)
    unknown = failure == Failure(FailureKind.EXIT_CODE, f"exit code {end.code}")
    return Failure(FailureKind.EXIT_CODE, first[1]) if first and unknown else failure


# what slurmstepd writes into the log of a job that it ends
_ENDED_BY = re.compile(r"\*\*\* (?:JOB|STEP) .* CANCELLED AT \S+(?: DUE TO (TIME LIMIT|NODE FAILURE|PREEMPTION))?")
_STATE_FOR = {"TIME LIMIT": "TIMEOUT", "NODE FAILURE": "NODE_FAIL", "PREEMPTION": "PREEMPTED"}


def _state_in(log: str, end: End) -> str:
    """The state, by its log, of a job that Slurm has forgotten and that wrote down no end; else blank."""
    found = _ENDED_BY.search(log) if end.written is None else None
    return "" if found is None else _STATE_FOR.get(found[1], "CANCELLED")


_FIRST_TASK = re.compile(r"^srun: error: (\S+: tasks? [\d,-]+: .+)$", re.MULTILINE)
