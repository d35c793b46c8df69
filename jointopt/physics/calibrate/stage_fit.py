"""Stage profiles: time and power of forward and backward passes at any clock, from readings at a few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from jointopt.core.schema import Floats, Ints
from jointopt.physics.calibrate.parameters import Hierarchy, ResponsePrior, matern, take
from jointopt.physics.calibrate.posterior import Fit, Law, Prior, Readings, fit, predict
from jointopt.physics.clock_law import log_power_w, log_time_s, switching_shape

# Chosen on the A100-SXM profiles, clocks held out. Departures and noise are of logarithms; those under a power limit
# are of the A40 and A100-PCIe ranks.
_LENGTH = 0.1  # of log x over which departures from the law die out
_LIMIT_LENGTH = 0.3  # of the logarithm of the limit
_OWN_TIME, _SHARED_TIME, _TIME_NOISE = 0.01, 0.006, 0.0025
_FAR_TIME = 0.05  # per unit of log x: what the law may be wrong by far from any reading
_OWN_POWER, _SHARED_POWER, _POWER_NOISE = 0.008, 0.012, 0.008
_OUTSIDE = 0.05  # per unit of log x outside of the clocks read: half width added to each interval
_LIMITED_DEPARTURE, _LIMITED_NOISE = 0.015, 0.015
# Of iterations by the mean of their clocks, or by one of several limits: which passes were slow is not known.
_MIXED_TIME_NOISE, _MIXED_LIMITED_NOISE = 0.04, 0.06


@dataclass(frozen=True)
class StageRows:
    """Readings of passes, and rows queried: (n,) each, NaN where a time or a power is not known."""

    curve: Ints  # which stage's which pass
    kind_of: Ints  # (curves,) forward, backward, ...
    x: Floats  # clock set over the maximum clock
    limit_w: Floats  # NaN where no limit but the board's is set
    time_s: Floats
    power_w: Floats
    mixed: bool = False  # rows are pipelines' iterations, whose passes had other clocks each

    def limits_w(self, board_w: float) -> Floats:
        """Limit in W of every row, (n,): its own, never above the board's."""
        return np.fmin(self.limit_w, board_w)


@dataclass(frozen=True)
class Estimate:
    """Expected values with the ends of the 90 % interval, (n,) each."""

    value: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True)
class StageFit:
    """Parameters of the GPU and of every curve, and the readings as they explain them."""

    hierarchy: Hierarchy
    theta: Floats
    theta_sd: Floats
    found: Fit
    time: Estimate
    power: Estimate
    energy: Estimate


def fit_stages(rows: StageRows, known: ResponsePrior, found: Fit | None = None) -> StageFit:
    """The clock response of every curve; each needs at least one reading of its time and of its power.

    ``found``: parameters from an earlier call with the same readings, beside which only other rows were queried.
    """
    hierarchy, n = Hierarchy(rows.kind_of, int(rows.kind_of.max()) + 1, known.lowest), len(rows.x)

    def logarithms(theta: Floats) -> Floats:
        shape, work = hierarchy.shape(theta), take(hierarchy.work(theta), rows.curve)
        limit = rows.limits_w(hierarchy.limit_w(theta))
        return np.concatenate([f(shape, work, rows.x, limit) for f in (log_time_s, log_power_w)])

    law = Law(logarithms, np.tile(hierarchy.follows(rows.curve), 2))
    readings = _readings(rows)
    prior = Prior(*hierarchy.prior(known, _first_times(rows), _first_switching_w(rows, known)))
    found = found.padded(2, n) if found else fit(law, readings, prior, prior.beside(7, 0.1))  # the limit
    predicted = predict(law, readings, prior, found)
    # distance of every row's clock from those read, in log x; 0 between them
    z, read = np.log(rows.x), np.isfinite(rows.time_s) & np.isfinite(rows.power_w)
    outside = np.maximum(z[read].min() - z, 0.0) + np.maximum(z - z[read].max(), 0.0)
    (time, power), widths = predicted.mean.reshape(2, n), predicted.factor * predicted.sd.reshape(2, n)
    widths = widths + _OUTSIDE * outside
    return StageFit(
        hierarchy, found.theta, predicted.theta_sd, found, time=interval(time, widths[0]),
        power=interval(power, widths[1]), energy=interval(time + power, np.hypot(*widths) + _OUTSIDE * outside),
    )  # fmt: skip


def interval(log_value: Floats, log_width: Floats) -> Estimate:
    """Value and ends from logarithms."""
    return Estimate(np.exp(log_value), np.exp(log_value - log_width), np.exp(log_value + log_width))


def _readings(rows: StageRows) -> Readings:
    n, limited = len(rows.x), np.isfinite(rows.limit_w)
    near = departures(rows.x, rows.limit_w)
    same = rows.curve[:, None] == rows.curve[None, :]
    both = limited[:, None] & limited[None, :]
    sizes = ((_OWN_TIME, _SHARED_TIME), (_OWN_POWER, _SHARED_POWER))
    limit_size = _LIMITED_DEPARTURE**2 * (same + 0.5)
    departure = block_diag(*(near * np.where(both, limit_size, own**2 * same + far**2) for own, far in sizes))
    departure[:n, :n] += np.multiply.outer(*[_FAR_TIME * np.log(rows.x)] * 2)
    noise = [np.where(limited, _LIMITED_NOISE, usual) for usual in (_TIME_NOISE, _POWER_NOISE)]
    if rows.mixed:
        noise[0] = np.where(limited, _MIXED_LIMITED_NOISE, _MIXED_TIME_NOISE)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(np.concatenate([rows.time_s, rows.power_w]))
    return Readings(value, departure, np.concatenate(noise))


def departures(x: Floats, limit_w: Floats) -> Floats:
    """Correlation (n, n) of the law's errors: near where clocks and limits are, none between limited and not."""
    limited = np.isfinite(limit_w)
    z, w = np.log(x), np.log(np.where(limited, limit_w, 1.0))
    near = matern(np.abs(z[:, None] - z[None, :]), _LENGTH)
    near *= matern(np.abs(w[:, None] - w[None, :]), _LIMIT_LENGTH)
    return np.asarray(near * (limited[:, None] == limited[None, :]))


def _first_times(rows: StageRows) -> Floats:
    """Logarithm of every curve's time at the maximum clock, had 70 % of it followed the clock."""
    with np.errstate(divide="ignore", invalid="ignore"):
        guess = np.log(rows.time_s) + 0.7 * np.log(rows.x)
    return per_curve(guess, rows.curve, len(rows.kind_of), np.nanmin)


def _first_switching_w(rows: StageRows, known: ResponsePrior) -> Floats:
    above = np.maximum(rows.power_w - known.static_w, 5.0) / switching_shape(rows.x, known.knee, known.rise)
    return per_curve(above, rows.curve, len(rows.kind_of), np.nanmedian)


def per_curve(values: Floats, curve: Ints, curves: int, of: Callable[[Floats], Any]) -> Floats:
    """One figure of every curve's known values, (curves,); the mean of the others for a curve without any."""
    out = np.full(curves, np.nan)
    for i in range(curves):
        own = values[(curve == i) & np.isfinite(values)]
        if own.size:
            out[i] = of(own)
    return np.where(np.isnan(out), np.nanmean(out), out)
