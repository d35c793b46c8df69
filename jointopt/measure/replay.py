"""Replay: runs that were recorded in a table are "run" by returning their row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import LauncherError, TableError
from jointopt.core.schema import COLUMNS, STATUSES, Bools, Columns
from jointopt.jobs.catalog.gpus import gpu_id
from jointopt.jobs.job import Job
from jointopt.runs.cells import STRICT_READERS, read_columns, spelled, with_precision
from jointopt.runs.dtype_names import named_precision
from jointopt.runs.rows import RESULTS
from jointopt.runs.table import clean_runs, read_table

# columns in which different runs differ: plan and workload, not the results, nor where a row is from
_INPUTS = (*(c.name for c in COLUMNS.values() if c.role in ("plan", "workload") and c.name != "source"), "clock_mhz")


class ReplayLauncher:
    """Runs the rows of a measurement table that belong to a job.

    A row belongs to the job where all that it states of model shape, batch, precision and cluster is the job's, or
    where a row of its group does (rows of one group are comparable). Of repeats of a plan the fastest counts: whatever
    disturbs a run only ever makes it slower (Python's `timeit` gives the same advice).
    """

    name = "replay"

    def __init__(self, table: Path | str | pd.DataFrame) -> None:
        rows = table if isinstance(table, pd.DataFrame) else read_table(Path(table))
        self._rows = _with_gpu_ids(rows.reset_index(drop=True))
        self._clean = with_precision(clean_runs(self._rows))
        self._inputs = [name for name in _INPUTS if name in self._rows]
        self._last: tuple[Job, Bools] | None = None
        self._check()

    def candidates(self, job: Job) -> Columns:
        """Distinct runs of the job in the table's order; LauncherError where the table holds none."""
        belongs = self._belongs(job)
        if not belongs.any():
            raise LauncherError(self._why_none(job))
        distinct = self._clean[belongs].drop_duplicates(subset=self._inputs).index
        return {name: self._rows.loc[distinct, name].to_numpy() for name in self._inputs}

    def run(self, job: Job, plan: Mapping[str, Any]) -> Mapping[str, Any]:
        """The fastest row of the job with this plan; LauncherError where the table has none."""
        rows = np.flatnonzero(self._belongs(job) & self._same(plan))
        if not len(rows):
            of_plan = {k: v for k, v in plan.items() if k in COLUMNS and COLUMNS[k].role == "plan"}
            words = " ".join(f"{name}={value}" for name, value in of_plan.items())
            raise LauncherError(f"The plan {words} is not a row of the table, and replay can return nothing else.")
        order = self._rows.loc[rows].sort_values("iteration_time_s", na_position="last", kind="stable")
        row: dict[str, Any] = {str(k): v for k, v in order.iloc[0].items()}
        return row

    def _check(self) -> None:
        """Statuses as `ingest` reads them; a blank one follows from whether there is a time."""
        given, faults = read_columns(self._rows, ["status"], STRICT_READERS)
        for _, wrong, _ in faults:
            row = int(wrong.to_numpy().argmax())
            got = self._rows["status"].iloc[row]
            raise TableError(f"Row {row + 1}: status must be one of {', '.join(STATUSES)}; got {got!r}.")
        rows = given.reindex(columns=[*given, *(name for name in RESULTS if name not in given)])
        implied = np.where(rows["iteration_time_s"].notna(), "ok", "failed")
        self._rows = rows.assign(status=rows["status"].where(rows["status"].notna(), implied))

    def _belongs(self, job: Job) -> Bools:
        """Rows of the job, and those comparable with one of them; the last answer is kept, as every run needs it."""
        if self._last is None or self._last[0] is not job:
            self._last = job, self._found(job)
        return self._last[1]

    def _found(self, job: Job) -> Bools:
        mask = self._agree_in(_workload(job))
        if "block" in self._clean:  # blank is a whole model
            mask &= (self._clean["block"].fillna("") == job.model.block).to_numpy(bool)
        elif job.model.block:
            mask[:] = False
        if "group" in self._clean:
            groups = self._clean["group"][mask].dropna().unique()
            mask |= self._clean["group"].isin(groups).to_numpy()
        return self._of_the_stack(job, mask)

    def _of_the_stack(self, job: Job, rows: Bools) -> Bools:
        """Of ``rows`` those with the job's kernels where there are any, else all: the table then knows better."""
        for name, value in (("attention", job.training.attention), ("fused_norm", job.training.fused_norm)):
            own = rows & self._agrees(name, value)
            rows = own if own.any() else rows
        return rows

    def _same(self, plan: Mapping[str, Any]) -> Bools:
        """Rows that state nothing else than ``plan``."""
        cells = {k: [_cell(v)] for k, v in plan.items() if k in self._inputs}
        wanted = clean_runs(_with_gpu_ids(pd.DataFrame(cells))).iloc[0]
        return self._agree_in(wanted.to_dict())

    def _agree_in(self, cells: Mapping[Any, Any]) -> Bools:
        masks = [self._agrees(name, value) for name, value in cells.items()]
        return np.asarray(np.all(masks, axis=0), bool)

    def _agrees(self, name: str, value: Any) -> Bools:
        """Rows whose cell is ``value``, or blank: unknown contradicts nothing."""
        if name not in self._clean or (not isinstance(value, tuple) and pd.isna(value)):
            return np.ones(len(self._clean), bool)
        cells = self._clean[name]
        if name == "dtype":  # free text that names no precision contradicts none
            cells, value = cells.map(named_precision, na_action="ignore"), named_precision(value)
        equal = cells.map(lambda cell: cell == value).to_numpy(bool)
        return np.asarray(equal | cells.isna().to_numpy(), bool)

    def _why_none(self, job: Job) -> str:
        wanted = _workload(job)
        matches = {name: self._agrees(name, value).sum() for name, value in wanted.items()}
        name = min(matches, key=lambda key: matches[key])
        if matches[name]:  # of each column alone some row has what the job needs
            some = [f"{key} {wanted[key]}" for key, count in matches.items() if count < len(self._clean)]
            why = f"none has all of {', '.join(some)}"
        else:
            held = self._clean[name].dropna().unique()[:5].tolist() if name in self._clean else []
            why = f"it needs {name} {wanted[name]} and the table holds {', '.join(str(spelled(v)) for v in held)}"
        return f"No row of the table belongs to job {job.name!r}: {why}; give the table of this job, or change the job."


def _with_gpu_ids(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with GPUs by catalogue id, whatever name a table calls them; unknown ones keep theirs."""
    if "gpu" not in rows:
        return rows
    ids = {name: gpu_id(name) or str(name) for name in rows["gpu"].dropna().unique()}
    return rows.assign(gpu=rows["gpu"].map(ids))


def _cell(value: Any) -> Any:
    """A list of clocks as a table writes it."""
    clocks = isinstance(value, list | tuple | np.ndarray)
    return ";".join(f"{clock:g}" for clock in value) if clocks else value


_SIZES = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "vocab_size",
)  # fmt: skip


def _workload(job: Job) -> dict[str, Any]:
    """Columns of a row that the job decides; software is not among them: the job takes it from the table."""
    model, training, cluster = job.model, job.training, job.cluster
    return {
        **model.cells(_SIZES), "gated_mlp": float(model.gated_mlp),
        "seq_length": training.seq_length, "global_batch_size": training.global_batch_size,
        "dtype": np.nan if training.dtype_assumed else training.precision,
        "gpu": cluster.gpu.id, "gpus_per_node": cluster.gpus_per_node, "num_gpus": cluster.num_gpus,
    } | training.cells | model.window_cells  # fmt: skip
