"""Time and power of measured work at any clock and power limit, with constants that a fit finds.

With x = f / f_max of the clock asked for, v = V(f) / V(f_max) and x' the clock really reached,

    t(x) = t_max·(s / x' + 1 - s)        s: share of the time at f_max that follows the clock
    P(x) = min(P_static + P_switching·x·v², P_limit)

x' is x below the clock where P meets the limit and that clock above, with a soft corner: a limited GPU dithers
between clocks. Below a floor a GPU does not clock lower but pauses, at its idle power.

Source: 152 + 152 readings of A100-SXM stages and 2,348 of A100-PCIe and A40 ranks (Perseus, SOSP'24).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import Floats, Ints

_GRID = np.linspace(0.01, 2.5, 600)  # x at which the power law is turned round
_POWER_CORNER = 0.5  # width of power's corner at the limit over that of the clock's
_PAUSE_CORNER = 0.1
_FLOOR_CORNER = 0.03
_SHARED = 9  # parameters of the GPU
_CURVE_FIELDS = 5


@dataclass(frozen=True)
class Shape:
    """What all work on one GPU shares."""

    knee: float  # x below which the voltage no longer falls
    rise: float  # V(f_max) / V(below the knee) - 1
    softness: float  # width of the corner in x where the limit begins to bite
    floor: float  # x at which a limited GPU begins to pause
    idle_w: float  # during those pauses


@dataclass(frozen=True)
class Work:
    """Constants of one piece of work per row, arrays that broadcast against the rows."""

    log_time_s: Floats  # at the maximum clock, without a limit
    share: Floats  # of that time which follows the clock
    static_w: Floats
    switching_w: Floats  # at the maximum clock, beyond static
    limit_factor: Floats  # power at which the limit holds it, over the limit


def switching_shape(x: Floats, knee: float, rise: float) -> Floats:
    """x·v², 1 at the maximum clock: voltage flat up to the knee, linear above."""
    v = 1.0 + (np.maximum(x, knee) - 1.0) * (1.0 - 1.0 / (1.0 + rise)) / (1.0 - knee)
    return np.asarray(x * v * v)


def soft_min(a: Floats, b: Floats, width: float) -> Floats:
    """min(a, b) with a round corner of that width, never above the minimum."""
    return np.asarray(-width * np.logaddexp(-np.asarray(a) / width, -np.asarray(b) / width))


def reached_clock(shape: Shape, work: Work, x: Floats, limit_w: Floats) -> Floats:
    """x' of every row: the clock reached, as a fraction of the maximum, when x is asked for under the limit."""
    room_w = np.maximum(limit_w * work.limit_factor - work.static_w, 1.0)
    curve = switching_shape(_GRID, shape.knee, shape.rise)
    ceiling = np.interp(room_w / work.switching_w, curve, _GRID)
    reached = soft_min(x, ceiling, shape.softness)
    floor = np.minimum(shape.floor, x)
    return np.minimum(-soft_min(-reached, -floor, _FLOOR_CORNER), x)


def log_time_s(shape: Shape, work: Work, x: Floats, limit_w: Floats) -> Floats:
    """Logarithm of the seconds that the work takes when x is asked for under the limit."""
    reached = reached_clock(shape, work, x, limit_w)
    floor = switching_shape(np.minimum(shape.floor, x), shape.knee, shape.rise)
    least_w = work.static_w + work.switching_w * floor
    room_w = np.maximum(limit_w * work.limit_factor - shape.idle_w, 5.0)
    pause = np.log(np.maximum(least_w - shape.idle_w, 1.0) / room_w)
    paused = _PAUSE_CORNER * np.logaddexp(0.0, pause / _PAUSE_CORNER)
    return np.asarray(work.log_time_s + np.log(work.share / reached + 1.0 - work.share) + paused)


def log_power_w(shape: Shape, work: Work, x: Floats, limit_w: Floats) -> Floats:
    """Logarithm of the watts drawn while the work runs with x asked for under the limit."""
    free_w = work.static_w + work.switching_w * switching_shape(x, shape.knee, shape.rise)
    width = _POWER_CORNER * shape.softness
    return soft_min(np.log(free_w), np.log(limit_w * work.limit_factor), width)


