"""Nodes that break and are repaired while a run goes on: a birth-death process of the broken ones."""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.linalg import expm

from jointopt.core.schema import Floats, Ints

Array = float | Floats
_BROKEN = 40  # broken nodes beside those expected that are counted
_NODES = np.linspace(0.0, 32.0, 129)  # lengths of runs in repairs; after 32 nothing is left of how they began


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

    def losses(self, running_s: Array, failure_s: float) -> tuple[Floats, Floats, Floats]:
        """Of runs that go on for so long: seconds that they stop per second, the share that lower speed takes.

        Third the variance of both together, in s^2 per second. Runs begin with all nodes whole.
        """
        return _read(self.table(failure_s), np.asarray(running_s), ())

    def slow_in_restarts(self, slow: Array, restart_s: float, failure_s: float) -> Floats:
        """The share of speed that is missing in the mean over restarts, of which ``slow`` is that of all time."""
        return np.asarray(slow + self.table(failure_s).jump * _undone(restart_s / self.repair_s))

    @functools.lru_cache(maxsize=4096)  # noqa: B019  a shop is a few numbers
    def table(self, failure_s: float) -> RepairTable:
        """What broken nodes cost a run by its length, exact at the table's nodes for repairs of exponential times.

        By the exponential of the process' generator with the integrals of the costs beside it (Van Loan 1978). The
        variance is that of a run of many repairs, by Poisson's equation.

        A restart begins with one broken node more than a failure found, of which repairs take their toll (``jump``):
        exact where any number of nodes is repaired at once and none is spare, else close.
        """
        shares, wait_s = self.shares_of_time(failure_s), self.repair_s / len(self.speed)
        births = self.speed / failure_s
        costs = np.stack([np.zeros_like(births), 1.0 - self.speed])  # of waits for a repair, and of lower speed
        costs[0, -1] = births[-1] * wait_s
        means, rates = costs @ shares, (births * shares)[:-1]
        gaps = sum(_partial_sums(shares, shares * (cost - mean)) for cost, mean in zip(costs, means, strict=True))
        steps = np.divide(gaps, rates, out=np.zeros_like(rates), where=rates > 0.0)
        variance = float(2.0 * (rates * steps**2).sum() + 2.0 * births[-1] * shares[-1] * wait_s**2)
        found = shares * self.speed
        after = float(found @ np.append(costs[1, 1:], costs[1, -1])) / float(found.sum())
        return RepairTable(self._so_far(costs, births), means, variance, after - float(means[1]), self.repair_s)

    def _so_far(self, costs: Floats, births: Floats) -> Floats:
        """Coefficients (4, nodes, 2) of the costs of a run until each node of `_NODES` repairs, by a cubic spline."""
        expected = float(births[0]) * self.repair_s
        count = min(len(births), int(expected + 10.0 * np.sqrt(expected)) + _BROKEN)  # beyond that none are broken
        rates = np.zeros((count + 2, count + 2))
        np.fill_diagonal(rates[: count - 1, 1:count], births[: count - 1])
        np.fill_diagonal(rates[1:count, : count - 1], np.arange(1, count) / self.repair_s)
        np.fill_diagonal(rates[:count, :count], -rates[:count, :count].sum(axis=1))
        rates[:count, count:] = costs[:, :count].T
        step, spent = expm(rates * _NODES[1] * self.repair_s), np.zeros((len(_NODES), count + 2, 2))
        spent[0, count:] = np.eye(2)
        for node in range(1, len(_NODES)):
            spent[node] = step @ spent[node - 1]
        return np.asarray(CubicSpline(_NODES, spent[:, 0]).c)


@dataclass(frozen=True)
class RepairTable:
    """What broken nodes cost runs by their length: ``so_far`` (4, nodes, 2) are coefficients over lengths in repairs.

    Of several shops each figure has an axis of them first.
    """

    so_far: Floats
    means: Floats  # (2,) costs per second of a long run: waits, lower speed
    variance: Floats | float
    jump: Floats | float  # of the share of speed that is missing, as a restart begins
    repair_s: Floats | float


@dataclass(frozen=True)
class RepairShops:
    """Several shops, and the one ``of`` each of many runs, (n,): what `RepairShop` says of one, for all of them."""

    shops: tuple[RepairShop, ...]
    of: Ints

    def losses(self, running_s: Array, failure_s: float) -> tuple[Floats, Floats, Floats]:
        """As `RepairShop.losses`."""
        return _read(self._table(failure_s), np.asarray(running_s), (self.of,))

    def slow_in_restarts(self, slow: Array, restart_s: float, failure_s: float) -> Floats:
        """As `RepairShop.slow_in_restarts`."""
        table = self._table(failure_s)
        return np.asarray(slow + (table.jump * _undone(restart_s / table.repair_s))[self.of])

    def _table(self, failure_s: float) -> RepairTable:
        return _stacked(self.shops, failure_s)


@functools.lru_cache(maxsize=256)
def _stacked(shops: tuple[RepairShop, ...], failure_s: float) -> RepairTable:
    tables = [shop.table(failure_s) for shop in shops]
    return RepairTable(*(np.stack([getattr(one, field.name) for one in tables]) for field in fields(RepairTable)))


def _read(table: RepairTable, running_s: Floats, of: tuple[Ints, ...]) -> tuple[Floats, Floats, Floats]:
    """The three figures of `RepairShop.losses`; beyond the table costs rise as they do in a long run."""
    repair_s, means = np.asarray(table.repair_s)[of], table.means[of]
    repairs = running_s / repair_s
    inside = np.minimum(repairs, _NODES[-1])
    node = np.minimum((inside / _NODES[1]).astype(np.int64), len(_NODES) - 2)
    offset = (inside - _NODES[node])[..., None]
    c = np.moveaxis(table.so_far, -3, 0)[(slice(None), *of, node)]  # (4, n, 2)
    spent = ((c[0] * offset + c[1]) * offset + c[2]) * offset + c[3]
    spent += means * ((repairs - inside) * repair_s)[..., None]
    found = np.maximum(
        np.divide(spent, running_s[..., None], out=np.zeros_like(spent), where=running_s[..., None] > 0), 0
    )
    return found[..., 0], found[..., 1], np.asarray(table.variance)[of]


def _undone(elapsed: Array) -> Floats:
    """The mean share that is left, over so many repair times, of what repairs undo at a constant rate."""
    return np.asarray(-np.expm1(-np.asarray(elapsed)) / np.where(elapsed == 0.0, 1.0, elapsed) + (elapsed == 0.0))


def _partial_sums(shares: Floats, terms: Floats) -> Floats:
    """Sums of the terms after each but the last, which all add up to 0: added from the end where less is lost."""
    before, after = -np.cumsum(terms)[:-1], np.cumsum(terms[::-1])[::-1][1:]
    return np.where(np.cumsum(shares)[:-1] < 0.5, before, after)
