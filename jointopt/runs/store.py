"""Measurements that stay: one append-only table, in the same database as the studies.

Rows are distinguished by a hash of their content, so that a table can be added again as it grows; nothing is ever
changed or deleted. A second table, append-only too, has those that were retracted: these are kept and never read.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError

from jointopt.core.atomic_write import replacing, write_failure
from jointopt.core.errors import UsageError
from jointopt.core.quote import sh_command
from jointopt.core.schema import COLUMNS
from jointopt.core.secrets import masked
from jointopt.runs.cells import as_table, json_rows
from jointopt.runs.database import (
    STORAGE,
    STORE,
    TABLES,
    VERSION,
    database_errors,
    file_of,
    in_turn,
    on_store,
    open_database,
    write_ahead,
)
from jointopt.runs.migrations import KINDS, MEASURED, RETRACTED, kind_ids, migrate, version
from jointopt.runs.relevance import Kind, Wanted, kind_of, plan_key
from jointopt.runs.spill import spill_files, waiting_spills

T = TypeVar("T")
PROVENANCE = ("origin", "recorded_at")
_log = logging.getLogger(__name__)
_ATTEMPTS = 6  # to add rows that others add at the same moment
_ROWS_READ = 5_000  # that are held as JSON at a time
_ROWS_PER_STATEMENT = 500  # SQLite takes at most 999 parameters in versions before 3.32


@dataclass(frozen=True)
class Added:
    """Counts of rows added to a store, and of those that were there already."""

    new: int
    known: int  # there already, or given twice
    retracted: int = 0  # of the known ones, those that stay retracted


@dataclass(frozen=True)
class Retracted:
    """Counts of rows retracted, and of those that could not be."""

    new: int
    known: int  # retracted before, or given twice
    absent: int  # no row of the store is equal to them


class Store:
    """The measurements of a database (an SQLAlchemy URL, as Optuna takes it). Several processes may write at once."""

    def __init__(self, url: str = STORAGE) -> None:
        self.url = url
        with database_errors(url, STORE):
            self._engine = self._writer = open_database(url)
            if file_of(url) is not None:  # a write begins with the lock, so that it waits for others and never fails
                self._writer = open_database(url, lock_first=True)

    @on_store
    def add(self, rows: pd.DataFrame, origin: str) -> Added:
        """Adds the rows that are not there yet, all of them or, where that fails, none.

        ``rows``: as `jointopt.runs.table.check_measurements` lets them pass; blank ones and `PROVENANCE` are left out.
        Raises TableError for a cell that its column cannot hold, UsageError where the database cannot be written, and
        OutageError where it could be later (`jointopt.runs.database`), as all methods do.
        """
        records, by_hash = _hashed(rows)
        if not by_hash:
            return Added(0, 0)
        self._prepare()
        new = _retried(lambda: self._insert(by_hash, origin))
        with self._engine.connect() as connection:
            retracted = _known_hashes(connection, RETRACTED, list(by_hash))
        return Added(new, records - new, len(retracted))

    @on_store
    def retract(self, rows: pd.DataFrame, origin: str) -> Retracted:
        """Marks the stored rows that are equal to ``rows``, all of them or none: they are kept, and `read` no more.

        Added again they stay retracted. ``rows`` and errors as for `add`.
        """
        records, by_hash = _hashed(rows)
        if not by_hash or not self._has(MEASURED):
            return Retracted(0, 0, records)
        self._prepare()
        new, absent = _retried(lambda: self._mark(by_hash, origin))
        return Retracted(new, records - new - absent, absent)

    @on_store
    def read(self, wanted: Wanted | None = None) -> pd.DataFrame:
        """Measurements in the order of adding but those retracted, all or those ``wanted``; no rows where none is.

        Columns are those of the schema (unknown: NaN), then the unknown ones that some row has, then ``origin`` and
        ``recorded_at`` (UTC, ISO 8601). Raises UsageError where the database cannot be read.
        """
        same: dict[str, str] = {}
        parts = [_table(rows, same) for rows in self._rows(wanted)]
        if len(parts) < 2:
            return parts[0] if parts else _table([], {})
        extras = dict.fromkeys(name for part in parts for name in part.columns if name not in (*COLUMNS, *PROVENANCE))
        return pd.concat(parts, ignore_index=True).reindex(columns=[*COLUMNS, *extras, *PROVENANCE])

    @on_store
    def count(self) -> int:
        """Number of measurements but those retracted."""
        if not self._has(MEASURED):
            return 0
        with self._engine.connect() as connection:
            return int(connection.scalar(sa.select(sa.func.count(MEASURED.c.id)).where(self._kept())) or 0)

    def add_spilled(self) -> int:
        """Adds rows that ended processes left in files (`Spill`); returns the number of those that are new."""
        taken = 0
        for _, rows in waiting_spills(self.url):
            for origin in dict.fromkeys(origin for origin, _ in rows):
                frame = pd.DataFrame([row for of, row in rows if of == origin])
                taken += self.add(frame, origin).new
        return taken

    def _rows(self, wanted: Wanted | None) -> Iterator[Sequence[Any]]:
        """Rows with their id, content, origin and time, in the order of adding, some thousands at a time."""
        if not self._has(MEASURED):
            return
        if wanted is not None:
            with suppress(OperationalError):  # a file that may only be read stays as it is
                self._prepare()
        old = version(self._engine) < VERSION
        columns = (MEASURED.c.id, MEASURED.c.content, MEASURED.c.origin, MEASURED.c.recorded_at)
        query = sa.select(*columns).where(self._kept()).order_by(MEASURED.c.id)
        with self._engine.connect().execution_options(yield_per=_ROWS_READ) as connection:
            if wanted is None:
                yield from connection.execute(query).partitions()
            elif old:  # whose rows do not state their kind
                every = (row for part in connection.execute(query).partitions() for row in part)
                yield list(deque((row for row in every if wanted.related(kind_of(row.content))), wanted.all_up_to))
            else:
                ids, all_of_them = nearest_rows(connection, wanted, self._kept())
                if not all_of_them:
                    _log.info("Of related runs in %s the %s nearest are used.", masked(self.url), f"{len(ids):,}")
                for some in _pieces(ids, _ROWS_PER_STATEMENT):
                    yield connection.execute(query.where(MEASURED.c.id.in_(some))).all()

    def _kept(self) -> sa.ColumnElement[bool]:
        if not self._has(RETRACTED):
            return MEASURED.c.id > 0
        return ~sa.exists().where(RETRACTED.c.content_hash == MEASURED.c.content_hash)

    def _prepare(self) -> None:
        """Make what is missing in the database, and bring it up to this version."""
        if version(self._engine) < VERSION:
            with in_turn(self._writer, TABLES):
                _retried(lambda: migrate(self._writer))
            write_ahead(self._engine, self.url)

    def _has(self, table: sa.Table) -> bool:
        file = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        if file and file != ":memory:" and not file.startswith("file:") and not Path(file).exists():
            return False  # connecting would leave an empty file under a mistyped name
        return sa.inspect(self._engine).has_table(table.name)

    def _insert(self, by_hash: Mapping[str, dict[str, Any]], origin: str) -> int:
        """Number of new rows, after one transaction."""
        with self._writer.begin() as connection:
            known = _known_hashes(connection, MEASURED, list(by_hash))
            new = {key: content for key, content in by_hash.items() if key not in known}
            kinds = {key: kind_of(content) for key, content in new.items()}
            known_kinds = kind_ids(connection, kinds.values())
            rows = [_provenance(key, origin)
                    | {"content": content, "kind_id": known_kinds[kinds[key]], "plan_key": plan_key(content)}
                    for key, content in new.items()]  # fmt: skip
            if rows:
                connection.execute(sa.insert(MEASURED), rows)
        return len(rows)

    def _mark(self, by_hash: Mapping[str, dict[str, Any]], origin: str) -> tuple[int, int]:
        """(rows newly retracted, rows that are not there), after one transaction."""
        with self._writer.begin() as connection:
            stored = _known_hashes(connection, MEASURED, list(by_hash))
            new = stored - _known_hashes(connection, RETRACTED, list(stored))
            if new:
                rows = [_provenance(content_hash, origin) for content_hash in by_hash if content_hash in new]
                connection.execute(sa.insert(RETRACTED), rows)
        return len(new), len(by_hash) - len(stored)


def _retried(write: Callable[[], T]) -> T:
    """The result of ``write``, tried again where another writer has added one of the same rows meanwhile."""
    for _ in range(_ATTEMPTS - 1):
        with suppress(IntegrityError):
            return write()
    return write()


def _hashed(rows: pd.DataFrame) -> tuple[int, dict[str, dict[str, Any]]]:
    """(how many rows are not blank, their contents by hash, each once)."""
    records = [r for r in json_rows(rows.drop(columns=list(PROVENANCE), errors="ignore")) if r]
    return len(records), {content_hash(record): record for record in records}


def _provenance(content_hash: str, origin: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"content_hash": content_hash, "origin": origin, "recorded_at": now}


def _known_hashes(connection: sa.Connection, table: sa.Table, hashes: list[str]) -> set[str]:
    column, found = table.c.content_hash, set[str]()
    for some in _pieces(hashes, _ROWS_PER_STATEMENT):
        found.update(connection.scalars(sa.select(column).where(column.in_(some))))
    return found


def _pieces(values: list[T], size: int) -> Iterator[list[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _table(rows: Sequence[Any], same: dict[str, str]) -> pd.DataFrame:
    """Rows as `Store.read` returns them; ``same``: their words, each of which is kept once."""
    records = [
        {name: same.setdefault(cell, cell) if isinstance(cell, str) else cell for name, cell in row.content.items()}
        for row in rows
    ]
    extras = dict.fromkeys(name for record in records for name in record if name not in COLUMNS)
    table = as_table(records, [*COLUMNS, *extras])
    origin, at = ([same.setdefault(row[place], row[place]) for row in rows] for place in (2, 3))
    return table.assign(origin=origin, recorded_at=at)


def content_hash(record: Mapping[str, Any]) -> str:
    """The hash by which a row is known: of its content, whatever the order of its cells."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


