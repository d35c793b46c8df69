"""The guardian of one run, a process of its own: it starts the program, ends all of it, and sees the tool's death.

`jointopt.measure.hardware.guard.guarded` starts it by path in Python's isolated mode, so that it is there within
milliseconds and nothing in the environment can break it; for that it knows the standard library alone. A task comes as
one line of JSON on the lifeline, a pipe whose end is the death of the tool, however it died. Orders follow, a line
each: ``signal N``, ``end SECONDS`` (SIGTERM, after so many seconds SIGKILL to all), ``kill``, ``done`` (nothing is left
to watch).
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
POLITE_S = 1.0  # from SIGTERM to SIGKILL, where the tool is dead
_UNKILLABLE_S = 10.0  # a process of another user, or one that hangs in the kernel, is not waited for any longer
_LOOK_S = 1.0  # between looks at adopted processes that have ended
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(lifeline: int, answers: int) -> None:
    """Serve the task that the lifeline brings; both are descriptors, and so are the others to hold, from word 3 on.

    Fields of a task: ``command`` (none: a mere watch over the tool), ``foreground``, ``cwd``, ``linger_s``, ``mark``,
    ``ignored`` (signals), ``tool`` (its pid); and for the tool's death ``restore`` (a command), ``scratch`` (folders to
    remove) and ``record`` (a file).
    """
    for end in (lifeline, answers, *map(int, sys.argv[3:])):
        os.set_inheritable(end, False)  # none of the program's
    text = b""
    while b"\n" not in text:
        more = os.read(lifeline, 65_536)
        if not more:  # the tool has died before
            sys.exit(0)
        text += more
    line, _, orders = text.partition(b"\n")
    task = json.loads(line)
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of the run become children of this process
    run = _Run(task)
    if task["command"] and not run.start(answers):
        return
    with suppress(OSError):
        os.setsid()  # out of the terminal, whose signals are for the program
    tool_is_dead = run.watch(lifeline, orders)
    left = run.clear(task["linger_s"] if run.code is not None and not tool_is_dead else 0.0)
    if tool_is_dead:
        _tidy(task, left)
    else:
        _answer(answers, code=run.code, left=left)


class _Run:
    """A program with everything that descends from it."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.code: int | None = None  # negative: the signal that ended it
        self._task = task
        self._pid = 0
        self._kill_at = float("inf")
        self._scope = _new_scope(task["mark"]) if task["command"] else None

    def start(self, answers: int) -> bool:
        """Start the program and answer with its pid, or with the reason why it cannot be started."""
        reader, writer = os.pipe()  # closed by the exec that succeeds
        self._pid = os.fork()
        if self._pid == 0:
            self._become_program(writer)
        os.close(writer)
        trouble = os.read(reader, 65_536)
        os.close(reader)
        _answer(answers, **(json.loads(trouble) if trouble else {"pid": self._pid}))
        return not trouble

    def _become_program(self, writer: int) -> None:
        try:
            for number in DEAF_TO:
                signal.signal(number, signal.SIG_IGN if number in self._task["ignored"] else signal.SIG_DFL)
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # where the guardian itself is killed
            if self._scope is not None:
                with suppress(OSError):
                    (self._scope / "cgroup.procs").write_text("0")
            if not self._task["foreground"]:
                os.setsid()
            if self._task["cwd"]:
                os.chdir(self._task["cwd"])
            os.execvp(self._task["command"][0], self._task["command"])
        except OSError as error:
            os.write(writer, json.dumps({"errno": error.errno, "reason": error.strerror}).encode())
        finally:
            os._exit(127)

    def watch(self, lifeline: int, orders: bytes = b"") -> bool:
        """Obey orders until the program ends or is to be killed, or nothing is left to watch; whether the tool died."""
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        with suppress(OSError):  # a kernel without pidfd: the looks alone find the program's end
            poll.register(os.pidfd_open(self._pid), select.POLLIN)
        tool = None
        with suppress(OSError):  # a process that the tool has forked may hold the lifeline open
            if os.getppid() == self._task["tool"]:
                tool = os.pidfd_open(self._task["tool"])
                poll.register(tool, select.POLLIN)
        while not self._obey(orders):
            if self._ended() or time.monotonic() >= self._kill_at:
                return False
            ready = [fd for fd, _ in poll.poll(1000 * max(0.0, min(_LOOK_S, self._kill_at - time.monotonic())))]
            orders = os.read(lifeline, 65_536) if lifeline in ready else b""
            if tool in ready or (lifeline in ready and not orders):
                self._signal(signal.SIGTERM)
                until = time.monotonic() + POLITE_S
                while self._pid and not self._ended() and time.monotonic() < until:
                    time.sleep(0.02)
                return True
        return False

    def _obey(self, orders: bytes) -> bool:
        """Obey all orders; whether one of them ends the watch."""
        is_over = False
        for order in orders.decode().splitlines():
            what, _, value = order.partition(" ")
            if what == "signal":
                self._signal(int(value))
            elif what == "end":
                self._signal(signal.SIGTERM)
                self._kill_at = time.monotonic() + float(value)
            is_over |= what in ("kill", "done")
        return is_over

    def _signal(self, number: int) -> None:
        if self._pid and self.code is None:
            with suppress(OSError):
                os.kill(self._pid, number)

    def _ended(self) -> bool:
        """Take the exit status of every child that has ended, adopted ones among them; whether the program has."""
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self._pid:
                    self.code = os.waitstatus_to_exitcode(found[1])
        return self.code is not None

    def clear(self, linger_s: float) -> list[int]:
        """End every process of the run, by SIGKILL ``linger_s`` after SIGTERM; the pids that cannot be ended."""
        until = time.monotonic() + linger_s
        for pid in _descendants() if linger_s else ():
            with suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        while _descendants() and time.monotonic() < until:
            self._ended()
            time.sleep(0.02)
        until = time.monotonic() + _UNKILLABLE_S
        while True:
            left = _descendants()
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._ended()
            if not left or time.monotonic() > until:
                break
            time.sleep(0.01)
        if self._scope is not None:
            with suppress(OSError):
                (self._scope / "cgroup.kill").write_text("1")  # what was moved here by others, too
            with suppress(OSError):
                self._scope.rmdir()
        return left


