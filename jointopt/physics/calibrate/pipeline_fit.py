"""Pass times, iteration time and energy of every rank of a pipeline under any clocks or limits, from measured plans.

E_rank = P_wait·(T - sum t) + sum_kind t_kind·P_kind(x), T from the 1F1B schedule and what lies beyond it. A power limit
holds each pass as a clock would, but for a lag after every wait (`clock_law.lead_s`): one law for both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from jointopt.core.schema import Bools, Floats, Ints
from jointopt.physics.calibrate.law_fit import (
    Estimate,
    Fit,
    Hierarchy,
    Law,
    Prediction,
    Prior,
    Readings,
    ResponsePrior,
    constants_of_rows,
    error_correlation,
    fit,
    interval,
    matern,
    per_curve,
    predict,
)
from jointopt.physics.clock_law import lagged_limit, lead_s, log_power_w, log_time_s, switching_shape
from jointopt.physics.schedule import Pass, replay

# Logarithms, chosen on the A100-PCIe and A40 pipelines with plans held out.
_TIME_NOISE, _LIMITED_TIME_NOISE = 0.004, 0.025
_OWN_TIME, _SHARED_TIME, _LIMITED_TIME = 0.003, 0.003, 0.02
_ENERGY_NOISE, _LIMITED_ENERGY_NOISE = 0.006, 0.01
_OWN_ENERGY, _SHARED_ENERGY, _LIMITED_ENERGY = 0.004, 0.004, 0.01
_LIMIT_FACTOR_SD = 0.02  # of single passes
_SCATTERED = 0.15  # in the logarithm: passes that a limit slows by that much and more scatter in full
_BEYOND_SHARE = 0.02  # of an iteration beyond its schedule, where no iteration was measured
_BEYOND_SD, _BEYOND_LENGTH = 0.006, 0.1  # of what lies beyond, over the logarithm of the schedule
_BEYOND_NOISE, _LIMITED_BEYOND_SD = 0.002, 0.035
_MEASURED_SD = 0.001  # of an iteration time that the row states itself
_LAG_S, _LAG_SD = 0.03, 0.4  # of a board's limit; the deviation is of the logarithm
_EXTRA = 2  # parameters after those of the hierarchy: waiting power at the maximum clock, and the lag
# Of the switching power over the limit, where every reading is limited: most work meets the limit at a lower clock.
_SWITCHING, _SWITCHING_SD = 1.0, 0.1
_SWITCHING_AT = 8  # in the vector of parameters
_NO_LIMIT_W = 1e5
_SETTLED = 4  # rounds in which pass times and the waits that they leave agree to 1 %


@dataclass(frozen=True)
class RankRows:
    """Ranks of measured iterations and of those queried; (n,) each, times (2, n) of one forward and backward pass.

    NaN is unknown. All rows are of one pipeline: equal stages, work and number of micro-batches.
    """

    rank: Ints
    plan: Ints
    x: Floats  # (2, n) mean clock set in forward and backward passes over the maximum clock
    limit_w: Floats  # NaN where no limit but the board's is set
    num_micro_batches: int
    time_s: Floats  # (2, n)
    iteration_s: Floats
    energy_j: Floats

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.rank.max()) + 1

    @property
    def limited(self) -> Bools:
        """Which rows state a limit, (n,)."""
        return np.asarray(np.isfinite(self.limit_w))


@dataclass(frozen=True)
class RankFit:
    """Parameters of GPU and passes (curve = direction·ranks + rank), and the estimates of every row."""

    hierarchy: Hierarchy
    theta: Floats
    theta_sd: Floats
    found: Fit
    time: tuple[Estimate, Estimate]  # of one forward, one backward pass
    iteration: Estimate
    energy: Estimate


def fit_ranks(rows: RankRows, known: ResponsePrior, found: Fit | None = None) -> RankFit:
    """Response of every rank's passes, what the queried rows take and draw. Needs times, T and energy of one plan.

    ``found``: the fit of an earlier call with the same readings and other queried rows; it is kept.
    """
    hierarchy = Hierarchy(np.repeat([0, 1], rows.ranks), 2, known.lowest)
    prior = _prior(rows, hierarchy, known)
    readings, depends_on = _readings(rows), _follows(rows, hierarchy)
    n = len(rows.rank)

    guess = _RankLaw(rows, hierarchy, rows.time_s, np.nan_to_num(rows.iteration_s))
    # a limit hides the switching power of work which meets it
    found = found.with_new_rows(3, n) if found else fit(Law(guess, depends_on), readings, prior, (_SWITCHING_AT, 0.25))
    predicted = predict(Law(guess.with_own_times(found.theta), depends_on), readings, prior, found)
    times = np.where(np.isfinite(rows.time_s), rows.time_s, np.exp(predicted.mean[: 2 * n].reshape(2, n)))
    full_s = np.exp(hierarchy.work(found.theta).log_time_s)
    iteration = _iterations(rows, times, predicted, full_s, known.scatter)
    law = _RankLaw(rows, hierarchy, times, iteration.value)
    energies = predict(Law(law, depends_on), readings, prior, found)
    width = _energy_width(law, law.wait_w(found.theta), energies, predicted, iteration)
    ends = predicted.factor * predicted.sd[: 2 * n].reshape(2, n)
    return RankFit(
        hierarchy, found.theta, predicted.theta_sd, found,
        (interval(predicted.mean[:n], ends[0]), interval(predicted.mean[n : 2 * n], ends[1])),
        iteration,
        interval(energies.mean[2 * n :], width),
    )  # fmt: skip


@dataclass(frozen=True)
class _RankLaw:
    """Logarithms of forward times, backward times and energies (3n,) for given times and iterations, NaN as unknown."""

    rows: RankRows
    hierarchy: Hierarchy
    time_s: Floats
    iteration_s: Floats

    def __call__(self, theta: Floats) -> Floats:
        busy_s = self.rows.num_micro_batches * np.nan_to_num(self.time_s, nan=1.0)
        waiting_s = np.maximum(self.iteration_s - busy_s.sum(axis=0), 0.0)
        times, watts = self.passes(theta)
        energy = self.wait_w(theta) * waiting_s + (busy_s * watts).sum(axis=0)
        return np.asarray(np.log(np.concatenate([*times, energy])))

    def passes(self, theta: Floats) -> Floats:
        """(seconds, watts) of one forward and one backward pass, (2, 2, n)."""
        rows, shape, work = self.rows, self.hierarchy.shape(theta), self.hierarchy.work(theta)
        limit = np.fmin(rows.limit_w, self.hierarchy.limit_w(theta))
        passes = [(constants_of_rows(work, rows.rank + i * rows.ranks), rows.x[i]) for i in (0, 1)]
        free, held = (
            np.exp([[of(shape, own, x, watts) for own, x in passes] for of in (log_time_s, log_power_w)])
            for watts in (np.full_like(limit, _NO_LIMIT_W), limit)
        )
        ahead = lead_s(np.exp(theta[-1]), _waits_s(rows, self.time_s))
        ahead = ahead + np.maximum(ahead - free[0], 0.0)[::-1]  # what is left goes to the pass that follows
        return lagged_limit(free, held, ahead)

    def with_own_times(self, theta: Floats) -> _RankLaw:
        """The same law with unknown times filled in by itself."""
        law = self
        for _ in range(_SETTLED):
            law = replace(law, time_s=np.where(np.isfinite(self.time_s), self.time_s, law.passes(theta)[0]))
        return law

    def wait_w(self, theta: Floats) -> Floats:
        """Power of every row's rank while it waits at the clock that is set, (n,)."""
        shape, static_w = self.hierarchy.shape(theta), np.exp(theta[6])
        at_top_w = np.exp(theta[self.hierarchy.size])
        x = switching_shape(self.rows.x.mean(axis=0), shape.knee, shape.rise)
        return np.asarray(static_w + (at_top_w - static_w) * x)


