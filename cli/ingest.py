"""``jointopt ingest``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Add measured runs to the store.")
@click.argument("table", type=click.Path(path_type=Path))
@click.option(
    "--storage", default="sqlite:///jointopt.db", show_default=True, help="Database URL, as for propose."
)
@click.pass_context
def ingest(ctx: click.Context, table: Path, storage: str) -> None:
    """Add the measured runs of TABLE, a CSV or CSV.gz file with one run per row, to the store.

    A run that is there already is not added twice. A row that cannot be true is named on stderr with its line and
    column; the other rows are added, and the exit code is 2. Blank cells are unknown, and columns that jointopt
    does not know are kept. Rows that are kept but teach nothing (a GPU of no known name, no result) are told too.

    \b
    Example:
      jointopt ingest runs.csv
    """
    from jointopt.gpu_rules import MEASUREMENT_RULES
    from jointopt.report.unused import unused_lines
    from jointopt.store import Store
    from jointopt.tables import problem_lines, read_measurements

    good, problems = read_measurements(table, MEASUREMENT_RULES)
    added = Store(storage).add(good, origin=str(table.resolve()))
    refused = problem_lines(problems)
    for line in [*refused, *unused_lines(good)]:
        click.echo(f"{table}, {line}", err=True)
    click.echo(f"{added.new:,} rows added, {added.known:,} known already, {len(refused):,} refused.")
    ctx.exit(2 if refused else 0)
