"""``jointopt polish``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common
from jointopt.cli.plan import Plan
from jointopt.cli.plan import option as plan_option


@click.command(cls=common.Command, short_help="Give every pass of a plan's pipeline a clock of its own.")
@click.argument("job")
@plan_option("; clocks are per stage")
@click.option(
    "--slowdown", type=float, default=0.0, show_default=True,
    help="Share of the plan's iteration time that the schedule may take longer.",
)  # fmt: skip
@click.option(
    "--solver", type=click.Choice(["lowtime", "linear"]), default="lowtime", show_default=True,
    help="lowtime needs pip install 'jointopt[polish]'; linear is a linear programme.",
)  # fmt: skip
@click.option("--seconds", type=float, default=8.0, show_default=True, help="About how long lowtime may take.")
@click.option("--zeus", type=common.PATH, help="File for Zeus' pipeline frequency optimizer, *.py.")
@common.model_options()
@common.output_options
def polish(job: str, plan: Plan, zeus: Path | None, as_json: bool, basis: dict[str, Any], **options: Any) -> None:
    """Give each forward and backward pass of a micro-batch a clock of its own, for one plan of JOB.

    Passes that nothing waits for run slower, so the iteration takes less energy and no more time than with one clock
    per stage. Prints the schedules that no other beats in time and energy; the plan must have pp of 2 or more.

    \b
    Examples:
      jointopt polish opt-350m-8x4-gh200 --plan "dp=8 pp=4 mbs=4 clock=1980" --slowdown 0.01
      jointopt polish job.yaml --plan "dp=2 pp=8 tp=4 clock=1800x7,1860" --zeus clocks.py
    """
    from jointopt.frameworks.zeus import check_zeus_path, zeus_command
    from jointopt.workflows.polish import polish as polished_plan

    with common.writing("--zeus"):
        if zeus:
            check_zeus_path(zeus)
    polished = polished_plan(common.job_of(job), plan, **basis, **options)
    with common.writing("--zeus"):
        if zeus:
            polished.write_zeus(zeus)
            common.remark(f"Wrote {zeus}. Run it with Zeus:\n  {zeus_command(zeus)}")
    common.answer(polished, as_json)
