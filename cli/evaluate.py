"""``jointopt evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Compare predictions with a table of measurements.")
@click.argument("table", type=common.PATH)
@common.model_options("measurements that count as measured runs", default="none")
@click.option("--groups", is_flag=True, help="Print every group of comparable runs.")
@common.output_options
def evaluate(table: Path, basis: dict[str, Any], groups: bool, as_json: bool) -> None:
    """Compare predictions with the measurements in TABLE, by source and GPU, or per group of comparable runs.

    Bias (+: predicted slower than measured), median and mean error of iteration time, the share of rows that the 90 %
    intervals cover, out-of-memory precision and recall; of groups also Kendall's tau and top-1 regret.

    \b
    Example:
      jointopt evaluate runs.csv --surrogate none
    """
    from jointopt.core.errors import naming_table
    from jointopt.runs.table import read_table
    from jointopt.workflows import evaluate as workflow

    with naming_table(table):
        found = workflow.evaluate(read_table(table), **basis)
    common.answer(found, as_json, groups=groups)
