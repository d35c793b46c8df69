"""``jointopt retrain``."""

from __future__ import annotations

from pathlib import Path

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Train a surrogate on measurements.")
@click.option("--table", "tables", multiple=True, type=common.PATH, help="Measurement table; repeatable.")
@click.option(
    "--storage", callback=common.url_or_none,
    help="Database URL of measurements to train on as well; none = use none.",
)  # fmt: skip
@click.option("--out", required=True, type=common.PATH, help="Folder to write.")
@common.seed()
@click.option("--licence", "licences", multiple=True, help="'SOURCE: licence', for the card; repeatable.")
@click.option("--force", is_flag=True, help="Replace a better surrogate too.")
@click.option("--for-others", is_flag=True, help="For clusters not in the tables: learn nothing of single ones.")
@common.report
@common.verbose
@click.option("--plot", type=common.PATH, help="HTML file to write: what moves time and power, by the trees.")
def retrain(
    tables: tuple[Path, ...], storage: str | None, out: Path, seed: int, licences: tuple[str, ...], force: bool,
    for_others: bool, plot: Path | None, report: Path | None, verbose: bool,
) -> None:  # fmt: skip
    """Train a surrogate on all given measurements and print its error on held-out groups and sources.

    \b
    Example:
      jointopt retrain --table runs.csv --table published.csv --out my-surrogate
    """
    from jointopt.workflows import retrain as workflow

    found = workflow.retrain(
        tables=tables, storage=storage, out=out, seed=seed, licences=licences, force=force, for_others=for_others
    )
    click.echo(found.text(brief=not verbose, written=report is not None))
    if report is not None:
        common.write_report(found.report(), report)
    if plot is not None:
        with common.writing("--plot"):
            found.plot().write_html(plot)
