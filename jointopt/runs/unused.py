"""Sentences on ingested rows that no prediction will learn from."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from jointopt.core.errors import CatalogError
from jointopt.core.schema import COLUMNS, STATUSES
from jointopt.runs.cells import named_dtype
from jointopt.spec.catalog.gpus import known_gpu, load_gpu

if TYPE_CHECKING:
    import pandas as pd

_RESULTS = ("iteration_time_s", "peak_memory_gib", "energy_j", "avg_power_w")
_ALIKE = 0.8  # of two names of a column: step_time_s is no iteration_time_s, iteration_time_ms is


def unused_lines(runs: pd.DataFrame) -> list[str]:
    """One sentence for each reason why sound rows of a measurement table teach nothing; none where all of them do."""
    if runs.empty:
        return []
    gpus = runs["gpu"] if "gpu" in runs else runs.assign(gpu=None)["gpu"]
    lines = [text for name in map(str, runs.columns) if name not in COLUMNS and (text := _misspelt(name))]
    if count := int(gpus.isna().sum()):
        names = "row names" if count == 1 else "rows name"
        lines.append(f"{count:,} {names} no GPU (column gpu): kept, and never learned from.")
    for name, count in gpus.value_counts(sort=False).items():
        try:
            load_gpu(str(name))
        except CatalogError as error:
            lines.append(f"{_rows_are(count)} kept, and never learned from: {error}")
    return lines + _without_rate(runs) + silent_lines(runs)


def silent_lines(runs: pd.DataFrame) -> list[str]:
    """One sentence where rows of a measurement table have no result that anything learns from."""
    silent = runs.reindex(columns=list(_RESULTS)).isna().all(axis=1)
    if "status" in runs:
        silent &= ~runs["status"].isin(STATUSES[1:])
    if not silent.any():
        return []
    count, results = int(silent.sum()), ", ".join(_RESULTS)
    have = "row has" if count == 1 else "rows have"
    return [f"{count:,} {have} neither a result ({results}) nor the status oom or failed."]


def _without_rate(runs: pd.DataFrame) -> list[str]:
    """One sentence for each precision that no source states a rate of on its GPU."""
    if not {"gpu", "dtype"} <= set(runs):
        return []
    lines = []
    for (name, text), rows in runs.groupby(["gpu", "dtype"], sort=False):
        gpu, dtype = known_gpu(name), named_dtype(str(text))
        if gpu and dtype and dtype not in gpu.peak_tflops:
            lines.append(
                f"{_rows_are(len(rows))} in {dtype} on {name}, of which no source states a rate: priced in a wider "
                "precision, and called out of domain."
            )
    return lines


def _rows_are(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"


def _misspelt(name: str) -> str:
    """Of a column that is not known but nearly so; empty for one that is just more than is known."""
    close = difflib.get_close_matches(name.lower(), [*COLUMNS, "clock_mhz"], n=1, cutoff=_ALIKE)
    if not close or close[0] == name:
        return ""
    return f"column {name} is kept, but nothing reads it (did you mean {close[0]!r}?)."