def _waits_s(rows: RankRows, time_s: Floats) -> Floats:
    """Seconds that a rank waits before each forward and each backward pass, (2, n), once its pipeline is full.

    All ranks go at the pace of the slowest: those behind it wait for its forward passes, those before it for its
    backward ones. No wait where a time is not known.
    """
    busy = np.nan_to_num(time_s.sum(axis=0))
    pace, slowest = np.zeros((2, int(rows.plan.max()) + 1))
    np.maximum.at(pace, rows.plan, busy)
    first = busy == pace[rows.plan]
    slowest[rows.plan[first]] = rows.rank[first]
    wait = np.where(np.isfinite(time_s).all(axis=0), pace[rows.plan] - busy, 0.0)
    behind = rows.rank > slowest[rows.plan]
    return np.stack([np.where(behind, wait, 0.0), np.where(behind, 0.0, wait)])


def _follows(rows: RankRows, hierarchy: Hierarchy) -> Ints:
    """Positions of parameters, (k, 3n), that times and energies depend on: of both passes, waiting power and lag."""
    forward, backward = hierarchy.depends_on(rows.rank), hierarchy.depends_on(rows.rank + rows.ranks)
    others = backward[(forward != backward).any(axis=1)]
    extra = np.arange(hierarchy.size, hierarchy.size + _EXTRA)
    every = np.repeat(extra[:, None], len(rows.rank), axis=1)
    return np.tile(np.concatenate([forward, others, every]), 3)


