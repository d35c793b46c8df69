"""The launcher for a Slurm cluster: one job per run, which is found again when the tool itself was restarted."""

from __future__ import annotations

import atexit
import hashlib
import json
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from jointopt.core.errors import LauncherError, UsageError, nearest
from jointopt.core.schema import COLUMNS, Columns
from jointopt.measure.devices import node_meters
from jointopt.measure.launchers import slurm_control as control
from jointopt.measure.launchers.base import Ended, Say, judged, with_log
from jointopt.measure.launchers.command import CommandProgram
from jointopt.measure.launchers.process import tail, whole
from jointopt.measure.launchers.program import MegatronProgram, Program, TorchrunProgram
from jointopt.measure.launchers.slurm_control import NoAnswerError, RefusedError, SlurmJob
from jointopt.measure.launchers.slurm_script import LOG, script
from jointopt.measure.launchers.slurm_watch import End, Submission, why_failed, written_in
from jointopt.spec.job import Job
from jointopt.spec.jobfile import job_mapping
from jointopt.spec.plans.clocks import plain_number
from jointopt.spec.slurm import NO_GPU_REQUEST

DEFAULT_FOLDER = Path("jointopt-slurm")
DEFAULT_LIMIT_S = 1800.0
PROGRAMS = ("torchrun", "megatron", "command")
_STATE, _DONE, _SCRIPT = "state.json", "done", "job.sh"
_WHERE = ("python", "setup", "gpu_request", "exclusive", "partition", "constraint", "sbatch")
# files of a command whose contents say what is run; others may be what it writes
_SAYING = (".py", ".sh", ".yaml", ".yml", ".toml", ".json", ".ini", ".cfg")


