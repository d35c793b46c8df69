"""Slurm: one job per run, which is found again when the tool itself was restarted."""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jointopt.core.atomic_write import write_whole
from jointopt.core.errors import ExportError, LauncherError, UsageError, nearest_hint
from jointopt.core.facts import Failure, FailureKind, joined_notes
from jointopt.core.schema import COLUMNS, Columns
from jointopt.frameworks.failures import failure_of, is_full
from jointopt.frameworks.slurm import EXIT, LOG, container_words
from jointopt.frameworks.slurm import script as script_text
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_mapping
from jointopt.jobs.slurm import NO_GPU_REQUEST
from jointopt.measure import slurm_commands as control
from jointopt.measure.base import EndedRun, ReportState
from jointopt.measure.framework_program import FRAMEWORKS, FrameworkProgram
from jointopt.measure.hardware import conditions
from jointopt.measure.hardware.host import SLURM_COMMANDS
from jointopt.measure.local import CommandProgram, EarlyEnd, field_text, program_attribute
from jointopt.measure.process import Program, tail_of, whole_log
from jointopt.measure.slurm_commands import NoAnswerError, RefusedError, SlurmJob
from jointopt.measure.torchrun import TorchrunProgram
from jointopt.runs.rows import failed_row, outcome, plan_cells, with_log

DEFAULT_FOLDER = Path("jointopt-slurm")
PROGRAMS = ("torchrun", *FRAMEWORKS, "command")
_STATE, _SCRIPT = "state.json", "job.sh"
_WHERE = ("python", "setup", "gpu_request", "exclusive", "partition", "constraint", "sbatch")
# files of a command whose contents are part of what is run; others may be what it writes
_CONTENT = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".ini", ".cfg")


