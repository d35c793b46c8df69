"""``jointopt doctor``."""

from __future__ import annotations

import click

from jointopt.cli import common


@click.command(short_help="What works on this machine, and what to install for the rest.")
@click.option("--quick", is_flag=True, help="Do not measure how fast products, memory and links are.")
@common.database("Database URL to look at.")
@common.as_json
def doctor(quick: bool, storage: str, as_json: bool) -> None:
    """Print what this machine has, what of jointopt works on it, and a cluster section for the job file.

    Nothing is changed: no clock is set, no file made.

    \b
    Examples:
      jointopt doctor
      jointopt doctor --quick --json > machine.json
    """
    from jointopt.workflows.doctor import diagnose

    common.answer(diagnose(storage, speeds=not quick), as_json)
