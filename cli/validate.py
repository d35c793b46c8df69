"""``jointopt validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common, launching


@click.command(cls=common.Command, short_help="Run the best proposed plans, compare with what was predicted.")
@click.argument("job")
@launching.launcher_options
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Plans to run.")
@common.seed("Seed of the search's random numbers.")
@click.option("--again", is_flag=True, help="Run plans again that --storage has measured.")
@common.alike
@common.pue
@launching.log
@common.model_options("what is measured, and of the study that shows it")
@common.report
@common.output_options
@common.verbose
@click.pass_context
def validate(
    ctx: click.Context, /, job: str, launcher: str, top: int, seed: int, again: bool, alike: bool,
    pue: float | None, basis: dict[str, Any], report: Path | None, log: str, as_json: bool,
    verbose: bool, **options: Any,
) -> None:  # fmt: skip
    """Run the best plans that propose finds for JOB, spread along its front, and the default to compare with.

    Prints what was predicted beside what was measured. Slurm has all runs in its queue at once. Every run is stored as
    soon as it ends; Ctrl-C ends what is on its way and prints the others. What --storage has measured moves the
    predictions, and is not run again.

    \b
    Examples:
      jointopt validate job.yaml --launcher torchrun --top 3
      jointopt validate job.yaml --launcher megatron --checkout Megatron-LM --json > validated.json
    """
    from jointopt.workflows import validate as workflow

    launching.begin_runs(launcher, options)
    changes = launching.job_changes(options)
    found = workflow.validate(
        common.job_of(job, pue=pue, changes=changes), launcher, top, seed=seed, again=again,
        alike=alike, log=log, source=common.job_words(job, {}, changes), **basis,
        **launching.launcher_arguments(options),
    )  # fmt: skip
    if report:
        common.write_report(found.report(), report)
    common.answer(found, as_json, brief=not verbose, written=report is not None)
    launching.end_command(ctx, found.stopped, found.fault)
