"""Runs of one plan of one job that a table has more than once: how far their times are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

# slowest over fastest: repeated runs of published tables differ by a few per cent, allocator retries aside
_APART = 1.5
_OTHERWISE = ("framework_version", "framework_flags", "fabric")  # kept beside results, and reasons for another time


def contradicting_lines(runs: pd.DataFrame, clean: pd.DataFrame) -> list[str]:
    """One sentence where rows (as `with_results` leaves them) that state one plan of one job took very unlike times.

    ``clean``: their cells as `readable_runs` reads them.
    """
    timed = runs["iteration_time_s"].where((runs["status"] == "ok") & (runs["iteration_time_s"] > 0))
    stated = ["clock_mhz", *(c.name for c in COLUMNS.values() if c.role != "result"), *_OTHERWISE]
    cells = clean[[name for name in stated if name in clean and name != "group"]].astype(object)
    if cells.columns.empty:
        return []
    group = cells.fillna("").groupby(list(cells), sort=False).ngroup()
    slowest, fastest = (timed.groupby(group.to_numpy()).transform(of) for of in ("max", "min"))
    apart = ((slowest > _APART * fastest) & timed.notna()).to_numpy(bool)
    if not apart.any():
        return []
    plans, first = group[apart].nunique(), int(np.flatnonzero(apart)[0])
    same = np.flatnonzero(apart & (group == group[first]).to_numpy(bool))
    times = timed.to_numpy(float)[same]
    low, high = same[times.argmin()], same[times.argmax()]
    many = f"{plans:,} plans were" if plans > 1 else "1 plan was"
    return [
        f"{many} run more than once with times that are more than {_APART:g} times apart (row {low + 1}: "
        f"{times.min():.4g} s, row {high + 1}: {times.max():.4g} s): did something differ that no column states?"
    ]
