"""Measurements that stay: one append-only table, in the same database as the studies.

Rows are distinguished by a hash of their content, so that a table can be added again as it grows; nothing is ever
changed or deleted. A second table, append-only too, has those that were retracted: these are kept and never read.
"""

from __future__ import annotations

import datetime
import fcntl
import glob
import hashlib
import itertools
import json
import logging
import os
import secrets
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

import pandas as pd
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError

from jointopt.core.schema import COLUMNS
from jointopt.core.secrets import masked
from jointopt.core.system import state_home
from jointopt.runs.cells import as_table, json_rows
from jointopt.runs.database import (
    TABLES,
    VERSION,
    database_errors,
    file_of,
    in_turn,
    on_database,
    open_database,
    write_ahead,
)
from jointopt.runs.migrations import KINDS, MEASURED, RETRACTED, kind_ids, migrate, version
from jointopt.runs.relevance import Kind, Wanted, kind_of, plan_key

T = TypeVar("T")
PROVENANCE = ("origin", "recorded_at")
on_store = on_database("measurement store")
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

    def __init__(self, url: str = "sqlite:///jointopt.db") -> None:
        self.url = url
        with database_errors(url, "measurement store"):
            self._engine = self._writer = open_database(url)
            if file_of(url) is not None:  # a write begins with the lock, so that it waits for others and never fails
                self._writer = open_database(url, lock_first=True)

    @on_store
    def add(self, rows: pd.DataFrame, origin: str) -> Added:
        """Adds the rows that are not there yet, all of them or, where that fails, none.

        ``rows``: as `jointopt.runs.table.check_measurements` lets them pass; blank ones and `PROVENANCE` are left out.
        Raises TableError for a cell that its column cannot hold, UsageError where the database cannot be written, and
        OutageError where it could be later (`jointopt.runs.outages`), as all methods do.
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
        """Add what processes have left in files (`Spill`); how many rows the store did not have."""
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
                yield list(deque((row for row in every if wanted.related(kind_of(row.content))), wanted.whole))
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
    """Return what ``write`` returns, tried again where another writer has added one of the same rows meanwhile."""
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


_MOST_KINDS = 20_000  # that are looked at, the newest
_OF_PLANS = 4  # a share of the rows, as a divisor


def nearest_rows(connection: sa.Connection, wanted: Wanted, kept: sa.ColumnElement[bool]) -> tuple[list[int], bool]:
    """(ids, ascending, of the rows that are wanted, whether these are all related ones); ``kept``: of which at all."""
    fields = (KINDS.c[name] for name in Kind._fields)
    newest = connection.execute(sa.select(KINDS.c.id, *fields).order_by(KINDS.c.id.desc()).limit(_MOST_KINDS))
    related = ((row[0], kind) for row in newest if wanted.related(kind := Kind(*row[1:])))
    kinds, few = _enough(connection, wanted, sorted(related, key=lambda one: wanted.distance(one[1])))
    most = None if few else wanted.most or wanted.whole
    ids = sa.select(MEASURED.c.id).where(kept).order_by(MEASURED.c.id.desc())
    found: dict[Kind, list[int]] = {}
    first: list[int] = []
    for number, kind in kinds:
        # one by one, each along the index: together SQLite would read all of them to find the newest
        rows = ids.where(MEASURED.c.kind_id == number)
        for plan in wanted.plans if kind.plain == next(iter(found), kind.plain) else ():
            of_plan = rows.where(MEASURED.c.plan_key == plan)
            first += connection.scalars(of_plan.limit((wanted.most or wanted.whole or 0) // _OF_PLANS))
        found.setdefault(kind.plain, []).extend(connection.scalars(rows.limit(most)))
    groups = [sorted(group, reverse=True)[:most] for group in found.values() if group]
    return allotted_rows(first, groups, most or sum(map(len, groups)), wanted.kinds), few


def _enough(
    connection: sa.Connection, wanted: Wanted, kinds: list[tuple[int, Kind]]
) -> tuple[list[tuple[int, Kind]], bool]:
    """(those of the related ``kinds`` to read, whether all of their rows are): counted in the index alone."""
    total = 0
    if wanted.whole is None:
        return kinds, True
    for place, (number, _) in enumerate(kinds, 1):
        of_kind = sa.select(MEASURED.c.id).where(MEASURED.c.kind_id == number).limit(wanted.whole + 1).subquery()
        total += connection.scalar(sa.select(sa.func.count()).select_from(of_kind)) or 0
        if total > wanted.whole and len({kind.plain for _, kind in kinds[:place]}) > wanted.kinds:
            return kinds[:place], False
    return kinds, total <= wanted.whole


def allotted_rows(first: Sequence[int], groups: Sequence[Sequence[int]], most: int, kinds: int) -> list[int]:
    """At most ``most`` ids, ascending, of ``groups`` (the nearest first, each newest first), with ``first`` before all.

    Where not all have room, half is of the nearest group and the rest in equal parts of ``kinds`` - 1 others; what
    these leave goes to the nearest that have more.
    """
    if sum(map(len, groups)) <= most:
        return sorted(itertools.chain.from_iterable(groups))
    groups = groups[:kinds]
    part = most // 2 // max(len(groups) - 1, 1)
    order = [*first, *groups[0][: most // 2], *itertools.chain.from_iterable(group[:part] for group in groups[1:])]
    return sorted(list(dict.fromkeys([*order, *itertools.chain.from_iterable(groups)]))[:most])


# Rows that a database may not have yet: in a file beside it before anything else is done with them.


SPILL = "spill"


class Spill:
    """The rows of this process that the database of ``url`` may lack; ``origin`` is where they come from.

    ``kind``: a word for rows that the store is not to take in.
    """

    def __init__(self, url: str, origin: str, kind: str = SPILL) -> None:
        self._url, self._origin, self._kind = url, origin, kind
        self._token = secrets.token_hex(4)
        self._open: dict[Path, int] = {}  # files with rows, and their handles

    def keep(self, row: Mapping[str, Any]) -> Path | None:
        """Write a row (JSON values) to the disk, in the first file that takes it, which is returned; None: none does.

        File and folder are synchronised with the disk before this returns.
        """
        line = (json.dumps({"origin": self._origin, "row": dict(row)}) + "\n").encode()
        for file in _places(self._url, f".{self._token}", self._kind):
            with suppress(OSError):
                handle = self._handle(file)
                size = os.fstat(handle).st_size
                try:
                    if os.write(handle, line) != len(line):
                        raise OSError
                    os.fsync(handle)
                except OSError:  # a full disk may take a part of the line
                    with suppress(OSError):
                        os.ftruncate(handle, size)
                    raise
                return file
        return None

    def clear(self) -> None:
        """Forget all rows, which the database has now; what cannot be removed is taken in again, and stored once."""
        self.close(forget=True)

    def close(self, forget: bool = False) -> None:
        """Leave the rows to the next start, or ``forget`` them."""
        for file, handle in self._open.items():
            with suppress(OSError):
                if forget or not os.fstat(handle).st_size:
                    file.unlink(missing_ok=True)
            os.close(handle)
        self._open = {}

    @property
    def files(self) -> list[Path]:
        """Files that hold rows now."""
        return [file for file, handle in self._open.items() if os.fstat(handle).st_size]

    def _handle(self, file: Path) -> int:
        """The file, open and locked; made anew where somebody has removed it."""
        handle = self._open.get(file)
        if handle is not None and os.fstat(handle).st_nlink:
            return handle
        if handle is not None:
            os.close(self._open.pop(file))
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for _ in range(10):
            handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)  # one that takes files in may look at an empty one, and remove it
                if os.fstat(handle).st_nlink:
                    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
                    try:
                        os.fsync(folder)  # so that the disk knows of a new file
                    finally:
                        os.close(folder)
                    self._open[file] = handle
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
        raise OSError(f"{file} is removed again and again")


def spill_files(url: str, kind: str = SPILL) -> list[Path]:
    """The files in which rows of a database wait: beside it, with this user's state, or with temporary files."""
    found: dict[Path, None] = {}
    for place in _places(url, "", kind):
        stem = glob.escape(str(place.with_suffix("")))
        for pattern in (f"{stem}{place.suffix}", f"{stem}.*{place.suffix}"):
            found |= dict.fromkeys(Path(name) for name in sorted(glob.glob(pattern)))
    return list(found)


