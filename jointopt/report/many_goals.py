"""A front of three and more objectives in few lines: its ends, and plans as far from each other as can be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jointopt.core.schema import Columns, Ints
from jointopt.jobs.job import OBJECTIVES, distinguishing, words


def spread_in_goals(front: Columns, goals: Sequence[str], count: int) -> Ints:
    """Indices (at most ``count``) of the best plan in each goal, then of what is farthest from all chosen, sorted.

    Distances are of logarithms, each over the front's extent.
    """
    drawn = np.log(np.column_stack([front[name] for name in goals]))
    extent = np.ptp(drawn, axis=0)
    drawn = drawn / np.where(extent > 0.0, extent, 1.0)
    chosen = list(dict.fromkeys(drawn.argmin(axis=0).tolist()))
    while len(chosen) < min(count, len(drawn)):
        gaps = np.linalg.norm(drawn[:, None] - drawn[chosen][None], axis=2).min(axis=1)
        chosen.append(int(gaps.argmax()))
    return np.unique(chosen)


def following_words(objectives: Sequence[str]) -> str:
    """A sentence on the objectives that do not distinguish plans, blank where there are none."""
    idle = [name for name in objectives if name not in distinguishing(objectives)]
    if not idle:
        return ""
    others = words([name for name in objectives if name in OBJECTIVES] or distinguishing(objectives)[:1])
    rises = "rises" if len(idle) == 1 else "rise"
    return f"{words(idle)} {rises} with {others}: no plan is better in that alone, so it is not searched for."
