"""A training run that fails: how long it takes and what is lost, by renewal theory.

Failures come at a constant rate while anything runs: in training, in a checkpoint, and in a restart, which then begins
again. Limits of validity: failures are independent and each stops the whole run; the run is long against a repair.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import lambertw, ndtri

from jointopt.core.schema import Bools, Floats
from jointopt.physics.repair import RepairShop, RepairShops

Array = float | Floats
LOSSES = ("work", "checkpoint", "restart", "idle", "degraded")
_TURNS = 4  # of the run's length and of the repairs within it, each of which hangs on the other
ROUNDING = 1e-9  # of a quotient, which may leave it just below a whole number


@dataclass(frozen=True)
class Run:
    """One run: what it has to do, what stops it, and how it goes on; seconds, each a number or (n,)."""

    work_s: Array  # of training without any failure and checkpoint
    iteration_s: Array
    interval_s: Array  # of training between checkpoints
    checkpoint_s: Array  # in which a checkpoint stops training
    failure_s: Array  # mean time between failures of the whole run
    restart_s: Array  # from a failure to training again, its detection included
    rolls_back: bool | Bools = True  # to the last checkpoint; else a failure undoes the iteration that it hits
    shop: RepairShop | RepairShops | None = None  # None: a replacement is always at hand
    write_s: Array = 0.0  # after a checkpoint has stopped training, until it can be gone back to

    @property
    def intervals(self) -> tuple[Floats, Floats]:
        """Whole intervals of the work, and the seconds of the rest; 0 where they are those of rounding."""
        whole = np.floor(np.divide(self.work_s, self.interval_s) * (1.0 + ROUNDING))
        rest = np.asarray(self.work_s - whole * self.interval_s)
        return np.asarray(whole), np.where(rest > ROUNDING * np.asarray(self.interval_s), rest, 0.0)

    @property
    def pieces(self) -> tuple[Floats, Floats]:
        """Seconds of the pieces of a run that are done whole or again, and how many of each it has, (2, ...) each.

        With a checkpoint at its end each: whole intervals, then the rest; iterations and checkpoints where nothing
        rolls back.
        """
        (whole, rest), stop, rolls = self.intervals, np.asarray(self.checkpoint_s), self.rolls_back
        left = rest > 0.0
        lengths = [
            np.where(rolls, self.interval_s + stop, self.iteration_s),
            np.where(rolls, np.where(left, rest + stop, 0.0), stop),
        ]
        counts = [
            np.where(rolls, whole, np.divide(self.work_s, self.iteration_s)), np.where(rolls, left, whole + left),
        ]  # fmt: skip
        return np.stack(np.broadcast_arrays(*lengths)), np.stack(np.broadcast_arrays(*counts))

    def at_speed(self, factor: Array) -> Run:
        """The run as it counts in the work of a slower one: its checkpoints and restarts are shorter."""
        longer = {name: np.multiply(getattr(self, name), factor) for name in ("checkpoint_s", "restart_s", "write_s")}
        return replace(self, **longer)


@dataclass(frozen=True)
class Expected:
    """What a run comes to in the mean, and the standard deviation of its time; of many runs each figure is (n,)."""

    time_s: Array
    failures: Array
    lost_s: Mapping[str, Array]  # by part, see `LOSSES`: with the useful work they add up to the time
    deviation_s: Array  # NaN where it was not asked for

    def quantile_s(self, share: float, least_s: float) -> float:
        """The time that a share of runs stays within: a normal distribution's, ``least_s`` at least."""
        return max(float(self.time_s + float(ndtri(share)) * self.deviation_s), least_s)

    def with_planned_stops(self, share: float) -> Expected:
        """The run with planned stops, of which nothing is lost but that share of the time; they count as restarts."""
        longer = 1.0 / (1.0 - share)
        lost_s = {**self.lost_s, "restart": self.lost_s["restart"] + self.time_s * (longer - 1.0)}
        return replace(self, time_s=self.time_s * longer, lost_s=lost_s, deviation_s=self.deviation_s * longer)

    def energy_j(self, work_s: Array, training_w: Array, idle_w: Array) -> Floats:
        """Energy in J of GPUs that together draw ``training_w`` in useful and lost work, else ``idle_w``."""
        trained_s = work_s + self.lost_s["work"]
        return np.asarray(training_w * trained_s + idle_w * (self.time_s - trained_s))[()]


def attempts_s(length_s: Array, failure_s: Array) -> Floats:
    """Expected seconds until a piece of that length has passed without a failure: M (e^(x/M) - 1), Daly 2006."""
    return np.asarray(failure_s * np.expm1(np.divide(length_s, failure_s)))


def expected_parts(run: Run) -> dict[str, Floats]:
    """Expected seconds of work lost, checkpoints and restarts of a run that waits for no repair.

    With the work they are M e^(R/M) (e^((tau+C)/M) - 1) per interval tau with its checkpoint C, for restarts R and a
    mean time between failures M (Daly 2006, A higher order estimate of the optimum checkpoint interval). A failure
    while a checkpoint is still written, for W after it, undoes an interval more: exactly as if restarts took W longer
    (derived here, for W of at most tau + C).
    """
    lengths, counts = run.pieces
    failures = (counts * np.expm1(lengths / run.failure_s)).sum(axis=0)
    tried = (counts * attempts_s(lengths, run.failure_s)).sum(axis=0)
    planned = (counts * lengths).sum(axis=0)
    write_s = np.where(run.rolls_back, run.write_s, 0.0)
    restart = failures * np.exp(write_s / run.failure_s) * attempts_s(run.restart_s, run.failure_s)
    undone = failures * attempts_s(run.restart_s + write_s, run.failure_s) - restart  # 0 without such a checkpoint
    return {"work": tried - planned + undone, "checkpoint": planned - run.work_s, "restart": restart}


