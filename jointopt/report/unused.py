"""What of ingested rows no prediction will learn from, for people."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from jointopt.catalog.gpus import load_gpu
from jointopt.errors import CatalogError
from jointopt.schema import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_RESULTS = ("iteration_time_s", "peak_memory_gib", "energy_j", "avg_power_w")
_ALIKE = 0.8  # of two names of a column: step_time_s is no iteration_time_s, iteration_time_ms is


def unused_lines(runs: pd.DataFrame) -> list[str]:
    """One sentence for each reason why sound rows of a measurement table teach nothing; none where all of them do."""
    if runs.empty:
        return []
    lines = [text for name in map(str, runs.columns) if name not in COLUMNS and (text := _misspelt(name))]
    unnamed = runs["gpu"].isna() if "gpu" in runs else runs.index == runs.index
    if unnamed.any():
        lines.append(f"{int(unnamed.sum()):,} rows name no GPU (column gpu): kept, and never learned from.")
    for name in runs["gpu"].dropna().unique() if "gpu" in runs else ():
        try:
            load_gpu(str(name))
        except CatalogError as error:
            lines.append(
                f"{int((runs['gpu'] == name).sum()):,} rows are kept, and never learned from: {error}"
            )
    ended = (
        runs["status"].isin(["oom", "failed", "timeout"]) if "status" in runs else runs.index != runs.index
    )
    silent = runs.reindex(columns=list(_RESULTS)).isna().all(axis=1) & ~ended
    if silent.any():
        lines.append(
            f"{int(silent.sum()):,} rows have neither a result ({', '.join(_RESULTS)}) nor the status oom or failed."
        )
    return lines


def _misspelt(name: str) -> str:
    """Of a column that is not known but nearly so; empty for one that is just more than is known."""
    close = difflib.get_close_matches(name.lower(), [*COLUMNS, "clock_mhz"], n=1, cutoff=_ALIKE)
    if not close or close[0] == name:
        return ""
    return f"column {name} is kept, but nothing reads it (did you mean {close[0]!r}?)."
