"""Commands in surroundings of their own, each in a fork of one process that has imported what they need.

As a program it answers requests, a line of JSON each; `Forks` starts it and asks.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import io
import json
import locale
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_S = 120
SERVES_S = 15  # that a server has to print its address, where it can
_NEW_USERS = 0x10000000  # CLONE_NEWUSER of Linux
ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclasses.dataclass(frozen=True)
class Surroundings:
    """What a command finds: variables (None: none of that name), descriptors that are closed, and whose process it is.

    ``encoding``: of its output; blank: what Python chose when it started. ``removed``: its working folder is.
    ``full``: what it writes to finds no room.
    """

    variables: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    encoding: str = "utf-8"
    closed: tuple[int, ...] = ()
    user: int | None = None
    removed: bool = False
    full: bool = False


class Forks:
    """The process that forks, which starts with these ``variables``; `close` ends it."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-W", "ignore", __file__]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(variables or {})}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd="/"
        )

    def run(self, folder: Path, words: Sequence[str], within: Surroundings, *, serves: bool = False) -> Ended:
        """How ``jointopt WORDS`` ends in that folder; by Ctrl-C after its first line, where it ``serves``."""
        request = {"words": list(map(os.fsencode, words)), "folder": str(folder), **dataclasses.asdict(within)}
        request["serves"] = serves
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(request, default=lambda raw: raw.decode("latin-1")), file=self._process.stdin, flush=True)
        return Ended(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=60)


def _serve() -> None:
    _import_all()
    for line in sys.stdin:
        out, err = os.memfd_create("out"), os.memfd_create("err")
        child = os.fork()
        if not child:
            _run(json.loads(line), out, err)
        _, status = os.waitpid(child, 0)
        texts = [_content(handle) for handle in (out, err)]
        print(json.dumps([os.waitstatus_to_exitcode(status), *texts]), flush=True)


def _import_all() -> None:
    for name in ("cli", "workflows"):
        package = importlib.import_module(f"jointopt.{name}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"jointopt.{name}.{module.name}")
    for name in ("pandas", "optuna", "yaml", "jointopt.search.studies.trials", "jointopt.surrogate.training"):
        importlib.import_module(name)


def _content(handle: int) -> str:
    os.lseek(handle, 0, os.SEEK_SET)
    with os.fdopen(handle, "rb") as file:
        return file.read().decode("latin-1")


def _run(request: Mapping[str, Any], out: int, err: int) -> None:
    """The command, in this process, which ends with it."""
    code, failed = 1, os.dup(err)
    signal.alarm(LIMIT_S)
    try:
        _surround(request, out, err)
        if request["serves"]:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
            threading.Thread(target=_interrupt_after_a_line, args=(out,), daemon=True).start()
        from jointopt.cli.main import main

        sys.argv = ["jointopt", *(os.fsdecode(word.encode("latin-1")) for word in request["words"])]
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        os.write(failed, traceback.format_exc().encode("utf-8", "backslashreplace"))
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            code = 120  # as Python ends where it cannot flush
    os._exit(code)


def _interrupt_after_a_line(out: int) -> None:
    until = time.monotonic() + SERVES_S
    while time.monotonic() < until and not os.fstat(out).st_size:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


def _surround(request: Mapping[str, Any], out: int, err: int) -> None:
    for name, value in request["variables"].items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    os.chdir(request["folder"])
    if request["removed"]:
        os.mkdir("removed")
        os.chdir("removed")
        os.rmdir(f"{request['folder']}/removed")
    empty, no_room = os.open(os.devnull, os.O_RDONLY), os.open("/dev/full", os.O_WRONLY)
    for number, handle in enumerate((empty, no_room if request["full"] else out, err)):
        os.dup2(handle, number)
    for number in request["closed"]:
        os.close(number)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        encoding = request["encoding"] or locale.getencoding()
        setattr(sys, name, None if number in request["closed"] else _stream(number, encoding))
        setattr(sys, f"__{name}__", getattr(sys, name))
    if request["user"] is not None:
        _become(request["user"])


def _become(user: int) -> None:
    """Another user, in a namespace in which this one's files are theirs, so that all of Python can be read."""
    mine = os.geteuid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USERS):
        raise OSError(ctypes.get_errno(), "no namespace of users can be made here")
    Path("/proc/self/uid_map").write_text(f"{user} {mine} 1")


def _stream(number: int, encoding: str) -> io.TextIOWrapper:
    """A stream as Python makes it when it starts."""
    errors = "backslashreplace" if number == 2 else "strict"
    buffer: Any = open(number, "wb" if number else "rb", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(buffer, encoding=encoding, errors=errors, line_buffering=number == 2)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    with contextlib.suppress(BrokenPipeError):
        _serve()
