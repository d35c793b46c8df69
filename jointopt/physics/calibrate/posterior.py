"""Parameters of a law from few readings y = law(theta) + departure + noise, and honest intervals.

The departure is a Gaussian process: no law is exact, and neighbouring clocks depart alike. Outliers get wider noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular
from scipy.special import stdtrit

from jointopt.core.schema import Bools, Floats, Ints

_STEP = 1e-5  # of central differences; parameters are logarithms, logits and fractions
_ENOUGH = 1e-5  # relative change of the sum of squares at which a search ends
_PRIOR_READINGS = 40.0  # weight of the assumed sizes of noise and departure against that of the readings
_OUTLYING = 2.0  # standard deviations of noise
_TAIL = 4.0  # degrees of freedom of the Student distribution that judges outliers


@dataclass(frozen=True)
class Law:
    """Readings (n,) without error, ``at(theta)``, and the parameters that each of them follows.

    ``follows`` (k, n): no reading depends on any parameter but those of its column. Derivatives take k steps, in each
    of which all parameters of a row move at once.
    """

    at: Callable[[Floats], Floats]
    follows: Ints


@dataclass(frozen=True)
class Readings:
    """Logarithms of what was measured, (n,), NaN where it is queried, and how far it may lie from the law."""

    value: Floats
    departure: Floats  # (n, n) covariance of the law's own error
    noise: Floats  # (n,) standard deviation of one measurement

    @property
    def known(self) -> Bools:
        """Whether each was measured, (n,)."""
        return np.asarray(np.isfinite(self.value))


@dataclass(frozen=True)
class Prior:
    """Independent normal priors of the parameters, (p,)."""

    mean: Floats
    sd: Floats

    def beside(self, index: int, step: float) -> list[Floats]:
        """Starting points with one parameter lowered and raised, for laws with an optimum on each side."""
        unit = np.arange(len(self.mean)) == index
        return [self.mean - step * unit, self.mean + step * unit]


@dataclass(frozen=True)
class Fit:
    """Most likely parameters, and the weight of every reading's noise, (n,) (1 = no outlier)."""

    theta: Floats
    weight: Floats

    def padded(self, columns: int, count: int) -> Fit:
        """For readings of ``columns`` quantities each, after which others were appended to ``count`` in all."""
        own = self.weight.reshape(columns, -1)
        more = ((0, 0), (0, count - own.shape[1]))
        return Fit(self.theta, np.pad(own, more, constant_values=1.0).reshape(-1))


@dataclass(frozen=True)
class Prediction:
    """Expected logarithms (n,), their standard deviation with noise, and the factor on it for a 90 % interval."""

    mean: Floats
    sd: Floats
    factor: float
    theta_sd: Floats  # (p,)


def fit(law: Law, readings: Readings, prior: Prior, starts: Sequence[Floats] = ()) -> Fit:
    """Parameters of the optimum that holds most of the posterior; ``starts`` where a law has several optima."""
    weight = np.ones(len(readings.value))
    found = [_search(law, readings, prior, weight, start) for start in (prior.mean, *starts)]
    theta = min(found, key=lambda pair: pair[1])[0]
    for _ in range(4):
        revised = _outlier_weights(law, readings, weight, theta)
        if np.abs(revised - weight).max(initial=0.0) < 0.02:
            break
        weight = revised
        theta, _ = _search(law, readings, prior, weight, theta)
    return Fit(theta, weight)


def predict(law: Law, readings: Readings, prior: Prior, found: Fit) -> Prediction:
    """Every reading, queried or known, given law and known readings: Gaussian process regression on the linearised law.

    Rasmussen and Williams 2006, section 2.7 (explicit basis functions); its scale is Student's, of prior and readings.
    """
    known = np.flatnonzero(readings.known)
    value, slope = _linearised(law, found.theta)
    expected = value + slope @ (prior.mean - found.theta)
    scaled = slope * prior.sd**2
    cross = scaled @ slope[known].T + readings.departure[:, known]
    factor = cho_factor(cross[known] + np.diag(readings.noise[known] ** 2 / found.weight[known]))
    miss = readings.value[known] - expected[known]
    mean = expected + cross @ cho_solve(factor, miss)
    variance = (scaled * slope).sum(axis=1) + np.diag(readings.departure) + readings.noise**2
    variance -= np.einsum("ij,ji->i", cross, cho_solve(factor, cross.T))
    degrees = _PRIOR_READINGS + known.size
    spread = (_PRIOR_READINGS + miss @ cho_solve(factor, miss)) / degrees
    left = prior.sd**2 - np.einsum("ij,ji->i", scaled[known].T, cho_solve(factor, scaled[known]))
    sd = np.sqrt(np.maximum(variance, 1e-12) * spread)
    return Prediction(mean, sd, float(stdtrit(degrees, 0.95)), np.sqrt(np.maximum(left, 0.0)))


def _covariance(readings: Readings, weight: Floats) -> Floats:
    known = np.flatnonzero(readings.known)
    return np.asarray(readings.departure[np.ix_(known, known)] + np.diag(readings.noise[known] ** 2 / weight[known]))


def _search(law: Law, readings: Readings, prior: Prior, weight: Floats, start: Floats) -> tuple[Floats, float]:
    """Parameters of least squares of the whitened misses and of the departures from the prior, and their rank.

    Rank: -2·log of the optimum's posterior mass in Laplace's approximation (MacKay 2003, chapter 27), but for a
    constant: of optima as likely as each other, the wider holds more of the posterior.
    """
    from scipy.optimize import least_squares

    known = np.flatnonzero(readings.known)
    lower = cholesky(_covariance(readings, weight), lower=True)
    measured = readings.value[known]

    def whitened(value: Floats) -> Floats:
        return np.asarray(solve_triangular(lower, value, lower=True, check_finite=False))

    def misses(theta: Floats) -> Floats:
        return np.concatenate([whitened(law.at(theta)[known] - measured), (theta - prior.mean) / prior.sd])

    def slopes(theta: Floats) -> Floats:
        return np.vstack([whitened(_linearised(law, theta)[1][known]), np.diag(1.0 / prior.sd)])

    found = least_squares(misses, start, slopes, x_scale="jac", ftol=_ENOUGH, xtol=None, gtol=None, max_nfev=60)
    return found.x, 2.0 * float(found.cost) + float(np.linalg.slogdet(found.jac.T @ found.jac)[1])


def _outlier_weights(law: Law, readings: Readings, weight: Floats, theta: Floats) -> Floats:
    """1 for a reading whose noise is usual, less the further it lies from its neighbours (Student's noise)."""
    known = np.flatnonzero(readings.known)
    miss = readings.value[known] - law.at(theta)[known]
    variance = readings.noise[known] ** 2 / weight[known]
    noise = cho_solve(cho_factor(_covariance(readings, weight)), miss) * variance
    away = np.abs(noise) / readings.noise[known]
    revised = np.ones(len(readings.value))
    revised[known] = np.where(away < _OUTLYING, 1.0, (_TAIL + _OUTLYING**2) / (_TAIL + away**2))
    return revised


def _linearised(law: Law, theta: Floats) -> tuple[Floats, Floats]:
    """The law at theta (n,) and its derivatives (n, p), by central differences of `_STEP`."""
    value = law.at(theta)
    slope, rows = np.zeros((value.size, theta.size)), np.arange(value.size)
    for moved in law.follows:
        step = np.zeros_like(theta)
        step[moved] = _STEP
        slope[rows, moved] = (law.at(theta + step) - law.at(theta - step)) / (2.0 * _STEP)
    return value, slope
