"""``jointopt propose``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jointopt.cli import common

if TYPE_CHECKING:
    from jointopt.report.results import Proposal


@click.command(short_help="Search for the plans that no other plan beats.")
@click.argument("job", required=False)
@common.shape_options
@click.option(
    "--save-job", type=click.Path(path_type=Path), help="Write the job file that the options stand for."
)
@click.option(
    "--trials", type=click.IntRange(min=0), default=1000, show_default=True, help="Plans for NSGA-II."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of the search."
)
@common.model_options("studies and measurements, an Optuna storage")
@click.option("--study", help="Name of the stored study; by default the job's name and version.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for proposal.json, front.csv, proposal.txt, record.csv.gz.",
)
@common.as_json
@click.option("--all", "show_all", is_flag=True, help="Print every plan of the front.")
def propose(
    job: str | None, save_job: Path | None, trials: int, seed: int, basis: dict[str, Any], study: str | None,
    out: Path | None, as_json: bool, show_all: bool, **shape: Any,
) -> None:  # fmt: skip
    """Search the joint space of JOB and print the plans that no other plan beats in time and energy.

    JOB is a job file or the name of a shipped job (`jointopt catalog jobs`); the options from --model to
    --framework make a job without a file.

    \b
    Examples:
      jointopt propose opt-350m-2x4-a100
      jointopt propose job.yaml --seed 1 --json > proposal.json
      jointopt propose --model llama-3-8b --gpu h100-sxm5-80gb --gpus 64 \\
          --global-batch-size 512 --seq-length 8192 --save-job job.yaml
    """
    from jointopt.report.plain import json_text
    from jointopt.workflows import propose as workflow

    the_job = common.job_of(job, shape)
    if save_job:
        common.save(the_job, save_job)
    _check(out)
    found = workflow.propose(the_job, trials=trials, seed=seed, study=study, **basis)
    _write(found, out)
    click.echo(json_text(found.to_dict()) if as_json else found.text(show_all=show_all))


def _check(out: Path | None) -> None:
    """Refuses a folder that could not be written after the search."""
    from jointopt.report.files import check_folder

    if out:
        with common.writing("--out"):
            check_folder(out)


def _write(found: Proposal, out: Path | None) -> None:
    from jointopt.report.files import write_proposal

    if out:
        with common.writing("--out"):
            write_proposal(found, out)
