"""What this process asks the machine: which processes are alive, where state is kept, free memory, threads of BLAS."""

from __future__ import annotations

import functools
import os
import socket
import sys
import tempfile
from contextlib import ContextDecorator, suppress
from pathlib import Path
from threading import Lock
from typing import Any

# Processes, told apart by host, number and time of birth, since the numbers of dead ones are given again. The time is
# seconds from the start of the machine: seconds since 1970, as psutil has them, move with every correction of the
# clock, and a living process would be taken for a dead one.


def this_process() -> str:
    """This process as the text ``host:pid:birth in s``, which `may_be_alive` reads."""
    return f"{socket.gethostname()}:{os.getpid()}:{birth_s(os.getpid()):.2f}"


def may_be_alive(process: str) -> bool:
    """Whether the process of a text by `this_process` is alive; True for one of another host, which cannot be asked."""
    host, pid, born_s = process.rsplit(":", 2)
    return host != socket.gethostname() or is_alive(int(pid), float(born_s))


def is_alive(pid: int, born_s: float) -> bool:
    """Whether the process ``pid`` is there and was born at that time, in seconds from the start of the machine."""
    try:
        return abs(birth_s(pid) - born_s) < 0.01
    except OSError:
        return False


def birth_s(pid: int) -> float:
    """Seconds from the start of the machine to the birth of the process ``pid``; OSError where there is none."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # the name, in brackets, may hold anything; the times follow it, the birth as field 22
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


# The folder that keeps this user's state, also for a user without a home or a name.


def state_home() -> Path:
    """XDG_STATE_HOME, else ~/.local/state, else a folder of this user with temporary files, which is made.

    Raises OSError where another user has made that, or no folder takes temporary files.
    """
    if given := os.environ.get("XDG_STATE_HOME"):
        return Path(given)
    try:
        return Path.home() / ".local" / "state"
    except RuntimeError:  # neither $HOME nor an entry in /etc/passwd, as in containers
        folder = Path(tempfile.gettempdir(), f"jointopt-state-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise PermissionError(1, "belongs to another user; set XDG_STATE_HOME to a folder of your own", str(folder))
    return folder


# How much memory this process may still take.


_MEMORY, _GROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
# the most and what is taken, of control groups of version 2 and 1
_LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def free_bytes(groups: Path = _GROUPS) -> int | None:
    """Bytes that this process may still take of the machine and of its control group; None where neither is stated."""
    found = []
    for most, taken in _LIMITS:
        with suppress(OSError, ValueError):  # its files may state `max`, which is no limit
            limit, used = (int((groups / name).read_text(encoding="ascii")) for name in (most, taken))
            found.append(max(limit - used, 0))
    with suppress(OSError, ValueError, IndexError):  # what Linux calls available; psutil takes 20 ms to import
        for line in _MEMORY.read_text(encoding="ascii").splitlines():
            found += [1024 * int(line.split()[1])] if line.startswith("MemAvailable:") else []
    return min(found, default=None)


# Products of matrices on one thread: the same digits on any number of cores, and none that spins for another.


class _OneThread(ContextDecorator):
    """BLAS on one thread while any thread of the process is within; then again as before.

    For many products of some hundred rows, which gain nothing from more: on two idle cores OpenBLAS's second thread
    took a third of all CPU seconds, and on busy ones, where it waits for a core, three quarters.
    """

    def __init__(self) -> None:
        self._lock, self._within, self._with_scipy = Lock(), 0, False
        self._limits: list[Any] = []

    def __enter__(self) -> None:
        with self._lock:
            with_scipy = "scipy.linalg" in sys.modules  # it brings a BLAS of its own, and is loaded later
            if not self._within or with_scipy != self._with_scipy:
                self._limits.append(_controller(with_scipy).limit(limits=1, user_api="blas"))
            self._within, self._with_scipy = self._within + 1, with_scipy

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            while self._limits and not self._within:
                self._limits.pop().restore_original_limits()


one_blas_thread = _OneThread()


@functools.cache
def _controller(with_scipy: bool) -> Any:
    """The BLAS libraries that are loaded by now."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
