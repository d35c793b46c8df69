"""``jointopt fleet``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Share a site's power between jobs.")
@click.argument("jobs", nargs=-1, required=True)
@click.option("--site-kw", type=float, required=True, help="Power of the site at its meter, which is never exceeded.")
@click.option("--fleet-file", type=common.PATH, metavar="FLEET.yaml",
              help="Priorities, deadlines and sizes of the jobs, and limits of rows, racks and nodes.")  # fmt: skip
@common.report
@common.verbose
@common.allow_tight
@common.pue
@common.job_changes
@common.model_options()
@common.output_options
def fleet(
    jobs: tuple[str, ...], site_kw: float, fleet_file: Path | None, report: Path | None, verbose: bool,
    allow_tight: bool, pue: float | None, changes: dict[str, Any], basis: dict[str, Any], as_json: bool,
) -> None:  # fmt: skip
    """Share the power of a site between JOBS: a plan with its clocks and size, or a pause, for each.

    JOBS are job files or names of shipped jobs. Deadlines go first, then the mean of all tokens/s against those without
    a limit, weighted by priority.

    \b
    Examples:
      jointopt fleet llama-3-70b-4x8-h200 mixtral-8x22b-8x8-h100 --site-kw 90
      jointopt fleet jobs/*.yaml --site-kw 400 --fleet-file fleet.yaml
    """
    from jointopt.workflows import fleet as workflow

    named = [common.job_of(job, pue=pue, changes=changes) for job in jobs]
    asked = {"fleet_file": fleet_file, "allow_tight": allow_tight, **basis}
    found = workflow.fleet(named, site_kw=site_kw, **asked)
    if report:
        common.write_report(found.report(), report)
    common.answer(found, as_json, verbose=verbose)
