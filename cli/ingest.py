"""``jointopt ingest``."""

from __future__ import annotations

from pathlib import Path

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Add measured runs to the store.")
@click.argument("table", type=common.PATH)
@common.database("Database URL, as for propose.")
@click.option("--retract", is_flag=True, help="Take the rows of TABLE back: they are kept, and never used again.")
@click.pass_context
def ingest(ctx: click.Context, table: Path, storage: str, retract: bool) -> None:
    """Add the measured runs of TABLE, a CSV or CSV.gz file with one run per row, to the store.

    A run that is there already is not added twice. A row that cannot be true (a time, a memory or a power beyond the
    GPU, degrees that do not make its GPUs) is named on stderr with its line and column; the other rows are added, and
    the exit code is 2. Blank cells are unknown, and columns that jointopt does not know are kept. Rows that are kept
    but teach nothing (a GPU of no known name, no result) are reported too.

    The store only grows. --retract marks the stored rows that are equal to those of TABLE, in every cell, as wrong: no
    prediction, retrain or tune reads them any more, also not when they are added again. Correct the cell and add the
    row as a new one.

    \b
    Example:
      jointopt ingest runs.csv
      jointopt ingest wrong.csv --retract
    """
    from jointopt.workflows import ingest as ingesting

    done = ingesting.retract(table, storage) if retract else ingesting.ingest(table, storage)
    for line in done.remarks:
        common.remark(f"{table}, {line}")
    click.echo(done.text)
    ctx.exit(2 if done.refused else 0)
