"""``jointopt tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common, launching

_ABOVE_ZERO = click.FloatRange(min=0, min_open=True)


@click.command(cls=common.Command, short_help="Run the most promising plans, learn from each.")
@click.argument("job")
@launching.launcher_options
@click.option("--budget", type=click.IntRange(min=1), help="Runs at most.")
@click.option("--gpu-hours", type=_ABOVE_ZERO, help="GPU-hours at most.")
@click.option("--minutes", type=_ABOVE_ZERO, help="Minutes at most.")
@click.option(
    "--batch",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Plans chosen at a time; slurm has all of them in its queue at once.",
)
@common.alike
@common.seed("Of the choices.")
@click.option(
    "--retry-failed", is_flag=True,
    help="Plans that failed or timed out before may run again, their cause gone; out of memory stays known.",
)  # fmt: skip
@click.option(
    "--power-profile", "power_profiles", multiple=True, metavar="NAMES",
    help="Then run the best layouts under NVIDIA's workload power profiles, such as max-q+llm-training; repeatable.",
)  # fmt: skip
@common.pue
@click.option("--run-tokens", type=float, help="Tokens of the training that plans are for (15e12): what runs may cost.")
@launching.log
@common.model_options("what is measured, and of the study that shows it")
@common.report
@common.output_options
@common.verbose
@click.pass_context
def tune(
    ctx: click.Context, /, job: str, launcher: str, budget: int | None, gpu_hours: float | None, minutes: float | None,
    batch: int, alike: bool, seed: int, retry_failed: bool, power_profiles: tuple[str, ...], pue: float | None,
    run_tokens: float | None, basis: dict[str, Any], report: Path | None, log: str, as_json: bool,
    verbose: bool, **options: Any,
) -> None:  # fmt: skip
    """Run plans of JOB, each the most promising by all that was measured before.

    JOB is a job file or the name of a shipped job. A plan that runs out of memory is a result too. The budget is a
    number of runs, GPU-hours, minutes, or several of them; no run begins that would go beyond it if it took as long as
    those before. It ends sooner where no run is expected to save what it costs over the planned training
    (--run-tokens, or the job's). Every run is stored as soon as it ends; Ctrl-C ends what is on its way and prints the
    others, and the same command then goes on with the rest of its budget. A tool that was killed leaves its Slurm jobs
    in the queue, and the same command collects them. What --storage holds of the job's plans is not run again.

    \b
    Examples:
      jointopt tune job.yaml --launcher torchrun --budget 8
      jointopt tune job.yaml --launcher slurm --program torchrun --gpu-hours 20
      jointopt tune job.yaml --launcher replay --table runs.csv --budget 12
    """
    from jointopt.core.budget import Budget
    from jointopt.workflows import tune as workflow

    launching.begin_runs(launcher, options)
    changes = launching.job_changes(options)
    changes |= {} if run_tokens is None else {"training.run_tokens": run_tokens}
    found = workflow.tune(
        common.job_of(job, pue=pue, changes=changes), launcher, Budget(budget, gpu_hours, minutes), batch=batch,
        alike=alike, seed=seed, retry_failed=retry_failed, power_profiles=power_profiles, log=log,
        source=common.job_words(job, {}, changes), **basis,
        **launching.launcher_arguments(options),
    )  # fmt: skip
    if report:
        common.write_report(found.report(), report)
    common.answer(found, as_json, brief=not verbose, written=report is not None)
    launching.end_command(ctx, found.stopped, found.fault)
