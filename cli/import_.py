"""``jointopt import``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common, settings

_GIVEN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--gpu", {"help": "Catalogue id of the GPU, which no script states."}),
    ("--nodes", {"type": click.IntRange(min=1), "help": "Nodes of the run."}),
    ("--gpus-per-node", {"type": click.IntRange(min=1), "help": "GPUs of a node."}),
    settings.INTER_NODE,
    settings.NETWORK,
    ("--model", {"help": "Catalogue name, or path to a Hugging Face config.json."}),
    ("--vocab-size", {"type": click.IntRange(min=1), "help": "Vocabulary, where only its file is named."}),
    ("--seq-length", {"type": click.IntRange(min=1), "help": "Tokens per sequence."}),
    ("--global-batch-size", {"type": click.IntRange(min=1), "help": "Sequences per iteration."}),
    ("--dtype", {"help": "fp32, tf32, fp16, bf16, fp8 or fp4."}),
    ("--framework", {"help": "Training framework, from `jointopt catalog frameworks`."}),
)


@click.command("import", cls=common.Command, short_help="Read what runs today: a script, a config, a log.")
@click.argument("files", nargs=-1, type=common.PATH, metavar="FILE...")
@click.option(
    "--pid", type=click.IntRange(min=1), metavar="N", help="A process of a run that goes on, on this machine."
)
@click.option("--out", type=common.PATH, metavar="JOB.yaml", help="Write the job file.")
@click.option(
    "--runs", type=common.PATH, metavar="RUNS.csv", help="Write the measured rows, a table as `ingest` takes it."
)
@click.option("--propose", is_flag=True, help="Search, and print what could be gained over the plan that runs.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=5, show_default=True, help="First iterations to leave out."
)
@click.option("--run", type=click.IntRange(min=1), metavar="N", help="Which run, where a script starts several.")
@click.option(
    "--set", "answers", multiple=True, metavar="NAME=VALUE",
    help="A variable of a script (TP=2), an argument by its number (1=8b), or a field (plan.tp=2); several times.",
)  # fmt: skip
@common.options(_GIVEN)
@common.model_options(default="none")
@common.output_options
@common.verbose
def import_(
    files: tuple[Path, ...], pid: int | None, out: Path | None, runs: Path | None, propose: bool, warmup: int,
    run: int | None, answers: tuple[str, ...], basis: dict[str, Any], as_json: bool, verbose: bool, **given: Any,
) -> None:  # fmt: skip
    """Read what runs today into a job, the plan that it runs, and measured rows.

    FILEs of one run, recognised by their content: a shell or sbatch script (or the arguments of a process) that starts
    Megatron-LM, torchtitan, DeepSpeed or Accelerate, or a manifest of Kubernetes; a config of NeMo, Megatron-Bridge,
    torchtitan, DeepSpeed, nanotron, Accelerate, GPT-NeoX, LLM-Foundry, TRL, LLaMA-Factory, axolotl and others
    (docs/imports.md); a log of one; what Zeus, dcgmi dmon, dcgm-exporter or nvidia-smi wrote meanwhile, for the energy.
    With --pid a rank that runs, or what launched it, counts more than files.
    Options that are not known are counted and named. Iterations that were skipped, had NaN gradients, or lie beside a
    checkpoint or an evaluation do not count.

    \b
    Examples:
      jointopt import train.sh run.log --gpu h100-sxm5-80gb --out job.yaml --runs runs.csv
      jointopt import run.log --gpu h100-sxm5-80gb --propose
      jointopt import --pid 4711 train.sh
      jointopt import run.log node0-dcgm.txt node1-dcgm.txt --runs runs.csv
    """
    from jointopt.core.quote import sh_word
    from jointopt.runs.table import csv_text
    from jointopt.workflows import import_ as workflow

    if wrong := next((one for one in answers if "=" not in one), None):
        raise click.UsageError(f"--set must be NAME=VALUE; got {wrong!r:.60}.")
    stated = dict(one.split("=", 1) for one in answers)
    found = workflow.import_(files, warmup=warmup, run=run, pid=pid, set=stated, **settings.with_network(given))
    if out:
        _write(out, found.job_text(), "--out")
    if runs:
        _write(runs, csv_text(found.frame()), "--runs")
    if propose:
        from jointopt.workflows.import_gains import with_proposals

        found = with_proposals(found, source=sh_word(str(out or "job.yaml")), **basis)
    common.answer(found, as_json, brief=not verbose, written=out is not None)


def _write(path: Path, text: str, option: str) -> None:
    from jointopt.core.atomic_write import write_whole

    with common.writing(option):
        write_whole(path, text)
    common.remark(f"Written: {path}")