@dataclass(frozen=True)
class ResponsePrior:
    """What is known of a GPU before any reading: values and, as ``_sd``, how sure (relative where not a fraction)."""

    knee: float = 0.75
    knee_sd: float = 0.05
    rise: float = 0.22
    rise_sd: float = 0.35
    static_w: float = 62.0
    static_sd: float = 0.2
    wait_w: float = 84.0
    wait_sd: float = 0.1
    limit_w: float = 400.0
    limit_sd: float = 0.12

    def scaled(self, watts: float) -> ResponsePrior:
        """The same for a board with that many times the power."""
        return replace(
            self,
            static_w=self.static_w * watts,
            wait_w=self.wait_w * watts,
            limit_w=self.limit_w * watts,
        )


@dataclass(frozen=True)
class Hierarchy:
    """Parameters of a GPU, of its kinds of work (forward, backward), and of every curve, in one vector.

    Kinds and curves are departures from the GPU's values with narrow priors, so that few readings suffice.
    """

    kind_of: Ints  # (curves,)
    kinds: int

    @property
    def curves(self) -> int:
        return len(self.kind_of)

    @property
    def size(self) -> int:
        return _SHARED + 2 * self.kinds + _CURVE_FIELDS * self.curves

    def shape(self, theta: Floats) -> Shape:
        knee = float(np.clip(theta[0], 0.2, 0.98))
        return Shape(knee, *(float(value) for value in np.exp(theta[1:5])))

    def limit_w(self, theta: Floats) -> float:
        """The power limit of the board itself."""
        return float(np.exp(theta[7]))

    def work(self, theta: Floats) -> Work:
        """Constants of every curve, (curves,)."""
        share, static = theta[_SHARED : _SHARED + 2 * self.kinds].reshape(2, self.kinds)[:, self.kind_of]
        own = theta[_SHARED + 2 * self.kinds : self.size].reshape(_CURVE_FIELDS, self.curves)
        return Work(
            log_time_s=own[0],
            share=1.0 / (1.0 + np.exp(-(theta[5] + share + own[2]))),
            static_w=np.exp(theta[6] + static + own[3]),
            switching_w=np.exp(theta[8] + own[1]),
            limit_factor=np.exp(own[4]),
        )

    def follows(self, curve: Ints) -> Ints:
        """Parameters (k, n) on which readings (n,) of these curves depend: the GPU's, their kind's, their own."""
        shared = np.repeat(np.arange(_SHARED)[:, None], len(curve), axis=1)
        kinds = _SHARED + np.arange(2)[:, None] * self.kinds + self.kind_of[curve]
        own = _SHARED + 2 * self.kinds + np.arange(_CURVE_FIELDS)[:, None] * self.curves + curve
        return np.concatenate([shared, kinds, own])

    def prior(
        self, known: ResponsePrior, log_time_s: Floats, switching_w: Floats, limit_sd: float = 0.02
    ) -> tuple[Floats, Floats]:
        """Means and deviations; ``log_time_s`` and ``switching_w`` (curves,) are first guesses from the readings."""
        idle_w = 0.85 * known.static_w
        shared = [known.knee, *np.log([known.rise, 0.025, 0.2, idle_w])]
        shared += [1.0, *np.log([known.static_w, known.limit_w, np.median(switching_w)])]
        shared_sd = [known.knee_sd, known.rise_sd, 0.5, 0.15, 0.12, 1.0, known.static_sd, known.limit_sd, 0.7]
        nothing = np.zeros(2 * self.kinds)
        kinds_sd = np.repeat([0.4, 0.03], self.kinds)
        own = np.concatenate([log_time_s, np.zeros(4 * self.curves)])
        own_sd = np.repeat([0.7, 0.15, 0.25, 0.02, limit_sd], self.curves)
        return np.concatenate([shared, nothing, own]), np.concatenate([shared_sd, kinds_sd, own_sd])


def take(work: Work, index: Ints) -> Work:
    """The constants of the curve of every row."""
    return Work(
        work.log_time_s[index], work.share[index], work.static_w[index], work.switching_w[index],
        work.limit_factor[index],
    )  # fmt: skip


def matern(distance: Floats, length: float) -> Floats:
    """Correlation at that distance of a function that is smooth once (Matérn 3/2)."""
    z = np.sqrt(3.0) * distance / length
    return np.asarray((1.0 + z) * np.exp(-z))
