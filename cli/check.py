"""``jointopt check``."""

from __future__ import annotations

from typing import Any

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Read a job file and say what it stands for.")
@click.argument("job")
@common.job_changes
@common.output_options
def check(job: str, changes: dict[str, Any], as_json: bool) -> None:
    """Read JOB and say what it stands for: model, GPUs, layouts that fit, and what is assumed; nothing is searched.

    An error in the job file is one sentence that names the key.

    \b
    Example:
      jointopt check job.yaml --set cluster.nodes=4
    """
    from jointopt.workflows import check as workflow

    common.answer(workflow.check(common.job_of(job, changes=changes)), as_json)
