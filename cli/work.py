"""``jointopt work``."""

from __future__ import annotations

import signal
import sys
from typing import Any

import click

from jointopt.cli import common, launching


@click.command(cls=common.Command, short_help="Join the workers that search a job together.")
@click.argument("job")
@common.model_options("all workers; of several machines: postgresql+psycopg://user@host/name")
@click.option("--trials", type=click.IntRange(min=1), default=1000, show_default=True, help="Plans by all workers.")
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Plans taken at once.")
@click.option("--evaluate", metavar="MODULE:FUNCTION", help="FUNCTION that evaluates plans; by default the physics.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes of Dask that call FUNCTION, here or by Slurm.")
@click.option("--dask", metavar="ADDRESS", help="Dask scheduler whose workers call it, tcp://HOST:PORT, or slurm.")
@click.option(
    "--lease", "lease_s", type=click.FloatRange(min=1), default=60, show_default=True,
    help="Seconds of silence after which others take a worker's plans over.",
)  # fmt: skip
@common.seed("Seed of the search's random numbers.")
@click.option("--study", help="Name of the shared study; by default the job's name and version.")
@launching.optional_launcher
def work(
    job: str, basis: dict[str, Any], trials: int, batch: int, evaluate: str | None, lease_s: float, seed: int,
    study: str | None, launcher: str | None, dask: str | None, workers: int | None, **options: Any,
) -> None:  # fmt: skip
    """Evaluate plans of JOB until all workers together have --trials of them; start as many workers as you like.

    JOB is a job file or the name of a shipped job. No plan is evaluated twice, whichever workers and machines take
    part; plans of a worker that dies are taken over by the others, and a search that was cut off goes on when a worker
    starts again. FUNCTION(job, plans) gets columns of plans and returns their iteration_time_s, energy_j and further
    objectives of the job, all of which are searched by; with --launcher, plans are run for real and measured. Where
    FUNCTION is slow, --workers or --dask run many calls at once, and repeat those of a lost worker.

    \b
    Examples:
      jointopt work job.yaml --storage postgresql+psycopg://me@host/studies --trials 5000
      jointopt work job.yaml --evaluate my_cluster:run --batch 1
      jointopt work job.yaml --evaluate my_simulator:run --batch 1 --workers 16 --dask slurm
      jointopt work job.yaml --launcher megatron --checkout Megatron-LM --batch 1 --trials 40
    """
    from jointopt.workflows import work as workflow

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is in flight is given back on the way out
    if basis["storage"] is None:
        raise click.UsageError("--storage: workers need a database that they share; got none.")
    found = workflow.work(
        common.job_of(job, changes=launching.job_changes(options)), trials=trials, batch=batch, seed=seed,
        evaluate=evaluate, lease_s=lease_s, study=study, launcher=launcher, dask=dask, workers=workers or 0, **basis,
        **launching.launcher_arguments(options),
    )  # fmt: skip
    click.echo(found.text(basis["storage"]))
