"""One owner of a GPU's clocks on a machine: a file per GPU that the owner keeps locked, whoever it is.

The files lie in /run/jointopt where root has made that, else in /tmp/jointopt-clocks, so that all users of a machine
see them, and containers into which the folder is mounted. Each holds what its owner has found and will put back. A file
that is unlocked and holds something is of an owner that was killed.
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import json
import os
import re
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jointopt.core.errors import DeviceError
from jointopt.measure.guard.records import tool_words
from jointopt.measure.guard.state import boot_id

FOLDER_VARIABLE = "JOINTOPT_CLOCKS"  # another folder, the same for all that share the GPUs
_PATIENCE_S = 1.0  # for one that looks, or that puts back what a killed owner has left
_FOLDERS = (Path("/run/jointopt"), Path("/tmp/jointopt-clocks"))


@dataclass(frozen=True)
class Before:
    """Limit and profiles of a GPU before they were set anew; None: left alone."""

    limit_w: float | None = None
    profiles: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Owner:
    """Whoever has set the clock, power limit or profiles of one GPU, and what these were before (None: not set)."""

    file: Path
    gpu: str  # identity
    pid: int
    user: str
    host: str
    command: str
    limit_before_w: float | None
    profiles_before: tuple[str, ...] | None  # workload power profiles; None: not set
    trusted: bool  # whether the file is this user's or root's; what others claim is not put back

    def __str__(self) -> str:
        where = "" if self.host == socket.gethostname() else f" in {self.host}"
        return f"process {self.pid} of {self.user}{where} ({self.command})"


class Owned:
    """GPUs whose clocks this process owns from now on: files that stay locked until `released`.

    ``found``: owners that were killed, by GPU. Raises DeviceError where somebody owns one, or no file can be written.
    """

    _mine: ClassVar[dict[str, int]] = {}  # GPUs of this process, with the descriptors; runs within runs share them

    def __init__(self, gpus: Iterable[str]) -> None:
        self.new = [gpu for gpu in gpus if gpu not in self._mine]
        self.found: dict[str, Owner] = {}
        try:
            for gpu in self.new:
                self._take(gpu)
        except BaseException:
            self.released(self.new)
            raise

    def write(self, before: Mapping[str, Before]) -> None:
        """Write down what is to be put back, by GPU, before anything is set."""
        about = {
            "pid": os.getpid(), "user": _user(), "host": socket.gethostname(), "command": tool_words(),
            "boot": boot_id(),
        }  # fmt: skip
        for gpu in self.new:
            was = before.get(gpu, Before())
            own = {"gpu": gpu, "limit_before_w": was.limit_w, "profiles_before": was.profiles}
            _rewrite(self._mine[gpu], json.dumps({**about, **own}) + "\n")

    def released(self, gpus: Iterable[str], put_back: bool = True) -> None:
        """Own these no more; what is not ``put_back`` stays written down."""
        for gpu in gpus:
            handle = self._mine.pop(gpu, None)
            if handle is not None:
                with suppress(OSError):
                    if put_back:
                        _rewrite(handle, "")
                os.close(handle)

    def _take(self, gpu: str) -> None:
        file = _folder() / f"{_file_name(gpu)}.json"
        try:
            handle = _opened(file)
            os.set_inheritable(handle, False)
        except OSError as error:
            raise DeviceError(
                f"{file} cannot be written ({error.strerror}), and without it clocks could not be put back after a "
                f"kill; set {FOLDER_VARIABLE} to a folder that can, the same for all that use these GPUs."
            ) from error
        if not _locked(handle):
            os.close(handle)
            raise _taken(gpu, file)
        self._mine[gpu] = handle
        for owner in owners(gpu):
            if owner.file != file and is_held(owner):
                raise _taken(gpu, owner.file)
            self.found[gpu] = owner


def owners(gpu: str | None = None) -> Iterator[Owner]:
    """Owners that are written down since this machine was started, living or dead; of one GPU or of all."""
    pattern = "*.json" if gpu is None else f"{_file_name(gpu)}.json"
    for folder in _folders():
        for file in sorted(folder.glob(pattern)) if folder.is_dir() else ():
            with suppress(OSError, ValueError, KeyError, TypeError):  # empty, or of something else
                yield _read(file)


def is_held(owner: Owner) -> bool:
    """Whether the owner lives: its file is locked."""
    try:
        handle = os.open(owner.file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def claimed(owner: Owner) -> Iterator[bool]:
    """The file of a dead owner locked for the block, and emptied at its end; False where somebody owns it by now."""
    handle = os.open(owner.file, os.O_RDWR | os.O_NOFOLLOW)
    try:
        mine = _locked(handle)
        yield mine
        if mine:
            _rewrite(handle, "")
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    """Lock a file, waiting for those that only look at it; whether that was possible."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > until:
                return False
        time.sleep(0.02)


def _folders() -> Sequence[Path]:
    given = os.environ.get(FOLDER_VARIABLE)
    return (Path(given),) if given else _FOLDERS


def _folder() -> Path:
    """The folder in which this process writes: the first that it may make, or write to."""
    for folder in _folders():
        with suppress(OSError):
            folder.mkdir(parents=True)
            folder.chmod(0o1777)
        if folder.is_dir() and not folder.is_symlink() and os.access(folder, os.W_OK):
            return folder
    return _folders()[-1]


def _opened(file: Path) -> int:
    """A descriptor of the file, which all users may lock; not by a link that somebody has laid there."""
    with suppress(FileNotFoundError):  # the kernel refuses O_CREAT on files of others in a folder like /tmp
        handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
            os.close(handle)
            raise OSError(errno.EPERM, "it is no file of its own")
        return handle
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with suppress(OSError):
        os.fchmod(handle, 0o666)
    return handle


def _rewrite(handle: int, text: str) -> None:
    os.pwrite(handle, text.encode(), 0)
    os.ftruncate(handle, len(text.encode()))


def _read(file: Path) -> Owner:
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        whose = os.fstat(handle).st_uid
        content = json.loads(os.read(handle, 65_536).split(b"\n")[0])
    finally:
        os.close(handle)
    if content["boot"] != boot_id():  # the driver has forgotten everything since
        raise ValueError
    profiles = content.get("profiles_before")  # which earlier versions do not write
    return Owner(
        file, content["gpu"], content["pid"], content["user"], content["host"], content["command"],
        content["limit_before_w"], None if profiles is None else tuple(profiles), whose in (0, os.geteuid()),
    )  # fmt: skip


def _taken(gpu: str, file: Path) -> DeviceError:
    owner: object = "another process"
    with suppress(OSError, ValueError, KeyError, TypeError):
        owner = _read(file)
    words = str(owner)
    return DeviceError(
        f"{words[0].upper()}{words[1:]} holds the clocks of these GPUs ({gpu}); wait for it, or choose others with "
        "CUDA_VISIBLE_DEVICES."
    )


def _file_name(gpu: str) -> str:
    return re.sub(r"[^\w.-]", "_", gpu)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return str(os.geteuid())
