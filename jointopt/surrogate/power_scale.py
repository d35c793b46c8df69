"""Correction of the power model on one cluster by measured power: one factor, trusted as far as it was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats

# Standard deviations of log(measured / predicted) power. No table with both layouts and power is public, so these
# are judgements: boards of one kind and their cooling differ by some per cent, catalogued constants by up to a third.
SOURCE_SD = 0.15
RUN_SD = 0.05


@dataclass(frozen=True)
class PowerScale:
    """Factor on predicted power and energy; ``log_sd`` is what a run may still be off (None: nothing was measured)."""

    factor: float = 1.0
    log_sd: float | None = None

    @property
    def half_width(self) -> float | None:
        """90 % half-width of the logarithm."""
        return None if self.log_sd is None else 1.645 * self.log_sd


def power_scale(log_ratio: Floats) -> PowerScale:
    """The scale after runs with log(measured / predicted power) ``log_ratio`` (n,), NaN where it was not measured.

    A normal prior around 1 on the cluster's factor; the median of the runs, so that one broken meter moves little.
    """
    known = log_ratio[np.isfinite(log_ratio)]
    if not len(known):
        return PowerScale()
    trust = len(known) * SOURCE_SD**2 / (len(known) * SOURCE_SD**2 + RUN_SD**2)
    left = np.sqrt((1.0 - trust) * SOURCE_SD**2 + RUN_SD**2)
    return PowerScale(float(np.exp(trust * np.median(known))), float(left))
