"""``jointopt calibrate``."""

from __future__ import annotations

from pathlib import Path

import click

from jointopt.cli import common


@click.command(cls=common.Command, short_help="Fit a GPU's clock response to measurements.")
@click.argument("table", type=common.PATH)
@click.option("--gpu", required=True, help="Catalogue id of the GPU; another name is taken as it is.")
@click.option("--out", required=True, type=common.PATH, help="Calibration to write, for --calibration.")
@click.option("--query", type=common.PATH, help="Table of the same columns without results, to be predicted.")
@click.option("--predictions", type=common.PATH, help="CSV file to write: the query with predicted columns.")
def calibrate(table: Path, gpu: str, out: Path, query: Path | None, predictions: Path | None) -> None:
    """Fit time, power and energy at every clock and power limit to TABLE, a CSV file of a few measurements.

    TABLE is a stage profile (stage, instruction, clock_mhz, time_s, energy_j; also frequency, time, energy) or measured
    iterations of a pipeline, a row per rank (plan, rank, num_micro_batches, forward_clock_mhz_mean,
    backward_clock_mhz_mean or power_limit_w, forward_time_sum_s, backward_time_sum_s, iteration_time_s, energy_j).
    Columns such as model or micro_batch_size distinguish pieces of work. Three clocks are enough: the lowest, the
    maximum, and one near three quarters of it.

    \b
    Example:
      jointopt calibrate profile.csv --gpu a100-sxm4-80gb --out cal.yaml
      jointopt calibrate profile.csv --gpu a40 --out cal.yaml \\
          --query clocks.csv --predictions predicted.csv
    """
    from jointopt.core.errors import naming_table
    from jointopt.jobs.calibration import save_calibration
    from jointopt.runs.row_names import join_named_tables
    from jointopt.runs.table import read_table, write_table
    from jointopt.workflows import calibrate as workflow

    if (query is None) != (predictions is None):
        raise click.UsageError("--query and --predictions go together: what to predict, and where to write it.")
    measured = join_named_tables([(str(table), read_table(table))])
    with naming_table(table):
        found = workflow.calibrate(
            measured, gpu, join_named_tables([(str(query), read_table(query))]) if query else None
        )
    save_calibration(found.calibration, out)
    if predictions and found.predictions is not None:
        write_table(found.predictions, predictions)
    click.echo(found.text())
