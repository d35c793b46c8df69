"""What a few measured runs say about the other plans of the same job: a Gaussian process on log(measured / predicted).

The prediction carries the shape, the process what it misses: a factor common to all plans, and one that plans with
like degrees share. Feasibility is a threshold on predicted memory, known no better than what ran and what did not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from jointopt.schema import Columns, Floats, Ints

_DOUBLINGS = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size")


@dataclass(frozen=True)
class Spread:
    """Standard deviations of log(measured / predicted), and how far likeness reaches.

    Chosen on half of the recorded groups and reported on the other half (tests/bench/bench_replay.py).
    """

    shared: float = 0.2  # common to all plans of a job: what the kernel table and the cluster share
    local: float = 0.06  # common to plans alike
    reach: float = 1.0  # in doublings of a degree: where the likeness of two plans falls to 1/e
    noise: float = 0.1  # of one plan, not told by its neighbours
    outlier: float = (
        0.5  # residuals further from the median are cut: allocator retries teach nothing about others
    )


def plan_features(plans: Columns) -> Floats:
    """Plans as points (n, 11) in which a doubling of any degree is a step of 1.

    ``plans`` holds the layout columns and ``stage_clock_mhz``; a switch is half a doubling, an octave of clock two.
    """
    doublings = [np.log2(plans[name].astype(float)) for name in _DOUBLINGS]
    switches = [plans[name].astype(float) / 2 for name in ("zero_stage", "recompute", "sequence_parallel")]
    clock = 2 * np.log2(np.nanmean(plans["stage_clock_mhz"], axis=1))
    return np.stack([*doublings, *switches, clock], axis=1)


def adapted(
    features: Floats, log_predicted: Floats, index: Ints, log_measured: Floats, spread: Spread | None = None
) -> tuple[Floats, Floats]:
    """(mean, standard deviation) of the log of every plan (n,), given the measured ones ``index`` (m,).

    Posterior of a Gaussian process with a constant and an exponential kernel (Rasmussen and Williams 2006, equations
    2.25 and 2.26, kernel 4.18); without measurements, the prediction itself. What is said is the value that a run of
    the plan would show, so that a measured plan keeps the deviation of a second run.
    """
    spread = spread or Spread()
    variance = spread.shared**2 + spread.local**2 + spread.noise**2
    if not len(index):
        return log_predicted, np.full(len(log_predicted), np.sqrt(variance))
    residual = log_measured - log_predicted[index]
    middle = np.median(residual)
    residual = np.clip(residual, middle - spread.outlier, middle + spread.outlier)
    across = _kernel(features, features[index], spread)
    within = across[index] + spread.noise**2 * np.eye(len(index))
    weights = np.linalg.solve(within, across.T).T
    left = variance - (weights * across).sum(axis=1)
    return log_predicted + weights @ residual, np.sqrt(np.maximum(left, spread.noise**2))


def _kernel(a: Floats, b: Floats, spread: Spread) -> Floats:
    distance = np.abs(a[:, None, :] - b[None, :, :]).sum(axis=2)
    covariance: Floats = spread.shared**2 + spread.local**2 * np.exp(-distance / spread.reach)
    return covariance


_THRESHOLDS = np.linspace(-1.0, 1.0, 201)  # log of the load at which runs begin to fail
_THRESHOLD_SPREAD = 0.1  # how far it may lie from the limit: the median error of predicted memory
_PLAN_SPREAD = 0.05  # how far one plan may lie from its prediction, relative to the others


def fit_probability(log_load: Floats, index: Ints, fitted: Floats) -> Floats:
    """Probability (n,) that each plan fits in memory; ``log_load`` is the log of predicted memory over the limit.

    ``fitted`` (m,) is 1 where the run ``index`` fitted and 0 where it ran out of memory. The threshold has a normal
    prior around the limit and is summed out on a grid: an OOM lowers it for all plans that need as much, a run beyond
    it raises it.
    """
    margin = (_THRESHOLDS[None, :] - log_load[:, None]) / _PLAN_SPREAD
    log_weight = -0.5 * (_THRESHOLDS / _THRESHOLD_SPREAD) ** 2
    sign = np.where(np.asarray(fitted) > 0, 1.0, -1.0)[:, None]
    log_weight = log_weight + log_ndtr(sign * margin[index]).sum(axis=0)
    weight = np.exp(log_weight - log_weight.max())
    probability: Floats = ndtr(margin) @ (weight / weight.sum())
    return probability