# Which rows of a store matter most, by its indexes alone: a bounded number of them, however many there are.


_MOST_KINDS = 20_000  # the newest, that are compared with what is wanted
_PLAN_SHARE = 4  # rows of one wanted plan are at most the most rows over this


def nearest_rows(connection: sa.Connection, wanted: Wanted, kept: sa.ColumnElement[bool]) -> tuple[list[int], bool]:
    """(ids of the rows that are wanted, ascending, whether these are all related ones); ``kept``: not retracted."""
    fields = (KINDS.c[name] for name in Kind._fields)
    newest = connection.execute(sa.select(KINDS.c.id, *fields).order_by(KINDS.c.id.desc()).limit(_MOST_KINDS))
    related = ((row[0], kind) for row in newest if wanted.related(kind := Kind(*row[1:])))
    kinds, few = _kinds_to_read(connection, wanted, sorted(related, key=lambda one: wanted.distance(one[1])))
    most = None if few else wanted.most_rows or wanted.all_up_to
    ids = sa.select(MEASURED.c.id).where(kept).order_by(MEASURED.c.id.desc())
    found: dict[Kind, list[int]] = {}
    first: list[int] = []
    for number, kind in kinds:
        # one by one, each along the index: together SQLite would read all of them to find the newest
        rows = ids.where(MEASURED.c.kind_id == number)
        for plan in wanted.plans if kind.canonical == next(iter(found), kind.canonical) else ():
            of_plan = rows.where(MEASURED.c.plan_key == plan)
            first += connection.scalars(of_plan.limit((wanted.most_rows or wanted.all_up_to or 0) // _PLAN_SHARE))
        found.setdefault(kind.canonical, []).extend(connection.scalars(rows.limit(most)))
    groups = [sorted(group, reverse=True)[:most] for group in found.values() if group]
    return allotted_rows(first, groups, most or sum(map(len, groups)), wanted.most_kinds), few


def _kinds_to_read(
    connection: sa.Connection, wanted: Wanted, kinds: list[tuple[int, Kind]]
) -> tuple[list[tuple[int, Kind]], bool]:
    """(the first of the related ``kinds`` that have rows enough, whether all rows are to be read), by the index."""
    total = 0
    if wanted.all_up_to is None:
        return kinds, True
    for place, (number, _) in enumerate(kinds, 1):
        of_kind = sa.select(MEASURED.c.id).where(MEASURED.c.kind_id == number).limit(wanted.all_up_to + 1).subquery()
        total += connection.scalar(sa.select(sa.func.count()).select_from(of_kind)) or 0
        if total > wanted.all_up_to and len({kind.canonical for _, kind in kinds[:place]}) > wanted.most_kinds:
            return kinds[:place], False
    return kinds, total <= wanted.all_up_to


def allotted_rows(first: Sequence[int], groups: Sequence[Sequence[int]], most: int, most_groups: int) -> list[int]:
    """At most ``most`` ids, ascending: the ids ``first``, and of ``groups`` (the nearest first, each newest first).

    Where not all have room, half are of the nearest group and the rest in equal parts of the next ``most_groups`` - 1;
    what these leave goes to the nearest that have more.
    """
    if sum(map(len, groups)) <= most:
        return sorted(itertools.chain.from_iterable(groups))
    groups = groups[:most_groups]
    part = most // 2 // max(len(groups) - 1, 1)
    order = [*first, *groups[0][: most // 2], *itertools.chain.from_iterable(group[:part] for group in groups[1:])]
    return sorted(list(dict.fromkeys([*order, *itertools.chain.from_iterable(groups)]))[:most])


_BATCH = 10_000


# The care of a store: what is wrong with it, a copy of it, and as much of a damaged one as can be read.


@dataclass(frozen=True)
class Checked:
    """A store as it was found: facts, and what is wrong (a sentence each)."""

    facts: tuple[str, ...]
    faults: tuple[str, ...]


def check_store(url: str) -> Checked:
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


def back_up(url: str, out: Path) -> int:
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


def repair_store(url: str) -> tuple[Path | None, int, int]:
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
        if not check_store(url).faults:
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
