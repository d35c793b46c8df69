"""Predictions of a few runs beside one constant: as far as the process is sure of more than that."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats

ENOUGH = 3  # runs of a source: the median of fewer is any one of them, or lies between two
# Of the process's deviation: a plan that far from the constant counts by half. Of 0.25 to 0.75 the least by which no
# recorded source, left out, is worse than the constant beyond doubt (docs/appendix/surrogate-experiments.md).
SURE = 0.5


def beside_constant(mean: Floats, deviation: Floats, constant: float) -> Floats:
    """The ``mean`` (n,) of a process, moved towards one ``constant`` as far as its ``deviation`` (n,) leaves it open.

    A few runs tell one factor best; what the process says beyond that of a plan counts where it is sure. Logarithms.
    """
    apart = mean - constant
    fourth = np.square(np.square(apart))
    return np.asarray(constant + apart * fourth / (fourth + (SURE * deviation) ** 4 + np.finfo(float).tiny))
