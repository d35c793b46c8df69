"""The tool's side of a guardian, a process that outlives the tool to end its programs or to put its GPUs back."""

from __future__ import annotations

import ctypes
import fcntl
import json
import logging
import os
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import psutil

from jointopt.core.errors import LauncherError
from jointopt.core.secrets import masked_words
from jointopt.core.system import birth_s, is_alive, state_home
from jointopt.measure.hardware.guard.guardian import DEAF_TO

_log = logging.getLogger(__name__)
_GUARDIAN = Path(__file__).with_name("guardian.py")
_EXIT_S = 30.0  # that a guardian has for its own end, once its work is done
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
MARK = "JOINTOPT_RUN"  # every process of a run inherits it, whatever session or parent it has
_BEING_ENDED_S = 20.0  # that a guardian needs at most for what its dead tool has left
_END_S = 5.0  # from SIGKILL to the end of a process
_PREFIX = "jointopt-"  # of scratch folders
_NEW_S = 5.0  # younger folders are left alone: one is made first, and then locked
_SCRATCH: set[str] = set()  # folders of this process, which a guardian removes after it


class GuardedProgram:
    """A program under a guardian, which ends it and all its descendants when the tool says so or dies.

    ``foreground``: it stays in the process group of the terminal; else it has a session of its own. ``linger_s``: time
    that descendants have to end after it. ``streams``: arguments of `subprocess.Popen`. LauncherError where it cannot
    be started.
    """

    def __init__(
        self, command: Sequence[str], *, foreground: bool = False, linger_s: float = 0.0,
        env: Mapping[str, str] | None = None, cwd: Path | None = None, **streams: Any,
    ) -> None:  # fmt: skip
        self.mark = uuid.uuid4().hex
        self.code: int | None = None
        self._record = _new_record(self.mark)
        task = {
            "command": list(map(os.fspath, command)), "foreground": foreground, "linger_s": linger_s,
            "cwd": None if cwd is None else str(cwd), "scratch": sorted(_SCRATCH), "restore": None,
            "record": self._record and self._record.name,
        }  # fmt: skip
        environment = {**(os.environ if env is None else env), MARK: self.mark}
        try:
            self._guardian = Guardian(task, self.mark, self._record, env=environment, **streams)
            answer = self._guardian.answer(None)
            if answer is None or "pid" not in answer:
                reason = (answer or {}).get("reason", "its guardian was killed")
                raise LauncherError(
                    f"{str(command[0])!r} cannot be started: {reason}; is it installed, and on the PATH?"
                )
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
                for process in processes_of(self.mark):
                    with suppress(OSError):
                        os.kill(process.pid, signal.SIGKILL)
            self._guardian.close()
            self._forget()
        return self.code

    def signal(self, number: int) -> None:
        """Pass a signal on to the program."""
        self._guardian.order(f"signal {int(number)}")

    def end(self, polite_s: float) -> None:
        """SIGTERM to the program, and after ``polite_s`` SIGKILL to all processes of the run; none is left."""
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
    """A process of `guardian`: this end of its lifeline, a pipe that takes its task and orders, and its answers.

    ``task``: see `guardian`. ``record``: a locked file that it holds as long as it lives.
    """

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
                    command, pass_fds=handed, preexec_fn=_ignore_signals, start_new_session=alone, **streams
                )
        except BaseException as error:
            self._hang_up()
            if isinstance(error, OSError):
                raise LauncherError(f"The guardian of a run cannot be started: {error.strerror}.") from error
            raise
        finally:
            os.close(read)
            os.close(write)
        self.order(json.dumps({**task, "mark": mark, "ignored": ignored, "tool": os.getpid()}))

    def order(self, text: str) -> None:
        """Send one line; a guardian that is gone takes none."""
        left = text.encode() + b"\n"
        with suppress(OSError):
            while left:  # a signal may cut a write of more than the pipe holds
                left = left[os.write(self._lifeline, left) :]

    def answer(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next answer; None where it lasts longer, {} where the guardian is gone."""
        until, ready = None if timeout_s is None else time.monotonic() + timeout_s, select.poll()
        ready.register(self._answers, select.POLLIN)  # select() knows no descriptor above 1,023
        while b"\n" not in self._text:
            left_ms = None if until is None else 1e3 * max(0.0, until - time.monotonic())
            if not ready.poll(left_ms):
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

    def _hang_up(self) -> None:
        for end in (self._lifeline, self._answers):
            if end >= 0:
                os.close(end)
        self._lifeline = self._answers = -1

    def __del__(self) -> None:
        if getattr(self, "_lifeline", -1) >= 0:  # an interrupt came before anybody could end the run
            self._hang_up()


def _ignore_signals() -> None:
    """Between fork and exec: signals of the terminal are the program's, and a guardian hears of them from the tool."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)


# Signals around a fork: Python prints and forgets what is raised in the hooks that it runs there (logging has one).


def signal_handlers() -> dict[int, Any]:
    """The handlers of the signals that end programs, but for signals that are ignored or not handled by Python."""
    known = {number: signal.getsignal(number) for number in _SIGNALS}
    return {number: handler for number, handler in known.items() if handler not in (signal.SIG_IGN, None)}


@contextmanager
def catch_signals() -> Iterator[list[int]]:
    """Collect the signals that arrive while the body runs, instead of handling them; ignored ones stay ignored."""
    arrived: list[int] = []
    before = signal_handlers()
    try:
        for number in before:
            signal.signal(number, lambda number, frame: arrived.append(number))
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def delay_signals() -> Iterator[None]:
    """Handle signals that arrive while the body forks once it is through, so that none is lost in a hook."""
    if threading.current_thread() is not threading.main_thread():  # where no signal is handled
        yield
        return
    arrived: list[int] = []
    try:
        with catch_signals() as arrived:
            yield
    finally:
        for number in arrived:
            signal.raise_signal(number)


def end_with_parent() -> None:
    """Let Linux send SIGTERM to this child when the tool dies; between fork and exec it imports and opens nothing."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


# Records of runs, each written before its run starts, and what is done about those that are not watched any more.


def processes_of(mark: str) -> Iterable[psutil.Process]:
    """Processes that inherited the mark of a run."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                yield process


def own_command_line() -> str:
    """The command line of this process without secrets, for records."""
    return " ".join(masked_words([Path(sys.argv[0]).name, *sys.argv[1:]]))[:200]


def _new_record(mark: str) -> TextIO | None:
    """The record of a run that is about to start, open and locked; None where no file can be written."""
    content = {
        "mark": mark, "command": own_command_line(), "tool": os.getpid(), "born_s": birth_s(os.getpid()),
        "boot": boot_id(),
    }  # fmt: skip
    try:
        file = state_folder("runs") / f"{socket.gethostname()}-{mark}.json"
        file.touch(0o600, exist_ok=False)
        stream = file.open("w", encoding="utf-8")
    except OSError:  # a read-only home: the guardian does its work all the same
        return None
    with suppress(OSError):  # some file systems cannot
        fcntl.flock(stream, fcntl.LOCK_EX)
    json.dump(content, stream)
    stream.flush()
    return stream


def end_leftover_runs() -> list[str]:
    """End the processes that runs of killed tools have left on this machine; a sentence for each run.

    It waits for a guardian that is about to end such a run, so that the GPUs are free for the next one.
    """
    mine = re.compile(rf"{re.escape(socket.gethostname())}-[0-9a-f]{{32}}\.json")
    files: list[Path] = []
    with suppress(OSError):  # the folder may be shared with other machines
        files = [file for file in sorted(state_folder("runs").glob("*.json")) if mine.fullmatch(file.name)]
    sentences = []
    for file in files:
        record, until = _read(file), time.monotonic() + _BEING_ENDED_S
        if record is None or (record["boot"] == boot_id() and is_alive(record["tool"], record["born_s"])):
            continue  # known by its birth, since a file system may know no locks
        while is_locked(file) and time.monotonic() <= until:
            time.sleep(0.05)
        record = None if time.monotonic() > until else _read(file)
        if record is None:  # its guardian is at work still, or it ended in the usual way meanwhile
            continue
        found = list(processes_of(record["mark"])) if record["boot"] == boot_id() else []
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        alive = {process.pid for process in psutil.wait_procs(found, timeout=_END_S)[1]}
        file.unlink(missing_ok=True)
        left = []
        for pid in sorted(alive | set(filter(psutil.pid_exists, record["left"]))):
            left.append(str(pid))
            with suppress(psutil.Error):
                left[-1] += f" of {psutil.Process(pid).username()}"
        ended_s = record["ended_s"]
        when = "" if ended_s is None else time.strftime(" at %Y-%m-%d %H:%M:%S", time.localtime(ended_s))
        ending = f"was ended{when}: none of its processes is left."
        if left:
            ending = f"has left processes that cannot be ended: {', '.join(left)}."
        sentences.append(f"A run of process {record['tool']} ({record['command']}), which was killed, {ending}")
    return sentences


def _read(file: Path) -> dict[str, Any] | None:
    """A record of a run, with ``ended_s`` and ``left`` (pids) by a guardian that has ended it; None: unreadable."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        record = {name: content[name] for name in ("mark", "command", "tool", "born_s", "boot")}
        return record | {"ended_s": content.get("ended_s"), "left": content.get("left", ())}
    except (OSError, ValueError, TypeError, KeyError):  # one that is just being written, or removed
        return None


def is_locked(file: Path) -> bool:
    """Whether some process holds the lock of a file; false for a link, and where there is no such file or lock."""
    with suppress(OSError):
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
    return False


# Folders for the files of one run, which go with it: also where the tool was killed.


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A new folder for the block, locked so that `remove_leftover_folders` of another process leaves it alone."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        handle = os.open(name, os.O_RDONLY)
        _SCRATCH.add(name)
        try:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(handle)
            _SCRATCH.discard(name)


def remove_leftover_folders() -> int:
    """Remove the scratch folders of this user's killed processes; how many there were."""
    count = 0
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            facts = folder.lstat()
            is_mine = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
            if not is_mine or time.time() - facts.st_mtime < _NEW_S:
                continue
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            finally:
                os.close(handle)
            shutil.rmtree(folder, ignore_errors=True)
            count += 1
    return count


# Where this user's records of what runs are kept, for their owner's eyes alone.


def state_folder(name: str) -> Path:
    """A folder of that name below the user's state (XDG_STATE_HOME), made with mode 0700 where it is missing.

    Raises OSError where it cannot be made.
    """
    base = state_home()
    own = base / "jointopt"
    base.mkdir(parents=True, exist_ok=True)
    for folder in (own, own / name):
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_mode & 0o077 and folder.stat().st_uid == os.geteuid():
            folder.chmod(0o700)  # of an earlier version
    return own / name


def boot_id() -> str:
    """An identity of this machine since it was last started; blank where the kernel gives none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
