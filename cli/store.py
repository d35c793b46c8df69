"""``jointopt store``."""

from __future__ import annotations

from pathlib import Path

import click

from jointopt.cli import common

_storage = common.database("Database URL of the store.")


@click.group(short_help="Check, copy, repair and export the store of runs.")
def store() -> None:
    """The measurements that `ingest`, `tune` and `validate` keep, and the database around them.

    \b
    Examples:
      jointopt store check
      jointopt store backup jointopt-backup.db
      jointopt store export runs.csv.gz
    """


@store.command()
@_storage
@click.pass_context
def check(ctx: click.Context, storage: str) -> None:
    """Read every row and compare it with the hash that it was added with; nothing is changed.

    The exit code is 1 where something is wrong.
    """
    from jointopt.runs.store import check_store

    found = check_store(storage)
    for line in (*found.facts, *(f"Fault: {fault}." for fault in found.faults)):
        click.echo(line)
    ctx.exit(1 if found.faults else 0)


@store.command()
@click.argument("out", type=common.PATH)
@_storage
def backup(out: Path, storage: str) -> None:
    """Write a copy into the SQLite file OUT, while others may go on writing.

    Of an SQLite file all of it, studies included; of PostgreSQL the measurements (pg_dump copies all).
    """
    from jointopt.runs.store import back_up

    click.echo(f"{out}: {back_up(storage, out):,} bytes.")


@store.command()
@_storage
def repair(storage: str) -> None:
    """Replace a damaged SQLite file by one with all that can be read; the damaged one is kept beside it."""
    from jointopt.runs.store import repair_store

    kept, saved, lost = repair_store(storage)
    missing = f", {lost:,} or more could not be read" if lost else ""
    click.echo(f"{saved:,} runs were saved{missing}; the damaged file is {kept}." if kept else "Nothing is damaged.")


@store.command()
@click.argument("out", type=common.PATH)
@_storage
def export(out: Path, storage: str) -> None:
    """Write all runs but those retracted into the CSV or CSV.gz file OUT, which `ingest` reads."""
    from jointopt.runs.store import Store
    from jointopt.runs.table import write_table

    rows = Store(storage).read()
    write_table(rows.dropna(axis=1, how="all"), out)
    click.echo(f"{out}: {len(rows):,} runs.")
