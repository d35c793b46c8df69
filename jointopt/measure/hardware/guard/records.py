"""Records of runs, each written before its run starts, and what is done about those that are not watched any more.

A record is a file that tool and guardian keep locked (flock) while either lives. One that is unlocked is of a run
whose tool was killed: its guardian has ended the run and recorded it, or was killed too, and then its processes are
found by the mark that each of them has inherited.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from jointopt.core.processes import born, lives
from jointopt.core.secrets import redacted
from jointopt.measure.hardware.guard.state import boot_id, state_folder

MARK = "JOINTOPT_RUN"  # every process of a run inherits it, whatever session or parent it has
_BEING_ENDED_S = 20.0  # that a guardian needs at most for what its dead tool has left
_END_S = 5.0


@dataclass(frozen=True)
class RunRecord:
    """A run as it was written down: its file, mark and command, whose it is, and when its guardian ended it."""

    file: Path
    mark: str
    command: str
    tool: int
    born_s: float
    boot: str
    ended_s: float | None = None
    left: Sequence[int] = ()

    @property
    def tool_lives(self) -> bool:
        """Whether the tool that started the run is there still."""
        return self.boot == boot_id() and lives(self.tool, self.born_s)


def marked(mark: str) -> Iterable[psutil.Process]:
    """Processes that inherited the mark of a run."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                yield process


def tool_words() -> str:
    """The command line of this process, as records repeat it."""
    return " ".join(redacted([Path(sys.argv[0]).name, *sys.argv[1:]]))[:200]


def written(mark: str) -> TextIO | None:
    """The record of a run that is about to start, open and locked; None where no file can be written."""
    content = {
        "mark": mark, "command": tool_words(), "tool": os.getpid(), "born_s": born(os.getpid()), "boot": boot_id(),
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


def settled() -> list[str]:
    """End what runs of killed tools have left on this machine; a sentence for each.

    A guardian that is about to end such a run is waited for, so that the GPUs are free for the next one.
    """
    return [sentence for record in list(_records()) if (sentence := _settled(record))]


def _settled(record: RunRecord) -> str:
    """A sentence on what became of a run; blank where its tool lives."""
    until = time.monotonic() + _BEING_ENDED_S
    if record.tool_lives:  # also where the file system knows no locks
        return ""
    while _locked(record.file):
        if time.monotonic() > until:
            return ""
        time.sleep(0.05)
    again = _read(record.file)
    if again is None:  # ended in the usual way meanwhile
        return ""
    left = _ended(again.mark) if again.boot == boot_id() else []
    again.file.unlink(missing_ok=True)
    left = sorted({*left, *(pid for pid in again.left if psutil.pid_exists(pid))})
    whose = f"A run of process {again.tool} ({again.command}), which was killed,"
    if left:
        return f"{whose} has left processes that cannot be ended: {', '.join(map(_whose, left))}."
    when = "" if again.ended_s is None else time.strftime(" at %Y-%m-%d %H:%M:%S", time.localtime(again.ended_s))
    return f"{whose} was ended{when}: none of its processes is left."


def _ended(mark: str) -> list[int]:
    """SIGKILL to every process of a mark; those that live on."""
    found = list(marked(mark))
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    return [process.pid for process in psutil.wait_procs(found, timeout=_END_S)[1]]


def _whose(pid: int) -> str:
    with suppress(psutil.Error):
        return f"{pid} of {psutil.Process(pid).username()}"
    return str(pid)


def _records() -> Iterator[RunRecord]:
    """The records of this machine, whose folder may be shared with others."""
    with suppress(OSError):
        mine = re.compile(rf"{re.escape(socket.gethostname())}-[0-9a-f]{{32}}\.json")
        for file in sorted(state_folder("runs").glob("*.json")):
            if mine.fullmatch(file.name) and (record := _read(file)) is not None:
                yield record


def _read(file: Path) -> RunRecord | None:
    try:
        return RunRecord(file, **json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # one that is just being written, or removed
        return None


def _locked(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
