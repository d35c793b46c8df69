"""Products of matrices on one thread: the same digits on any number of cores, and none that spins for another."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Holds BLAS to one thread, as a context or a decorator.

    For many products of some hundred rows, which gain nothing from more: on two idle cores OpenBLAS's second thread
    cost a third more CPU seconds, and on busy ones, where it waits for a core, four times as many.
    """
    with _controller("scipy.linalg" in sys.modules).limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _controller(with_scipy: bool) -> Any:
    """The BLAS libraries loaded by now: SciPy brings one of its own, and is loaded later than NumPy."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
