"""``jointopt catalog``."""

from __future__ import annotations

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="List what is known by name.")
@click.argument("what", type=click.Choice(["gpus", "models", "frameworks", "clusters", "jobs", "recipes"]))
@click.option("--model", metavar="NAME", help="Only recipes of that model.")
@common.output_options
def catalog(what: str, model: str | None, as_json: bool) -> None:
    """List what jointopt knows by name; a dash is a figure that no source states.

    \b
    Examples:
      jointopt catalog gpus
      jointopt catalog models --json
      jointopt catalog recipes --model llama-3-405b
    """
    from jointopt.report.listing import listing, listing_text

    if model is not None and what != "recipes":
        raise click.UsageError("--model goes with recipes.")
    rows = listing(what, model or "")
    common.list_rows(rows, lambda: listing_text(rows), as_json)
