"""Products of matrices on one thread: the same digits on any number of cores, and none that spins for another."""

from __future__ import annotations

import functools
import sys
from contextlib import ContextDecorator
from threading import Lock
from typing import Any


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
