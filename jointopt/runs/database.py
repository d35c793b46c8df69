"""Databases by URL: opened in one way, and every failure one sentence."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jointopt.core.errors import UsageError

if TYPE_CHECKING:
    import sqlalchemy

MEASUREMENTS = "jointopt_measurements"  # the table of `jointopt.runs.store`
_LOCK_WAIT_S = 30  # SQLite lets one writer in; another waits so long before it hears that the database is locked


def open_database(url: str, *, lock_first: bool = False) -> sqlalchemy.Engine:
    """The engine of a URL; nothing is connected, and no file made, before its first use.

    ``lock_first``: on SQLite a transaction takes the write lock as it begins, so that what it reads is still true when
    it writes (PostgreSQL locks rows).
    """
    import sqlalchemy

    parsed = sqlalchemy.engine.make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return sqlalchemy.create_engine(parsed, pool_pre_ping=True)
    in_memory = parsed.database in (None, "", ":memory:")
    pool = sqlalchemy.pool.StaticPool if in_memory else sqlalchemy.pool.NullPool
    engine = sqlalchemy.create_engine(parsed, poolclass=pool, connect_args={"timeout": _LOCK_WAIT_S})
    if lock_first:
        sqlalchemy.event.listen(engine, "connect", _begin_by_hand)
        sqlalchemy.event.listen(engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _begin_by_hand(connection: Any, _: object) -> None:
    """Keeps Python's SQLite driver from beginning transactions in its own, late way."""
    connection.isolation_level = None


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


@contextmanager
def database_errors(url: str, what: str, wrappers: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """UsageError of one sentence instead of a database's traceback; a password in the URL is not repeated.

    ``what`` is kept there, as the message calls it; of an exception of ``wrappers`` the cause is the reason.
    """
    import sqlalchemy

    own = (sqlalchemy.exc.SQLAlchemyError, ImportError, RuntimeError, OSError, ValueError)
    failures: tuple[type[Exception], ...] = (*own, *wrappers)
    try:
        yield
    except failures as error:
        cause = error.__cause__ if isinstance(error, wrappers) else error
        reason = str(getattr(cause, "orig", None) or cause or error).strip().splitlines()[0].rstrip(".")
        raise UsageError(
            f"The {what} {without_password(url)!r} cannot be used: {reason}; expected a database URL such as "
            f"sqlite:///jointopt.db in a folder that exists and can be written, or postgresql+psycopg://user@host/name "
            f"with its driver installed."
        ) from error


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


def without_password(url: str) -> str:
    """The URL as a message may show it."""
    import sqlalchemy

    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        return re.sub(r"(//[^/:@]*):[^@]*@", r"\1:***@", url)
