"""The care of a store: what is wrong with it, a copy of it, and as much of a damaged one as can be read."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from jointopt.core.atomic_write import replacing, write_failure
from jointopt.core.errors import UsageError
from jointopt.core.quote import sh_command
from jointopt.core.secrets import masked
from jointopt.runs.database import STORE, VERSION, database_errors, file_of, open_database
from jointopt.runs.migrations import MEASURED, RETRACTED, migrate, version
from jointopt.runs.spill import spill_files
from jointopt.runs.store import content_hash

_BATCH = 10_000


@dataclass(frozen=True)
class Checked:
    """A store as it was found: facts, and what is wrong (a sentence each)."""

    facts: tuple[str, ...]
    faults: tuple[str, ...]


def check(url: str) -> Checked:
    """Look at every row of a store, and at the database around them; nothing is changed."""
    engine, file = _existing_engine(url), file_of(url)
    faults: list[str] = []
    if file is not None and file.stat().st_mode & 0o002:
        faults.append(f"every user may change {file}: {sh_command(['chmod', '600', str(file)])}")
    rows = changed = last = 0
    with database_errors(url, STORE), engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            found = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
            faults += [f"the file is damaged: {line}" for line in found if line != "ok"][:10]
        at = version(engine)
        columns = (MEASURED.c.id, MEASURED.c.content_hash, MEASURED.c.content)
        some = sa.select(*columns).order_by(MEASURED.c.id).limit(_BATCH)
        while at and (read := connection.execute(some.where(MEASURED.c.id > last)).all()):
            rows, last = rows + len(read), read[-1].id
            changed += sum(content_hash(row.content) != row.content_hash for row in read)
    if changed:
        one = changed == 1
        they = "row has changed since it was added: its" if one else "rows have changed since they were added: their"
        faults.append(f"{changed:,} {they} hash differs")
    waiting = [file for file in spill_files(url) if file.is_file()]
    facts = [f"{rows:,} row{'s' * (rows != 1)}, version {at} of {VERSION}"]
    facts += [f"rows wait in {file}; the next tune or ingest takes them in" for file in waiting]
    return Checked(tuple(facts), tuple(faults))


def backup(url: str, out: Path) -> int:
    """Write the whole database into the SQLite file ``out``, while others may go on writing; its size in bytes.

    Of a database that is no SQLite file the measurements alone. Raises UsageError where that cannot be done.
    """
    engine, source = _existing_engine(url), file_of(url)
    try:
        with database_errors(url, STORE), replacing(out) as part:
            part.chmod(0o600)
            if source is not None:
                with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(part)) as new:
                    old.backup(new)
            else:
                _copy(engine, open_database(f"sqlite:///{part}"))
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {write_failure(error)}.") from error
    return out.stat().st_size


def repair(url: str) -> tuple[Path | None, int, int]:
    """Put a database in the place of a damaged SQLite file that holds all of it that can be read.

    Returns where the damaged one is kept now (None: nothing was wrong), and how many rows of measurements could be read
    and could not.
    """
    file = file_of(url)
    if file is None:
        raise UsageError("Only an SQLite file can be repaired; PostgreSQL has tools of its own (pg_dump, pg_amcheck).")
    with suppress(sa.exc.SQLAlchemyError), _existing_engine(url).connect():
        pass  # where the store is of a newer version, a UsageError
    with suppress(UsageError):
        if not check(url).faults:
            with database_errors(url, STORE):
                migrate(open_database(url, lock_first=True))
            return None, 0, 0
    kept = file.with_name(f"{file.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    with replacing(file) as part, database_errors(url, STORE):
        part.chmod(0o600)
        with closing(sqlite3.connect(part)) as new:
            saved, lost = _salvaged(file, new)
        os.link(file, kept)
        for tail in ("-wal", "-shm", "-journal"):
            file.with_name(file.name + tail).unlink(missing_ok=True)
    with database_errors(url, STORE):
        migrate(open_database(url, lock_first=True))
    return kept, saved, lost


def _existing_engine(url: str) -> sa.Engine:
    """The engine of a database that exists. Raises UsageError for one that does not."""
    file = file_of(url)
    if file is not None and not file.is_file():
        raise UsageError(f"There is no database {masked(url)!r}; ingest, tune and propose make one.")
    with database_errors(url, STORE):
        return open_database(url)


def _copy(engine: sa.Engine, to: sa.Engine) -> None:
    """The rows of the store and those retracted."""
    migrate(to, keep=False)
    for table in (MEASURED, RETRACTED):
        if not sa.inspect(engine).has_table(table.name):
            continue
        names = [column for column in table.c if column.name not in ("id", "kind_id")]
        with engine.connect() as connection, to.begin() as target:
            for rows in connection.execute(sa.select(*names).order_by(table.c.id)).partitions(_BATCH):
                target.execute(sa.insert(table), [dict(row._mapping) for row in rows])
    with to.begin() as target:  # kinds are numbered anew
        target.execute(sa.text("DELETE FROM jointopt_schema"))
    migrate(to, keep=False)


def _salvaged(damaged: Path, new: sqlite3.Connection) -> tuple[int, int]:
    """Copy every table as far as it can be read; (rows of measurements that could, about how many could not)."""
    saved = lost = 0
    with closing(sqlite3.connect(f"{damaged.absolute().as_uri()}?mode=ro", uri=True)) as old:
        wanted = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
        try:
            schema = sorted(old.execute(wanted).fetchall(), key=lambda row: str(row[0]) != "table")  # tables first
        except sqlite3.Error as error:
            raise UsageError(f"The database cannot be read at all: {error}; take a backup of it.") from error
        for kind, name, text in schema:
            with suppress(sqlite3.Error):
                new.execute(text)
            if kind == "table":
                rows = _readable_rows(old, name)
                for _, row in sorted(rows.items()):
                    with suppress(sqlite3.Error):
                        new.execute(f'INSERT OR IGNORE INTO "{name}" VALUES ({",".join("?" * len(row))})', row)
                if name == MEASURED.name and rows:
                    saved, lost = len(rows), max(rows) - min(rows) + 1 - len(rows)
        new.commit()
    return saved, lost


def _readable_rows(old: sqlite3.Connection, name: str) -> dict[int, tuple[object, ...]]:
    """Rows by number from the beginning up to what cannot be read, and from the end down to it.

    Of measurements those that are as they were added; what is wrong in the others their readers find.
    """
    rows: dict[int, tuple[object, ...]] = {}
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error):
            for row in old.execute(f'SELECT rowid, * FROM "{name}" NOT INDEXED ORDER BY rowid {order}'):
                if row[0] in rows:
                    break
                with suppress(ValueError, TypeError, RecursionError):
                    if name != MEASURED.name or content_hash(json.loads(str(row[5]))) == row[2]:
                        rows[row[0]] = row[1:]
    return rows
