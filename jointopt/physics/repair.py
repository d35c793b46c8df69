"""Nodes that break and are repaired while a run goes on: a birth-death process of the broken ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import expm

from jointopt.core.schema import Floats

_MANY, _BROKEN = 100.0, 40  # repairs in a run that are many; broken nodes beside those expected that are counted


@dataclass(frozen=True)
class RepairShop:
    """Spares that stand in for broken nodes, how long a repair takes, and what a run does without a spare.

    ``places``: broken nodes without a spare at which the run stops; each below that takes ``share`` of its speed.
    """

    spares: int
    repair_s: float  # mean; each broken node is repaired by itself
    places: int = 1
    share: float = 1.0

    @property
    def speed(self) -> Floats:
        """Speed of the run over that of a whole one with so many broken nodes, (spares + places,), none of them 0."""
        missing = np.maximum(np.arange(self.spares + self.places) - self.spares, 0)
        return np.asarray(1.0 - self.share * missing)

    def shares_of_time(self, failure_s: float) -> Floats:
        """Shares of the time in which a long run goes on with so many broken nodes, (spares + places,).

        What does not run does not fail. With one place, and the stops counted, it is Erlang's loss system of spares + 1
        places, which hangs on the mean of repairs alone, not on their distribution.
        """
        rates = self.speed[:-1] / failure_s * self.repair_s / np.arange(1, len(self.speed))
        logs = np.concatenate([[0.0], np.cumsum(np.log(rates))])
        shares = np.exp(logs - logs.max())
        return np.asarray(shares / shares.sum())

    def losses(self, running_s: float, failure_s: float) -> tuple[float, float, float]:
        """Of a run that goes on for so long: seconds that it stops per second, the share that lower speed takes.

        Third the variance of both together, in s^2 per second. The run begins with all nodes whole: exact for repairs
        of exponential times. Of a run of many repairs that is what Poisson's equation gives it as a head start.
        """
        shares, wait_s = self.shares_of_time(failure_s), self.repair_s / len(self.speed)
        births = self.speed / failure_s
        stop = np.zeros_like(births)
        stop[-1] = births[-1] * wait_s
        rates, found, steps = (births * shares)[:-1], [], np.zeros(len(births) - 1)
        for cost in (stop, 1.0 - self.speed):
            mean = float(shares @ cost)
            gap = _partial_sums(shares, shares * (cost - mean))
            step = np.divide(gap, rates, out=np.zeros_like(gap), where=rates > 0.0)
            head_start = float(step @ np.cumsum(shares[::-1])[::-1][1:])
            if running_s > _MANY * self.repair_s:
                found.append(max(mean - head_start / running_s, 0.0))
            else:
                found.append(self._mean_so_far(cost, running_s, births))
            steps += step
        waits = 2.0 * births[-1] * shares[-1] * wait_s**2
        return found[0], found[1], float(2.0 * (rates * steps**2).sum() + waits)

    def _mean_so_far(self, cost: Floats, running_s: float, births: Floats) -> float:
        """Mean of what each number of broken nodes costs per second, over a run that begins with all of them whole.

        By the exponential of the process' generator with the integral of the costs beside it (Van Loan 1978).
        """
        expected = float(births[0]) * self.repair_s
        count = min(len(cost), int(expected + 10.0 * np.sqrt(expected)) + _BROKEN)  # beyond that none are broken
        rates = np.zeros((count + 1, count + 1))
        up, down = births[: count - 1], np.arange(1, count) / self.repair_s
        np.fill_diagonal(rates[:-1, 1:-1], up)
        np.fill_diagonal(rates[1:-1, :-2], down)
        rates[np.arange(count), np.arange(count)] = -rates[:-1, :-1].sum(axis=1)
        rates[:-1, -1] = cost[:count]
        return float(expm(rates * running_s)[0, -1]) / running_s

    def slow_in_restarts(self, slow: float, restart_s: float, failure_s: float) -> float:
        """The share of speed that is missing in the mean over restarts, of which ``slow`` is that of all time.

        A restart begins with one broken node more than a failure found, of which repairs take their toll: exact where
        any number of nodes is repaired at once and none is spare, else close.
        """
        shares = self.shares_of_time(failure_s)
        found = shares * self.speed
        after = float(found @ np.append(1.0 - self.speed[1:], 1.0 - self.speed[-1])) / float(found.sum())
        after += slow - float(shares @ (1.0 - self.speed))  # of a run that few nodes have broken in yet
        elapsed = restart_s / self.repair_s
        return slow + (after - slow) * (-np.expm1(-elapsed) / elapsed if elapsed else 1.0)


def _partial_sums(shares: Floats, terms: Floats) -> Floats:
    """Sums of the terms after each but the last, which all add up to 0: added from the end where less is lost."""
    before, after = -np.cumsum(terms)[:-1], np.cumsum(terms[::-1])[::-1][1:]
    return np.where(np.cumsum(shares)[:-1] < 0.5, before, after)
