"""``jointopt goodput``."""

from __future__ import annotations

from typing import Any

import click

from jointopt.cli import common
from jointopt.cli.plan import Plan
from jointopt.cli.plan import option as plan_option


@click.command(cls=common.Command, short_help="Plan the whole run: failures, checkpoints, spares.")
@click.argument("job", required=False)
@plan_option("; by default the plan that propose recommends", required=False)
@click.option("--simulate", type=int, default=0, help="Play that many runs event by event too, for their spread.")
@common.seed("Of the simulation.")
@common.allow_tight
@common.pue
@common.job_changes
@common.model_options()
@common.output_options
def goodput(
    job: str | None, plan: Plan | None, simulate: int, seed: int, pue: float | None, changes: dict[str, Any],
    basis: dict[str, Any], as_json: bool, allow_tight: bool,
) -> None:  # fmt: skip
    """Time to train, energy and money of the whole run of JOB, with what stops it: the section reliability.

    \b
    Examples:
      jointopt goodput llama-3-70b-4x8-h200 --run-tokens 15.6e12
      jointopt goodput job.yaml --plan "dp=4 tp=2" --set reliability.spares=1 --simulate 10000
    """
    from jointopt.workflows import goodput as workflow

    found = workflow.goodput(common.job_of(job, pue=pue, changes=changes), plan, simulate=simulate, seed=seed, **basis)
    common.answer(found, as_json, allow_tight=allow_tight)
