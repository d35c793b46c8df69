"""``jointopt tune``."""

from __future__ import annotations

from pathlib import Path

import click

from jointopt.cli import common


@click.command(short_help="Run the most promising plans, learn from each.")
@click.argument("job")
@click.option("--launcher", required=True, help="What runs a plan; replay returns rows of --table.")
@click.option("--budget", required=True, type=click.IntRange(min=1), help="Runs at most.")
@click.option(
    "--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Plans chosen at a time."
)
@click.option("--table", type=click.Path(path_type=Path), help="Recorded runs, for the launcher replay.")
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of the choices."
)
@click.option(
    "--storage",
    default="sqlite:///jointopt.db",
    show_default=True,
    help="Database URL for what is measured; none = keep nothing.",
)
@common.as_json
@click.pass_context
def tune(
    ctx: click.Context, job: str, launcher: str, budget: int, batch: int, table: Path | None, seed: int,
    storage: str, as_json: bool,
) -> None:  # fmt: skip
    """Run plans of JOB one after the other, each the most promising by all that was measured before.

    JOB is a job file or the name of a shipped job. A plan that runs out of memory is a result too. Every run is
    stored before the next begins; Ctrl-C loses the one in flight and prints the others. What --storage holds of the
    job's plans is not run again.

    \b
    Example:
      jointopt tune job.yaml --launcher replay --table runs.csv --budget 12
    """
    from jointopt.report.plain import json_text
    from jointopt.report.tune_json import tune_document
    from jointopt.report.tune_text import tuned_text
    from jointopt.tuning import tune as run

    url = None if storage == "none" else storage
    found = run(
        common.job_of(job, {}),
        launcher,
        budget,
        batch=batch,
        seed=seed,
        storage=url,
        progress=common.progress,
        table=table,
    )
    click.echo(json_text(tune_document(found)) if as_json else tuned_text(found))
    if found.stopped == "interrupted":
        ctx.exit(130)
