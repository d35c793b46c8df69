"""``jointopt report``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Write a proposal, or what a surrogate learned, as one HTML file.")
@click.argument("out_or_study")
@click.option("--out", type=common.PATH, required=True, help="The HTML file.")
@click.option("--trace", type=common.PATH, help="Passes of the chosen plans for Perfetto (ui.perfetto.dev).")
@click.option(
    "--studies", help="Optuna storage URL of the study; by default $JOINTOPT_STORAGE, else sqlite:///jointopt.db."
)
@common.pue
@common.model_options(surrogate=None)
def report(
    out_or_study: str, out: Path, trace: Path | None, studies: str | None, pue: float | None, basis: dict[str, Any],
) -> None:  # fmt: skip
    """Write what propose found as one HTML file that needs no network.

    It shows the front with the two-step answer, the parts of time, energy and memory, every pass of an iteration, heat,
    what was assumed and dropped, and what starts each chosen plan. OUT_OR_STUDY is a folder of `propose --out`, its
    proposal.json, the name of a stored study, or - for what `propose --json` prints into a pipe. Of a folder that
    `retrain` wrote, the file shows what was learned, as `retrain --report` does.

    \b
    Examples:
      jointopt propose opt-350m-2x4-a100 --out out
      jointopt report out --out report.html --trace trace.json
      jointopt report my-surrogate --out learned.html
    """
    from jointopt.workflows.page import page, surrogate_page

    if studies is None and (learned := surrogate_page(out_or_study)) is not None:
        if trace is not None:
            raise click.UsageError(f"--trace shows the passes of plans; {out_or_study} is a surrogate; leave it out.")
        common.write_report(learned, out, "--out")
        return
    made = page(out_or_study, studies=common.storage_of_study(out_or_study, studies), pue=pue, **basis)
    common.write_report(made, out, "--out")
    if trace is not None:
        with common.writing("--trace"):
            made.write_trace(trace)
        common.remark(f"Written: {trace}")
