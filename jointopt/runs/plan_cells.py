"""Layouts that rows of one job state, each once with its blanks filled, and their clocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from jointopt.core.schema import COLUMNS, LAYOUT_COLUMNS, Columns, Floats, Ints
from jointopt.jobs import defaults
from jointopt.jobs.cluster import Gpu
from jointopt.jobs.defaults import DefaultPlan
from jointopt.jobs.job import Job
from jointopt.runs.cells import first_rows, row_codes


def number_cells(rows: pd.DataFrame, name: str) -> Floats:
    """A column of numbers, (n,), NaN where blank; all of it where the table has no such column."""
    return rows[name].to_numpy(float) if name in rows else np.full(len(rows), np.nan)


def plan_cells(runs: pd.DataFrame) -> Columns:
    """The cells of plans of all jobs, (n,): layouts as numbers, NaN where blank, and clocks and what was assumed.

    ``layout``: the number of each layout.
    """
    cells: Columns = {
        name: _codes(runs[name], name) if COLUMNS[name].codes else number_cells(runs, name)
        for name in LAYOUT_COLUMNS
        if name in runs
    }
    cells |= {"layout": row_codes(cells.values()), "assumed_plan": runs["assumed_plan"].to_numpy(np.int64)}
    return cells | {name: runs[name].to_numpy() for name in ("clock_mhz", "stage_clock_mhz") if name in runs}


def stated_layouts(plans: Columns, rows: Ints, job: Job) -> tuple[DefaultPlan, Ints]:
    """The layouts that ``rows`` of `plan_cells` of a job state, each once, blanks filled; and which each has, (n,)."""
    of_row = row_codes([plans["layout"][rows]])
    first = rows[first_rows(of_row)]
    default = defaults.default_plan(job, {name: plans[name][first] for name in LAYOUT_COLUMNS if name in plans})
    # a ZeRO stage without effect stays as the row has it: the shipped surrogate was trained on those
    kept = {"zero_stage": default.layouts["zero_stage"]}
    return replace(default, layouts=defaults.canonical(job, default.layouts) | kept), of_row


def _codes(cells: pd.Series, name: str) -> Floats:
    """A plan's column of text as numbers, (n,), NaN where blank."""
    codes, distinct = pd.factorize(cells)
    return np.append([float(COLUMNS[name].inside(text)) for text in distinct], np.nan)[codes]


def stated_clocks(plans: Columns, rows: Ints, pp: Ints, gpu: Gpu) -> Floats:
    """Clocks as `Workload`'s, from ``stage_clock_mhz``, else ``clock_mhz``, else the GPU's maximum (1.0 if unknown)."""
    one = np.full(len(rows), gpu.clock_max_mhz or 1.0)
    if "clock_mhz" in plans:
        clocks = plans["clock_mhz"][rows].astype(float)
        one = np.where(np.isnan(clocks), one, clocks)
    out = one[:, None]
    given = pd.Series(plans["stage_clock_mhz"][rows] if "stage_clock_mhz" in plans else None, dtype=object)
    if given.notna().any():
        beyond = np.arange(int(pp.max())) >= pp[:, None]
        out = np.where(beyond, np.nan, out)
        counts = given.map(len, na_action="ignore").fillna(0).to_numpy(np.int64)
        for count in np.unique(counts[counts > 0]).tolist():
            at = np.flatnonzero(counts == count)
            clocks = np.array(given.iloc[at].tolist(), np.float64)
            width = out.shape[1] if count == 1 else count  # one clock is that of all stages
            out[at, :width] = np.where(beyond[at, :width], np.nan, clocks)
    return out
