"""Layouts that rows of one job state, each once with its blanks filled, and their clocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, Floats, Ints
from jointopt.runs.cells import first_rows, row_codes
from jointopt.spec import defaults
from jointopt.spec.cluster import Gpu
from jointopt.spec.defaults import DefaultPlan
from jointopt.spec.job import Job


def number_cells(rows: pd.DataFrame, name: str) -> Floats:
    """A column of numbers, (n,), NaN where blank; all of it where the table has no such column."""
    return rows[name].to_numpy(float) if name in rows else np.full(len(rows), np.nan)


def stated_layouts(rows: pd.DataFrame, job: Job) -> tuple[DefaultPlan, Ints]:
    """The layouts that rows of one job state, each once, blanks filled; and which of them each row has, (n,)."""
    coded = {name: _codes(rows[name], name) for name in LAYOUT_COLUMNS if COLUMNS[name].codes and name in rows}
    given = {name: coded[name] if name in coded else number_cells(rows, name) for name in LAYOUT_COLUMNS}
    of_row = row_codes(given.values())
    first = first_rows(of_row)
    default = defaults.default_plan(job, {name: values[first] for name, values in given.items()})
    # a ZeRO stage without effect stays as the row has it: the shipped surrogate was trained on those
    kept = {"zero_stage": default.layouts["zero_stage"]}
    return replace(default, layouts=defaults.canonical(job, default.layouts) | kept), of_row


def _codes(cells: pd.Series, name: str) -> Floats:
    """A plan's column of text as numbers, (n,), NaN where blank."""
    codes, distinct = pd.factorize(cells)
    return np.append([float(COLUMNS[name].inside(text)) for text in distinct], np.nan)[codes]


def stated_clocks(rows: pd.DataFrame, pp: Ints, gpu: Gpu) -> Floats:
    """Clocks as `Workload`'s, from ``stage_clock_mhz``, else ``clock_mhz``, else the GPU's maximum (1.0 if unknown)."""
    one = np.full(len(rows), gpu.clock_max_mhz or 1.0)
    if "clock_mhz" in rows:
        one = rows["clock_mhz"].fillna(one[0]).to_numpy(float)
    out = one[:, None]
    if "stage_clock_mhz" in rows and rows["stage_clock_mhz"].notna().any():
        beyond, given = np.arange(int(pp.max())) >= pp[:, None], rows["stage_clock_mhz"]
        out = np.where(beyond, np.nan, out)
        counts = given.map(len, na_action="ignore").fillna(0).to_numpy(np.int64)
        for count in np.unique(counts[counts > 0]).tolist():
            at = np.flatnonzero(counts == count)
            clocks = np.array(given.iloc[at].tolist(), np.float64)
            width = out.shape[1] if count == 1 else count  # one clock is that of all stages
            out[at, :width] = np.where(beyond[at, :width], np.nan, clocks)
    return out
