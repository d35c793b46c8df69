"""Programs that are started, watched and always ended: no process outlives the run that it belongs to."""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from jointopt.core.errors import JointOptError, LauncherError
from jointopt.core.schema import COLUMNS, NEUTRAL, encode_cells
from jointopt.frameworks.failures import is_full
from jointopt.jobs.job import Job
from jointopt.measure.hardware.guard.guarded import GuardedProgram, catch_signals, end_leftover_runs
from jointopt.runs.rows import is_blank

_log = logging.getLogger(__name__)
_POLITE_S = 10.0  # from SIGTERM to SIGKILL
_LINGER_S = 2.0  # that children have to end after the program, from SIGTERM to SIGKILL
_POLL_S = 0.05
_LOOK_S = 2.0  # between two calls of ``should_end``
_TAIL_BYTES = 65_536
_LONGEST_LOG = 64 * 2**20
# by PCI bus, as NVML counts GPUs; CUDA's own order is by speed
_GPUS_AS_METERED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@dataclass(frozen=True)
class ProgramExit:
    """How a program ended."""

    code: int  # negative: the signal that ended it
    timed_out: bool  # whether the time limit ended it
    tail: str  # the end of its log


def run_program(
    command: Sequence[str], log: Path, *, limit_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None,
    should_end: Callable[[], bool] | None = None,
) -> ProgramExit:  # fmt: skip
    """Run ``command`` with output to ``log``; none of its processes is left, even if this one is killed.

    It is ended after ``limit_s``, or once ``should_end``, called every few seconds, returns true. Raises LauncherError
    where the program cannot be started.
    """
    with files_of_a_run():
        out = log.open("ab")
    with out:
        program = _start_program(command, env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    until, look_s, timed_out = time.monotonic() + limit_s, math.inf if should_end is None else _LOOK_S, False
    try:
        while not timed_out and program.wait(min(look_s, until - time.monotonic())) is None:
            if should_end is not None and should_end():
                break
            timed_out = time.monotonic() >= until
    finally:
        try:
            program.end(_POLITE_S)
        finally:
            program.kill()  # where an interrupt did not let it end in its own time
    cut = "\nNo space left on device" if is_full(log.parent) else ""  # the log cannot hold it any more
    return ProgramExit(program.code or 0, timed_out, tail_of(log) + cut)


def run_in_foreground(
    command: Sequence[str], grace_s: float, env: Mapping[str, str] | None = None,
    watch: Callable[[str], None] | None = None,
) -> int:  # fmt: skip
    """Run ``command`` in the user's terminal and return its exit code, 128 + n where signal n ended it.

    SIGINT, SIGTERM and SIGHUP are passed on; after ``grace_s``, or a second signal, the program is killed with all that
    it started. Processes that outlive it are ended too. ``watch`` is called with the mark of its processes as long as
    it runs; what it raises ends the program. Raises LauncherError where it cannot be started.
    """
    until = math.inf
    with catch_signals() as arrived:
        program = _start_program(command, env, foreground=True, linger_s=_LINGER_S)
        passed_on = 0
        try:
            while program.wait(_POLL_S) is None and time.monotonic() < until and len(arrived) < 2:
                for number in arrived[passed_on:]:
                    passed_on, until = passed_on + 1, time.monotonic() + grace_s
                    with suppress(OSError, ValueError):  # where a terminal's Ctrl-C has reached it already
                        if number == signal.SIGINT and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
                            continue
                    program.signal(number)
                if watch is not None and not arrived:
                    watch(program.mark)
        except JointOptError:
            program.end(_POLITE_S)
            raise
        finally:
            program.kill()
    code = program.code or 0
    return code if code >= 0 else 128 - code


def _start_program(command: Sequence[str], env: Mapping[str, str] | None, **options: Any) -> GuardedProgram:
    """Start the program under a guardian, with GPUs in the meter's order, after ending runs of killed tools."""
    for sentence in end_leftover_runs():
        _log.info(sentence)
    return GuardedProgram(command, env={**_GPUS_AS_METERED, **os.environ, **(env or {})}, **options)


@contextmanager
def files_of_a_run() -> Iterator[None]:
    """Turn an OSError of the body, which makes files of a run, into a LauncherError that says what to do."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "make room there, or let TMPDIR or --logs name a folder that has some"
        raise LauncherError(
            f"{error.filename or 'A file of the run'} cannot be written: {error.strerror}; "
            f"{advice if full else 'let TMPDIR or --logs name a folder that this user can write'}."
        ) from error


def tail_of(log: Path) -> str:
    """The last 64 KiB of a log, with escapes for bytes that are no text; blank where the file is gone."""
    with suppress(OSError), log.open("rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _TAIL_BYTES))
        return stream.read().decode("utf-8", "backslashreplace")
    return ""


def whole_log(log: Path) -> str:
    """A log as text; of one longer than 64 MiB its end alone, as `tail_of`."""
    with suppress(OSError):
        if log.stat().st_size <= _LONGEST_LOG:
            return log.read_text(encoding="utf-8", errors="backslashreplace")
    return tail_of(log)


# Training programs, and torchrun on one machine or on the nodes of a batch job.


_TORCHRUN = ("-m", "torch.distributed.run")


class Program(Protocol):
    """One training program: on this machine in ``cwd`` with ``environment`` added, or once per node of a batch job."""

    name: str
    environment: Mapping[str, str] = {}
    cwd: Path | None = None  # None = that of this process
    missing: str = "the program ended well and left no result"  # what the row of a run without a result says
    in_container: bool = False  # whether it runs in the container of the job file's section slurm
    behind_s: float = 0.0  # see `EndsEarly`: the program ends itself, or its log shows that it is behind
    behind_both: Sequence[tuple[float, float]] = ()  # see `EndsDominated`
    shows_ranks: bool = True  # whether its ranks are known to show which stages they run (`jointopt exec`)

    def check(self, job: Job) -> None:
        """Raises LauncherError for a job that the program cannot run, whatever the plan."""
        return

    def narrow_search(self, job: Job) -> Job:
        """The job with the part of its search that the program runs. Raises LauncherError where it runs none."""
        return job

    def words(self, job: Job, plan: Mapping[str, Any], folder: Path, alone: bool = False) -> list[str]:
        """The command of one node, with files in ``folder``; words may hold ``${NODE_RANK}`` and `NODE_VARIABLES`.

        ``alone``: on this machine, which is the only one.
        """

    def prepare(self, job: Job, plan: Mapping[str, Any], folder: Path, least_s: float = 0.0) -> None:
        """Write into ``folder`` the files that the command reads; it is to measure for at least ``least_s``."""
        return

    def results(self, job: Job, folder: Path, log: str) -> Mapping[str, Any] | None:
        """Result columns of a run that ended well, from its files and its ``log``; None where it left none.

        Where it knows, also ``measured_s``, the start and the end of its measured ``iterations``, in s since 1970.
        """

    def progress(self, job: Job, log: str) -> tuple[Sequence[float], Mapping[str, Any]]:
        """What the ``log`` of a run that goes on tells: seconds of its measured iterations, and result columns."""
        return (), {}


def exclude_columns(job: Job, program: str, names: Iterable[str]) -> Job:
    """The job without plans that use the layout columns ``names``; LauncherError where its search lists only those."""
    kept: dict[str, Any] = {}
    for name in names:
        column, listed, unused = COLUMNS[name], getattr(job.search, name), NEUTRAL.get(name, 1)
        if listed is not None and unused not in encode_cells(name, listed):
            raise LauncherError(_lacks(program, name, listed[0]))
        kept[name] = (column.decode(unused),)
    return replace(job, search=replace(job.search, **kept))


def refuse_columns(program: str, plan: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise LauncherError for a plan that uses one of the layout columns ``names``."""
    for name in names:
        if not is_blank(cell := plan.get(name)) and encode_cells(name, [cell])[0] != NEUTRAL[name]:
            raise LauncherError(_lacks(program, name, cell))


def _lacks(program: str, name: str, value: Any) -> str:
    usual = COLUMNS[name].decode(NEUTRAL.get(name, 1))
    expected = "blank" if usual == "" else usual
    return f"{program} does not run plans with {name} {value}; expected {expected}, or another launcher."


def node_torchrun(job: Job, in_container: bool = False) -> list[str]:
    """The words of torchrun on one of several nodes, with a fixed meeting point, so that ranks follow the nodes' order.

    ``in_container``: by the Python of a container, whatever that of the nodes.
    """
    python = "python" if in_container else job.slurm.python or sys.executable
    return [
        python, *_TORCHRUN, "--nnodes=${NNODES}", "--node-rank=${NODE_RANK}",
        "--master-addr=${MASTER_ADDR}", "--master-port=${MASTER_PORT}",
        f"--nproc-per-node={job.cluster.gpus_per_node}",
    ]  # fmt: skip


def local_torchrun(processes: int, folder: Path) -> list[str]:
    """The words of torchrun on this machine alone; it chooses its port, so that several can run side by side.

    What it leaves goes to ``folder``; by default that is a folder in /tmp that is not removed.
    """
    return [sys.executable, *_TORCHRUN, "--standalone", f"--log-dir={folder}", f"--nproc-per-node={processes}"]
