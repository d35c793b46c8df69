"""Databases by URL: opened in one way, every failure one sentence, and outages that end by themselves waited for.

Those are a lock, a restart, cut connections, or none left. The measurement store, reservations and Optuna's studies all
wait by `wait_out`; how long is the `patience` of whoever calls them: a minute where a command has nothing else to do,
as long as it takes for a worker amid its plans.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import random
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from jointopt.core.errors import OutageError, UsageError
from jointopt.core.quote import sh_word
from jointopt.core.secrets import masked

if TYPE_CHECKING:
    import sqlalchemy


T = TypeVar("T")

STORAGE = "sqlite:///jointopt.db"  # the usual one of commands
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


# Opened in one way, and every failure one sentence.

Method = TypeVar("Method", bound=Callable[..., Any])
TABLES = "jointopt-tables"  # the turn of those that make tables
MEASUREMENTS = "jointopt_measurements"  # the table of `jointopt.runs.store`
SCHEMA = "jointopt_schema"  # the versions that its tables have reached, and by which jointopt
VERSION = 3  # the newest that this jointopt knows (`jointopt.runs.migrations`)
_FULL = "cannot take more, as the disk is full; make room there, then start again."
# What SQLite's words mean, and what to do.
_REASONS = {
    "could not parse": "is no database URL; expected one such as sqlite:///jointopt.db.",
    "is locked": "is locked by another program; find it with: fuser FILE, and let it end.",
    "disk is full": _FULL,
    "no space left": _FULL,
    "compatible with the table schema": "is of another release of Optuna: {reason}.",
    "quota exceeded": "cannot take more, as the quota of its disk is used up; make room there, then start again.",
    "readonly database": "may not be written by this user; give write access to the file and to its folder, or take "
    "another one with --storage.",
    "malformed": "is damaged; jointopt store repair --storage {url} saves what can be read.",
    "not a database": "is no SQLite database, or its beginning is damaged; expected a file that jointopt or Optuna "
    "has made.",
    "too many clients": "has no connection left for another program; end one of those that use it, or raise its "
    "max_connections.",
    "multiple rows were found": "has two trials of one number in a study, as a copy or a merge of databases by other "
    "programs may leave; number the trials of each study 0, 1, ... again, or take the database that was copied.",
    "disk i/o error": "cannot be read or written: the disk reports an error; look at it, then: jointopt store check.",
}
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay", "bcachefs")
_LEAST_ROOM = 64 * 2**10  # bytes: pages and a journal of one row
_ROOM = 16 * 2**20  # bytes: a log beside the file needs some
LOCK_WAIT_S = 1.0  # SQLite lets one writer in; another waits so long for each attempt
logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())  # it prints tracebacks of what it raises as well


def open_database(url: str, *, lock_first: bool = False) -> sqlalchemy.Engine:
    """The engine of a URL; nothing is connected, and no file made, before its first use.

    ``lock_first``: on SQLite a transaction takes the write lock as it begins, so that what it reads is still true when
    it writes (PostgreSQL locks rows). The first connection ends in a UsageError where the measurements are of a version
    that is not known here, so that nothing is read or written as what it is not, whoever opens the database.
    """
    import sqlalchemy

    def refuse_newer(connection: Any, _: object) -> None:
        found: list[tuple[Any, ...]] = []
        for columns in ("version, jointopt", "version, NULL"):  # none where the table or a column is missing
            try:
                cursor = connection.cursor()
                cursor.execute(f"SELECT {columns} FROM {SCHEMA}")
                found += cursor.fetchall()
            except Exception:  # of any driver: whoever opened the database meets it again, and reports it
                with suppress(Exception):
                    connection.rollback()
        newest, maker = max(found, key=lambda row: int(row[0]), default=(0, None))
        if int(newest) > VERSION:
            by = f"jointopt {maker}" if maker else "the jointopt that made it"
            raise UsageError(
                f"The measurement store {masked(url)!r} is of version {newest}, and this jointopt reads "
                f"{VERSION} at most; use {by} or a newer one, or another database with --storage: nothing was changed."
            )

    def begin_by_hand(connection: Any, _: object) -> None:
        """Keeps Python's SQLite driver from beginning transactions in its own, late way."""
        connection.isolation_level = None

    parsed = sqlalchemy.engine.make_url(url)
    # a server has few connections (PostgreSQL 100), and many processes share it: none is kept between two uses
    arguments: dict[str, Any] = {"poolclass": sqlalchemy.pool.NullPool}
    of_file = parsed.get_backend_name() == "sqlite"
    if of_file:
        arguments["connect_args"] = {"timeout": LOCK_WAIT_S}
        if parsed.database in (None, "", ":memory:"):
            arguments["poolclass"] = sqlalchemy.pool.StaticPool
    engine = sqlalchemy.create_engine(parsed, **arguments)
    if of_file:
        sqlalchemy.event.listen(engine, "do_connect", lambda *_: make_private_file(url))
    sqlalchemy.event.listen(engine, "first_connect", refuse_newer)
    if of_file and lock_first:
        sqlalchemy.event.listen(engine, "connect", begin_by_hand)
        sqlalchemy.event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


@contextmanager
def in_turn(engine: sqlalchemy.Engine, name: str) -> Iterator[None]:
    """Run the body alone among the processes that take the turn ``name``; only PostgreSQL, elsewhere nothing waits.

    By an advisory lock, which ends with the process that holds it.
    """
    import sqlalchemy

    if engine.dialect.name != "postgresql":
        yield
        return
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": name})
        yield


