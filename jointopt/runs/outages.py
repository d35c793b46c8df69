"""Waiting for a database whose outage ends by itself: a lock, a restart, cut connections, or none left.

The measurement store, reservations and Optuna's studies all wait by `wait_out`; how long is the `patience` of whoever
calls them: a minute where a command has nothing else to do, as long as it takes for a worker amid its plans.
"""

from __future__ import annotations

import logging
import math
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from jointopt.core.errors import OutageError
from jointopt.core.secrets import masked

T = TypeVar("T")

PATIENCE_S = 60.0
WORD_S = 2.0  # an outage is logged once it has lasted so long
_PAUSE_S = 0.5  # the longest between two attempts
_log = logging.getLogger(__name__)
_patience: ContextVar[float | None] = ContextVar("patience", default=None)
# What a database says of a state that ends by itself. Wrong names, passwords and full disks do not.
_PASSING = (
    "database is locked", "table is locked", "schema is locked", "locking protocol",
    "connection refused", "connection reset", "broken pipe", "connection timed out", "timeout expired",
    "no route to host", "network is unreachable", "temporary failure in name resolution", "connection is closed",
    "connection is lost", "connection not open", "consuming input failed", "terminating connection",
    "server closed the connection", "could not receive data", "could not send data", "eof detected",
    "the database system is", "too many clients", "remaining connection slots", "too many connections",
    "deadlock detected", "could not serialize", "lock timeout", "canceling statement due to lock",
    ".s.pgsql.",  # the socket is not there while the server restarts
)  # fmt: skip
_SQLSTATES = ("08", "57P", "53300", "40001", "40P01", "55P03")  # beginnings of PostgreSQL's codes of such states


def ends_by_itself(error: BaseException) -> bool:
    """Whether an error of a database, or its cause, is of a state that ends by itself."""
    seen: BaseException | None = error
    while seen is not None:
        original = getattr(seen, "orig", None) or seen
        if getattr(seen, "connection_invalidated", False):
            return True
        state = str(getattr(original, "sqlstate", None) or "")
        if state.startswith(_SQLSTATES):
            return True
        of_driver = isinstance(original, sqlite3.Error) or "psycopg" in type(original).__module__
        of_database = hasattr(seen, "orig") or of_driver
        if of_database and any(words in str(original).lower() for words in _PASSING):
            return True
        seen = seen.__cause__
    return False


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Within the body, `wait_out` gives up so many ``seconds`` after an outage began; infinite: never."""
    token = _patience.set(seconds)
    try:
        yield
    finally:
        _patience.reset(token)


def wait_out(url: str, act: Callable[[], T], kept: str = "") -> T:
    """The result of ``act`` on the database of ``url``, called again until no outage ends it.

    ``act`` may be cut anywhere and must come to the same when it is called again. ``kept``: words on what is safe
    meanwhile, for the log. Raises OutageError where the outage lasts longer than the `patience`.
    """
    began, since, mentioned, pause_s = time.monotonic(), time.strftime("%H:%M:%S"), False, 0.02
    limit_s = PATIENCE_S if (set_s := _patience.get()) is None else set_s
    while True:
        try:
            found = act()
        except OutageError as error:
            waited_s = time.monotonic() - began
            if waited_s >= limit_s:
                raise
            if waited_s >= WORD_S and not mentioned:
                mentioned = True
                end = "until it answers" if math.isinf(limit_s) else f"for at most {limit_s:.0f} s"
                _log.warning("Waiting for %s since %s, %s%s. %s", masked(url), since, end, kept and f"; {kept}", error)
            time.sleep(min(random.uniform(0.5, 1.0) * pause_s, limit_s - waited_s))
            pause_s = min(2 * pause_s, _PAUSE_S)
            continue
        if mentioned:
            _log.info("%s answers again after %.0f s.", masked(url), time.monotonic() - began)
        return found
