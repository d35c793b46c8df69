"""Slurm: one job per run, which is found again when the tool itself was restarted."""

from __future__ import annotations

import atexit
import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jointopt.core.atomic_write import write_whole
from jointopt.core.errors import LauncherError, UsageError, nearest
from jointopt.core.facts import joined_notes
from jointopt.core.schema import COLUMNS, Columns
from jointopt.jobs.job import Job
from jointopt.jobs.jobfile import job_mapping
from jointopt.jobs.slurm import NO_GPU_REQUEST
from jointopt.measure.devices import node_meters
from jointopt.measure.launchers import slurm_control as control
from jointopt.measure.launchers.base import Ended, Report
from jointopt.measure.launchers.command import CommandProgram, word
from jointopt.measure.launchers.early import OfProgram, behind_row
from jointopt.measure.launchers.framework import FRAMEWORKS, FrameworkProgram
from jointopt.measure.launchers.process import tail_of, whole_log
from jointopt.measure.launchers.program import Program
from jointopt.measure.launchers.rows import outcome, plan_cells, with_log
from jointopt.measure.launchers.slurm_control import RefusedError
from jointopt.measure.launchers.slurm_fleet import DONE, Fleet
from jointopt.measure.launchers.slurm_script import LOG, container_words
from jointopt.measure.launchers.slurm_script import script as script_text
from jointopt.measure.launchers.slurm_watch import End, why_failed, written_in
from jointopt.measure.launchers.torchrun import TorchrunProgram

DEFAULT_FOLDER = Path("jointopt-slurm")
PROGRAMS = ("torchrun", *FRAMEWORKS, "command")
_STATE, _SCRIPT = "state.json", "job.sh"
_WHERE = ("python", "setup", "gpu_request", "exclusive", "partition", "constraint", "sbatch")
# files of a command whose contents are part of what is run; others may be what it writes
_CONTENT = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".ini", ".cfg")


