"""Measured runs whose plan is not known: what blank degrees are taken for is a guess, and no evidence of any plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.errors import TableError
from jointopt.runs.workloads import Workload, workloads

if TYPE_CHECKING:
    import pandas as pd


_SPLIT = ("dp", "tp", "pp")  # of the model and the batch; a blank cp is 1 in tables of runs without it


def runs_with_plans(table: pd.DataFrame, others: pd.DataFrame | None = None) -> tuple[list[Workload], dict[int, str]]:
    """`workloads` of measured runs: without rows that leave their degrees open, whose reasons say so.

    Raises TableError as there, and where no row is left.
    """
    found, reasons = workloads(table, others)
    kept: list[Workload] = []
    for work in found:
        names = {text: [name for name in _SPLIT if name in text.split()] for text in set(work.assumed.tolist())}
        guessed = np.array([bool(names[text]) for text in work.assumed.tolist()], bool)
        for row, text in zip(work.rows[guessed].tolist(), work.assumed[guessed].tolist(), strict=True):
            one = len(names[text]) == 1
            reasons[row] = (
                f"{' and '.join(names[text])} {'is' if one else 'are'} blank, and num_gpus={work.job.cluster.num_gpus} "
                f"leaves open what {'it was' if one else 'they were'}; expected dp, tp and pp of a measured run."
            )
        if not guessed.all():
            kept.append(work.take(np.flatnonzero(~guessed).astype(np.int64)) if guessed.any() else work)
    if not kept:
        row = min(reasons)
        raise TableError(f"No row of the table states its plan; row {row + 1}: {reasons[row]}")
    return kept, reasons