class SlurmLauncher:
    """Runs each plan as one job on the nodes of the job's cluster; the job file's section ``slurm`` says how.

    ``program`` is torchrun (the project's trainer), megatron (with ``checkout``) or command (with ``command``), or an
    object of its own. ``folder`` must be seen by all nodes; each run has a folder in it with its script, log and
    result. GPUs run at the plan's clocks, or at what the driver chooses (``default_clocks``), and are metered, by
    `jointopt exec` on each node; without ``meter`` the program is started alone. ``limit_s`` is the longest that a run
    may take once it runs; in the queue it may wait for ever. A job outlives the tool, which finds it again by all
    that is run; Ctrl-C cancels it. Several runs are in the queue at once where they are asked for at once.
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
        self._delivered: Iterator[Ended] | None = None
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
        fleet = _Fleet(self, job, enumerate([plan]), lambda place, text: None)
        runs = fleet.ended()
        try:
            ended = next(runs)
        except KeyboardInterrupt:
            fleet.cancel()
            raise
        self._deliver(runs)
        return ended.row

    def run_all(self, job: Job, plans: Iterable[Mapping[str, Any]], say: Say) -> Generator[Ended, None, None]:
        """As `jointopt.measure.launchers.base.ManyAtOnce`: one job each, all of them in the queue together.

        Where Slurm takes no more jobs while some are on their way, the others are submitted as those end.
        """
        self.candidates(job)
        fleet = _Fleet(self, job, enumerate(plans), say)
        try:
            yield from fleet.ended()
        except KeyboardInterrupt:
            yield from fleet.rescued()
            raise
        except GeneratorExit:
            fleet.cancel()
            raise

    def script(self, job: Job, plan: Mapping[str, Any], folder: Path | None = None) -> str:
        """What sbatch receives for ``plan``; nothing is written or submitted."""
        place = folder or self.folder / self.job_name(job, plan) / "1"
        words = self.program.words(job, plan, place)
        if self._metered(job):
            words = node_meters.metered_words(words, job, place, self.default_clocks)
        name = self.submission_name(place)
        return script(name, job.cluster, job.slurm, words, place, self.limit_s, _words(plan))

    # --- one submission

    def open_folder(self, job: Job, plan: Mapping[str, Any]) -> Path:
        """The folder of the last submission of the plan if nobody has its row, else a new one."""
        base = self.folder / self.job_name(job, plan)
        try:
            base.mkdir(parents=True, exist_ok=True)
            last = max((int(p.name) for p in base.iterdir() if p.name.isdigit()), default=0)
            if last and not (base / str(last) / _DONE).exists():
                return base / str(last)
            (base / str(last + 1)).mkdir()
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        return base / str(last + 1)

    def submitted(
        self, job: Job, plan: Mapping[str, Any], folder: Path, say: control.Say
    ) -> tuple[int | None, str]:
        """The Slurm job of the folder, and how it was found: one of an earlier process, or a new one.

        ``say`` is told where Slurm does not answer. None for one that has left its result and that has no number
        any more.
        """
        name = self.submission_name(folder)
        known = _noted(folder) or control.named(name, say)
        if written_in(folder) or (known and _is_named(control.state(known, say), name)):
            return known, f"Slurm job {known} was submitted before" if known else "its Slurm job is over"
        try:
            self.program.prepare(job, plan, folder)
            node_meters.write_plan(plan, folder)
            (folder / _SCRIPT).write_text(self.script(job, plan, folder), encoding="utf-8")
        except OSError as error:
            raise _unwritable(folder, error) from error
        number = _taken(folder / _SCRIPT, name, say)
        with suppress(OSError):  # without it the job is found by its name
            (folder / _STATE).write_text(json.dumps({"job": number}), encoding="utf-8")
        return number, f"Slurm job {number} is submitted"

    def job_name(self, job: Job, plan: Mapping[str, Any]) -> str:
        """The same for the same run in the same folder, whatever process asks; its submissions are numbered.

        How long a run may take, and who pays for it, does not tell runs apart; all that is run does.
        """
        mapping = job_mapping(job)
        told = {key: mapping[key] for key in ("model", "training", "cluster")}
        asked = {name: _plain(plan[name]) for name in sorted(plan) if _is_asked(name, plan[name])}
        parts = [str(self.folder), self.program.name, told, asked, *self._what_is_run(job, plan)]
        text = json.dumps(parts, sort_keys=True, default=str)
        return f"jointopt-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def _what_is_run(self, job: Job, plan: Mapping[str, Any]) -> Iterator[Any]:
        """Beside the plan: words and settings of the program, the scripts that they name, where it runs."""
        words = self.program.words(job, plan, self.folder)
        yield words
        yield {name: value for name, value in vars(self.program).items() if isinstance(value, int | str)}
        yield [_digest(word) for word in words]
        yield [getattr(job.slurm, name) for name in _WHERE]
        yield [self.default_clocks, self._metered(job)]

    @staticmethod
    def submission_name(folder: Path) -> str:
        """What Slurm shows as the job's name: that of a run cancelled a moment ago is not that of the next one."""
        return f"{folder.parent.name}-{folder.name}"

    def _metered(self, job: Job) -> bool:
        return self.meter and job.slurm.gpu_request != NO_GPU_REQUEST

    def row(self, job: Job, plan: Mapping[str, Any], folder: Path, end: End) -> dict[str, Any]:
        """The plan with its results. Raises LauncherError where the nodes' GPUs cannot be set."""
        log, end_of_log = (read(folder / LOG) if (folder / LOG).is_file() else "" for read in (whole, tail))
        failure = why_failed(end, end_of_log, folder, self.limit_s)
        row = with_log(judged(self.program.results(job, folder, log), end.whole, failure), folder / LOG, True)
        if self._metered(job):
            node_meters.check_settable(folder, end.code, end_of_log)
            row = node_meters.with_readings(row, plan, job.cluster.nodes, folder, self.default_clocks)
        row = {name: value for name, value in row.items() if name in COLUMNS}
        return dict(plan) | row | {"notes": "; ".join(filter(None, [str(row["notes"] or ""), end.words]))}

    # --- a single row that was handed over

    def _deliver(self, runs: Iterator[Ended]) -> None:
        """A row counts as handed over when the next run is asked for, or this process ends in peace."""
        if self._delivered is None:
            atexit.register(self._accept)
        self._delivered = runs

    def _accept(self) -> None:
        for _ in self._delivered or ():
            pass


@dataclass
class _Flight:
    """A plan whose job is on its way; without a submission it is just being submitted."""

    plan: Mapping[str, Any]
    folder: Path
    submission: Submission | None = None


