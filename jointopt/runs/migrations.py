"""The tables of the store, and the numbered steps that bring a database of an earlier version up to this one.

Version 1 is a measurement per row, as it came, in JSON. Version 2 adds of what kind each is (GPU, GPUs per node,
framework, model: typed columns of a small table that the rows point to), so that only related rows need be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from jointopt.runs.database import MEASUREMENTS, make_table

VERSION = 2
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
    sa.Index("jointopt_measurements_by_kind", "kind_id", "id"),
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
    sa.UniqueConstraint("gpu", "gpus_per_node", "framework", "model"),
)
SCHEMA = sa.Table(
    "jointopt_schema",
    METADATA,
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("reached_at", sa.String(32), nullable=False, server_default=sa.func.current_timestamp()),
)
Kind = tuple[str, int, str, str]


def kind_of(content: Mapping[str, Any]) -> Kind:
    """GPU, GPUs per node, framework and model of a row, as it spells them."""
    per_node = content.get("gpus_per_node")
    words = [str(content.get(name) or "")[:200] for name in ("gpu", "framework", "model")]
    return words[0], per_node if isinstance(per_node, int) else 0, words[1], words[2]


def migrate(engine: sa.Engine) -> None:
    """Make the tables where they are missing, and take the steps that are; of several processes that do, all win."""
    if version(engine) == VERSION:
        return
    fresh = not sa.inspect(engine).has_table(MEASURED.name)
    for table in (SCHEMA, MEASURED, RETRACTED, KINDS):
        make_table(engine, table)
    with engine.begin() as connection:
        if not fresh:
            _to_version_2(connection)
        known = sa.select(SCHEMA.c.version).where(SCHEMA.c.version == VERSION)
        if connection.scalar(known) is None:
            connection.execute(sa.insert(SCHEMA).values(version=VERSION))


def version(engine: sa.Engine) -> int:
    """The version of the store in a database; 0 where it holds none."""
    there = sa.inspect(engine)
    if there.has_table(SCHEMA.name):
        with engine.connect() as connection:
            return int(connection.scalar(sa.select(sa.func.max(SCHEMA.c.version))) or 1)
    return int(there.has_table(MEASURED.name))


def kind_ids(connection: sa.Connection, kinds: Iterable[Kind]) -> dict[Kind, int]:
    """Numbers of kinds, those that are new made."""
    names = (KINDS.c.gpu, KINDS.c.gpus_per_node, KINDS.c.framework, KINDS.c.model)
    known = {tuple(row[1:]): row[0] for row in connection.execute(sa.select(KINDS.c.id, *names))}
    for kind in dict.fromkeys(kinds):
        if kind not in known:
            values = dict(zip(("gpu", "gpus_per_node", "framework", "model"), kind, strict=True))
            made = connection.execute(sa.insert(KINDS).values(**values)).inserted_primary_key
            known[kind] = made[0] if made else 0
    return known


def _to_version_2(connection: sa.Connection) -> None:
    """Say of each row of what kind it is."""
    columns = {column["name"] for column in sa.inspect(connection).get_columns(MEASURED.name)}
    if "kind_id" not in columns:
        connection.execute(sa.text(f"ALTER TABLE {MEASURED.name} ADD COLUMN kind_id INTEGER"))
    for index in MEASURED.indexes:
        index.create(connection, checkfirst=True)
    while rows := connection.execute(
        sa.select(MEASURED.c.id, MEASURED.c.content).where(MEASURED.c.kind_id.is_(None)).limit(_BATCH)
    ).all():
        kinds = [kind_of(row.content) for row in rows]
        known = kind_ids(connection, kinds)
        connection.execute(
            sa.update(MEASURED).where(MEASURED.c.id == sa.bindparam("row")),
            [{"row": row.id, "kind_id": known[kind]} for row, kind in zip(rows, kinds, strict=True)],
        )
