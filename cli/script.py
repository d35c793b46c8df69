"""``jointopt script``."""

from __future__ import annotations

from typing import Any

import click

from jointopt.cli import common, launching
from jointopt.cli.plan import Plan
from jointopt.cli.plan import option as plan_option
from jointopt.core.errors import PlanError


@click.command(cls=common.Command, short_help="Print what would be run for a plan.")
@click.argument("job")
@plan_option()
@launching.launcher_options
def script(job: str, plan: Plan, launcher: str, **options: Any) -> None:
    """Print what a launcher would start for one plan of JOB: the script that Slurm receives, or a command line.

    Nothing is submitted or written, and a plan that is not one of the job's is refused. Clocks that the launcher
    would set are not part of a command line. The section slurm of the job file and its cluster fill Slurm's script.

    \b
    Examples:
      jointopt script job.yaml --launcher slurm --plan "tp=2 pp=2 mbs=1"
      jointopt script job.yaml --launcher megatron --checkout Megatron-LM --plan "tp=2"
    """
    from jointopt.jobs.plans.rules import check_plan
    from jointopt.jobs.plans.text import parse_plan
    from jointopt.measure.base import load_launcher, script_of

    the_job = common.job_of(job, changes=launching.job_changes(options))
    parsed = parse_plan(plan, the_job)
    record = parsed.record
    if broken := check_plan(the_job, record):
        raise PlanError(" ".join(broken))
    click.echo(script_of(load_launcher(launcher, **launching.launcher_arguments(options)), the_job, record), nl=False)