class _Fleet:
    """The jobs of one call that are on their way, by the place of their plan."""

    def __init__(
        self, launcher: SlurmLauncher, job: Job, plans: Iterator[tuple[int, Mapping[str, Any]]], say: Say
    ) -> None:
        self._launcher, self._job, self._plans, self._say = launcher, job, plans, say
        self._flights: dict[int, _Flight] = {}
        self._refused: tuple[int, Mapping[str, Any]] | None = (
            None  # to be submitted when another one has ended
        )
        self._error: LauncherError | None = None

    def ended(self) -> Iterator[Ended]:
        """Every run as it ends; the first error when nothing is on its way any more."""
        self._submit()
        waits = _backoff(self._launcher.poll_s)
        while self._flights:
            time.sleep(next(waits))
            for place in list(self._flights):
                found = self._looked_at(place)
                if found is not None:
                    yield from self._handed_over(place, found)
                    waits = _backoff(self._launcher.poll_s)
                    self._submit()
        if self._error is not None:
            raise self._error

    def rescued(self) -> Iterator[Ended]:
        """After an interrupt: what has ended meanwhile; all else is cancelled."""
        over = [place for place, flight in self._flights.items() if written_in(flight.folder) is not None]
        self.cancel()
        for place in over:
            found = self._looked_at(place)
            if found is not None:
                yield from self._handed_over(place, found)

    def cancel(self) -> None:
        """End all jobs but those that have a result, which stays to be found, as does a job that goes on."""
        going = {place: f for place, f in self._flights.items() if written_in(f.folder) is None}
        numbers = list(filter(None, map(self._number, going.values())))
        trouble = control.cancel(numbers)
        for place, flight in going.items():
            if trouble:
                self._say(
                    place, f"Slurm does not cancel it: {trouble}; scancel {' '.join(map(str, numbers))} does"
                )
            else:
                _close(flight.folder)

    def _number(self, flight: _Flight) -> int | None:
        if flight.submission is None:  # interrupted while Slurm took it, or not
            return control.named(self._launcher.submission_name(flight.folder))
        return flight.submission.number

    def _submit(self) -> None:
        """Everything that is left to be submitted and that Slurm takes."""
        while self._error is None:
            following = self._refused or next(self._plans, None)
            self._refused = None
            if following is None:
                return
            place, plan = following
            try:
                self._send(place, plan)
            except RefusedError as error:
                self._drop(place)
                if not self._flights:
                    self._error = error
                self._refused = following
                return
            except NoAnswerError:
                raise
            except LauncherError as error:
                self._fail(place, error)

    def _send(self, place: int, plan: Mapping[str, Any]) -> None:
        folder = self._launcher.open_folder(self._job, plan)
        flight = self._flights[place] = _Flight(plan, folder)
        say = partial(self._say, place)
        number, words = self._launcher.submitted(self._job, plan, folder, say)
        say(words)
        flight.submission = Submission(number, folder, say)

    def _looked_at(self, place: int) -> tuple[dict[str, Any], End] | None:
        """Row and end of a job that is over."""
        flight = self._flights[place]
        if flight.submission is None:
            return None
        try:
            end = flight.submission.look()
            return (
                None if end is None else (self._launcher.row(self._job, flight.plan, flight.folder, end), end)
            )
        except NoAnswerError:
            raise
        except LauncherError as error:
            self._fail(place, error)
            return None

    def _handed_over(self, place: int, found: tuple[dict[str, Any], End]) -> Iterator[Ended]:
        """The row counts as handed over when the next one is asked for: until then the same plan finds it again."""
        flight, (row, end) = self._flights.pop(place), found
        yield Ended(place, row, end.seconds)
        _close(flight.folder)

    def _fail(self, place: int, error: LauncherError) -> None:
        """Nothing more is submitted; what is on its way goes on."""
        self._drop(place)
        if self._flights:
            self._say(place, str(error))
        self._error = self._error or error

    def _drop(self, place: int) -> None:
        flight = self._flights.pop(place, None)
        if flight is not None:
            _close(flight.folder)


def _backoff(most_s: float) -> Iterator[float]:
    """Waits between two looks: short at first, half as long again each time."""
    wait_s = min(0.5, most_s)
    while True:
        yield wait_s
        wait_s = min(wait_s * 1.5, most_s)


def _noted(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / _STATE).read_text(encoding="utf-8"))["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _taken(script: Path, name: str, say: control.Say) -> int:
    """The number of a new job. Raises RefusedError, unless Slurm took the job and its answer was lost."""
    try:
        return control.submit(script)
    except RefusedError:
        number = control.named(name, say)
        if number is None:
            raise
        return number


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


def _digest(word: str) -> str:
    """The contents of a script or of settings that a command names, as a hash; blank for any other word."""
    if word.endswith(_SAYING):
        with suppress(OSError, ValueError):  # words may be too long for a path, or hold what no path does
            return hashlib.sha256(Path(word).read_bytes()).hexdigest()
    return ""


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
