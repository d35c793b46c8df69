"""``jointopt dashboard``."""

from __future__ import annotations

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Open the stored studies in a browser.")
@common.database("Database URL of the studies.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="Port on this machine; 0 = any."
)  # fmt: skip
@click.option("--study", help="Name of the study to point to; by default the newest.")
@click.option("--edit", is_flag=True, help="Let the page change and delete studies; by default it only shows them.")
def dashboard(storage: str, port: int, study: str | None, edit: bool) -> None:
    """Start optuna-dashboard on the stored studies and print its URL; Ctrl-C ends it.

    Only browsers on this machine that have the token in the URL can reach it. A study's page shows its front under
    "Graph", what its plans are under "Note" and in every trial, and which trials break a constraint.

    \b
    Examples:
      jointopt dashboard
      jointopt dashboard --storage postgresql+psycopg://me@host/studies --port 0
    """
    from jointopt.search.studies.dashboard import serve

    serve(storage, port, study, lambda name, url: click.echo(f"{name}\n  {url}\nCtrl-C ends it."), edit)
