"""The tables of the store, and the numbered steps that bring a database of an earlier version up to this one.

Version 1 is a measurement per row, as it came, in JSON. Version 2 adds of what kind each is (typed columns of a small
table that the rows point to), so that only related rows need be read. Version 3 has more of a kind (GPUs, sequences,
batch, beside GPU, GPUs per node, framework and model) and each row's plan as a key, so that the nearest are read first.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from importlib.metadata import version as release
from pathlib import Path

import sqlalchemy as sa

from jointopt.runs.database import MEASUREMENTS, VERSION, make_table
from jointopt.runs.database import SCHEMA as SCHEMA_NAME
from jointopt.runs.relevance import Kind, kind_of, plan_key

_log = logging.getLogger(__name__)
_BATCH = 10_000
METADATA = sa.MetaData()
MEASURED = sa.Table(
    MEASUREMENTS,
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("content_hash", sa.String(64), nullable=False, unique=True),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("recorded_at", sa.String(32), nullable=False),
    sa.Column("content", sa.JSON, nullable=False),
    sa.Column("kind_id", sa.Integer),
    sa.Column("plan_key", sa.String(100)),
    sa.Index("jointopt_measurements_by_kind", "kind_id", "id"),
    sa.Index("jointopt_measurements_by_plan", "kind_id", "plan_key", "id"),
)
RETRACTED = sa.Table(
    "jointopt_retractions",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("content_hash", sa.String(64), nullable=False, unique=True),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("recorded_at", sa.String(32), nullable=False),
)
KINDS = sa.Table(
    "jointopt_kinds",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("gpu", sa.String(200), nullable=False),  # as the rows spell it; blank: not stated
    sa.Column("gpus_per_node", sa.Integer, nullable=False),  # 0: not stated
    sa.Column("framework", sa.String(200), nullable=False),
    sa.Column("model", sa.String(200), nullable=False),
    # with a default, as programs of version 2 may still write to a database of this one
    *(sa.Column(name, sa.Integer, nullable=False, server_default="0") for name in Kind._fields[4:]),
    sa.UniqueConstraint(*Kind._fields),
)
SCHEMA = sa.Table(
    SCHEMA_NAME,
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("reached_at", sa.String(32), nullable=False, server_default=sa.func.current_timestamp()),
    sa.Column("jointopt", sa.String(32)),  # the release that reached it
)


def migrate(engine: sa.Engine, keep: bool = True) -> None:
    """Make the tables where they are missing, and take the steps that are; of several processes that do, all win.

    The steps are one transaction. Before it an SQLite file with rows is copied (``keep``) to one beside it whose name
    ends in ``.version-2``, by the version that it has.
    """
    at = version(engine)
    if at == VERSION:
        return
    if at and keep:
        _keep_copy(engine, at)
    fresh = not sa.inspect(engine).has_table(MEASURED.name)
    for table in (SCHEMA, MEASURED, RETRACTED, KINDS):
        make_table(engine, table)
    with engine.begin() as connection:
        reached = VERSION if fresh else int(connection.scalar(sa.select(sa.func.max(SCHEMA.c.version))) or 1)
        _add_column(connection, "jointopt VARCHAR(32)", SCHEMA)
        for number, step in STEPS.items():
            if number > reached:
                step(connection)
        if connection.scalar(sa.select(SCHEMA.c.version).where(SCHEMA.c.version == VERSION)) is None:
            connection.execute(sa.insert(SCHEMA).values(version=VERSION, jointopt=release("jointopt")))


def _keep_copy(engine: sa.Engine, at: int) -> None:
    """Copy an SQLite file with everything in it beside itself; a whole copy that is there already stays."""
    file = Path(engine.url.database or "") if engine.dialect.name == "sqlite" else Path()
    if not file.is_file() or (copy := file.with_name(f"{file.name}.version-{at}")).exists():
        return
    part = file.with_name(f".{copy.name}.{os.getpid()}.part")
    try:
        part.touch(0o600)
        with closing(sqlite3.connect(file)) as old, closing(sqlite3.connect(part)) as new:
            old.backup(new)
        with suppress(FileExistsError):  # of another process, which may have gone on since: that one is as it was
            os.link(part, copy)
    finally:
        part.unlink(missing_ok=True)
    _log.info("The database as it was, of version %d, is kept as %s; it may go once all is well.", at, copy)


def version(engine: sa.Engine) -> int:
    """The version of the store in a database; 0 where it holds none."""
    there = sa.inspect(engine)
    if there.has_table(SCHEMA.name):
        with engine.connect() as connection:
            return int(connection.scalar(sa.select(sa.func.max(SCHEMA.c.version))) or 1)
    return int(there.has_table(MEASURED.name))


def kind_ids(connection: sa.Connection, kinds: Iterable[Kind]) -> dict[Kind, int]:
    """Numbers of kinds, those that are new made."""
    wanted = list(dict.fromkeys(kinds))
    gpus = KINDS.c.gpu.in_({kind.gpu for kind in wanted})
    names = (KINDS.c[name] for name in Kind._fields)
    known = {Kind(*row[1:]): row[0] for row in connection.execute(sa.select(KINDS.c.id, *names).where(gpus))}
    for kind in wanted:
        if kind not in known:
            made = connection.execute(sa.insert(KINDS).values(**kind._asdict())).inserted_primary_key
            known[kind] = made[0] if made else 0
    return known


def _to_version_3(connection: sa.Connection) -> None:
    """Say of each row of what kind it is, in more than version 2 had, and of which plan."""
    _log.info("The measurement store is brought up to version 3, once; of a million rows that takes minutes.")
    _add_column(connection, "plan_key VARCHAR(100)")
    KINDS.drop(connection)
    KINDS.create(connection)
    for index in MEASURED.indexes:
        index.drop(connection, checkfirst=True)  # and made when the rows are as they stay
    last = 0
    wanted = sa.select(MEASURED.c.id, MEASURED.c.content).order_by(MEASURED.c.id).limit(_BATCH)
    while rows := connection.execute(wanted.where(MEASURED.c.id > last)).all():
        kinds, last = [kind_of(row.content) for row in rows], rows[-1].id
        known = kind_ids(connection, kinds)
        connection.execute(
            sa.update(MEASURED).where(MEASURED.c.id == sa.bindparam("row")),
            [{"row": row.id, "kind_id": known[kind], "plan_key": plan_key(row.content)}
             for row, kind in zip(rows, kinds, strict=True)],
        )  # fmt: skip
    for index in MEASURED.indexes:
        index.create(connection)


def _add_column(connection: sa.Connection, column: str, table: sa.Table = MEASURED) -> None:
    """Add a column to a table where it is missing."""
    there = {found["name"] for found in sa.inspect(connection).get_columns(table.name)}
    if column.partition(" ")[0] not in there:
        connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {column}"))


STEPS: dict[int, Callable[[sa.Connection], None]] = {  # by the version that they reach, the last `VERSION`
    2: lambda connection: _add_column(connection, "kind_id INTEGER"),  # room for each row's kind
    3: _to_version_3,
}
