"""``jointopt exec``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common
from jointopt.cli.plan import PlanType


@click.command(
    cls=common.Command,
    short_help="Run any program under a plan's clocks.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--plan", type=PlanType(files=True), required=True,
              help="JSON file of explain or select, of a plan alone, or of propose with a row (FILE:2).")  # fmt: skip
@click.option("--node", type=click.IntRange(min=0), help="Which node of the plan this is; SLURM_NODEID by default.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), help="GPUs of a node; those of this machine by default.")
@click.option("--order", help="How the program numbers its ranks, innermost first; by default as its framework.")
@click.option("--check-s", type=click.FloatRange(min=0), default=30.0, show_default=True,
              help="Wait for ranks that do not show their stage, in seconds; 0 sets clocks at once.")  # fmt: skip
@click.option("--default-clocks", is_flag=True, help="Leave clocks to the driver; power limits are set.")
@click.option("--power-profile", metavar="NAMES", help="NVIDIA's workload power profiles, such as max-q+llm-training, "
              "in place of the plan's clocks; jointopt doctor lists those that the driver offers.")  # fmt: skip
@click.option("--grace-s", type=click.FloatRange(min=0), default=20.0, show_default=True,
              help="Time to end after SIGTERM or Ctrl-C, in seconds.")  # fmt: skip
@click.option("--reading", type=common.PATH, help="File for the meter's samples.")
@click.option("--follow", metavar="SIGNAL", help="Keep limits of power that change: a CSV file of time_s and limit_kw "
              "(or reduce_percent), a URL (of Prometheus too), or unix:SOCKET.")  # fmt: skip
@click.option("--job", metavar="JOB", help="The plan's job, which --follow and --rebalance need.")
@click.option("--fallback", type=click.Choice(["lowest", "keep", "plan"]), default="lowest", show_default=True,
              help="What holds where the signal's source is dead.")  # fmt: skip
@click.option("--record", type=common.PATH, help="File of JSON lines: every change of clocks and why.")
@click.option(
    "--watch", type=common.PATH, metavar="LOG", help="The program's log: tell slow ranks, as jointopt watch does."
)
@click.option("--rebalance", is_flag=True, help="With --watch: lower the clocks of those that wait for a slow rank.")
@click.option(
    "--storage", metavar="URL", help="With --watch and --job: store a measured row for each change of clocks."
)
@click.option("--metrics", type=common.PATH, help="File for node_exporter's textfile collector (Prometheus).")
@click.pass_context
def exec(
    ctx: click.Context, /, command: tuple[str, ...], plan: dict[str, Any], power_profile: str | None,
    reading: Path | None, job: str | None, **options: Any,
) -> None:  # fmt: skip
    """Run COMMAND with every GPU of this machine at the clock and power limit of its pipeline stage.

    Ranks are numbered in --order: tp innermost, then cp, dp, pp outermost; with Megatron-LM's --use-tp-pp-dp-mapping
    tp-cp-ep-pp-dp. Where clocks differ by stage they are set once the program's ranks are known to run these stages; a
    program that runs others is refused. Clocks are put back whatever ends it, SIGKILL included; the exit code is
    COMMAND's, or 1 where that failed. On several nodes, start it on each, around the launcher: srun jointopt
    exec --plan plan.json -- torchrun ... With --follow clocks go down and up as the site asks, measured power
    counting more than predictions.

    \b
    Example:
      jointopt explain job.yaml --plan "dp=4 pp=2 clock=1410,1200" --json > plan.json
      jointopt exec --plan plan.json -- torchrun --nproc-per-node 8 train.py
      jointopt exec --plan plan.json --job job.yaml --follow limits.csv -- torchrun train.py
    """
    from jointopt.workflows.exec import execute
    from jointopt.workflows.supervision import Supervision

    common.offer_restore()
    names = ("follow", "fallback", "record", "watch", "rebalance", "metrics", "storage")
    given = {name: options.pop(name) for name in names}
    done = execute(
        command, plan | ({"power_profile": power_profile} if power_profile else {}), series=reading,
        supervision=Supervision(job=common.job_of(job) if job else None, **given), **options,
    )  # fmt: skip
    common.remark(f"{done.reading.words()}.")
    if done.trouble:
        common.remark(f"Warning: {done.trouble}")
    ctx.exit(done.code)
