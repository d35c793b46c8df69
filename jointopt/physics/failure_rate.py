"""How often a run fails, from the failures that were counted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaincinv

_ENDS = (0.05, 0.95)  # of a 90 % interval


class Rate(NamedTuple):
    """A rate per unit of the time in which failures were counted: its mean, and the ends of a 90 % interval."""

    mean: float
    low: float
    high: float


def failure_rate(failures: float, exposure: float) -> Rate:
    """The posterior of a constant rate after so many failures in a time, a gamma distribution by Jeffreys' prior.

    Of shape n + 1/2 and mean (n + 1/2) / T (Jeffreys 1946); without any failure half a failure is expected.
    """
    low, high = gammaincinv(failures + 0.5, np.asarray(_ENDS)) / exposure
    return Rate((failures + 0.5) / exposure, float(low), float(high))
