"""``jointopt mcp``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Serve agents by the Model Context Protocol.")
@click.option(
    "--folder", type=click.Path(path_type=Path, exists=True, file_okay=False), default=".", show_default=True,
    help="Folder whose job files may be read; nothing outside of it is.",
)  # fmt: skip
@click.option("--write", "writes", is_flag=True, help="Exports may be written into the folder; by default nothing is.")
def mcp(folder: Path, writes: bool) -> None:
    """Serve propose, explain, compare, scale, export and catalog to an agent, over standard input and output.

    Nothing is run and nothing is stored. Needs the package mcp: pip install 'jointopt[mcp]'.

    \b
    Example:
      claude mcp add jointopt -- jointopt mcp --folder jobs
    """
    if importlib.util.find_spec("mcp") is None:
        raise click.UsageError("The package mcp is not installed; install it: pip install 'jointopt[mcp]'.")
    from jointopt.workflows.mcp_server import server_of

    server_of(folder, writes=writes).run("stdio")
