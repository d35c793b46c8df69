"""``jointopt export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common
from jointopt.cli.plan import Plan
from jointopt.cli.plan import option as plan_option


@click.command(cls=common.Command, short_help="Write what starts a plan elsewhere.")
@click.argument("job", required=False)
@common.shape_options
@plan_option()
@click.option("--to", "target", default="", help="megatron, megatron-bridge, torchtitan, deepspeed, nanotron, "
              "accelerate, slurm or kubernetes; by default what runs the job's framework.")  # fmt: skip
@click.option("--version", default="", help="Version of the target; the newest known by default.")
@click.option("--checkout", type=click.Path(path_type=Path, exists=True, file_okay=False),
              help="Checkout of Megatron-LM, which states the version.")  # fmt: skip
@click.option("--program", default="", help="What a batch system starts; the job's own framework by default.")
@click.option("--for", "purpose", type=click.Choice(["benchmark", "training"]), default="benchmark", show_default=True,
              help="benchmark: random data, no checkpoints; training: what recipes set.")  # fmt: skip
@click.option("--arguments", default="", help="Arguments of the program, before those of the plan, which they replace: "
              "data, a recipe.")  # fmt: skip
@click.option("--out", type=common.PATH, help="File, or folder where there are several.")
@common.job_changes
@common.allow_tight
@common.model_options()
@common.json_option
def export(
    job: str | None, plan: Plan, changes: dict[str, Any], basis: dict[str, Any], out: Path | None, as_json: bool,
    target: str, version: str, checkout: Path | None, program: str, purpose: str, arguments: str, allow_tight: bool,
    **shape: Any,
) -> None:  # fmt: skip
    """Write the files and words that start one plan of JOB in a training framework or on a batch system.

    Nothing is run, and neither the framework nor a GPU is needed. What the target cannot express is refused by name,
    and so is a plan that is not expected to fit in memory.

    \b
    Examples:
      jointopt export llama-3-8b-1x8-h100 --plan "dp=4 tp=2 zero_stage=2" --to torchtitan
      jointopt export job.yaml --plan proposal.json:1 --to slurm --out run
    """
    from jointopt.workflows import export as workflow

    found = workflow.export(
        common.job_of(job, shape, changes=changes), plan, target, version=version, checkout=checkout, program=program,
        purpose=purpose, arguments=arguments, allow_tight=allow_tight, **basis,
    )  # fmt: skip
    with common.writing("--out"):
        written = workflow.write(found, out) if out is not None else []
    for path in written:
        common.remark(f"Written: {path}")
    if as_json:
        common.print_json(found.to_dict())
    elif out is None:
        click.echo(found.text(), nl=False)
