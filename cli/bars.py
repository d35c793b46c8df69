"""Bars of progress on a terminal, with rate and time left, of what lasts longer than two seconds."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, Task
    from rich.text import Text

AFTER_S = 2.0
_MEMORY_S = 3600.0  # runs of minutes give a rate too


class Bars:
    """Bars by what they count; nothing is drawn, and rich is not imported, before one has lasted `AFTER_S`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._done: dict[str, tuple[float, float]] = {}
        self._timers: dict[str, threading.Timer] = {}
        self._tasks: dict[str, int] = {}
        self._shown: Progress | None = None

    def step(self, text: str, done: float, total: float) -> None:
        """``done`` of ``total`` are done of what ``text`` counts; its bar goes where all are."""
        with self._lock:
            if done >= total:
                self._remove(text)
                return
            self._done[text] = done, total
            if text in self._tasks and self._shown is not None:
                self._shown.update(self._tasks[text], completed=done, total=total)  # type: ignore[arg-type]
            elif text not in self._timers:
                timer = self._timers[text] = threading.Timer(AFTER_S, self._appear, [text])
                timer.daemon = True
                timer.start()

    def say(self, text: str) -> bool:
        """Prints a line above the bars; False where there are none."""
        with self._lock:
            if self._shown is None:
                return False
            self._shown.console.print(text, markup=False, highlight=False, soft_wrap=True)
            return True

    def end(self) -> None:
        """Takes all bars away."""
        with self._lock:
            for text in list(self._done):
                self._remove(text)

    def _appear(self, text: str) -> None:
        with self._lock:
            if text not in self._done:
                return
            if self._shown is None:
                self._shown = _progress()
                self._shown.start()
            done, total = self._done[text]
            self._tasks[text] = self._shown.add_task(text, completed=done, total=total)  # type: ignore[arg-type]

    def _remove(self, text: str) -> None:
        self._done.pop(text, None)
        if timer := self._timers.pop(text, None):
            timer.cancel()
        task = self._tasks.pop(text, None)
        if task is not None and self._shown is not None:
            self._shown.remove_task(task)  # type: ignore[arg-type]
            if not self._tasks:
                self._shown.stop()
                self._shown = None


def rate_words(speed: float | None) -> str:
    """A rate in words: per second, or seconds and minutes of each."""
    if not speed:
        return ""
    if speed >= 1.0:
        return f"{speed:,.0f}/s" if speed >= 10.0 else f"{speed:.1f}/s"
    return f"{1 / speed:.0f} s each" if speed > 1 / 90 else f"{1 / speed / 60:.0f} min each"


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """The rate of a task."""

        def render(self, task: Task) -> Text:
            return Text(rate_words(task.speed))

    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn(),
        console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
        speed_estimate_period=_MEMORY_S,
    )  # fmt: skip
