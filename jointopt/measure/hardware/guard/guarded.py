"""The tool's side of a guardian: a program that is started, watched and always ended, or a mere watch over the tool."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from jointopt.core.errors import LauncherError
from jointopt.measure.hardware.guard import records
from jointopt.measure.hardware.guard.forks import delay_signals
from jointopt.measure.hardware.guard.guardian import DEAF_TO
from jointopt.measure.hardware.guard.records import MARK, marked
from jointopt.measure.hardware.guard.scratch import HELD

_log = logging.getLogger(__name__)
_GUARDIAN = Path(__file__).with_name("guardian.py")
_EXIT_S = 30.0  # that a guardian has for its own end, once its work is done


class Guarded:
    """A program under a guardian, which ends it with all that descends from it when the tool dies or says so.

    ``foreground``: it stays in the process group of the terminal; else it has a session of its own. ``linger_s``: how
    long children have that outlive it. Raises LauncherError where it cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, foreground: bool = False, linger_s: float = 0.0,
        env: Mapping[str, str] | None = None, cwd: Path | None = None, **streams: Any,
    ) -> None:  # fmt: skip
        self.mark = uuid.uuid4().hex
        self.code: int | None = None
        self._record = records.written(self.mark)
        task = {
            "command": list(map(os.fspath, command)), "foreground": foreground, "linger_s": linger_s,
            "cwd": None if cwd is None else str(cwd), "scratch": sorted(HELD), "restore": None,
            "record": self._record and self._record.name,
        }  # fmt: skip
        environment = {**(os.environ if env is None else env), MARK: self.mark}
        try:
            self._guardian = Guardian(task, self.mark, self._record, env=environment, **streams)
            answer = self._guardian.answer(None)
            if answer is None or "pid" not in answer:
                raise _unstartable(command, answer)
        except BaseException:
            self._forget()
            raise

    def wait(self, timeout_s: float | None) -> int | None:
        """The exit code (negative: a signal), once nothing of the run is left; None where that lasts longer."""
        if self.code is None and (answer := self._guardian.answer(timeout_s)) is not None:
            self.code = answer["code"] if answer.get("code") is not None else -signal.SIGKILL
            if left := answer.get("left"):
                _log.warning("Processes of the run cannot be ended: %s.", ", ".join(map(str, left)))
            if not answer:  # the guardian was killed: what it had started ends with it, orphans here
                for process in marked(self.mark):
                    with suppress(OSError):
                        os.kill(process.pid, signal.SIGKILL)
            self._guardian.close()
            self._forget()
        return self.code

    def signal(self, number: int) -> None:
        """Pass a signal on to the program."""
        self._guardian.order(f"signal {int(number)}")

    def end(self, polite_s: float) -> None:
        """SIGTERM to the program, so that it can end its own, and after so long SIGKILL to all; none is left."""
        if self.code is None:
            self._guardian.order(f"end {polite_s}")
            self.wait(None)

    def kill(self) -> None:
        """SIGKILL to every process of the run; none is left."""
        if self.code is None:
            self._guardian.order("kill")
            self.wait(None)

    def _forget(self) -> None:
        if self._record is not None:
            Path(self._record.name).unlink(missing_ok=True)
            self._record.close()
            self._record = None


class Guardian:
    """The process of `guardian` with a task: its lifeline, and its answers."""

    def __init__(self, task: Mapping[str, Any], mark: str, record: TextIO | None = None, **streams: Any) -> None:
        read, self._lifeline = os.pipe()
        self._answers, write = os.pipe()
        self._text = b""
        handed = (read, write, *([record.fileno()] if record else []))
        command = [sys.executable, "-I", "-S", str(_GUARDIAN), *map(str, handed)]
        before = {number: signal.getsignal(number) for number in DEAF_TO}
        ignored = [int(number) for number, handler in before.items() if handler is signal.SIG_IGN]
        alone = not task.get("foreground", False)
        try:
            with delay_signals():
                self._process = subprocess.Popen(
                    command, pass_fds=handed, preexec_fn=_deaf, start_new_session=alone, **streams
                )
        except BaseException as error:
            self._hang_up()
            if isinstance(error, OSError):
                raise LauncherError(f"The guardian of a run cannot be started: {error.strerror}.") from error
            raise
        finally:
            os.close(read)
            os.close(write)
        document = {**task, "mark": mark, "ignored": ignored, "tool": os.getpid()}
        self._send(json.dumps(document))

    def order(self, text: str) -> None:
        """Send one order; a guardian that is gone takes none."""
        self._send(text)

    def answer(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next answer; None where it lasts longer, {} where the guardian is gone."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._text:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([self._answers], [], [], left)[0]:
                return None
            more = os.read(self._answers, 65_536)
            if not more:
                return {}
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """Let the guardian go, which has done its work."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_S)
        self._hang_up()

    def _send(self, text: str) -> None:
        left = text.encode() + b"\n"
        with suppress(OSError):
            while left:  # a signal may cut a write of more than the pipe holds
                left = left[os.write(self._lifeline, left) :]

    def _hang_up(self) -> None:
        for end in (self._lifeline, self._answers):
            if end >= 0:
                os.close(end)
        self._lifeline = self._answers = -1

    def __del__(self) -> None:
        if getattr(self, "_lifeline", -1) >= 0:  # an interrupt came before anybody could end the run
            self._hang_up()


def _deaf() -> None:
    """Between fork and exec: signals of the terminal are the program's, and a guardian hears of them from the tool."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)


def _unstartable(command: Sequence[str], answer: Mapping[str, Any] | None) -> LauncherError:
    reason = (answer or {}).get("reason", "its guardian was killed")
    return LauncherError(f"{str(command[0])!r} cannot be started: {reason}; is it installed, and on the PATH?")
