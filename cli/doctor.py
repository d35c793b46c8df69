"""``jointopt doctor``."""

from __future__ import annotations

from pathlib import Path

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="What works on this machine, and what to install for the rest.")
@click.option("--quick", is_flag=True, help="Do not measure how fast products, memory and links are.")
@click.option("--probe", is_flag=True, help="Measure links, products and memory alone, and write the machine file.")
@click.option(
    "--out", type=common.PATH, metavar="MACHINE.yaml", help="File that --probe writes; machine.yaml by default."
)
@common.database("Database URL to look at.", needed=False)
@common.output_options
def doctor(quick: bool, probe: bool, out: Path | None, storage: str, as_json: bool) -> None:
    """Print what this machine has, what of jointopt works on it, and a cluster section for the job file.

    Nothing is changed: no clock is set, no file made. With --probe it measures links, products and memory
    for a few seconds, on all ranks where torchrun or srun starts it on several, and writes one file for --machine.

    \b
    Examples:
      jointopt doctor
      jointopt doctor --quick --json > diagnosis.json
      jointopt doctor --probe --out machine.yaml
      srun --ntasks-per-node 8 jointopt doctor --probe
    """
    from jointopt.workflows import doctor as workflow

    if out and not probe:
        raise click.UsageError("--out is the file of --probe; give both, or neither.")
    if probe:
        if found := workflow.probe(out or Path("machine.yaml")):
            common.answer(found, as_json)
        return
    common.answer(workflow.diagnose(storage, speeds=not quick), as_json)