def _descendants() -> list[int]:
    """Living processes that descend from this one: adopted orphans too, whatever session they are in."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):
            after = Path("/proc", str(int(entry)), "stat").read_text(errors="replace").rpartition(")")[2].split()
            if after[0] not in "ZX":
                children.setdefault(int(after[1]), []).append(int(entry))
    found = children.get(os.getpid(), [])
    for pid in found:  # grows meanwhile
        found += children.get(pid, [])
    return found


def _new_scope(mark: str) -> Path | None:
    """A control group (v2) of the run's own below that of this process, where this user may make one."""
    with suppress(OSError, StopIteration):
        mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
        root = next(words[1] for words in mounts if words[2] == "cgroup2")
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mine = next(line[3:] for line in lines if line.startswith("0::"))
        scope = Path(root + mine, f"jointopt-{mark}")
        scope.mkdir()
        return scope
    return None


def _tidy(task: dict[str, Any], left: list[int]) -> None:
    """Do what the dead tool cannot: put back what it has set, remove its scratch, write the ending down."""
    if task["restore"]:
        with suppress(OSError):
            null = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0), (os.POSIX_SPAWN_OPEN, 2, os.devnull, 1, 0)
            program = task["restore"][0]
            os.waitpid(os.posix_spawn(program, task["restore"], os.environ, file_actions=null), 0)
    for folder in task["scratch"]:
        shutil.rmtree(folder, ignore_errors=True)
    if task["record"]:
        with suppress(OSError, ValueError):
            file = Path(task["record"])
            content = json.loads(file.read_text(encoding="utf-8")) | {"ended_s": time.time(), "left": left}
            part = file.with_suffix(".part")
            part.write_text(json.dumps(content), encoding="utf-8")
            part.replace(file)


def _answer(answers: int, **what: Any) -> None:
    """Answer the tool; one that is dead hears nothing, and what it has started is still to be ended."""
    with suppress(OSError):
        os.write(answers, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
