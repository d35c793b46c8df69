"""Stage clocks in little room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def short_clocks(clocks_mhz: Sequence[float], width: int) -> str:
    """The clocks of one plan in at most ``width`` characters where that can be done without a lie.

    ``1410`` for one clock on all stages, ``1410×14,1200×2`` where the runs fit, else ``1200..1410``: the lowest and
    the highest of them.
    """
    whole = [round(clock) for clock in clocks_mhz]
    runs = [(clock, len(list(run))) for clock, run in groupby(whole)]
    if len(runs) == 1:
        return str(runs[0][0])
    text = ",".join(f"{clock}×{count}" if count > 1 else str(clock) for clock, count in runs)
    return text if len(text) <= width else f"{min(whole)}..{max(whole)}"
