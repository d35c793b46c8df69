"""``jointopt explain``."""

from __future__ import annotations

from typing import Any

import click

from jointopt.cli import common
from jointopt.cli.plan import Plan, plan_words
from jointopt.cli.plan import option as plan_option


@click.command(cls=common.Command, short_help="Take one plan apart.")
@click.argument("job", required=False)
@common.shape_options
@plan_option()
@common.allow_tight
@common.pue
@common.job_changes
@common.model_options()
@common.output_options
@common.verbose
@click.pass_context
def explain(
    ctx: click.Context, /, job: str | None, plan: Plan, pue: float | None, changes: dict[str, Any],
    basis: dict[str, Any], as_json: bool, allow_tight: bool, verbose: bool, **shape: Any,
) -> None:  # fmt: skip
    """Take one plan of JOB apart: time, energy and memory by part, and why it is or is not feasible.

    A row of the table that propose prints is a plan too, with its short names: mbs, sp, rc, ZeRO, clock=1800x7,1860.

    \b
    Examples:
      jointopt explain opt-350m-2x4-a100 --plan "dp=4 tp=2 micro_batch_size=1 clock_mhz=1410"
      jointopt explain job.yaml --plan out/proposal.json:2 -v
    """
    from jointopt.workflows import explain as workflow

    basis |= {"source": common.job_words(job, shape, changes), "given": plan_words(ctx, basis["storage"])[0]}
    found = workflow.explain(common.job_of(job, shape, pue, changes), plan, ranked=True, **basis)
    common.answer(found, as_json, allow_tight=allow_tight, brief=not verbose)
