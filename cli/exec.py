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
@click.pass_context
def exec(
    ctx: click.Context, command: tuple[str, ...], plan: dict[str, Any], node: int | None,
    gpus_per_node: int | None, order: str | None, check_s: float, default_clocks: bool, power_profile: str | None,
    grace_s: float, reading: Path | None,
) -> None:  # fmt: skip
    """Run COMMAND with every GPU of this machine at the clock and power limit of its pipeline stage.

    Ranks are numbered in --order: tp innermost, then cp, dp, pp outermost; with Megatron-LM's --use-tp-pp-dp-mapping
    tp-cp-ep-pp-dp. Where clocks differ by stage they are set once the program's ranks are known to run these stages; a
    program that runs others is refused. Clocks are put back whatever ends it, SIGKILL included; the exit code is
    COMMAND's, or 1 where that failed. On several nodes, start it on each, around the launcher: srun jointopt
    exec --plan plan.json -- torchrun ...

    \b
    Example:
      jointopt explain job.yaml --plan "dp=4 pp=2 clock=1410,1200" --json > plan.json
      jointopt exec --plan plan.json -- torchrun --nproc-per-node 8 train.py
    """
    from jointopt.workflows.exec import execute

    common.offer_restore()
    done = execute(
        command, plan | ({"power_profile": power_profile} if power_profile else {}), node=node,
        gpus_per_node=gpus_per_node, default_clocks=default_clocks, grace_s=grace_s, series=reading, order=order,
        check_s=check_s,
    )  # fmt: skip
    common.remark(f"{done.reading.words()}.")
    if done.trouble:
        common.remark(f"Warning: {done.trouble}")
    ctx.exit(done.code)