def variance_s2(run: Run) -> Floats:
    """Variance of the time of a run that waits for no repair, in s^2: pieces are independent; derived here.

    A piece of length x fails a geometric number of times, each after a time that is exponential below x, then comes a
    restart, of which the same holds.
    """
    lengths, counts = run.pieces
    lengths_s = run.restart_s + np.where(run.rolls_back, run.write_s, 0.0)
    restarts, wasted_s, wasted_s2 = _failed_attempts(lengths_s, run.failure_s)
    mean_s = attempts_s(lengths_s, run.failure_s)
    spread_s2 = restarts * wasted_s2 + restarts * (restarts + 1.0) * wasted_s**2
    failures, lost_s, lost_s2 = _failed_attempts(lengths, run.failure_s)
    each = failures * (lost_s2 + spread_s2) + failures * (failures + 1.0) * (lost_s + mean_s) ** 2
    return np.asarray((counts * each).sum(axis=0))


def _failed_attempts(length_s: Array, failure_s: Array) -> tuple[Floats, Floats, Floats]:
    """Mean number of failed attempts at a piece of that length; mean and variance of the seconds of one."""
    share = np.divide(length_s, failure_s)
    failures = np.expm1(share)
    per = np.divide(share, failures, out=np.ones_like(failures), where=failures > 0.0)
    return failures, failure_s * (1.0 - per), np.maximum(failure_s**2 * (1.0 - per**2 * (failures + 1.0)), 0.0)


def best_interval_s(checkpoint_s: Array, failure_s: Array, restart_s: Array = 0.0, idle_share: Array = 1.0) -> Floats:
    """The seconds of training between checkpoints with which a run costs least: the root of d(E/tau)/dtau.

    M (1 + W(-(1 + b) e^(-1-C/M))) with Lambert's W. A second without training costs ``idle_share`` s of one with it. Of
    time s is 1: then b = 0, and restarts R do not move the interval. Else b = (1-s) C / (M (1 + s (e^(R/M)-1))), which
    is derived here. Young's sqrt(2 C M) (1974) and Daly's estimate are its limits for C much below M and s of 1.
    """
    share = np.divide(checkpoint_s, failure_s)
    saved = (1.0 - np.asarray(idle_share)) * share / (1.0 + idle_share * np.expm1(np.divide(restart_s, failure_s)))
    root = np.nan_to_num(lambertw(-(1.0 + saved) * np.exp(-1.0 - share)).real, nan=-1.0)  # its branch point
    return np.asarray(failure_s * np.maximum(1.0 + root, 0.0))


def young_s(checkpoint_s: Array, failure_s: Array) -> Floats:
    """Young's interval in s, sqrt(2 C M): Young 1974, A first order approximation to the optimum interval."""
    return np.sqrt(2.0 * np.multiply(checkpoint_s, failure_s))


def daly_s(checkpoint_s: Array, failure_s: Array) -> Floats:
    """Daly's interval in s (Daly 2006); that of checkpoints beyond twice the time between failures, M."""
    share = np.divide(checkpoint_s, np.multiply(2.0, failure_s))
    series = young_s(checkpoint_s, failure_s) * (1.0 + np.sqrt(share) / 3.0 + share / 9.0) - checkpoint_s
    return np.where(share < 1.0, series, failure_s)


def expected(run: Run, *, spread: bool = True) -> Expected:
    """What runs come to in the mean: `expected_parts`, and what the repairs of broken nodes cost.

    Where replicas miss, the others work on more slowly, and fail less often: as if time were longer and checkpoints and
    restarts shorter by their mean speed. Of restarts, in which most replicas miss, speed takes nothing. Without
    ``spread`` the deviation is left out, half of the work.
    """
    at, factor, stops, slow, apart = run, np.ones(()), np.zeros(()), np.zeros(()), np.zeros(())
    for _ in range(_TURNS):
        before, at = factor, run.at_speed(factor)
        parts = expected_parts(at)
        done = run.work_s + parts["work"]
        running = (done + parts["checkpoint"] + parts["restart"]) / factor
        if run.shop is not None:
            stops, slow, apart = run.shop.losses(running, float(run.failure_s))
            in_restarts = run.shop.slow_in_restarts(slow, float(run.restart_s), float(run.failure_s))
            restarts = parts["restart"] / factor / running
            factor = 1.0 - np.maximum(slow - restarts * in_restarts, 0.0) / (1.0 - restarts)
        if (factor == before).all():  # as where nothing slows the run
            break
    lost = {
        "work": parts["work"], "checkpoint": parts["checkpoint"] / factor, "restart": parts["restart"] / factor,
        "idle": stops * running, "degraded": done / factor - done,
    }  # fmt: skip
    lost = {name: np.asarray(values)[()] for name, values in lost.items()}
    variance: Array = np.nan
    if spread:
        variance = (variance_s2(at) * (1.0 + stops) ** 2 + apart * running) / factor**2
    time_s, failures, deviation_s = (
        np.asarray(one)[()]
        for one in (run.work_s + sum(lost.values()), running * (1.0 - slow) / run.failure_s, np.sqrt(variance))
    )
    return Expected(time_s, failures, lost, deviation_s)