def now_s(connection: sqlalchemy.Connection) -> float:
    """Seconds since 1970 by the one clock that all processes share: the database's, or that of the only machine."""
    import sqlalchemy

    if connection.dialect.name != "postgresql":
        return time.time()
    return float(connection.scalar(sqlalchemy.text("SELECT EXTRACT(EPOCH FROM clock_timestamp())")) or 0.0)


def make_table(engine: sqlalchemy.Engine, table: sqlalchemy.Table) -> None:
    """Makes a table where it is missing; of several processes that do, all win."""
    import sqlalchemy

    try:
        table.create(engine, checkfirst=True)
    except sqlalchemy.exc.DBAPIError:  # another process made it between looking and making
        if not sqlalchemy.inspect(engine).has_table(table.name):
            raise


def has_table(url: str, name: str) -> bool:
    """Whether the database of a URL has that table; a file that does not exist is not made."""
    import sqlalchemy

    parsed = sqlalchemy.engine.make_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        return False
    return sqlalchemy.inspect(open_database(url)).has_table(name)


def on_database(what: str, wrappers: tuple[type[Exception], ...] = ()) -> Callable[[Method], Method]:
    """A decorator of methods of an object with a ``url``, or of functions of one: with `database_errors`.

    They are begun again as by `wait_out`.
    """

    def decorated(method: Method) -> Method:
        @functools.wraps(method)
        def waiting(owner: Any, *given: Any, **named: Any) -> Any:
            url = getattr(owner, "url", owner)
            return wait_out(url, lambda: database_errors(url, what, wrappers)(method)(owner, *given, **named))

        return cast("Method", waiting)

    return decorated


STORE = "measurement store"  # as messages call it
on_store = on_database(STORE)


@contextmanager
def database_errors(url: str, what: str, wrappers: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """UsageError of one sentence instead of a database's traceback; a password in the URL is not repeated.

    OutageError where the state passes by itself. ``what`` is kept there, as the message calls it; of an exception of
    ``wrappers`` the cause is the reason.
    """
    import sqlalchemy

    own = (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, ImportError, RuntimeError, OSError, ValueError)
    failures: tuple[type[Exception], ...] = (*own, *wrappers)
    try:
        yield
    except failures as error:
        cause = error.__cause__ if isinstance(error, wrappers) else error
        reason = str(getattr(cause, "orig", None) or cause or error).strip().splitlines()[0].rstrip(".")
        known = next((words for part, words in _REASONS.items() if part in reason.lower()), "")
        file, place = file_of(url), masked(url)
        if known.startswith("cannot be read or written: the disk") and file is not None:
            with suppress(OSError):  # SQLite may call a disk without room an error of the disk
                room = shutil.disk_usage(file.absolute().parent).free
                known = _FULL if room < _LEAST_ROOM else known
        sentence = f"The {what} {place!r} {known.format(url=sh_word(place), reason=masked(reason).replace('. ', '; '))}"
        if ends_by_itself(error):
            silent = f"The {what} {place!r} does not answer: {masked(reason)}."
            raise OutageError(sentence if known else silent) from error
        if not known:
            sentence = (
                f"The {what} {place!r} cannot be used: {masked(reason)}; expected a database URL such as "
                "sqlite:///jointopt.db in a folder that exists and can be written, or "
                "postgresql+psycopg://user@host/name with its driver installed."
            )
        raise UsageError(sentence) from error


def may_hold_rows(url: str) -> bool:
    """Whether the database of a URL may hold measurements: not an SQLite file that is absent or lacks their table.

    By Python's own driver, as SQLAlchemy and pandas take longer to import than most searches last.
    """
    path = url.removeprefix("sqlite:///")
    if path == url or path in ("", ":memory:") or "?" in path:
        return True
    if not Path(path).exists():
        return False
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)) as file:
            return bool(file.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (MEASUREMENTS,)).fetchone())
    except sqlite3.Error:  # whoever reads it next reports it
        return True


def file_of(url: str) -> Path | None:
    """The file of an SQLite URL; None of other databases, and of one in memory."""
    path = url.partition("?")[0].partition("///")[2]
    return Path(path) if url.startswith("sqlite") and path and not path.startswith((":", "file:")) else None


def make_private_file(url: str) -> None:
    """Make the SQLite file of a URL where it is missing, for its owner's eyes alone; of other databases nothing."""
    if (file := file_of(url)) is not None:
        with suppress(OSError):  # which whoever opens it reports
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def write_ahead(engine: sqlalchemy.Engine, url: str) -> None:
    """Let readers of an SQLite file read while one writes (WAL); not on network file systems, which cannot."""
    import sqlalchemy

    file = file_of(url)
    if file is not None and _is_local(file) and shutil.disk_usage(file.parent).free > _ROOM:
        with suppress(sqlalchemy.exc.SQLAlchemyError), engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")


def _is_local(file: Path) -> bool:
    """Whether a file lies on a file system of this machine; False where that is not known."""
    best = ("", "")
    with suppress(OSError):
        folder = str(file.absolute().parent.resolve())
        for line in Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
            point, kind = line.split()[1:3]
            inside = folder == point or folder.startswith(point.rstrip("/") + "/")
            best = max(best, (point, kind), key=lambda one: len(one[0])) if inside else best
    return best[1] in _LOCAL
