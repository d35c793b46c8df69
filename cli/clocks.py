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
@click.option("--all", "everything", is_flag=True, help="Clocks and power limits of all GPUs, whoever set them.")
def restore(everything: bool) -> None:
    """End what runs that were killed (SIGKILL) have left, and put clocks back to the driver, limits to what they were.

    A run's guardian does so by itself; this is for where that was killed too. --all also gives every GPU the driver's
    default power limit, and no power profile. GPUs that a living run holds are left alone, except with --all.
    """
    from jointopt.measure.hardware.gpu_clocks import reset_all
    from jointopt.measure.hardware.gpu_clocks import restore as undo
    from jointopt.measure.hardware.guard.guarded import end_leftover_runs, remove_leftover_folders

    ended = end_leftover_runs()
    remove_leftover_folders()
    for sentence in [*ended, *(reset_all() if everything else undo())] or ["Nothing to put back."]:
        click.echo(sentence)
