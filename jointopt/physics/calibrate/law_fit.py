"""Parameters of the clock law for a GPU and its work, and what is known of them before any reading."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve, cholesky, solve_triangular
from scipy.special import stdtrit

from jointopt.core.errors import CatalogError
from jointopt.core.schema import Bools, Floats, Ints
from jointopt.jobs.catalog.gpus import load_gpu, response_figures
from jointopt.jobs.cluster import Gpu
from jointopt.physics.calibrate.stage_tables import ResponseTable
from jointopt.physics.clock_law import CurveConstants, GpuConstants, log_power_w, log_time_s, switching_shape

_SHARED = 9  # parameters of the GPU
_FLOOR = 0.92  # clock below which limits pause work, over that of the knee: 0.89-0.95 on A100-PCIe and A40
_SHARE, _SHARE_SD = 0.3, 0.7  # logit of the share of time that follows the clock: 0.35 to 0.85 on A40 and A100
_CURVE_FIELDS = 5
_WATTS = ("static_w", "wait_w", "pause_w", "limit_w")  # of a `ResponsePrior`, which follow the size of the board


@dataclass(frozen=True)
class ResponsePrior:
    """Prior of a GPU before any reading: values, and deviations ``_sd`` (relative, but for fractions)."""

    knee: float = 0.75
    knee_sd: float = 0.05
    rise: float = 0.22
    rise_sd: float = 0.35
    static_w: float = 62.0
    static_sd: float = 0.2
    wait_w: float = 100.0  # at the maximum clock
    wait_sd: float = 0.15
    pause_w: float = 75.0  # of a GPU that a limit pauses
    limit_w: float = 400.0
    limit_sd: float = 0.12
    lowest: float = 0.12  # clock over the maximum clock
    scatter: float = 0.05  # of a pass's time under a limit, standard deviation of the logarithm


@dataclass(frozen=True)
class Hierarchy:
    """The parameter vector ``theta`` of a hierarchical model: of a GPU, its kinds of work, and every curve.

    A curve is one stage's passes of one kind (forward, backward). Kinds and curves are departures from the GPU's values
    with narrow priors, so that few readings suffice. In order: the GPU's knee; logarithms of rise, softness, floor and
    idle power; logit of the share that follows the clock [5]; logarithms of static power [6], board limit [7] and
    switching power [8]. Then shares and static powers of the kinds, then the five ``own`` figures of `work` per curve.
    """

    kind_of: Ints  # (curves,)
    kinds: int
    lowest: float = 0.12  # clock over the maximum clock

    @property
    def size(self) -> int:
        """Number of parameters."""
        return _SHARED + 2 * self.kinds + _CURVE_FIELDS * len(self.kind_of)

    def shape(self, theta: Floats) -> GpuConstants:
        """Parameters of the law that all work on the GPU shares."""
        knee = float(np.clip(theta[0], 0.2, 0.98))
        rise, softness, floor, idle_w = np.exp(theta[1:5]).tolist()
        return GpuConstants(knee, rise, softness, floor, idle_w, self.lowest)

    def limit_w(self, theta: Floats) -> float:
        """The power limit of the board itself."""
        return float(np.exp(theta[7]))

    def work(self, theta: Floats) -> CurveConstants:
        """Constants of every curve, (curves,)."""
        share, static = theta[_SHARED : _SHARED + 2 * self.kinds].reshape(2, self.kinds)[:, self.kind_of]
        own = theta[_SHARED + 2 * self.kinds : self.size].reshape(_CURVE_FIELDS, len(self.kind_of))
        return CurveConstants(
            log_time_s=own[0],
            share=1.0 / (1.0 + np.exp(-(theta[5] + share + own[2]))),
            static_w=np.exp(theta[6] + static + own[3]),
            switching_w=np.exp(theta[8] + own[1]),
            limit_factor=np.exp(own[4]),
        )

    def depends_on(self, curve: Ints) -> Ints:
        """Positions in ``theta``, (k, n), of all parameters that readings (n,) of these curves depend on."""
        shared = np.repeat(np.arange(_SHARED)[:, None], len(curve), axis=1)
        kinds = _SHARED + np.arange(2)[:, None] * self.kinds + self.kind_of[curve]
        own = _SHARED + 2 * self.kinds + np.arange(_CURVE_FIELDS)[:, None] * len(self.kind_of) + curve
        return np.concatenate([shared, kinds, own])

    def prior(
        self, known: ResponsePrior, log_time_s: Floats, switching_w: Floats, limit_sd: float = 0.02
    ) -> tuple[Floats, Floats]:
        """Means and deviations; ``log_time_s`` and ``switching_w`` (curves,) are first guesses from the readings."""
        shared = [known.knee, *np.log([known.rise, 0.025, _FLOOR * known.knee, known.pause_w])]
        shared += [_SHARE, *np.log([known.static_w, known.limit_w, np.median(switching_w)])]
        shared_sd = [known.knee_sd, known.rise_sd, 0.5, 0.08, 0.08, _SHARE_SD, known.static_sd, known.limit_sd, 0.7]
        nothing = np.zeros(2 * self.kinds)
        kinds_sd = np.repeat([0.4, 0.03], self.kinds)
        own = np.concatenate([log_time_s, np.zeros(4 * len(self.kind_of))])
        own_sd = np.repeat([0.7, 0.15, 0.25, 0.02, limit_sd], len(self.kind_of))
        return np.concatenate([shared, nothing, own]), np.concatenate([shared_sd, kinds_sd, own_sd])


def constants_of_rows(work: CurveConstants, index: Ints) -> CurveConstants:
    """The constants of the curve of every row."""
    return CurveConstants(*(getattr(work, field.name)[index] for field in fields(work)))


def matern(distance: Floats, length: float) -> Floats:
    """Correlation at that distance of a function that is smooth once: Matérn 3/2 (Rasmussen and Williams 2006)."""
    z = np.sqrt(3.0) * distance / length
    return np.asarray((1.0 + z) * np.exp(-z))


CLOCK_COLUMNS = "clock_mhz", "forward_clock_mhz_mean", "backward_clock_mhz_mean"

# Of a GPU that was measured before.
_SURE = {"knee_sd": 0.01, "rise_sd": 0.1, "static_sd": 0.08, "wait_sd": 0.1}
# Relative, of the board's power limit.
_LIMIT_SD_MEASURED, _LIMIT_SD, _LIMIT_SD_OTHER_BOARD = 0.015, 0.03, 0.1
# Of GPUs that were not: waiting at the maximum clock over the waiting that the catalogue states, which is one of lower
# clocks too, and a GPU that a limit pauses over static power, both as on A100-PCIe and A40.
_WAIT_AT_TOP, _PAUSE = 1.2, 1.2
_LOWEST = 0.88  # clock that the deepest limits leave, over the lowest that can be set: of A40 under 100 W


@dataclass(frozen=True)
class Board:
    """A GPU whose response is to be found: its clocks, and the prior of its constants."""

    id: str
    max_clock_mhz: float
    step_mhz: float
    prior: ResponsePrior


def highest_clock_mhz(measured: ResponseTable) -> float | None:
    """The highest clock of the readings in MHz; None where they have none."""
    seen = measured.rows.reindex(columns=list(CLOCK_COLUMNS)).to_numpy(float)
    return float(np.nanmax(seen)) if np.isfinite(seen).any() else None


def board_of(gpu: str, measured: ResponseTable) -> Board:
    """The GPU as the catalogue knows it; one that it does not know as its readings show it."""
    try:
        known = load_gpu(gpu)
    except CatalogError:
        known = None
    max_clock = (known.clock_max_mhz if known else None) or highest_clock_mhz(measured) or 1.0
    drawn_w = float(np.nanmax(measured.rows["power_w"])) if "power_w" in measured.rows else 0.0
    return Board(gpu, max_clock, (known.clock_step_mhz if known else None) or 15.0, _prior(known, drawn_w))


def _prior(gpu: Gpu | None, drawn_w: float) -> ResponsePrior:
    """Prior of the GPU before its readings, of which the strongest drew ``drawn_w``."""
    usual = ResponsePrior()
    rated_w = (gpu.tdp_w if gpu else None) or max(1.1 * drawn_w, 1.0)
    watts = {name: getattr(usual, name) * rated_w / usual.limit_w for name in _WATTS}
    prior = replace(usual, **watts)
    if gpu and gpu.power:
        static_w = max(gpu.power.static_w, 0.1 * rated_w)
        wait_w = max(_WAIT_AT_TOP * gpu.power.wait_w, static_w)
        prior = replace(prior, static_w=static_w, wait_w=wait_w, pause_w=_PAUSE * static_w)
    if gpu and gpu.clock_min_mhz and gpu.clock_max_mhz:
        prior = replace(prior, lowest=_LOWEST * gpu.clock_min_mhz / gpu.clock_max_mhz)
    figures = response_figures(gpu) if gpu else {}
    if figures:
        watts = {name: figures[name] for name in _WATTS if name in figures}
        knee, rise = figures["knee_fraction"], figures["voltage_ratio"] - 1.0
        scatter = figures.get("limit_scatter", prior.scatter)
        prior = replace(prior, knee=knee, rise=rise, scatter=scatter, **watts | _SURE)
    if gpu is None or gpu.tdp_w is None or drawn_w > 1.02 * rated_w:  # another board of that GPU
        return replace(prior, limit_w=max(1.03 * drawn_w, rated_w), limit_sd=_LIMIT_SD_OTHER_BOARD)
    return replace(prior, limit_sd=_LIMIT_SD_MEASURED if "limit_w" in figures else _LIMIT_SD)


# Parameters of a law from few readings y = law(theta) + departure + noise, and honest intervals.


_STEP = 1e-5  # of central differences; parameters are logarithms, logits and fractions
_ENOUGH = 1e-5  # relative change of the sum of squares at which a search ends
_PRIOR_READINGS = 40.0  # weight of the assumed sizes of noise and departure against that of the readings
_OUTLYING = 2.0  # standard deviations of noise
_TAIL = 4.0  # degrees of freedom of the Student distribution that judges outliers


@dataclass(frozen=True)
class Law:
    """A law ``at(theta)`` for n readings, (n,), without error.

    ``depends_on`` (k, n): positions in theta of the parameters that each reading depends on. A derivative takes k
    steps, one per row of these.
    """

    at: Callable[[Floats], Floats]
    depends_on: Ints


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


@dataclass(frozen=True)
class Fit:
    """Most likely parameters (p,), and a weight per reading, (n,): 1, and less for outliers."""

    theta: Floats
    weight: Floats

    def with_new_rows(self, columns: int, count: int) -> Fit:
        """The fit for ``count`` rows of ``columns`` quantities each, of which later ones are new (weight 1)."""
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


def fit(law: Law, readings: Readings, prior: Prior, two_sided: tuple[int, float] | None = None) -> Fit:
    """Parameters of the optimum that holds most of the posterior, robust against outliers.

    ``two_sided``: (position of a parameter that may have an optimum on either side of its prior, by how much searches
    start off it).
    """
    weight, starts = np.ones(len(readings.value)), [prior.mean]
    if two_sided:
        step = two_sided[1] * (np.arange(len(prior.mean)) == two_sided[0])
        starts += [prior.mean - step, prior.mean + step]
    found = [_search(law, readings, prior, weight, start) for start in starts]
    theta = min(found, key=lambda pair: pair[1])[0]
    for _ in range(4):
        # 1 for a reading whose noise is usual, less the further it lies from its neighbours (Student's noise)
        known = np.flatnonzero(readings.known)
        miss = readings.value[known] - law.at(theta)[known]
        variance = readings.noise[known] ** 2 / weight[known]
        noise = cho_solve(cho_factor(_covariance(readings, weight)), miss) * variance
        away = np.abs(noise) / readings.noise[known]
        revised = np.ones(len(readings.value))
        revised[known] = np.where(away < _OUTLYING, 1.0, (_TAIL + _OUTLYING**2) / (_TAIL + away**2))
        if np.abs(revised - weight).max(initial=0.0) < 0.02:
            break
        weight = revised
        theta, _ = _search(law, readings, prior, weight, theta)
    return Fit(theta, weight)


def predict(law: Law, readings: Readings, prior: Prior, found: Fit) -> Prediction:
    """Predictions (n,) of all readings, queried or known: Gaussian process regression on the linearised law.

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
    whitened = functools.partial(solve_triangular, lower, lower=True, check_finite=False)
    found = least_squares(
        lambda theta: np.concatenate(
            [whitened(law.at(theta)[known] - readings.value[known]), (theta - prior.mean) / prior.sd]
        ),
        start,
        lambda theta: np.vstack([whitened(_linearised(law, theta)[1][known]), np.diag(1.0 / prior.sd)]),
        x_scale="jac", ftol=_ENOUGH, xtol=None, gtol=None, max_nfev=60,
    )  # fmt: skip
    return found.x, 2.0 * float(found.cost) + float(np.linalg.slogdet(found.jac.T @ found.jac)[1])


