"""Measurements that stay: one append-only table, in the same database as the studies.

Rows are distinguished by a hash of their content, so that a table can be added again as it grows; nothing is ever
changed or deleted. A second table, append-only too, has those that were retracted: these are kept and never read.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, OperationalError

from jointopt.core.schema import COLUMNS
from jointopt.runs.cells import as_table, json_rows
from jointopt.runs.database import MEASUREMENTS, database_errors, make_table, open_database

T = TypeVar("T")
PROVENANCE = ("origin", "recorded_at")
_ATTEMPTS = 6  # SQLite has waited half a minute for its lock by then, each time
_ROWS_PER_STATEMENT = 500  # SQLite takes at most 999 parameters in versions before 3.32


def _table(name: str, *more: sa.Column[Any]) -> sa.Table:
    return sa.Table(
        name,
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("content_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("recorded_at", sa.String(32), nullable=False),
        *more,
    )


_MEASUREMENTS = _table(MEASUREMENTS, sa.Column("content", sa.JSON, nullable=False))
_RETRACTIONS = _table("jointopt_retractions")


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
        self._url = url
        with database_errors(url, "measurement store"):
            self._engine = open_database(url)

    def add(self, rows: pd.DataFrame, origin: str) -> Added:
        """Adds the rows that are not there yet, all of them or, where that fails, none.

        ``rows``: as `jointopt.runs.table.check_measurements` lets them pass; blank ones and `PROVENANCE` are left out.
        Raises TableError for a cell that its column cannot hold, UsageError where the database cannot be written.
        """
        records, by_hash = _hashed(rows)
        if not by_hash:
            return Added(0, 0)
        with database_errors(self._url, "measurement store"):
            make_table(self._engine, _MEASUREMENTS)
            new = _patiently(lambda: self._insert(by_hash, origin))
            gone = self._retracted() & by_hash.keys()
        return Added(new, records - new, len(gone))

    def retract(self, rows: pd.DataFrame, origin: str) -> Retracted:
        """Marks the stored rows that are equal to ``rows``, all of them or none: they are kept, and `read` no more.

        Added again they stay retracted. ``rows`` and errors as for `add`.
        """
        records, by_hash = _hashed(rows)
        with database_errors(self._url, "measurement store"):
            if not by_hash or not self._has(_MEASUREMENTS):
                return Retracted(0, 0, records)
            make_table(self._engine, _RETRACTIONS)
            new, absent = _patiently(lambda: self._mark(by_hash, origin))
        return Retracted(new, records - new - absent, absent)

    def read(self) -> pd.DataFrame:
        """Every measurement in the order of adding but those retracted; no rows where nothing was ever added.

        Columns are those of the schema (unknown: NaN), then the unknown ones that some row has, then ``origin`` and
        ``recorded_at`` (UTC, ISO 8601). Raises UsageError where the database cannot be read.
        """
        with database_errors(self._url, "measurement store"):
            gone, rows = self._retracted(), []
            if self._has(_MEASUREMENTS):
                with self._engine.connect() as connection:
                    stored = connection.execute(sa.select(_MEASUREMENTS).order_by(_MEASUREMENTS.c.id))
                    rows = [row for row in stored if row.content_hash not in gone]
        records = [row.content for row in rows]
        extras = dict.fromkeys(name for record in records for name in record if name not in COLUMNS)
        table = as_table(records, [*COLUMNS, *extras])
        return table.assign(origin=[row.origin for row in rows], recorded_at=[row.recorded_at for row in rows])

    def _retracted(self) -> set[str]:
        """Hashes of the rows that were retracted."""
        if not self._has(_RETRACTIONS):
            return set()
        with self._engine.connect() as connection:
            return set(connection.scalars(sa.select(_RETRACTIONS.c.content_hash)))

    def _has(self, table: sa.Table) -> bool:
        file = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        if file and file != ":memory:" and not file.startswith("file:") and not Path(file).exists():
            return False  # connecting would leave an empty file under a mistyped name
        return sa.inspect(self._engine).has_table(table.name)

    def _insert(self, by_hash: Mapping[str, dict[str, Any]], origin: str) -> int:
        """Number of new rows, after one transaction."""
        with self._engine.begin() as connection:
            known = _known_hashes(connection, _MEASUREMENTS, list(by_hash))
            new = {key: content for key, content in by_hash.items() if key not in known}
            rows = [_provenance(key, origin) | {"content": content} for key, content in new.items()]
            _insert_rows(connection, _MEASUREMENTS, rows)
        return len(rows)

    def _mark(self, by_hash: Mapping[str, dict[str, Any]], origin: str) -> tuple[int, int]:
        """(rows newly retracted, rows that are not there), after one transaction."""
        with self._engine.begin() as connection:
            stored = _known_hashes(connection, _MEASUREMENTS, list(by_hash))
            new = stored - _known_hashes(connection, _RETRACTIONS, list(stored))
            rows = [_provenance(content_hash, origin) for content_hash in by_hash if content_hash in new]
            _insert_rows(connection, _RETRACTIONS, rows)
        return len(new), len(by_hash) - len(stored)


def _patiently(write: Callable[[], T]) -> T:
    """Return what ``write`` returns, tried again while another writer is in its way."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return write()
        except (IntegrityError, OperationalError) as error:  # it added the same row meanwhile, or holds a lock
            if not isinstance(error, IntegrityError) and "lock" not in str(error.orig).lower():
                raise
        time.sleep(random.uniform(0.5, 1.0) * 0.05 * 2**attempt)
    return write()


def _hashed(rows: pd.DataFrame) -> tuple[int, dict[str, dict[str, Any]]]:
    """(how many rows are not blank, their contents by hash, each once)."""
    records = [r for r in json_rows(rows.drop(columns=list(PROVENANCE), errors="ignore")) if r]
    return len(records), {_content_hash(record): record for record in records}


def _provenance(content_hash: str, origin: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"content_hash": content_hash, "origin": origin, "recorded_at": now}


def _insert_rows(connection: sa.Connection, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _ROWS_PER_STATEMENT):
        connection.execute(sa.insert(table), rows[start : start + _ROWS_PER_STATEMENT])


def _known_hashes(connection: sa.Connection, table: sa.Table, hashes: list[str]) -> set[str]:
    column, found = table.c.content_hash, set[str]()
    for start in range(0, len(hashes), _ROWS_PER_STATEMENT):
        wanted = column.in_(hashes[start : start + _ROWS_PER_STATEMENT])
        found.update(connection.scalars(sa.select(column).where(wanted)))
    return found


def _content_hash(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
