"""Time that passes only where a test lets it, for the meter and for the stand-in driver."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest


class SteppedClock:
    """A clock of the meter; the driver reads the same time from a file, so that its counters move with it."""

    def __init__(self, file: Path) -> None:
        self._file, self._turn = file, threading.Condition()
        self._due_s: float | None = None  # when the meter wants to wake up; None: it does not wait
        self._alone = False  # no meter waits any more
        self._set(1_700_000_000.0)

    def time(self) -> float:
        return self._now_s

    def wait(self, over: threading.Event, seconds: float) -> bool:
        """As the meter waits for its next sample."""
        with self._turn:
            self._due_s = self._now_s + seconds
            self._turn.notify_all()
            while not over.is_set():
                if self._turn.wait_for(lambda: self._due_s is None, 0.02):
                    return False
        return True

    def sleep(self, seconds: float) -> None:
        """Let time pass, with a sample of the meter whenever one is due."""
        until_s = self._now_s + seconds
        while self._now_s < until_s and self._meter_waits():
            with self._turn:
                self._set(min(self._due_s, until_s))
                self._due_s = None if self._now_s >= self._due_s else self._due_s
                self._turn.notify_all()
        self._meter_waits()
        self._set(until_s)

    def _meter_waits(self) -> bool:
        with self._turn:
            waits = not self._alone and self._turn.wait_for(lambda: self._due_s is not None, 2.0)
            self._alone = not waits
            return waits

    def _set(self, now_s: float) -> None:
        self._now_s = now_s
        temporary = self._file.with_suffix(".new")
        temporary.write_text(f"{now_s:.6f}")
        temporary.rename(self._file)


@pytest.fixture
def clock(driver) -> SteppedClock:
    """The time of the stand-in driver and of meters that are given it."""
    return SteppedClock(driver.folder / "now")
