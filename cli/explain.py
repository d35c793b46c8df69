"""``jointopt explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from jointopt.cli import common

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.spec.calibration import Calibration


@click.command(short_help="Take one plan apart.")
@click.argument("job")
@click.option("--plan", required=True, help="Words such as dp=4 tp=2, or a JSON mapping.")
@common.surrogate
@common.measured
@common.calibration
@common.storage("what was measured")
@common.as_json
def explain(
    job: str, plan: str, surrogate: str, measured: pd.DataFrame | None, calibration: Calibration | None,
    storage: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Take one plan of JOB apart: time, energy and memory by part, and why it is or is not feasible.

    A row of the table that propose prints is a plan too, with its short names: mbs, sp, rc, ZeRO, clock=1800x7,1860.

    \b
    Example:
      jointopt explain opt-350m-2x4-a100 --plan "dp=4 tp=2 micro_batch_size=1 clock_mhz=1410"
    """
    from jointopt.report.plain import json_text
    from jointopt.spec.calibration import calibrated
    from jointopt.workflows import propose as workflow

    explanation = workflow.explain(
        calibrated(common.job_of(job, {}), calibration), plan, surrogate=surrogate, measured=measured,
        storage=storage,
    )  # fmt: skip
    click.echo(json_text(explanation.to_dict()) if as_json else explanation.text())