def _prior(rows: RankRows, hierarchy: Hierarchy, known: ResponsePrior) -> Prior:
    with np.errstate(divide="ignore", invalid="ignore"):
        guess = np.log(rows.time_s) + 0.5 * np.log(rows.x)
    curve = np.concatenate([rows.rank, rows.rank + rows.ranks])
    first = per_curve(guess.reshape(-1), curve, len(hierarchy.kind_of), np.nanmin)
    all_limited = bool(rows.limited[np.isfinite(rows.energy_j)].all())
    guess_w = _SWITCHING * known.limit_w if all_limited else _first_switching_w(rows, known)
    mean, sd = hierarchy.prior(known, first, np.full(len(hierarchy.kind_of), guess_w), _LIMIT_FACTOR_SD)
    if all_limited:
        sd[_SWITCHING_AT] = _SWITCHING_SD
    mean = np.concatenate([mean, np.log([known.wait_w, _LAG_S])])
    return Prior(mean, np.concatenate([sd, [known.wait_sd, _LAG_SD]]))


def _first_switching_w(rows: RankRows, known: ResponsePrior) -> float:
    """Switching power in W of an average pass at the maximum clock, from power while busy."""
    busy_s = rows.num_micro_batches * rows.time_s.sum(axis=0)
    busy_w = (rows.energy_j - known.wait_w * (rows.iteration_s - busy_s)) / busy_s
    shape = switching_shape(rows.x.mean(axis=0), known.knee, known.rise)
    return float(max(np.nanmedian((busy_w - known.static_w) / shape), 0.1 * known.limit_w))


def _readings(rows: RankRows) -> Readings:
    n, limited = len(rows.rank), rows.limited
    same = rows.rank[:, None] == rows.rank[None, :]
    both = limited[:, None] & limited[None, :]
    departure = np.zeros((3 * n, 3 * n))
    parts = [(rows.x[i], _OWN_TIME, _SHARED_TIME, _LIMITED_TIME) for i in (0, 1)]
    parts.append((rows.x[1], _OWN_ENERGY, _SHARED_ENERGY, _LIMITED_ENERGY))
    for i, (x, own, shared, under_limit) in enumerate(parts):
        size = np.where(both, under_limit**2 * (same + 0.5), own**2 * same + shared**2)
        departure[i * n : (i + 1) * n, i * n : (i + 1) * n] = error_correlation(x, rows.limit_w) * size
    times = np.where(limited, _LIMITED_TIME_NOISE, _TIME_NOISE)
    energies = np.where(limited, _LIMITED_ENERGY_NOISE, _ENERGY_NOISE)
    whole = np.isfinite(rows.time_s).all(axis=0) & np.isfinite(rows.iteration_s)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log([*rows.time_s, np.where(whole, rows.energy_j, np.nan)])
    return Readings(value.reshape(-1), departure, np.concatenate([times, times, energies]))


def _iterations(rows: RankRows, times: Floats, predicted: Prediction, full_s: Floats, scatter: float) -> Estimate:
    """Iteration time of every row's plan: as measured, else the schedule of its times and what lies beyond it."""
    plans = np.unique(rows.plan)
    scheduled = _schedules(rows, plans, times, full_s, scatter)
    measured = np.array([np.nanmax(rows.iteration_s[rows.plan == p], initial=-np.inf) for p in plans])
    limited = np.array([rows.limited[rows.plan == p].any() for p in plans])
    n = len(rows.rank)
    own = np.where(np.isnan(rows.time_s), predicted.sd[: 2 * n].reshape(2, n), 0.0).mean(axis=0)
    pace = np.array([own[rows.plan == p].max() for p in plans])
    value, beyond_sd = _with_beyond(scheduled, measured, limited)
    floor = np.where(limited, _LIMITED_BEYOND_SD, _BEYOND_NOISE)
    sd = np.sqrt(floor**2 + beyond_sd**2 + pace**2)
    at = np.searchsorted(plans, rows.plan)
    own_row = np.isfinite(rows.iteration_s)
    return interval(
        np.log(np.where(own_row, rows.iteration_s, value[at])),
        predicted.factor * np.where(own_row, _MEASURED_SD, sd[at]),
    )


