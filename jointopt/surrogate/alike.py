"""How far two plans of one job are apart by the process: errors of plans that are alike cancel."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Bools, Floats
from jointopt.core.units import Z_90
from jointopt.surrogate.posterior import SCALES, SHARES, Posterior
from jointopt.surrogate.residual_gp import Kernel, Runs

# Deviation of a difference by what plans differ in, at which half of the noise of each counts. What the process takes
# for noise is mostly what it cannot tell of a plan, and a plan that moves a layer shares it. Recorded pairs of 0.05 to
# 0.25 do as well; with all of the noise plans alike are as wide as others (docs/appendix/surrogate-experiments.md).
ALIKE = 0.15
UNLIKE = 0.3  # the same deviation of half of recorded pairs: what all of them differ by counts in full from here on
_SAME = 1e-6  # of features and sensitivities, as rounding has it


def half_width_apart(posterior: Posterior, runs: Runs, against: Runs) -> Floats:
    """90 % half-width (n,) of the difference of residuals of ``runs`` and of ``against`` (as many or one).

    By what is known, and the noise of both as far as the two plans differ; at least that of repeats, `Kernel.noise`.
    """
    left = posterior.contrast_variance(runs, against)
    return _half_width(posterior, left, apart(posterior.kernel, runs, against))


def half_width_of_new(kernel: Kernel, runs: Runs, against: Runs) -> Floats:
    """`half_width_apart` (n,) where no run of the source is known."""
    prior = apart(kernel, runs, against)
    return _half_width(_of_new(kernel), prior, prior)


def share_of_unlike(kernel: Kernel, runs: Runs, against: Runs) -> Floats:
    """Half-width (n,) over that of plans as unlike as recorded pairs mostly are, both by roots; 1 at most."""
    unlike = np.array([UNLIKE**2])
    usual = _half_width(_of_new(kernel), unlike, unlike)
    return np.minimum(np.sqrt(half_width_of_new(kernel, runs, against) / usual), 1.0)


def most_beyond_new(prior: Floats) -> Floats:
    """By how much runs of the source may make differences wider than `half_width_of_new` has them, (n,).

    Of plans alike by nothing: that some runs scatter is no evidence that a layer more or less does. ``prior``: `apart`.
    """
    return np.asarray(1.0 + prior / ALIKE**2)


def apart(kernel: Kernel, runs: Runs, against: Runs) -> Floats:
    """Prior variance (n,) of the difference of residuals, noise not included: 0 of plans that differ in nothing."""
    return _of_new(kernel).contrast_variance(runs, against)


def are_twins(runs: Runs, against: Runs) -> Bools:
    """Whether runs (n,) are of the plan of those that they are compared with."""
    first, second = (np.hstack([each.sensitivity, each.matrix(runs.names)]) for each in (runs, against))
    return np.asarray((np.abs(first - second) <= _SAME).all(axis=1))


def _half_width(posterior: Posterior, left: Floats, prior: Floats) -> Floats:
    noise = posterior.noise_of_two
    counted = np.maximum(noise * prior / (prior + ALIKE**2), min(4.0 * posterior.kernel.noise**2, noise))
    return np.asarray(Z_90 * np.sqrt(left + counted))


def _of_new(kernel: Kernel) -> Posterior:
    """The posterior where no run of the source is known."""
    return Posterior(kernel, np.square(SCALES), SHARES)
