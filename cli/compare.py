"""``jointopt compare``."""

from __future__ import annotations

from typing import Any

import click

from jointopt.cli import common
from jointopt.cli.plan import Plan, plan_words
from jointopt.cli.plan import option as plan_option


@click.command(cls=common.Command, short_help="Put plans side by side.")
@click.argument("job", required=False)
@plan_option("; without --baseline the first plan is the base", "plans", multiple=True)
@click.option("--baseline", default="", help="What runs today: a plan as of --plan, a script, a config, a log.")
@common.pue
@common.job_changes
@common.model_options()
@common.output_options
@common.verbose
@click.pass_context
def compare(
    ctx: click.Context, /, job: str | None, plans: tuple[Plan, ...], baseline: str, pue: float | None,
    changes: dict[str, Any], basis: dict[str, Any], as_json: bool, verbose: bool,
) -> None:  # fmt: skip
    """Put plans of JOB side by side: time, energy and memory by part, and which parts make the difference.

    \b
    Examples:
      jointopt compare llama-3-8b-1x8-h100 --plan "dp=8 zero_stage=3" --plan "dp=4 tp=2 zero_stage=1"
      jointopt compare job.yaml --plan out/proposal.json:1 --plan out/proposal.json:9
      jointopt compare job.yaml --baseline train.sh --plan "dp=4 tp=2 zero_stage=1"
    """
    from jointopt.workflows import compare as workflow

    basis |= {"source": common.job_words(job, {}, changes), "given": plan_words(ctx, basis["storage"])}
    found = workflow.compare(common.job_of(job, pue=pue, changes=changes), plans, baseline=baseline, **basis)
    common.answer(found, as_json, brief=not verbose)
