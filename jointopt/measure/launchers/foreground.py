"""A program in the user's terminal: its own input and output, every signal passed on, its exit code returned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from jointopt.core.errors import LauncherError
from jointopt.measure.launchers.process import end_with_parent, environment, kill_program

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POLL_S = 0.05


def run_in_foreground(command: Sequence[str], grace_s: float) -> int:
    """Run ``command`` to its end and return its exit code, 128 + n where signal n ended it.

    SIGINT, SIGTERM and SIGHUP are passed on; the program then has ``grace_s`` to end by itself, and is killed with all
    that it started after that, or at a second signal. Raises LauncherError where it cannot be started.
    """
    program = _Program()
    with program.told_of_signals():
        program.start(command)
        return program.wait(grace_s)


class _Program:
    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._running: subprocess.Popen[bytes] | None = None
        self._signals: list[int] = []
        self._passed_on = 0

    def start(self, command: Sequence[str]) -> None:
        try:
            self._running = subprocess.Popen(command, env=environment(self._mark), preexec_fn=end_with_parent)
        except OSError as error:
            raise LauncherError(
                f"{command[0]!r} cannot be started: {error.strerror}; is it installed, and on the PATH?"
            ) from error

    def wait(self, grace_s: float) -> int:
        program, until = self._running, float("inf")
        if program is None:
            return 1
        try:
            while program.poll() is None and time.monotonic() < until and len(self._signals) < 2:
                if len(self._signals) > self._passed_on:
                    self._pass_on(program, self._signals[self._passed_on])
                    until = time.monotonic() + grace_s
                time.sleep(_POLL_S)
        finally:
            if program.poll() is None:
                kill_program(program, self._mark)
        return program.returncode if program.returncode >= 0 else 128 - program.returncode

    @contextmanager
    def told_of_signals(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        try:
            for number, handler in before.items():
                if handler is not signal.SIG_IGN:
                    signal.signal(number, self._note)
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: Any) -> None:
        self._signals.append(number)

    def _pass_on(self, program: subprocess.Popen[bytes], number: int) -> None:
        """A terminal's Ctrl-C has reached the program already: both are in its foreground group."""
        self._passed_on += 1
        if number == signal.SIGINT and _in_foreground():
            return
        with suppress(ProcessLookupError):
            program.send_signal(number)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # no terminal
        return False