def _linearised(law: Law, theta: Floats) -> tuple[Floats, Floats]:
    """The law at theta (n,) and its derivatives (n, p), by central differences of `_STEP`."""
    value = law.at(theta)
    slope, rows = np.zeros((value.size, theta.size)), np.arange(value.size)
    for moved in law.depends_on:
        step = np.zeros_like(theta)
        step[moved] = _STEP
        slope[rows, moved] = (law.at(theta + step) - law.at(theta - step)) / (2.0 * _STEP)
    return value, slope


# Stage profiles: time and power of forward and backward passes at any clock, from readings at a few.


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

    ``found``: the fit of an earlier call with the same readings and other queried rows; it is kept.
    """
    hierarchy, n = Hierarchy(rows.kind_of, int(rows.kind_of.max()) + 1, known.lowest), len(rows.x)

    def logarithms(theta: Floats) -> Floats:
        shape, work = hierarchy.shape(theta), constants_of_rows(hierarchy.work(theta), rows.curve)
        limit = np.fmin(rows.limit_w, hierarchy.limit_w(theta))
        return np.concatenate([f(shape, work, rows.x, limit) for f in (log_time_s, log_power_w)])

    law = Law(logarithms, np.tile(hierarchy.depends_on(rows.curve), 2))
    readings = _readings(rows)
    prior = Prior(*hierarchy.prior(known, *_first_guesses(rows, known)))
    found = found.with_new_rows(2, n) if found else fit(law, readings, prior, (7, 0.1))  # the limit
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
    near = error_correlation(rows.x, rows.limit_w)
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


def error_correlation(x: Floats, limit_w: Floats) -> Floats:
    """Correlation (n, n) of the law's errors at clocks ``x`` and limits; 0 between limited rows and others."""
    limited = np.isfinite(limit_w)
    z, w = np.log(x), np.log(np.where(limited, limit_w, 1.0))
    near = matern(np.abs(z[:, None] - z[None, :]), _LENGTH)
    near *= matern(np.abs(w[:, None] - w[None, :]), _LIMIT_LENGTH)
    return np.asarray(near * (limited[:, None] == limited[None, :]))


def _first_guesses(rows: StageRows, known: ResponsePrior) -> tuple[Floats, Floats]:
    """Logarithm of every curve's time at the maximum clock, had 70 % of it followed the clock, and switching power."""
    curves = rows.curve, len(rows.kind_of)
    with np.errstate(divide="ignore", invalid="ignore"):
        guess = np.log(rows.time_s) + 0.7 * np.log(rows.x)
    above = np.maximum(rows.power_w - known.static_w, 5.0) / switching_shape(rows.x, known.knee, known.rise)
    return per_curve(guess, *curves, np.nanmin), per_curve(above, *curves, np.nanmedian)


def per_curve(values: Floats, curve: Ints, curves: int, of: Callable[[Floats], Any]) -> Floats:
    """One figure of every curve's known values, (curves,); the mean of the others for a curve without any."""
    out = np.full(curves, np.nan)
    for i in range(curves):
        own = values[(curve == i) & np.isfinite(values)]
        if own.size:
            out[i] = of(own)
    return np.where(np.isnan(out), np.nanmean(out), out)
