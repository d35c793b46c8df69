"""At which clocks a cluster's own runs are evidence of its time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Bools, Floats

BELOW = 0.97  # share of the top clock below which a run is evidence of the response
ABOVE = 1.05  # times the highest measured clock, beyond which nothing was measured


@dataclass(frozen=True)
class MeasuredClocks:
    """Lowest and highest clock of a cluster's runs as shares of the top one.

    ``off_below``: median error of runs below the top clock, where these hold nothing that could be learned.
    """

    low: float = 1.0
    high: float = 1.0
    off_below: float = 0.0

    def beyond(self, stage_clock_mhz: Floats, top_mhz: float | Floats) -> Floats:
        """By how much the logarithm of a plan's lowest clock is below those measured, or of its highest above, (n,)."""
        under = np.log(np.maximum(self.low * top_mhz / np.nanmin(stage_clock_mhz, axis=1), 1.0))
        highest = _highest(stage_clock_mhz, top_mhz)
        over = np.where(self.above(stage_clock_mhz, top_mhz), np.log(highest / (self.high * top_mhz)), 0.0)
        return np.asarray(np.maximum(under, over))

    def above(self, stage_clock_mhz: Floats, top_mhz: float | Floats) -> Bools:
        """Whether a clock of a plan (n, S) lies beyond `ABOVE` times the highest measured one, (n,)."""
        return np.asarray(_highest(stage_clock_mhz, top_mhz) > ABOVE * self.high * top_mhz)

    def contradicted(self, stage_clock_mhz: Floats, top_mhz: float | Floats) -> Bools:
        """Whether a plan has a clock at which runs of the cluster were far from what is predicted, (n,)."""
        lowest = np.nanmin(stage_clock_mhz, axis=1)
        return np.asarray((self.off_below > 0.0) & (lowest < BELOW * top_mhz))


def _highest(stage_clock_mhz: Floats, top_mhz: float | Floats) -> Floats:
    """Highest clock of each plan (n,), at most the GPU's."""
    return np.asarray(np.minimum(np.nanmax(stage_clock_mhz, axis=1), top_mhz))


TOP_ONLY = MeasuredClocks()
