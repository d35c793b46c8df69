"""``calibrate``: the clock response of a GPU and its work from a stage profile or measured pipelines."""

from __future__ import annotations

import numpy as np
import pandas as pd

from jointopt.core.errors import TableError
from jointopt.physics.calibrate.law_fit import board_of
from jointopt.physics.calibrate.measured_pipelines import fit_pipelines
from jointopt.physics.calibrate.profiles import NOT_PREDICTED, calibration_of, fit_profiles
from jointopt.physics.calibrate.stage_readings import check_query, check_readings
from jointopt.physics.calibrate.stage_tables import ResponseTable, check_results, gpu_id, response_table
from jointopt.report.results import Calibrated
from jointopt.runs.row_names import row_names


def calibrate(table: pd.DataFrame, gpu: str, query: pd.DataFrame | None = None) -> Calibrated:
    """Fit the readings of that GPU in ``table`` and predict ``query``, a table of the same columns without results.

    ``table``: a stage profile, measured iterations, or pipeline ranks (see `physics.calibrate.tables`). A query row
    not predicted has blanks and the reason in ``not_predicted``; none has a part in the fit. Raises TableError where
    nothing can be learned and for a row with a clock, limit or power that the GPU cannot have.
    """
    measured, name = response_table(table, named=row_names(table)), gpu_id(gpu)
    check_results(measured)
    measured = ResponseTable(measured.kind, _of_gpu(measured.rows, name))
    check_readings(measured, name, row_names(table))
    board = board_of(name, measured)
    fit = fit_pipelines if measured.kind == "ranks" else fit_profiles
    if query is None:
        fits, _ = fit(measured, measured.rows.iloc[:0], board)
        return Calibrated(calibration_of(measured, board, fits), None)
    queried = response_table(query, measured.kind, row_names(query))
    check_query(queried, measured, name, row_names(query))
    fits, predicted = fit(measured, queried.rows, board)
    columns = predicted.set_index(query.index)
    if "gpu" in queried.rows:
        other = (queried.rows["gpu"].notna() & (queried.rows["gpu"] != name)).to_numpy(bool)
        columns.loc[other, [column for column in columns if column != NOT_PREDICTED]] = np.nan
        columns.loc[other, NOT_PREDICTED] = "the row is of another GPU than --gpu"
    predictions = pd.concat([query.drop(columns=[c for c in columns if c in query]), columns], axis=1)
    return Calibrated(calibration_of(measured, board, fits), predictions)


def _of_gpu(rows: pd.DataFrame, gpu: str) -> pd.DataFrame:
    if "gpu" not in rows or rows["gpu"].isna().all():
        return rows
    own = rows[rows["gpu"].isna() | (rows["gpu"] == gpu)]
    if own.empty:
        there = ", ".join(sorted({str(name) for name in rows["gpu"].dropna()})[:5])
        raise TableError(
            f"No row of the table is of GPU {gpu!r}; its column gpu has {there}; give one of them as --gpu."
        )
    return own