class SlurmLauncher(OfProgram):
    """Runs each plan as one job on the nodes of the job's cluster; the job file's section ``slurm`` states how.

    ``program`` is torchrun (the project's trainer), a framework (options as of `FrameworkProgram`; in the job file's
    container) or command (with ``command``), or an object of its own. ``folder`` must be seen by all nodes. GPUs run at
    the plan's clocks, or at what the driver chooses (``default_clocks``), and are metered, by `jointopt exec` on each
    node; without ``meter`` the program is started alone. ``limit_s`` begins when a job runs. A job outlives the tool,
    which finds it again; Ctrl-C cancels it.
    """

    name = "slurm"

    def __init__(
        self, folder: Path = DEFAULT_FOLDER, limit_s: float = 1800.0, program: str | Program | None = None,
        command: str | Sequence[str] | None = None, checkout: Path | None = None, iterations: int = 10,
        warmup_iterations: int = 3, default_clocks: bool = False, meter: bool = True, poll_s: float = 15.0,
        script: Path | None = None, arguments: str = "", version: str = "",
    ) -> None:  # fmt: skip
        self.folder, self.limit_s, self.poll_s = Path(folder).absolute(), limit_s, poll_s
        options = {"checkout": checkout, "script": script, "arguments": arguments, "version": version}
        self.program = _program(program, command, options, iterations, warmup_iterations)
        self.default_clocks, self.meter = default_clocks, meter
        self._delivered: Iterator[Ended] | None = None
        if not str(self.folder).isprintable():
            raise UsageError(f"The folder {str(self.folder)!r} has a character that no #SBATCH line can hold.")

    def candidates(self, job: Job) -> Columns | None:
        """Any plan; LauncherError where nothing can be submitted from here, or the program cannot run the job."""
        control.check_installed()
        self.program.check(job)
        return None

    def narrowed(self, job: Job) -> Job:
        """As `Program.narrowed`."""
        return self.program.narrowed(job)

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
        self._deliver(runs)
        return ended.row

    def run_all(self, job: Job, plans: Iterable[Mapping[str, Any]], report: Report) -> Generator[Ended, None, None]:
        """As `ManyAtOnce`: one job each, in the queue together; what Slurm does not take now follows as others end."""
        self.candidates(job)
        fleet = Fleet(self, job, enumerate(plans), report)
        try:
            yield from fleet.ended()
        except KeyboardInterrupt:
            yield from fleet.rescued()
            raise
        except GeneratorExit:
            fleet.cancel()
            raise

    def script(self, job: Job, plan: Mapping[str, Any], folder: Path | None = None) -> str:
        """The script that sbatch receives for ``plan``; nothing is written or submitted."""
        place = folder or self.folder / self.job_name(job, plan) / "1"
        words = self.program.words(job, plan, place)
        if self.program.contained:
            seen = [Path.cwd(), self.folder, *([self.program.cwd] if self.program.cwd else [])]
            words = [*container_words(job.slurm, seen), *words]
        if self._metered(job):
            words = node_meters.metered_words(words, job, place, self.default_clocks, self.program.shows_ranks)
        name = self.submission_name(place)
        about = " ".join(f"{key}={word(key, value)}" for key, value in plan_cells(plan).items())
        return script_text(name, job.cluster, job.slurm, words, place, self.limit_s, about)

    # --- one submission

    def open_folder(self, job: Job, plan: Mapping[str, Any]) -> Path:
        """The folder of the last submission of the plan if its row was not handed over, else a new one."""
        base = self.folder / self.job_name(job, plan)
        try:
            base.mkdir(parents=True, exist_ok=True)
            last = max((int(p.name) for p in base.iterdir() if p.name.isdigit()), default=0)
            if last and not (base / str(last) / DONE).exists():
                return base / str(last)
            (base / str(last + 1)).mkdir()
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        return base / str(last + 1)

    def submitted(
        self, job: Job, plan: Mapping[str, Any], folder: Path, report: Callable[[str], None]
    ) -> tuple[int | None, str]:
        """The Slurm job of the folder, of an earlier process or a new one, and how it was found.

        None for a job that has left its result and has no number any more. ``report``: where Slurm does not answer.
        """
        name = self.submission_name(folder)
        known = _noted(folder) or control.named(name, report)
        # a number may be another job's: they start again where a cluster is set up anew
        if written_in(folder) or (known and (found := control.state(known, report)) and found.name == name):
            return known, f"Slurm job {known} was submitted before" if known else "its Slurm job is over"
        try:
            self.program.prepare(job, plan, folder)
            node_meters.write_plan(plan, folder)
            (folder / _SCRIPT).write_text(self.script(job, plan, folder), encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            number = control.submit(folder / _SCRIPT)
        except RefusedError:
            taken = control.named(name, report)  # Slurm may have taken the job, and its answer was lost
            if taken is None:
                raise
            number = taken
        with suppress(OSError):  # without it the job is found by its name
            write_whole(folder / _STATE, json.dumps({"job": number}))
        return number, f"Slurm job {number} is submitted"

    def job_name(self, job: Job, plan: Mapping[str, Any]) -> str:
        """A name that is the same for the same run in the same folder, whatever its process, time limit or account."""
        mapping = job_mapping(job)
        of_job = {key: mapping[key] for key in ("model", "training", "cluster")}
        parts = [str(self.folder), self.program.name, of_job, plan_cells(plan), *self._command(job, plan)]
        text = json.dumps(parts, sort_keys=True, default=str)
        return f"jointopt-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def _command(self, job: Job, plan: Mapping[str, Any]) -> Iterator[Any]:
        """Beside the plan: words and settings of the program, the scripts that they name, where it runs."""
        words = self.program.words(job, plan, self.folder)
        yield words
        yield {name: value for name, value in vars(self.program).items() if isinstance(value, int | str)}
        yield [_digest(word) for word in words]
        yield [getattr(job.slurm, name) for name in _WHERE]
        yield [self.default_clocks, self._metered(job)]

    @staticmethod
    def submission_name(folder: Path) -> str:
        """The job's name in Slurm: that of a run cancelled a moment ago is not that of the next one."""
        return f"{folder.parent.name}-{folder.name}"

    def _metered(self, job: Job) -> bool:
        return self.meter and job.slurm.gpu_request != NO_GPU_REQUEST

    def row(self, job: Job, plan: Mapping[str, Any], folder: Path, end: End) -> dict[str, Any]:
        """The plan with its results. Raises LauncherError where the nodes' GPUs cannot be set."""
        log, end_of_log = (read(folder / LOG) if (folder / LOG).is_file() else "" for read in (whole_log, tail_of))
        failure = why_failed(end, end_of_log, folder, self.limit_s)
        row = with_log(outcome(self.program.results(job, folder, log), end.whole, failure), folder / LOG, True)
        if self._metered(job):
            node_meters.check_settable(folder, end.code, end_of_log)
            row = node_meters.with_readings(row, plan, job.cluster.nodes, folder, self.default_clocks, log)
        row = {name: value for name, value in row.items() if name in COLUMNS or name == "failure"}
        return dict(plan) | row | {"notes": joined_notes(row["notes"], end.remark)}

    def behind(self, job: Job, plan: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
        """The plan with the lower bound on its time where the log of its run shows that it is behind, else None."""
        row = behind_row(self.program, job, folder / LOG)
        return None if row is None else dict(plan) | with_log(row, folder / LOG, True)

    # --- a single row that was handed over

    def _deliver(self, runs: Iterator[Ended]) -> None:
        """A row counts as handed over when the next run begins, or this process ends in peace."""
        if self._delivered is None:
            atexit.register(self._accept)
        self._delivered = runs

    def _accept(self) -> None:
        for _ in self._delivered or ():
            pass


def _noted(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / _STATE).read_text(encoding="utf-8"))["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unwritable(folder: Path, error: OSError) -> LauncherError:
    return LauncherError(
        f"{folder} cannot be written: {error.strerror or error}; name a folder that all nodes share with --folder."
    )


def _program(
    program: str | Program | None, command: str | Sequence[str] | None, options: Mapping[str, Any], iterations: int,
    warmup_iterations: int,
) -> Program:  # fmt: skip
    """The program by name, or by what was given to it."""
    if program is not None and not isinstance(program, str):
        return program
    implied = "command" if command is not None else "megatron" if options["checkout"] is not None else "torchrun"
    name = program or implied
    if name not in PROGRAMS:
        raise UsageError(f"program must be one of {', '.join(PROGRAMS)}; got {name!r}{nearest(name, PROGRAMS)}.")
    if name in FRAMEWORKS:
        return FrameworkProgram(name, **options, iterations=iterations, warmup_iterations=warmup_iterations)
    if name == "command":
        if command is None:
            raise UsageError("The launcher slurm needs --command for the program command.")
        return CommandProgram(command)
    return TorchrunProgram(iterations, warmup_iterations)


def _digest(word: str) -> str:
    """The contents of a script or of settings that a command names, as a hash; blank for any other word."""
    if word.endswith(_CONTENT):
        with suppress(OSError, ValueError):  # words may be too long for a path, or hold what no path does
            return hashlib.sha256(Path(word).read_bytes()).hexdigest()
    return ""
