"""Signals around a fork: Python prints and forgets what is raised in the hooks that it runs there (logging has one)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handlers(numbers: Sequence[signal.Signals] = SIGNALS) -> dict[int, Any]:
    """What handles each of these signals; those that are ignored, or that no Python handles, are left out."""
    known = {number: signal.getsignal(number) for number in numbers}
    return {number: handler for number, handler in known.items() if handler not in (signal.SIG_IGN, None)}


@contextmanager
def catch_signals(numbers: Sequence[signal.Signals] = SIGNALS) -> Iterator[list[int]]:
    """The list of signals that arrive while the body runs; those that are ignored stay so."""
    arrived: list[int] = []
    before = handlers(numbers)
    try:
        for number in before:
            signal.signal(number, lambda number, frame: arrived.append(number))
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def delay_signals() -> Iterator[None]:
    """Signals that arrive while the body forks are handled once it is through, so that none is lost in a hook."""
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
