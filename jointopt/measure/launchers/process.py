"""Programs that are started, watched and always ended: no process outlives the run that it belongs to."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from jointopt.core.errors import JointOptError, LauncherError
from jointopt.measure.launchers.failures import is_full

MARK = "JOINTOPT_RUN"  # every process of a run inherits it, whatever session or parent it has
_POLITE_S = 10.0  # from SIGTERM to SIGKILL
_POLL_S = 0.05
_TAIL_BYTES = 65_536
_LONGEST_LOG = 64 * 2**20
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
# by PCI bus, as NVML counts GPUs; CUDA's own order is by speed
_GPUS_AS_METERED = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Ended:
    """How a program ended: its exit code (negative = signal), whether the time limit ended it, the end of its log."""

    code: int
    timed_out: bool
    tail: str


def run_program(
    command: Sequence[str], log: Path, *, limit_s: float, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Ended:  # fmt: skip
    """Run ``command`` with output to ``log``; none of its processes is left, even if this one is killed.

    Raises LauncherError where the program cannot be started.
    """
    mark = uuid.uuid4().hex
    with log.open("ab") as out:
        program = _started(
            command, env={**environment(mark), **(env or {})}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    timed_out = False
    try:
        program.wait(limit_s)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        end_program(program, mark)
    cut = "\nNo space left on device" if is_full(log.parent) else ""  # the log cannot hold it any more
    return Ended(program.returncode, timed_out, tail_of(log) + cut)


def run_in_foreground(
    command: Sequence[str], grace_s: float, env: Mapping[str, str] | None = None,
    watch: Callable[[str], None] | None = None,
) -> int:  # fmt: skip
    """Run ``command`` in the user's terminal and return its exit code, 128 + n where signal n ended it.

    SIGINT, SIGTERM and SIGHUP are passed on; after ``grace_s``, or a second signal, the program is killed with all that
    it started. ``watch`` is called with the mark of its processes as long as it runs; what it raises ends the program.
    Raises LauncherError where it cannot be started.
    """
    mark, until = uuid.uuid4().hex, math.inf
    with _caught(_SIGNALS) as caught:
        program = _started(command, env={**environment(mark), **(env or {})})
        passed_on = 0
        try:
            while program.poll() is None and time.monotonic() < until and len(caught) < 2:
                for number in caught[passed_on:]:
                    passed_on, until = passed_on + 1, time.monotonic() + grace_s
                    _pass_on(program, number)
                with suppress(subprocess.TimeoutExpired):
                    program.wait(_POLL_S)
                if watch is not None and program.returncode is None and not caught:
                    watch(mark)
        except JointOptError:
            end_program(program, mark)
            raise
        finally:
            if program.poll() is None:
                kill_program(program, mark)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


@contextmanager
def _caught(numbers: Sequence[signal.Signals]) -> Iterator[list[int]]:
    """The list of signals that arrive while the body runs; those that are ignored stay so."""
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, lambda number, frame: caught.append(number))
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on(program: subprocess.Popen[bytes], number: int) -> None:
    """Send the signal, unless it is a terminal's Ctrl-C: that has reached the program in its foreground group."""
    if number == signal.SIGINT:
        with suppress(OSError, ValueError):  # no terminal
            if os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
                return
    with suppress(ProcessLookupError):
        program.send_signal(number)


def _started(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, preexec_fn=end_with_parent, **options)
    except OSError as error:
        raise LauncherError(
            f"{command[0]!r} cannot be started: {error.strerror}; is it installed, and on the PATH?"
        ) from error


@contextmanager
def files_of_a_run() -> Iterator[None]:
    """LauncherError where files of a run cannot be made: the next run could not be started either."""
    try:
        yield
    except OSError as error:
        raise LauncherError(
            f"{error.filename or 'A file of the run'} cannot be written: {error.strerror}; make room there, or let "
            "TMPDIR or --logs name a folder that has some."
        ) from error


def environment(mark: str) -> dict[str, str]:
    """The environment of the programs of a run: with its mark, and GPUs counted as the meter does by default."""
    return {**_GPUS_AS_METERED, **os.environ, MARK: mark}


def end_with_parent() -> None:
    """Let Linux send SIGTERM to this child when the tool dies; between fork and exec it imports and opens nothing."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def end_program(program: subprocess.Popen[bytes], mark: str) -> None:
    """SIGTERM to the program, so that it can end its own, then SIGKILL to every process that bears its mark."""
    try:
        if program.poll() is None:
            program.terminate()
            with suppress(subprocess.TimeoutExpired):
                program.wait(_POLITE_S)
    finally:
        kill_program(program, mark)


def kill_program(program: subprocess.Popen[bytes], mark: str) -> None:
    """SIGKILL to the program and to every process that bears its mark."""
    left = list(marked(mark))
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    if program.poll() is None:
        program.kill()
        program.wait()  # before psutil does, which would keep the exit code for itself
    psutil.wait_procs(left, timeout=_POLITE_S)


def marked(mark: str) -> Iterable[psutil.Process]:
    """Processes that inherited the mark of a run."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                yield process


def tail_of(log: Path) -> str:
    """The end of a log, at most 64 KiB; bytes that are no text are shown as such."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        return stream.read().decode("utf-8", "backslashreplace")


def whole_log(log: Path) -> str:
    """A log, or its end where it is longer than anyone reads (64 MiB); bytes that are no text are shown as such."""
    if log.stat().st_size > _LONGEST_LOG:
        return tail_of(log)
    return log.read_text(encoding="utf-8", errors="backslashreplace")
