"""``jointopt predict``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Predict the runs of a table.")
@click.argument("table", type=common.PATH)
@click.option("--out", required=True, type=common.PATH, help="CSV file to write.")
@common.pue
@common.model_options("measurements that count as measured runs", default="none")
def predict(table: Path, out: Path, pue: float | None, basis: dict[str, Any]) -> None:
    """Add predicted time, energy, power and memory to TABLE, a CSV file with one run per row.

    TABLE needs the columns gpu, num_gpus, seq_length, global_batch_size, and either model (a catalogue name) or
    num_layers and hidden_size. Those of the plan are dp, tp, pp, cp, ep, vpp, micro_batch_size, sequence_parallel,
    recompute, zero_stage, and clock_mhz or stage_clock_mhz; framework, dtype, attention and gpus_per_node help.

    Every row and column of TABLE stays; predicted figures have seven digits. Plan fields that a row leaves blank take
    the framework's default and are named in the column `assumed`. With --pue a column of the energy at the site's meter
    is added, hosts included.

    \b
    Example:
      jointopt predict runs.csv --out predicted.csv
      jointopt predict runs.csv --measured ten-runs.csv --out predicted.csv
    """
    from jointopt.core.errors import naming_table
    from jointopt.report.doubts import open_line
    from jointopt.runs.table import checked_results, read_table, write_table
    from jointopt.workflows.predict import FIGURES
    from jointopt.workflows.predict import predict as predicted_table

    runs = read_table(table)
    with naming_table(table):
        for line in checked_results(runs)[1]:
            common.remark(line)
        predicted = predicted_table(runs, pue=pue, **basis)
    write_table(predicted, out, FIGURES)
    if "hangs_on" in predicted and (line := open_line(predicted["hangs_on"].tolist())):
        common.remark(line)
    common.remark(f"{len(predicted):,} row{'s' * (len(predicted) != 1)} written to {out}.")
