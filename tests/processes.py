"""Waiting for processes to begin and to end."""

import time

import psutil


def gone(*pids: int, within_s: float = 20.0) -> bool:
    """Whether all have ended and whoever adopted them knows, which a busy machine may take seconds for."""
    until = time.monotonic() + within_s
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(psutil.pid_exists, pids))


def wait_until_begun(pid: int) -> None:
    """Wait for the system to know the command line of a process that was just started, which it writes last."""
    while not psutil.Process(pid).cmdline():
        time.sleep(0.001)
