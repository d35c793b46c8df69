"""Correction of the power model on one cluster by measured power, trusted as far as it was measured.

One factor on all power, or where runs of different loads show it one on what a GPU draws whatever runs and one on the
rest: P = dynamic·(P_physics − static) + resting·static, a line in the power of the physics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import POWER_LIMIT, Columns, Floats
from jointopt.core.units import Z_90
from jointopt.jobs.job import Job
from jointopt.physics.cooling import power_limit_w
from jointopt.physics.cost_model import BoardPower, CostModel, layout_burst_w
from jointopt.physics.curves import Curves
from jointopt.surrogate.features import watts_at

# Standard deviations of log(measured / predicted) power. No table with both layouts and power is public, so these
# are judgements: boards of one kind and their cooling differ by some per cent, catalogued constants by up to a third.
SOURCE_SD = 0.15
RUN_SD = 0.05
_APART_SD = 0.3  # of the logarithm of the resting factor over the dynamic one, as idle boards of one kind differ
_FEWEST = 4  # runs that can distinguish two factors
_BETTER = 0.9  # of one factor's error on runs left out, below which two are taken
_MOST_LEFT_OUT = 60  # runs, one at a time
_ROUNDS = 6  # of reweighted least squares, after which two factors change by less than 1e-4
_OUTLYING = 2.0  # standard deviations of a run


@dataclass(frozen=True)
class PowerScale:
    """A line from predicted to measured power of a GPU, one for all plans or one for each, (n,).

    Where there are ``curves`` of each plan, those say what it draws, and the line is nowhere above them.
    """

    factor: Floats | float = 1.0
    log_sd: float | None = None  # of measured over corrected power; None: nothing was measured
    offset_w: Floats | float = 0.0
    curves: Curves | None = None

    @classmethod
    def along(cls, curves: Curves, rest_w: float, log_sd: float | None) -> PowerScale:
        """The scale of some curves; ``rest_w``: below which no GPU is predicted to draw, and lines are no bounds."""
        curves, offset_w = curves.above_line(rest_w)
        return cls(curves.beyond, log_sd, offset_w, curves)

    @property
    def half_width(self) -> float | None:
        """90 % half-width of the logarithm."""
        return None if self.log_sd is None else Z_90 * self.log_sd

    def over(self, power_w: Floats) -> Floats:
        """Corrected over predicted power, (n,), of GPUs predicted to draw ``power_w``."""
        if self.curves is not None:
            return np.asarray(self.curves.at(np.arange(self.curves.x.shape[1]), power_w) / power_w)
        return np.asarray(self.factor + self.offset_w / power_w)

    def split(self, lengths: Sequence[int]) -> list[PowerScale]:
        """The scale of each of consecutive pieces of the plans, which have ``lengths`` plans."""
        ends, count = np.cumsum(lengths)[:-1], sum(lengths)
        each = (np.split(np.broadcast_to(value, count), ends) for value in (self.factor, self.offset_w))
        places = np.split(np.arange(count), ends)
        curves = [None if self.curves is None else self.curves.take(at) for at in places]
        return [PowerScale(one, self.log_sd, more_w, of) for one, more_w, of in zip(*each, curves, strict=True)]

    def within(self, limit_w: Floats | float, highest_w: Floats) -> PowerScale:
        """The scale, lowered so that no plan exceeds ``limit_w``; ``highest_w`` (n,): predicted at its highest clock.

        No board exceeds its limit in the mean, so that what is above it is the error of a line.
        """
        over = np.minimum(limit_w / (self.over(highest_w) * highest_w), 1.0)
        if (over >= 1.0).all():
            return self
        curves = self.curves
        if curves is not None:
            curves = replace(curves, y=np.minimum(curves.y, limit_w), beyond=over * curves.beyond)
        return replace(self, factor=over * self.factor, offset_w=over * self.offset_w, curves=curves)


def power_scale(log_ratio: Floats, static_share: Floats | None = None, static_w: float = 0.0) -> PowerScale:
    """The scale after runs with log(measured / predicted power) ``log_ratio`` (n,), NaN where it was not measured.

    A normal prior around 1 on the cluster's factor; the median of the runs, so that one broken meter moves little.
    ``static_share`` (n,): ``static_w`` over the predicted power of each run; where given, two factors are fitted too,
    and taken where they predict runs left out better.
    """
    known = np.isfinite(log_ratio)
    ratio = log_ratio[known]
    if not len(ratio):
        return PowerScale()
    left = float(np.sqrt(SOURCE_SD**2 * RUN_SD**2 / (len(ratio) * SOURCE_SD**2 + RUN_SD**2) + RUN_SD**2))
    share = np.zeros(0) if static_share is None else static_share[known]
    if len(ratio) < _FEWEST or not len(share) or not np.isfinite(share).all() or not _two_are_better(ratio, share):
        return PowerScale(_one(ratio), left)
    dynamic, resting = _two(ratio, share)
    return PowerScale(dynamic, left, (resting - dynamic) * static_w)


def scale_at_limit(log_ratio: Floats, static_share: Floats, static_w: float, limit_w: Floats) -> PowerScale:
    """`power_scale` of the runs under the highest of their limits, (n,): others only show what the limit leaves."""
    at = limit_w == limit_w.max()
    return power_scale(log_ratio[at], static_share[at], static_w)


def _one(log_ratio: Floats) -> float:
    """One factor on all power: the median of the runs, trusted by how many there are."""
    trust = len(log_ratio) * SOURCE_SD**2 / (len(log_ratio) * SOURCE_SD**2 + RUN_SD**2)
    return float(np.exp(trust * np.median(log_ratio)))


def _two(log_ratio: Floats, static_share: Floats) -> tuple[float, float]:
    """(dynamic, resting) factors: least squares of the logarithms under their prior, runs far off weighed less."""
    theta, prior = np.zeros(2), np.diag([SOURCE_SD**-2, _APART_SD**-2])  # logarithms: dynamic, resting over dynamic
    for _ in range(_ROUNDS):
        apart = np.exp(theta[1])
        line = 1.0 + (apart - 1.0) * static_share
        slope = np.stack([np.ones_like(line), apart * static_share / line], axis=1)
        miss = log_ratio - theta[0] - np.log(line)
        weight = 1.0 / (np.maximum(np.abs(miss) / (_OUTLYING * RUN_SD), 1.0) * RUN_SD**2)
        theta = theta + np.linalg.solve(
            slope.T @ (weight[:, None] * slope) + prior, slope.T @ (weight * miss) - prior @ theta
        )
    return float(np.exp(theta[0])), float(np.exp(theta.sum()))


def _two_are_better(log_ratio: Floats, static_share: Floats) -> bool:
    """Whether two factors of all other runs predict each run clearly better than one of them does."""
    count = len(log_ratio)
    left_out = np.unique(np.linspace(0, count - 1, min(count, _MOST_LEFT_OUT)).round().astype(np.int64))
    one, two = np.empty(len(left_out)), np.empty(len(left_out))
    for at, i in enumerate(left_out.tolist()):
        others = np.arange(count) != i
        one[at] = np.log(_one(log_ratio[others]))
        dynamic, resting = _two(log_ratio[others], static_share[others])
        two[at] = np.log(dynamic + (resting - dynamic) * static_share[i])
    errors = [float(np.abs(log_ratio[left_out] - found).mean()) for found in (one, two)]
    return errors[1] < _BETTER * errors[0]


# `BoardPower` of the physics, by which power limits hold, from a learned scale.


CLOCKS = (0.2, 0.4, 0.6, 0.8, 1.0)  # shares of the top clock, between which power is a line: it bends at the knee


@dataclass(frozen=True)
class MeasuredPower:
    """A scale, and the highest power limit in W that it was measured under."""

    scale: PowerScale
    limit_w: float

    def board_power(self, job: Job, layouts: Columns) -> BoardPower | None:
        """Power of GPUs that run ``layouts`` on ``job``; None where the limit of all is the measured one."""
        if not other_limits(job, layouts, self.limit_w):
            return None
        bare = {name: values for name, values in layouts.items() if name != POWER_LIMIT}
        return board_power_of(CostModel(at_limit(job, self.limit_w), bare), self.scale, self.limit_w)


def board_power_of(physics: CostModel, power: PowerScale, limit_w: float) -> BoardPower:
    """Power that layouts of ``physics`` draw by ``power``, one of all or of each (L,); both are under ``limit_w``.

    Kernels that the limit holds in the physics and on the board draw as much in both, however far off the mean is.
    """
    every = np.arange(len(physics.layouts["pp"]))
    watts = watts_at(physics, every, CLOCKS)
    bursts = np.stack([layout_burst_w(physics, share) for share in CLOCKS])
    mean, kernels = power.within(limit_w, watts[-1]), power.within(limit_w, bursts[-1])
    line = np.stack([np.broadcast_to(value, len(every)) for value in (kernels.factor, kernels.offset_w)])
    return BoardPower(limit_w, line, mean.over(watts) * watts, bursts)


def at_limit(job: Job, limit_w: float | None) -> Job:
    """The job with that power limit of its GPUs, None: its own."""
    if limit_w is None or job.cluster.power_limit_w == limit_w:
        return job
    return replace(job, cluster=replace(job.cluster, power_limit_w=limit_w))


def other_limits(job: Job, layouts: Columns, limit_w: float) -> bool:
    """Whether plans of the job may have another power limit than that."""
    return POWER_LIMIT in layouts or job.cluster.power_limit_w != limit_w


def within_limits(power: PowerScale, physics: CostModel) -> PowerScale:
    """Mean power (L,) with none above the limit of its layout: what a line between clocks and stages is off by."""
    every = np.arange(len(physics.layouts["pp"]))
    limit_w: Floats = power_limit_w(physics.job.cluster, physics.layouts, every, 1)[:, 0]
    return power.within(limit_w, watts_at(physics, every, (1.0,))[0])
