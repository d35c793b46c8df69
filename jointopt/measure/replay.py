"""The launcher replay, which runs nothing: it returns the row of a plan in a table of recorded runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import LauncherError, TableError, naming_table
from jointopt.core.schema import COLUMNS, STATUSES, Bools, Columns
from jointopt.jobs.catalog.gpus import gpu_id
from jointopt.jobs.job import Job
from jointopt.runs.cells import STRICT_READERS, cell_as_written, read_columns, with_precision
from jointopt.runs.dtype_names import named_precision
from jointopt.runs.rows import RESULTS
from jointopt.runs.table import clean_runs, read_table

# columns in which different runs differ: plan and workload, not the results, nor where a row is from
_INPUTS = (*(c.name for c in COLUMNS.values() if c.role in ("plan", "workload") and c.name != "source"), "clock_mhz")
_SIZES = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size",
)  # fmt: skip


class ReplayLauncher:
    """Runs the rows of a measurement table that belong to a job.

    A row belongs to the job where all that it states of model shape, batch, precision and cluster is the job's, or
    where a row of its group does (rows of one group are comparable). Of repeats of a plan the fastest counts: whatever
    disturbs a run only ever makes it slower (Python's `timeit` gives the same advice).
    """

    name = "replay"

    def __init__(self, table: Path | str | pd.DataFrame) -> None:
        rows = table if isinstance(table, pd.DataFrame) else read_table(Path(table))
        rows = _with_gpu_ids(rows.reset_index(drop=True))
        with nullcontext() if isinstance(table, pd.DataFrame) else naming_table(table):
            self._clean = with_precision(clean_runs(rows))
        self._inputs = [name for name in _INPUTS if name in rows]
        self._last: tuple[Job, Bools] | None = None  # rows of the last job, as every run needs them
        # statuses as `ingest` reads them; a blank one follows from whether there is a time
        given, faults = read_columns(rows, ["status"], STRICT_READERS)
        for _, wrong, _ in faults:
            row = int(wrong.to_numpy().argmax())
            got = rows["status"].iloc[row]
            raise TableError(f"Row {row + 1}: status must be one of {', '.join(STATUSES)}; got {got!r}.")
        given = given.reindex(columns=[*given, *(name for name in RESULTS if name not in given)])
        implied = np.where(given["iteration_time_s"].notna(), "ok", "failed")
        self._rows = given.assign(status=given["status"].where(given["status"].notna(), implied))

    def candidates(self, job: Job) -> Columns:
        """Distinct runs of the job in the table's order; LauncherError where the table holds none."""
        belongs = self._rows_of(job)
        if belongs.any():
            distinct = self._clean[belongs].drop_duplicates(subset=self._inputs).index
            return {name: self._rows.loc[distinct, name].to_numpy() for name in self._inputs}
        wanted = _workload(job)
        matches = {name: self._agreeing_rows({name: value}).sum() for name, value in wanted.items()}
        name = min(matches, key=lambda key: matches[key])
        if matches[name]:  # of each column alone some row has what the job needs
            some = [f"{key} {wanted[key]}" for key, count in matches.items() if count < len(self._clean)]
            why = f"none has all of {', '.join(some)}"
        else:
            known = self._clean[name].dropna().unique()[:5].tolist() if name in self._clean else []
            why = f"it needs {name} {wanted[name]} and the table holds "
            why += ", ".join(str(cell_as_written(cell)) for cell in known)
        raise LauncherError(
            f"No row of the table belongs to job {job.name!r}: {why}; give the table of this job, or change the job."
        )

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fastest row of the job that states nothing else than this plan; LauncherError where there is none."""
        cells: dict[str, Any] = {name: value for name, value in plan.items() if name in self._inputs}
        for name, value in cells.items():
            clocks = isinstance(value, list | tuple | np.ndarray)  # as a table writes them
            cells[name] = [";".join(f"{clock:g}" for clock in value) if clocks else value]
        wanted = clean_runs(_with_gpu_ids(pd.DataFrame(cells))).iloc[0].to_dict()
        rows = np.flatnonzero(self._rows_of(job) & self._agreeing_rows(wanted))
        if not len(rows):
            words = " ".join(f"{k}={v}" for k, v in plan.items() if k in COLUMNS and COLUMNS[k].role == "plan")
            raise LauncherError(f"The plan {words} is not a row of the table, and replay can return nothing else.")
        order = self._rows.loc[rows].sort_values("iteration_time_s", na_position="last", kind="stable")
        return {str(k): v for k, v in order.iloc[0].items()}

    def _rows_of(self, job: Job) -> Bools:
        """Whether each row belongs to the job."""
        if self._last is not None and self._last[0] is job:
            return self._last[1]
        mask = self._agreeing_rows(_workload(job))
        if "block" in self._clean:  # blank is a whole model
            mask &= (self._clean["block"].fillna("") == job.model.block).to_numpy(bool)
        elif job.model.block:
            mask[:] = False
        if "group" in self._clean:
            groups = self._clean["group"][mask].dropna().unique()
            mask |= self._clean["group"].isin(groups).to_numpy()
        for name in ("attention", "fused_norm"):  # the job's kernels where there are any: the table then knows better
            own = mask & self._agreeing_rows({name: getattr(job.training, name)})
            mask = own if own.any() else mask
        self._last = job, mask
        return mask

    def _agreeing_rows(self, wanted: Mapping[Any, Any]) -> Bools:
        """Whether each row's cells are those that are ``wanted``, or blank: unknown contradicts nothing."""
        mask = np.ones(len(self._clean), bool)
        for name, value in wanted.items():
            if name not in self._clean or (not isinstance(value, tuple) and pd.isna(value)):
                continue
            cells = self._clean[name]
            if name == "dtype":  # free text that names no precision contradicts none
                cells, value = cells.map(named_precision, na_action="ignore"), named_precision(value)
            mask &= (cells.map(lambda cell, value=value: cell == value) | cells.isna()).to_numpy(bool)
        return mask


def _with_gpu_ids(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with GPUs by catalogue id, whatever name a table calls them; unknown ones keep theirs."""
    if "gpu" not in rows:
        return rows
    ids = {name: gpu_id(name) or str(name) for name in rows["gpu"].dropna().unique()}
    return rows.assign(gpu=rows["gpu"].map(ids))


def _workload(job: Job) -> dict[str, Any]:
    """Columns of a row that the job decides; software is not among them: the job takes it from the table."""
    model, training, cluster = job.model, job.training, job.cluster
    return {
        **model.size_cells(_SIZES), "gated_mlp": float(model.gated_mlp),
        "seq_length": training.seq_length, "global_batch_size": training.global_batch_size,
        "dtype": np.nan if training.dtype_assumed else training.precision,
        "gpu": cluster.gpu.id, "gpus_per_node": cluster.gpus_per_node, "num_gpus": cluster.num_gpus,
    } | training.adapter_and_recipe_cells | model.window_cells  # fmt: skip
