"""``jointopt goodput``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common
from jointopt.cli.plan import Plan
from jointopt.cli.plan import option as plan_option

_KEYS: tuple[tuple[str, dict[str, Any]], ...] = (  # of the section reliability, which --set has all of
    ("--failures-per-gpu-hour", {"type": float, "help": "Of what stops the run (2e-5)."}),
    ("--spares", {"type": int, "help": "Nodes that stand by."}),
    ("--policy", {"multiple": True, "metavar": "NAME",
                  "help": "After a failure: restart, spare, drop_replica, nonuniform_tp; of several the fastest."}),
)  # fmt: skip


@click.command(cls=common.Command, short_help="Plan the whole run: failures, checkpoints, spares.")
@click.argument("job", required=False)
@common.shape_options
@plan_option("; by default the plan that propose recommends", required=False)
@click.option(
    "--from",
    "logs",
    multiple=True,
    type=common.PATH,
    metavar="FILE",
    help="A log of a run, or a table of sacct, to measure failures and restarts by; may be repeated.",
)
@common.options(_KEYS)
@click.option("--simulate", type=int, default=0, help="Play that many runs event by event too, for their spread.")
@common.seed("Of the simulation.")
@common.report
@common.allow_tight
@common.pue
@common.job_changes
@common.model_options()
@common.output_options
@common.verbose
def goodput(
    job: str | None, plan: Plan | None, logs: tuple[Path, ...], simulate: int, seed: int, pue: float | None,
    changes: dict[str, Any], basis: dict[str, Any], report: Path | None, as_json: bool, allow_tight: bool,
    verbose: bool, failures_per_gpu_hour: float | None, spares: int | None, policy: tuple[str, ...], **shape: Any,
) -> None:  # fmt: skip
    """Time to train, energy and money of the whole run of JOB, with what stops it: the section reliability.

    JOB is a job file or the name of a shipped job; the options from --model to --framework make a job without a file.

    \b
    Examples:
      jointopt goodput llama-3-70b-4x8-h200 --run-tokens 15.6e12
      jointopt goodput job.yaml --from train-1.log --from train-2.log --from sacct.txt
      jointopt goodput job.yaml --plan "dp=4 tp=2" --spares 1 --simulate 10000 --report run.html
    """
    from jointopt.workflows import goodput as workflow

    named = {"failures_per_gpu_hour": failures_per_gpu_hour, "spares": spares, "policy": list(policy) or None}
    changes |= {f"reliability.{key}": value for key, value in named.items() if value is not None}
    the_job = common.job_of(job, shape, pue, changes)
    found = workflow.goodput(the_job, plan, logs=logs, simulate=simulate, seed=seed, **basis)
    if report:
        common.write_report(found.report(), report)
    common.answer(found, as_json, allow_tight=allow_tight, brief=not verbose)
