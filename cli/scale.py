"""``jointopt scale``."""

from __future__ import annotations

from typing import Any

import click

from jointopt.cli import common, settings


@click.command(cls=common.Command, short_help="Compare cluster sizes and kinds of GPU.")
@click.argument("job")
@click.option("--gpus", metavar="8..1024", help="Numbers of GPUs, doubled from the first to the last, or 8,16,48.")
@click.option("--gpu", "kinds", multiple=True, metavar="ID[=PRICE]", help="A kind of GPU, and its price per hour.")
@click.option("--weak", is_flag=True, help="The batch grows with the GPUs; by default it stays.")
@click.option("--deadline-days", type=float, help="Pick the cheapest plan whose run ends within so many days.")
@click.option("--budget", type=float, help="Pick the fastest plan whose run costs at most so much.")
@click.option("--site-kw", type=float, help="Power of the site: clocks are as low as it needs; pick the fastest.")
@common.objectives
@click.option("--at-high-end", is_flag=True, help="Hold the upper ends of 90 % intervals to the limits.")
@common.allow_tight
@common.pue
@common.job_changes
@common.model_options(default="none")
@common.output_options
@common.verbose
def scale(
    job: str, gpus: str | None, kinds: tuple[str, ...], weak: bool, pue: float | None, changes: dict[str, Any],
    objectives: dict[str, Any], basis: dict[str, Any], as_json: bool, allow_tight: bool, verbose: bool, **limits: Any,
) -> None:  # fmt: skip
    """Compare clusters for JOB: time to train, energy, money and scaling by size and kind of GPU.

    JOB is a job file, whose cluster may list several GPUs and numbers of nodes, or the name of a shipped job.

    \b
    Examples:
      jointopt scale llama-3-70b-4x8-h200 --gpus 16..256 --run-tokens 2e12
      jointopt scale job.yaml --gpus 64..1024 --gpu h100-sxm5-80gb=2.5 --gpu h200-sxm-141gb=3.5 \\
          --run-tokens 15e12 --deadline-days 60
      jointopt scale job.yaml --gpus 256..4096 --site-kw 2000
    """
    from jointopt.jobs.jobfile import gpu_counts_in, load_jobs
    from jointopt.workflows import scale as workflow

    jobs = load_jobs(
        job, gpu_counts_in(gpus) if gpus else (), changes | objectives | settings.kinds_of_gpu(kinds), weak=weak
    )
    source = common.job_words(job, {}, changes | ({} if pue is None else {"cluster.pue": pue}))
    found = workflow.scale([one.on_site(pue) for one in jobs], weak=weak, source=source, **limits, **basis)
    common.answer(found, as_json, allow_tight=allow_tight, brief=not verbose)
