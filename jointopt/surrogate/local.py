"""What a few measured runs say about the other plans of the same job: a regression on log(measured / predicted).

The prediction carries the shape, the regression what it misses: a factor common to all plans, and one per doubling of
each degree. Feasibility is a threshold on predicted memory, known no better than what ran and what did not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, ndtr

from jointopt.schema import Columns, Floats, Ints

_DOUBLINGS = ("dp", "tp", "pp", "cp", "ep", "vpp", "micro_batch_size")


@dataclass(frozen=True)
class Spread:
    """Standard deviations of log(measured / predicted).

    Chosen on every other recorded group, reported on those between (tests/bench/bench_replay.py). A term for plans
    alike in all degrees (an exponential kernel) was tried and changed nothing within 12 runs.
    """

    shared: float = 0.2  # common to all plans of a job: what the kernel table and the cluster share
    trend: float = 0.03  # per doubling of a degree, wherever the others stand
    noise: float = 0.05  # of one plan, not told by the others


_TAIL = 3.0  # degrees of freedom of the noise: some runs are several times slower for reasons of their own
_NOISE_RUNS = 4.0  # how many runs the prior of the noise is worth against those measured
_ROUNDS = 20  # of reweighting; the weights settle to a few per cent in ten


def plan_features(plans: Columns) -> Floats:
    """Plans as points (n, 11) in which a doubling of any degree is a step of 1, around their mean.

    ``plans`` holds the layout columns and ``stage_clock_mhz``; a switch is half a doubling, an octave of clock two.
    """
    doublings = [np.log2(plans[name].astype(float)) for name in _DOUBLINGS]
    switches = [plans[name].astype(float) / 2 for name in ("zero_stage", "recompute", "sequence_parallel")]
    clock = 2 * np.log2(np.nanmean(plans["stage_clock_mhz"], axis=1))
    points = np.stack([*doublings, *switches, clock], axis=1)
    centred: Floats = points - points.mean(axis=0)
    return centred


def adapted(
    features: Floats, log_predicted: Floats, index: Ints, log_measured: Floats, spread: Spread | None = None
) -> tuple[Floats, Floats]:
    """(mean, standard deviation) of the log of every plan (n,), given the measured ones ``index`` (m,).

    Bayesian linear regression in the form of a Gaussian process (Rasmussen and Williams 2006, equations 2.25 and 2.26
    with the linear covariance of section 4.2.2); without measurements, the prediction itself. Noise is Student's, by
    reweighting, and its scale is learned, so that one run that stalled moves the others little and many that scatter
    widen everything. What is said is the value that a run of the plan would show.
    """
    spread = spread or Spread()
    prior = spread.shared**2 + spread.trend**2 * (features**2).sum(axis=1)
    if not len(index):
        return log_predicted, np.sqrt(prior + spread.noise**2)
    across = spread.shared**2 + spread.trend**2 * (features @ features[index].T)
    residual = log_measured - log_predicted[index]
    variance, scale = _noise(across[index], residual, spread.noise**2)
    weights = np.linalg.solve(across[index] + np.diag(variance), across.T).T
    left = np.maximum(prior - (weights * across).sum(axis=1), 0.0)
    return log_predicted + weights @ residual, np.sqrt(left + scale)


def _noise(kernel: Floats, residual: Floats, usual: float) -> tuple[Floats, float]:
    """Variance of each run (m,) and of a plan not run.

    Expectation maximisation for Student's noise, whose scale has an inverse-gamma prior around ``usual``.
    """
    scale, weight = usual, np.ones(len(residual))
    for _ in range(_ROUNDS):
        gain = kernel @ np.linalg.inv(kernel + np.diag(scale / weight))
        error = (residual - gain @ residual) ** 2 + np.diag(kernel - gain @ kernel)
        weight = (_TAIL + 1.0) / (_TAIL + error / scale)
        scale = float((_NOISE_RUNS * usual + (weight * error).sum()) / (_NOISE_RUNS + len(residual)))
    return scale / weight, scale


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
