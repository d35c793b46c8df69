"""``jointopt propose``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Search for the plans that no other plan beats.")
@click.argument("job", required=False)
@common.shape_options
@click.option("--save-job", type=common.PATH, help="Write the job file that the options stand for.")
@click.option(
    "--trials", type=click.IntRange(min=0), help="Plans for NSGA-II; by default none where all can be enumerated."
)
@common.objectives
@common.seed("Seed of the search's random numbers.")
@common.pue
@common.job_changes
@common.model_options("studies and measurements, an Optuna storage")
@click.option(
    "--study",
    help="Name of the stored study; by default the job's name and version. Where another study has it, -2, -3, ... is "
    "added, and a line on stderr says so.",
)
@click.option(
    "--all-trials", is_flag=True, help="Store every evaluated plan as a trial, not just the front and some others."
)
@click.option("--baseline", default="", help="What runs today: a plan as of --plan, a script, a config, a log.")
@click.option(
    "--fail-if-worse", type=click.FloatRange(min=0, min_open=True), metavar="PERCENT",
    help="Exit with 1 where a plan takes PERCENT less time than the baseline at no more energy, or less energy in no "
    "more time, and where the baseline could not be run.",
)  # fmt: skip
@click.option("--out", type=common.PATH, help="Folder for proposal.json, front.csv, proposal.txt, record.csv.gz.")
@common.report
@common.allow_tight
@common.output_options
@common.verbose
@click.option("--all", "show_all", is_flag=True, help="Print every plan of the front.")
@click.option("--top", type=click.IntRange(min=1), help="Print the fastest N plans of the front.")
@click.option("--layouts", type=click.IntRange(min=1), help="Print the best N layouts; 5 with -v.")
def propose(
    job: str | None, save_job: Path | None, trials: int | None, objectives: dict[str, Any], seed: int,
    pue: float | None, changes: dict[str, Any], basis: dict[str, Any], study: str | None, all_trials: bool,
    baseline: str, fail_if_worse: float | None, out: Path | None, report: Path | None, as_json: bool,
    verbose: bool, show_all: bool, top: int | None, layouts: int | None, allow_tight: bool, **shape: Any,
) -> None:  # fmt: skip
    """Search the joint space of JOB for the plans that no other plan beats in time and energy, and recommend one.

    JOB is a job file or the name of a shipped job (`jointopt catalog jobs`); the options from --model to
    --framework make a job without a file.

    \b
    Examples:
      jointopt propose opt-350m-2x4-a100
      jointopt propose job.yaml --seed 1 --json > proposal.json
      jointopt propose job.yaml --baseline train.sh --fail-if-worse 5
      jointopt propose job.yaml --objective time --objective energy --objective peak_memory
      jointopt propose --model llama-3-8b --gpu h100-sxm5-80gb --gpus 64 \\
          --global-batch-size 512 --seq-length 8192 --save-job job.yaml
    """
    from jointopt.report.proposal import LAYOUTS_FOR_PEOPLE, WRITTEN
    from jointopt.workflows import propose as workflow

    wanted = common.job_of(job, shape, pue, changes | objectives, save_job)
    common.check_out(out, WRITTEN)
    source = common.job_words(job, shape, changes, save_job)
    basis |= {"allow_tight": allow_tight, "baseline": baseline, "study": study, "all_trials": all_trials}
    found = workflow.propose(wanted, trials=trials, seed=seed, source=source, **basis)
    with common.writing("--out"):
        if out:
            found.write(out)
    if report:
        common.write_report(found.report(), report)
    brief = not (verbose or show_all or top or layouts)
    text: dict[str, Any] = {"show_all": show_all, "top": top, "layouts": layouts or LAYOUTS_FOR_PEOPLE}
    common.answer(found, as_json, refused=found.decision.worse_than_front(fail_if_worse), brief=brief, **text)
