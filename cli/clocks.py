"""``jointopt clocks``."""

from __future__ import annotations

import click


@click.group(short_help="Put GPU clocks back after a kill.")
def clocks() -> None:
    """GPU clocks that jointopt has set.

    \b
    Example:
      jointopt clocks restore
    """


@clocks.command()
@click.option("--all", "everything", is_flag=True, help="Clocks of all GPUs of this machine, whoever set them.")
def restore(everything: bool) -> None:
    """Put back what runs that were killed (SIGKILL) have left: clocks to the driver, power limits to what they were.

    Everything else that ends a run puts clocks back by itself. GPUs that a living run holds are left alone, except
    with --all.
    """
    from jointopt.measure.devices.clocks import reset_all
    from jointopt.measure.devices.clocks import restore as undo

    for sentence in (reset_all() if everything else undo()) or ["Nothing to put back."]:
        click.echo(sentence)
