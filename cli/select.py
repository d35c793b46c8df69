"""``jointopt select``."""

from __future__ import annotations

from typing import Any

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Choose a stored plan under limits.")
@click.argument("front_or_study")
@click.option("--max-iteration-time-s", type=float, help="Deadline of one iteration.")
@click.option("--max-energy-j", type=float, help="Energy of one iteration, all GPUs (with --facility: the site).")
@click.option("--max-power-w", type=float, help="Mean power of a GPU.")
@click.option("--max-cluster-kw", type=float, help="Mean power of GPUs and hosts, times PUE.")
@click.option(
    "--objective",
    type=click.Choice(["time", "energy", "edp", "knee"]),
    help="What counts as best; by default energy under a deadline, time under an energy or power limit, else the knee.",
)
@click.option("--facility", is_flag=True, help="Energy is that of the site: with hosts, times PUE.")
@click.option("--at-high-end", is_flag=True, help="Keep limits at the upper end of the 90 % intervals.")
@click.option(
    "--storage", help="Optuna storage URL of the study; by default $JOINTOPT_STORAGE, else sqlite:///jointopt.db."
)
@click.option("--job", help="Job of the plans, for host power, PUE, carbon and prices; by default the stored one.")
@common.surrogate_option(None)
@common.allow_tight
@common.pue
@common.output_options
def select(front_or_study: str, job: str | None, as_json: bool, storage: str | None, **options: Any) -> None:
    """Choose the best stored plan under limits, and say which limit binds and what relaxing it by 5 % would buy.

    FRONT_OR_STUDY is proposal.json or front.csv of `propose --out`, the folder, the output of `propose --json`, the
    name of a stored study, or - for what `propose --json` prints into a pipe. Of a study of real runs, which `tune` and
    `validate` store, values are those measured.

    \b
    Examples:
      jointopt select out --max-energy-j 9000
      jointopt select out/front.csv --max-iteration-time-s 12 --max-power-w 320
      jointopt select opt-350m-2x4-a100-1f0c3503 --max-cluster-kw 4 --facility --json
    """
    from jointopt.workflows import select as workflow

    storage = common.storage_of_study(front_or_study, storage)
    found = workflow.select(front_or_study, job=None if job is None else common.job_of(job), storage=storage, **options)
    common.answer(found, as_json)