class SlurmLauncher:
    """Runs each plan as one job on the nodes of the job's cluster; the job file's section ``slurm`` states how.

    ``program`` is torchrun (the project's trainer), a framework (options as of `FrameworkProgram`; in the job file's
    container) or command (with ``command``), or an object of its own. ``folder`` must be seen by all nodes. GPUs run at
    the plan's clocks, or at what the driver chooses (``default_clocks``), and are metered, by `jointopt exec` on each
    node; without ``meter`` the program is started alone. ``limit_s`` begins when a job runs. A job outlives the tool,
    which finds it again; Ctrl-C cancels it.
    """

    name = "slurm"
    behind_s: float = program_attribute("behind_s")  # as of `EndsEarly`
    narrow_search: Any = program_attribute("narrow_search")

    def __init__(
        self, folder: Path = DEFAULT_FOLDER, limit_s: float = 1800.0, program: str | Program | None = None,
        command: str | Sequence[str] | None = None, checkout: Path | None = None, iterations: int = 10,
        warmup_iterations: int = 3, default_clocks: bool = False, meter: bool = True, poll_s: float = 15.0,
        script: Path | None = None, arguments: str = "", version: str = "",
    ) -> None:  # fmt: skip
        self.folder, self.limit_s, self.poll_s = Path(folder).absolute(), limit_s, poll_s
        implied = "command" if command is not None else "megatron" if checkout is not None else "torchrun"
        name = program or implied
        if not isinstance(name, str):
            self.program = name
        elif name not in PROGRAMS:
            raise UsageError(
                f"program must be one of {', '.join(PROGRAMS)}; got {name!r}{nearest_hint(name, PROGRAMS)}."
            )
        elif name in FRAMEWORKS:
            self.program = FrameworkProgram(name, checkout, script, arguments, version, iterations, warmup_iterations)
        elif name == "torchrun":
            self.program = TorchrunProgram(iterations, warmup_iterations)
        elif command is None:
            raise UsageError("The launcher slurm needs --command for the program command.")
        else:
            self.program = CommandProgram(command)
        self.default_clocks, self.meter = default_clocks, meter
        self._delivered: Iterator[EndedRun] | None = None
        if not str(self.folder).isprintable():
            raise UsageError(f"The folder {str(self.folder)!r} has a character that no #SBATCH line can hold.")

    def candidates(self, job: Job) -> Columns | None:
        """Any plan; LauncherError where nothing can be submitted from here, or the program cannot run the job."""
        for name in SLURM_COMMANDS:
            if shutil.which(name) is None:
                raise LauncherError(
                    f"The launcher slurm needs {name}, which is not on the PATH; start jointopt on a machine that "
                    "submits jobs, such as a login node."
                )
        self.program.check(job)
        return None

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """The measurement of ``plan``, or how its job failed; an interrupt cancels the job."""
        self.candidates(job)
        self._accept()
        fleet = Fleet(self, job, enumerate([plan]), lambda place, text: None)
        runs = fleet.ended()
        try:
            ended = next(runs)
        except KeyboardInterrupt:
            fleet.cancel()
            raise
        # the row counts as handed over when the next run begins, or this process ends in peace
        if self._delivered is None:
            atexit.register(self._accept)
        self._delivered = runs
        return ended.row

    def _accept(self) -> None:
        """Count the last row of `run` as handed over."""
        for _ in self._delivered or ():
            pass

    def run_all(
        self, job: Job, plans: Iterable[Mapping[str, Any]], report: ReportState
    ) -> Generator[EndedRun, None, None]:
        """As `ManyAtOnce`: one job each, in the queue together; what Slurm does not take now follows as others end."""
        self.candidates(job)
        fleet = Fleet(self, job, enumerate(plans), report)
        try:
            yield from fleet.ended()
        except KeyboardInterrupt:
            yield from fleet.rescue()
            raise
        except GeneratorExit:
            fleet.cancel()
            raise

    def script(self, job: Job, plan: Mapping[str, Any], folder: Path | None = None) -> str:
        """The script that sbatch receives for ``plan``; nothing is written or submitted."""
        place = folder or self.folder / self.job_name(job, plan) / "1"
        words = self.program.words(job, plan, place)
        if self.program.in_container:
            seen = [Path.cwd(), self.folder, *([self.program.cwd] if self.program.cwd else [])]
            words = [*container_words(job.slurm, seen), *words]
        if self._is_metered(job):
            words = conditions.exec_words(words, job, place, self.default_clocks, self.program.shows_ranks)
        name = _submission_name(place)
        about = " ".join(f"{key}={field_text(key, value)}" for key, value in plan_cells(plan).items())
        return script_text(name, job.cluster, job.slurm, words, place, self.limit_s, about)

    def submit(
        self, job: Job, plan: Mapping[str, Any], folder: Path, report: Callable[[str], None]
    ) -> tuple[int | None, str]:
        """(number, words on how it came) of the folder's Slurm job, of an earlier process or submitted now.

        The number is None for a job of an earlier process that has left its result. ``report`` is called while Slurm
        does not answer.
        """
        name, known = _submission_name(folder), None
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = int(json.loads((folder / _STATE).read_text(encoding="utf-8"))["job"])
        known = known or control.job_of_name(name, report)
        # a number may be another job's: they start again where a cluster is set up anew
        if exit_status_in(folder) or (known and (found := control.state(known, report)) and found.name == name):
            return known, f"Slurm job {known} was submitted before" if known else "its Slurm job is over"
        try:
            self.program.prepare(job, plan, folder)
            conditions.write_plan(plan, folder)
            (folder / _SCRIPT).write_text(self.script(job, plan, folder), encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            number = control.submit(folder / _SCRIPT)
        except RefusedError:
            taken = control.job_of_name(name, report)  # Slurm may have taken the job, and its answer was lost
            if taken is None:
                raise
            number = taken
        with suppress(OSError):  # without it the job is found by its name
            write_whole(folder / _STATE, json.dumps({"job": number}))
        return number, f"Slurm job {number} is submitted"

    def job_name(self, job: Job, plan: Mapping[str, Any]) -> str:
        """A name that is the same for the same run in the same folder, whatever its process, time limit or account.

        It is of the job and the plan, of words and settings of the program and the contents of the scripts and settings
        that they name, and of where and how it runs.
        """
        mapping, words = job_mapping(job), self.program.words(job, plan, self.folder)
        of_job = {key: mapping[key] for key in ("model", "training", "cluster")}
        options = {name: value for name, value in vars(self.program).items() if isinstance(value, int | str)}
        digests = [""] * len(words)
        for i, word in enumerate(words):
            if word.endswith(_CONTENT):
                with suppress(OSError, ValueError):  # words may be too long for a path, or hold what no path does
                    digests[i] = hashlib.sha256(Path(word).read_bytes()).hexdigest()
        where = [getattr(job.slurm, name) for name in _WHERE]
        parts = [str(self.folder), self.program.name, of_job, plan_cells(plan), words, options, digests, where,
                 [self.default_clocks, self._is_metered(job)]]  # fmt: skip
        text = json.dumps(parts, sort_keys=True, default=str)
        return f"jointopt-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def _is_metered(self, job: Job) -> bool:
        return self.meter and job.slurm.gpu_request != NO_GPU_REQUEST

    def row(self, job: Job, plan: Mapping[str, Any], folder: Path, end: JobEnd) -> dict[str, Any]:
        """The plan with its results. Raises LauncherError where the nodes' GPUs cannot be set."""
        log, end_of_log = (read(folder / LOG) if (folder / LOG).is_file() else "" for read in (whole_log, tail_of))
        failure = why_failed(end, end_of_log, folder, self.limit_s)
        # whether the program came to its own end
        whole = end.code == 0 and (end.written is not None or (end.job is not None and end.job.state == "COMPLETED"))
        row = with_log(outcome(self.program.results(job, folder, log), whole, failure), folder / LOG, True)
        if self._is_metered(job):
            conditions.check_settable(folder, end.code, end_of_log)
            row = conditions.with_readings(row, plan, job.cluster.nodes, folder, self.default_clocks, log)
        row = {name: value for name, value in row.items() if name in COLUMNS or name == "failure"}
        return dict(plan) | row | {"notes": joined_notes(row["notes"], end.remark)}


def _submission_name(folder: Path) -> str:
    """The job's name in Slurm: that of a run cancelled a moment ago is not that of the next one."""
    return f"{folder.parent.name}-{folder.name}"


def _unwritable(folder: Path, error: OSError) -> LauncherError:
    return LauncherError(
        f"{folder} cannot be written: {error.strerror or error}; name a folder that all nodes share with --folder."
    )


# The Slurm jobs of one call that are on their way: submitted, watched, handed over as they end, or cancelled.


DONE = "done"  # a file in the folder of a submission whose row has been handed over


class Fleet:
    """The Slurm jobs of one call: all plans that Slurm takes are submitted, the others as earlier jobs end."""

    def __init__(
        self, launcher: SlurmLauncher, job: Job, plans: Iterator[tuple[int, Mapping[str, Any]]],
        report: ReportState,
    ) -> None:  # fmt: skip
        self._launcher, self._job, self._plans, self._report = launcher, job, plans, report
        self._flights: dict[int, Submission] = {}  # on their way, by the place of their plan
        # to be submitted when another one has ended
        self._refused: tuple[int, Mapping[str, Any]] | None = None
        self._error: LauncherError | None = None

    def ended(self) -> Iterator[EndedRun]:
        """Submit the plans and yield every run as it ends; raise the first error when no job is on its way any more.

        Slurm is asked at short intervals at first, each half as long again as the last.
        """
        yield from self._submit()
        first_s = wait_s = min(0.5, self._launcher.poll_s)
        while self._flights:
            time.sleep(wait_s)
            wait_s = min(1.5 * wait_s, self._launcher.poll_s)
            for place in list(self._flights):
                if found := self._look_at(place):
                    yield from self._hand_over(place, found)
                    wait_s = first_s
                    yield from self._submit()
        if self._error is not None:
            raise self._error

    def rescue(self) -> Iterator[EndedRun]:
        """Cancel all jobs after an interrupt, but yield the runs that had ended."""
        over = [place for place, flight in self._flights.items() if exit_status_in(flight.folder) is not None]
        self.cancel()
        for place in over:
            if found := self._look_at(place):
                yield from self._hand_over(place, found)

    def cancel(self) -> None:
        """Cancel all jobs without a result; the next call finds results, and jobs that Slurm does not cancel."""
        going = {place: f for place, f in self._flights.items() if exit_status_in(f.folder) is None}
        # one that was interrupted while Slurm took it, or not, is known by its name alone
        known = [f.number if f.sent else control.job_of_name(_submission_name(f.folder)) for f in going.values()]
        numbers = [number for number in known if number]
        trouble = control.cancel(numbers)
        for place, flight in going.items():
            if trouble:
                by_hand = f"scancel {' '.join(map(str, numbers))}"
                self._report(place, f"Slurm does not cancel it: {trouble}; {by_hand} does")
            else:
                _close(flight.folder)

    def _submit(self) -> list[EndedRun]:
        """Submit all plans that are left, as far as Slurm takes them; the runs of those that cannot be exported."""
        without_words: list[EndedRun] = []
        while self._error is None:
            following = self._refused or next(self._plans, None)
            self._refused = None
            if following is None:
                break
            place, plan = following
            try:
                self._send(place, plan)
            except RefusedError as error:
                self._drop(place)
                if not self._flights:
                    self._error = error
                self._refused = following
                break
            except NoAnswerError:
                raise
            except ExportError as error:
                self._drop(place)
                row = dict(plan) | failed_row(Failure(FailureKind.EXPORT, str(error)))
                without_words.append(EndedRun(place, row, 0.0))
            except LauncherError as error:
                self._fail(place, error)
        return without_words

    def _send(self, place: int, plan: Mapping[str, Any]) -> None:
        """Submit a plan, in the folder of its last submission unless the row of that was handed over."""
        launcher, report = self._launcher, partial(self._report, place)
        base = launcher.folder / launcher.job_name(self._job, plan)
        try:
            base.mkdir(parents=True, exist_ok=True)
            last = max((int(p.name) for p in base.iterdir() if p.name.isdigit()), default=0)
            folder = base / str(last)
            if not last or (folder / DONE).exists():
                folder = base / str(last + 1)
                folder.mkdir()
        except OSError as error:
            raise _unwritable(launcher.folder, error) from error
        flight = self._flights[place] = Submission(plan, folder, report)
        flight.number, words = launcher.submit(self._job, plan, folder, report)
        report(words)
        flight.sent = True

    def _look_at(self, place: int) -> tuple[dict[str, Any], JobEnd] | None:
        """(row, end) of a job that is over, or that is cancelled here because its log shows it behind; else None."""
        flight, launcher = self._flights[place], self._launcher
        try:
            end = flight.look() if flight.sent else None
            if end is not None:
                return launcher.row(self._job, flight.plan, flight.folder, end), end
            early = EarlyEnd(launcher.program, self._job, flight.folder / LOG)
            if not early.is_due() or early.row is None or flight.number is None or control.cancel([flight.number]):
                return None
            end = JobEnd(control.state(flight.number, flight.report), None)
            row = dict(flight.plan) | with_log(early.row, early.log, True)
            return row | {"notes": joined_notes(row["notes"], end.remark)}, end
        except NoAnswerError:
            raise
        except LauncherError as error:
            self._fail(place, error)
            return None

    def _hand_over(self, place: int, found: tuple[dict[str, Any], JobEnd]) -> Iterator[EndedRun]:
        """Yield a run; until the caller asks for the next one, its folder stays open and the same plan finds it."""
        flight, (row, end) = self._flights.pop(place), found
        # seconds for which the job held its GPUs: the queue costs none
        seconds = end.job.ran_s if end.job is not None else 0.0 if end.written is None else float(end.written[1])
        yield EndedRun(place, row, seconds)
        _close(flight.folder)

    def _fail(self, place: int, error: LauncherError) -> None:
        """Keep the first error, to be raised when all jobs are over; nothing more is submitted."""
        self._drop(place)
        if self._flights:
            self._report(place, str(error))
        self._error = self._error or error

    def _drop(self, place: int) -> None:
        """Forget a submission and close its folder."""
        if flight := self._flights.pop(place, None):
            _close(flight.folder)


def _close(folder: Path) -> None:
    """Mark the folder of a submission, so that the next run of its plan gets a new one."""
    with suppress(OSError):
        (folder / DONE).touch()


# One submission on its way, by Slurm's record of it and the files of the job, until it is over.


_MOST_RESTARTS = 3
_GRACE_S = 20.0  # files of another node may come late over a shared folder


@dataclass(frozen=True)
class JobEnd:
    """How a job ended, by Slurm and by what its script wrote down."""

    job: SlurmJob | None  # Slurm's record; None: it no longer knows the job
    written: tuple[int, int] | None  # its exit status, and the seconds that it ran

    @property
    def code(self) -> int:
        """The exit code that is known best; -1 where none is."""
        if self.written is not None:
            return self.written[0]
        return -1 if self.job is None else self.job.exit_code

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
    """The job of a plan, with files in ``folder``; ``report`` is called once for each state of the job.

    ``sent``: whether Slurm has taken it. ``number``: Slurm's; None before that, and for a job of an earlier process
    that has left its result.
    """

    def __init__(self, plan: Mapping[str, Any], folder: Path, report: Callable[[str], None]) -> None:
        self.plan, self.folder, self.report = plan, folder, report
        self.number: int | None = None
        self.sent = False
        self._reported: set[str] = set()
        self._doubted = False
        self._late_until: float | None = None

    def look(self) -> JobEnd | None:
        """The end of the job, None while it waits or runs. Raises LauncherError where it can never start."""
        written = exit_status_in(self.folder)
        job = None if self.number is None else control.state(self.number, self.report)
        if written is not None and written[0] == 0:
            return JobEnd(job, written)
        if job is None or job.state in control.ENDED:
            if job is not None and job.state in _MAY_COME_BACK and not self._doubted:  # Slurm may put it back
                self._doubted = True
                return None
            written = exit_status_in(self.folder)
            has_written = job is None or job.state in ("COMPLETED", "FAILED")
            if written is None and has_written and not is_full(self.folder):  # the shared folder may be late to show it
                self._late_until = self._late_until or time.monotonic() + _GRACE_S
                if time.monotonic() < self._late_until:
                    return None
            return JobEnd(job, written)
        self._doubted, self._late_until = False, None
        if job.stuck or job.restarts > _MOST_RESTARTS:
            control.cancel([job.number])
            if job.stuck and not job.reason.startswith("launch_failed"):
                raise LauncherError(
                    f"Slurm job {job.number} can never start ({job.reason}) and was cancelled; change the section "
                    "slurm of the job file, or its cluster."
                )
            return JobEnd(job, None)  # a job that broke its nodes is a run that failed
        words = job.progress  # each state once: a queue may swap its reasons to and fro for hours
        if words and words not in self._reported:
            self._reported.add(words)
            self.report(f"Slurm job {job.number} {words}")
        return None


def exit_status_in(folder: Path) -> tuple[int, int] | None:
    """The exit status that a job wrote down, and the seconds that it ran; None while there is none that can be read."""
    try:
        # makes a client of NFS look anew: a file that it has once missed would be missing for a minute
        os.listdir(folder)
        code, seconds = (folder / EXIT).read_text(encoding="utf-8").split()
        return int(code), int(seconds)
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
# what slurmstepd writes into the log of a job that it ends
_ENDED_BY = re.compile(r"\*\*\* (?:JOB|STEP) .* CANCELLED AT \S+(?: DUE TO (TIME LIMIT|NODE FAILURE|PREEMPTION))?")
_STATE_FOR = {"TIME LIMIT": "TIMEOUT", "NODE FAILURE": "NODE_FAIL", "PREEMPTION": "PREEMPTED"}
# what srun writes of the task that failed first
_FIRST_TASK = re.compile(r"^srun: error: (\S+: tasks? [\d,-]+: .+)$", re.MULTILINE)


def why_failed(end: JobEnd, log: str, folder: Path, limit_s: float) -> Failure:
    """The failure of a job without a result, from Slurm's state, else the exit status and the end of the log."""
    state = "" if end.job is None else end.job.state
    if end.job is None and end.written is None and (ended_by := _ENDED_BY.search(log)):
        state = _STATE_FOR.get(ended_by[1], "CANCELLED")
    if state in _STATES and failure_of(log, 1, False, limit_s).kind is not FailureKind.OOM:
        return _STATES[state]
    if end.job is not None and end.job.state not in control.ENDED and end.written is None:
        words = f"given up after {end.job.restarts} requeues, the last for {end.job.reason}"
        return Failure(FailureKind.CLUSTER, words)
    if end.written is None and end.job is None:
        return Failure(FailureKind.CLUSTER, "Slurm no longer knows the job, and it wrote down no exit status")
    if end.code == 0 and is_full(folder):
        return Failure(FailureKind.DISK_FULL, f"the disk is full: {folder} has no room for the result")
    if end.code == 0:
        missing = f"the job ended well and left no result in {folder}; do all nodes see that folder?"
        return Failure(FailureKind.RESULT, missing)
    timed_out = end.written is not None and end.code in (124, 137) and end.written[1] >= limit_s
    if is_full(folder):
        log += "\nNo space left on device"
    failure = failure_of(log, end.code, timed_out, limit_s)
    # srun returns the largest exit code, often that of the tasks that it ended itself: the first one is the cause
    first = _FIRST_TASK.search(log)
    unknown = failure == Failure(FailureKind.EXIT_CODE, f"exit code {end.code}")
    return Failure(FailureKind.EXIT_CODE, first[1]) if first and unknown else failure