def _with_beyond(scheduled: Floats, measured: Floats, limited: Bools) -> tuple[Floats, Floats]:
    """Iteration times of plans, (plans,), from their schedules and measured ones (inf = none), and relative deviation.

    What lies beyond the schedule is much the same for all plans; in which passes a plan is slow moves it a little, and
    plans of like length are alike in that.
    """
    seen = np.isfinite(measured)
    if not seen.any():
        return scheduled * (1.0 + _BEYOND_SHARE), np.full(len(scheduled), _BEYOND_SHARE)
    alone = [seen & (limited == mode) for mode in (False, True)]
    usual = [float(np.median((measured - scheduled)[own if own.any() else seen])) for own in alone]
    typical = np.where(limited, usual[1], usual[0])
    miss = ((measured - scheduled - typical) / scheduled)[seen]
    z = np.log(scheduled)
    alike = _BEYOND_SD**2 * matern(np.abs(z[:, None] - z[None, :]), _BEYOND_LENGTH)
    alike *= limited[:, None] == limited[None, :]
    gain = np.linalg.solve(alike[np.ix_(seen, seen)] + _BEYOND_NOISE**2 * np.eye(int(seen.sum())), alike[seen]).T
    left = np.diag(alike) - (gain * alike[:, seen]).sum(axis=1)
    return scheduled * (1.0 + gain @ miss) + typical, np.sqrt(np.maximum(left, 0.0))


def _schedules(rows: RankRows, plans: Ints, times: Floats, full_s: Floats, scatter: float) -> Floats:
    """Seconds of every plan's 1F1B schedule; ranks that no row of the plan is of run as the plan's others allow."""
    pass_s = np.repeat(full_s.reshape(2, 1, rows.ranks), len(plans), axis=1)
    limited = np.zeros((len(plans), rows.ranks), bool)
    at = np.searchsorted(plans, rows.plan)
    pass_s[:, at, rows.rank] = times
    limited[at, rows.rank] = rows.limited
    slowed = np.log(pass_s.sum(axis=0) / full_s.reshape(2, rows.ranks).sum(axis=0))
    widths = np.where(limited, scatter * np.clip(slowed / _SCATTERED, 0.0, 1.0), 0.0)
    return scattered_schedule_s(pass_s[0], pass_s[1], rows.num_micro_batches, widths)


def scattered_schedule_s(forward_s: Floats, backward_s: Floats, num_micro_batches: int, scatter: Floats) -> Floats:
    """Makespan of 1F1B (plans,) where a pass of stage s scatters about its mean (plans, stages) by ``scatter``.

    ``scatter`` is the standard deviation of the logarithm; the draws are the same at every call. Exact where it is 0.
    """
    depth, draws = forward_s.shape[1], np.random.default_rng(0)

    def duration_s(rank: int, op: Pass) -> Floats:
        mean, width = (backward_s if op.backward else forward_s)[:, rank], scatter[:, rank]
        return np.asarray(mean * np.exp(width * draws.standard_normal() - 0.5 * width**2))

    return np.asarray(np.max(list(replay(depth, 1, num_micro_batches, duration_s).values()), axis=0))


def _energy_width(law: _RankLaw, wait_w: Floats, energy: Prediction, times: Prediction, iteration: Estimate) -> Floats:
    """Half width of the logarithm of energy: of the law, of the waiting time, and of pass times not measured."""
    rows, n = law.rows, len(law.rows.rank)
    joules = np.exp(energy.mean[2 * n :])
    # under a limit, a rank that falls behind its schedule is busy for about half of the delay
    late_w = np.where(rows.limited, 0.5 * (wait_w + joules / iteration.value), wait_w)
    waiting = late_w * (iteration.high - iteration.value) / joules
    unknown = ~np.isfinite(rows.time_s)
    relative = times.factor * times.sd[: 2 * n].reshape(2, n) * unknown
    busy_s = rows.num_micro_batches * law.time_s
    passes = (relative * busy_s).sum(axis=0) * np.maximum(joules / busy_s.sum(axis=0) - wait_w, 0.0) / joules
    return np.asarray(np.sqrt((energy.factor * energy.sd[2 * n :]) ** 2 + waiting**2 + passes**2))
