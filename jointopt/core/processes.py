"""Processes by who they are: host, number and time of birth, since numbers are given anew."""

from __future__ import annotations

import os
import socket

import psutil

_CLOCK_S = 1.0  # by which a time of birth that was written down may differ


def this_process() -> str:
    """This process in a text that `may_live` reads."""
    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.0f}"


def may_live(process: str) -> bool:
    """Whether the process of `this_process` is there still; one of another machine is taken to be."""
    host, pid, born_s = process.rsplit(":", 2)
    return host != socket.gethostname() or lives(int(pid), float(born_s))


def lives(pid: int, born_s: float) -> bool:
    """Whether the process of that number is the one that was born then."""
    try:
        return abs(psutil.Process(pid).create_time() - born_s) <= _CLOCK_S
    except psutil.NoSuchProcess:
        return False
