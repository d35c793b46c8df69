"""Processes by who they are: host, number and birth, since numbers are given anew.

Births are counted from the start of the machine, by a clock that is never set: seconds since 1970, as psutil has them,
move with every correction of the time, and a process that lives would be taken for dead.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """This process in a text that `may_live` reads."""
    return f"{socket.gethostname()}:{os.getpid()}:{born(os.getpid()):.2f}"


def may_live(process: str) -> bool:
    """Whether the process of `this_process` is there still; one of another machine is taken to be."""
    host, pid, born_s = process.rsplit(":", 2)
    return host != socket.gethostname() or lives(int(pid), float(born_s))


def lives(pid: int, born_s: float) -> bool:
    """Whether the process of that number is the one that was born then."""
    try:
        return abs(born(pid) - born_s) < 0.01
    except OSError:
        return False


def born(pid: int) -> float:
    """Seconds from the start of the machine to the birth of a process; OSError where there is none."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    # the name, in brackets, may hold anything; the times follow it, the birth as field 22
    return int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
