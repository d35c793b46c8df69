"""Cells of one row of the measurement table: a plan, the results of its run or its failure, and where its log is."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.facts import Failure, joined_notes
from jointopt.core.schema import COLUMNS, LOG_COLUMNS, STATUSES
from jointopt.jobs.plans.text import parse_stage_clocks

RESULTS = tuple(column.name for column in COLUMNS.values() if column.role == "result")
# cells of a row until it is stored: (start, end) of the measured iterations in s since 1970, and their number
WINDOW = ("measured_s", "iterations")


def plan_cells(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The plan columns of ``plan`` that are not blank, as JSON has them; equal for equal plans, however written."""
    plain: dict[str, Callable[[Any], Any]] = {
        "int": int, "bool": bool, "float": float, "str": str,
        "clocks": lambda cell: parse_stage_clocks(cell.tolist() if isinstance(cell, np.ndarray) else cell),
    }  # fmt: skip
    kinds = {column.name: plain[column.dtype] for column in COLUMNS.values() if column.role == "plan"}
    return {name: kind(plan[name]) for name, kind in kinds.items() if not is_blank(plan.get(name))}


def is_blank(value: Any) -> bool:
    """Whether a cell holds nothing: None, NaN or NA."""
    if value is None or isinstance(value, str | int | float):
        return value is None or value != value  # NaN
    import pandas as pd  # takes long to load, and `exec` meets nothing but those

    return np.ndim(value) == 0 and bool(pd.isna(value))


def result_row(notes: str, **known: float) -> dict[str, Any]:
    """The result columns of a run that succeeded, NaN but for what is ``known``."""
    return dict.fromkeys(RESULTS, math.nan) | {"status": STATUSES[0], "notes": notes} | known


def failed_row(failure: Failure) -> dict[str, Any]:
    """The result columns of a run without a result; ``failure`` stands beside them and is no column."""
    return result_row(failure.detail) | {"status": failure.status, "failure": failure}


def outcome(reported: Mapping[str, Any] | None, whole: bool, failure: Failure) -> dict[str, Any]:
    """The result columns of a run: those it ``reported``, if it ended well (``whole``) or they say how it failed.

    Else, and where the log shows that memory ran out, those of ``failure``: what was reported may be half written.
    """
    if reported is not None and (whole or (reported["status"] != "ok" and failure.status != "oom")):
        return dict(reported)
    return failed_row(failure)


def is_bounded(row: Mapping[str, Any]) -> bool:
    """Whether a run was ended early, as others were faster, so that its time is a lower bound."""
    time_s = row.get("iteration_time_s")
    return row.get("status") == "timeout" and not is_blank(time_s) and float(str(time_s)) > 0


def with_log(row: Mapping[str, Any], log: Path, kept: bool) -> dict[str, Any]:
    """``row`` of a failed run with the place of its ``log``, where it is ``kept``, in the notes; oom needs none."""
    where = ""
    if row["status"] != STATUSES[0] and kept and log.is_file():
        where = f"log: {log.absolute()}"
    elif row["status"] in ("failed", "timeout") and not kept and not is_bounded(row):
        where = "no log is kept without --logs"
    return dict(row) | {"notes": joined_notes(row["notes"], where)}


def log_prefix(plan: Mapping[str, Any]) -> str:
    """The beginning of the names of a plan's logs: ``dp4-tp1-pp2-...-mbs1-zero1-none-``."""
    degrees = "".join(f"{COLUMNS[name].head}{plan[name]}-" for name in LOG_COLUMNS)
    return f"{degrees}zero{plan['zero_stage']}-{plan['recompute']}-"


def new_log(folder: Path, plan: Mapping[str, Any]) -> Path:
    """An empty file in ``folder`` for the log of one run of ``plan``; logs of earlier runs stay as they are."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, path = tempfile.mkstemp(prefix=log_prefix(plan), suffix=".log", dir=folder)
    os.close(handle)
    return Path(path)