def rows_in(file: Path | TextIO) -> list[tuple[str, dict[str, Any]]]:
    """(origin, row) of each line of a file but torn ones."""
    text = file.read_text(encoding="utf-8", errors="replace") if isinstance(file, Path) else file.read()
    found = []
    for line in text.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            held = json.loads(line)
            found.append((str(held["origin"]), dict(held["row"])))
    return found


def waiting_spills(url: str, kind: str = SPILL) -> Iterator[tuple[Path, list[tuple[str, dict[str, Any]]]]]:
    """Each file of this user that no living process writes, with (origin, row) of its lines but torn ones; locked.

    The file is removed when the next one is requested, as its rows are in the store by then.
    """
    for file in spill_files(url, kind):
        with suppress(OSError):
            handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            with os.fdopen(handle, encoding="utf-8", errors="replace") as stream:
                if os.fstat(handle).st_uid != os.geteuid():
                    continue
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield file, rows_in(stream)
                file.unlink(missing_ok=True)


def _places(url: str, token: str, kind: str) -> list[Path]:
    """Files with a ``token`` in their names, the best first."""
    key, file = hashlib.sha256(os.fsencode(url)).hexdigest()[:16], file_of(url)
    files = [] if file is None else [file.absolute().with_name(f"{file.name}.{kind}{token}.jsonl")]
    named = f"{key}{'' if kind == SPILL else f'-{kind}'}{token}.jsonl"
    with suppress(OSError):
        files.append(state_home() / "jointopt" / "spill" / named)
    with suppress(OSError):  # no folder takes temporary files
        files.append(Path(tempfile.gettempdir(), f"jointopt-spill-{os.geteuid()}-{named}"))
    return files
