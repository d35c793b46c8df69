"""``jointopt script``."""

from __future__ import annotations

from typing import Any

import click

from jointopt.cli import common, launching


@click.command(short_help="Print what would be run for a plan.")
@click.argument("job")
@click.option("--plan", required=True, help="Words such as dp=4 tp=2, or a JSON mapping.")
@launching.launcher_options
def script(job: str, plan: str, launcher: str, **options: Any) -> None:
    """Print what a launcher would start for one plan of JOB: the script that Slurm receives, or a command line.

    Nothing is submitted or written. The section slurm of the job file and its cluster fill the script.

    \b
    Example:
      jointopt script job.yaml --launcher slurm --plan "tp=2 pp=2 mbs=1"
    """
    from jointopt.measure.launcher import load_launcher, script_of
    from jointopt.plans.parse import parse_plan, plan_records

    asked = common.job_of(job, {})
    parsed = parse_plan(plan, asked)
    record = plan_records(parsed.layouts, parsed.stage_clock_mhz, [0])[0]
    click.echo(script_of(load_launcher(launcher, **launching.told(options)), asked, record), nl=False)
