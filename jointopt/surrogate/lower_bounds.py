"""Runs that were ended early, as evidence: each counts as what it is expected to have taken beyond its bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import Bools, Floats, Ints
from jointopt.surrogate.time_unit import QUESTION

if TYPE_CHECKING:
    import pandas as pd

    from jointopt.surrogate.dataset import Priced
from dataclasses import dataclass

DOUBTED = 0.05  # probability of lying below its bound from which on a run's bound says something


def is_lower_bound(table: pd.DataFrame) -> Bools:
    """Rows (n,) of a table, as `with_results` reads it, whose iteration time is the least that it would have been.

    Those of status timeout that have one: runs that were ended early, behind others.
    """
    ended = table["status"].to_numpy(str) == "timeout"
    return np.asarray(ended & (table["iteration_time_s"].to_numpy(float) > 0))


def far_bounds(table: pd.DataFrame, priced: Priced, times: float) -> Ints:
    """Rows of ``table`` whose time is a lower bound beyond so many times the physics: no plan takes that long.

    A bound below it says little in any unit.
    """
    off = priced.residual(table["iteration_time_s"].to_numpy(float)[priced.rows])
    return np.sort(priced.rows[is_lower_bound(table)[priced.rows] & (np.nan_to_num(off) > np.log(times))])


def far_line(far: Ints, total: int, times: float, named: Callable[[int], str]) -> list[str]:
    """A sentence on `far_bounds`, if any, of so many bounds; ``named``: what messages call a row."""
    if not len(far):
        return []
    return [
        f"{len(far):,} of {total:,} runs that were ended early state an iteration_time_s over {times:g} times what the "
        f"physics says ({named(int(far[0]))} is the first): {QUESTION} These times are not used."
    ]


def beyond(bound: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Expected values (n,) of normals of ``mean`` and ``deviation`` (n,), given that they are above ``bound`` (n,).

    The mean of a truncated normal, by which Schmee and Hahn (1979, A simple method for regression analysis with
    censored data, equation 3) fill in what tests that were ended early would have shown.
    """
    from scipy.special import log_ndtr  # here, since every command that loads a surrogate would wait for the import

    z = (bound - mean) / deviation
    hazard = np.exp(-0.5 * z**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(-z))
    return np.asarray(np.maximum(mean + deviation * hazard, bound))


def telling(bound: Floats, mean: Floats, deviation: Floats) -> Bools:
    """Mask (n,) of bounds that are informative: others are far below the expectation, and would only seem certain."""
    from scipy.special import ndtr

    return np.asarray(ndtr((bound - mean) / deviation) > DOUBTED)


# Use that training makes of the timed runs of a table.


MOST_BROKEN = 0.9  # of a source's rows, above which their unit is in doubt
OTHER_UNIT = 100.0  # times off the physics, as no run is: half of the rows left out in another unit are by more


@dataclass(frozen=True)
class Use:
    """Use of the timed runs of one source, as counts of rows."""

    source: str
    timed: int
    learned: int  # trained on
    broken: int  # further from the physics than training takes
    unpriced: int  # the physics cannot price them
    reason: str  # of the first of those, blank without any
    beyond: float  # times the physics
    off: float = 1.0  # how many times the physics the broken ones are off, their median

    def to_text(self) -> str:
        """One line on how many rows were learned from, and why others were not."""
        doubtful = self.broken > MOST_BROKEN * self.timed or self.off > OTHER_UNIT
        hint = ": is iteration_time_s in seconds?" if doubtful else ""
        reasons = {
            f"{self.broken:,} more than {self.beyond:g} times off the physics{hint}": self.broken,
            f"{self.unpriced:,} that cannot be priced ({self.reason.rstrip('.')})": self.unpriced,
        }
        why = ", ".join(reason for reason, count in reasons.items() if count)
        rest = f"; left out: {why}" if why else ""
        return f"{self.source}: learned from {self.learned:,} of {self.timed:,} timed rows{rest}"
