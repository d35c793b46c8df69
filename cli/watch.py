"""``jointopt watch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common
from jointopt.cli.plan import Plan
from jointopt.cli.plan import option as plan_option


@click.command(cls=common.Command, short_help="Say which ranks of a run are slow, and why.")
@click.argument("logs", nargs=-1, required=True, type=common.PATH)
@plan_option("; by default as the logs say", required=False)
@click.option("--job", metavar="JOB", help="Job of the run: for energy and money.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), help="Ranks of a node; by default as the logs say.")
@click.option("--warmup", type=click.IntRange(min=0), default=1, show_default=True,
              help="First iterations that do not count.")  # fmt: skip
@click.option("--rebalance", is_flag=True, help="Also the clocks, lower for those that wait, that save energy.")
@common.output_options
def watch(logs: tuple[Path, ...], plan: Plan | None, job: str | None, as_json: bool, **options: Any) -> None:
    """Which rank, node or link of a run is slow, since when, of which kind, and what it costs.

    LOGS: of Megatron-LM with --timing-log-level 2 --timing-log-option all; rows of ranks (iteration, rank, time_s, and
    perhaps clock_mhz, temperature_c, throttle) as CSV or JSON lines; or any log with times of iterations, which tells
    when a run became slower, not by which rank.

    \b
    Examples:
      jointopt watch train.log
      jointopt watch ranks.csv --plan "dp=4 tp=2 pp=2" --gpus-per-node 8 --json
      jointopt watch train.log --job job.yaml --plan "dp=4 tp=2 pp=2" --rebalance
    """
    from jointopt.workflows import watch as workflow

    found = workflow.watch(logs, plan, job=common.job_of(job) if job else None, **options)
    common.answer(found, as_json)
