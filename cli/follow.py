"""``jointopt follow``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common
from jointopt.cli.plan import Plan
from jointopt.cli.plan import option as plan_option


@click.command(cls=common.Command, short_help="Schedule a plan's clocks over limits or prices of power.")
@click.argument("job", required=False)
@plan_option("; by default the plan that propose recommends", required=False)
@click.option("--signal", type=common.PATH, required=True, metavar="S.csv",
              help="Columns time_s and limit_kw, reduce_percent, price_per_kwh or carbon_g_per_kwh.")  # fmt: skip
@click.option("--tokens-by", type=float, metavar="TOKENS", help="Tokens that must be made by the end of the signal.")
@click.option("--dwell-s", type=float, default=0.0, help="Least time in s between changes of clocks.")
@click.option("--ramp-kw-per-min", type=float, help="Most that the power of the site may change in a minute.")
@click.option("--change-layouts", type=click.IntRange(0, 5), default=0, metavar="N",
              help="Change to N other layouts too, by a checkpoint and a restart, where that pays.")  # fmt: skip
@click.option("--load", type=common.PATH, metavar="FILE.csv", help="Write the power as a training trace of OpenG2G.")
@common.report
@common.verbose
@common.allow_tight
@common.pue
@common.job_changes
@common.model_options()
@common.output_options
def follow(
    job: str | None, plan: Plan | None, load: Path | None, report: Path | None, verbose: bool,
    allow_tight: bool, pue: float | None, changes: dict[str, Any], basis: dict[str, Any], as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Schedule the clocks of a plan of JOB over a signal: limits of power, reductions, prices or carbon.

    \b
    Examples:
      jointopt follow llama-3-70b-4x8-h200 --signal limits.csv
      jointopt follow job.yaml --plan "dp=4 tp=2" --signal prices.csv --dwell-s 1800
    """
    from jointopt.workflows import follow as workflow

    job_ = common.job_of(job, pue=pue, changes=changes)
    found = workflow.follow(job_, plan, allow_tight=allow_tight, **asked, **basis)
    if load:
        with common.writing("--load"):
            common.remark(f"Written: {load}; {found.write_load(load)}")
    if report:
        common.write_report(found.report(), report)
    common.answer(found, as_json, verbose=verbose)
