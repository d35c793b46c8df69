"""Exact Pareto arithmetic in two objectives, both minimised, as functions on plain arrays.

Treatment of ties, everywhere in this file: of several points with the same two values, only the first one
given is on the front. A point with a value that is not finite is never on a front.
"""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats, Ints

OBJECTIVES = ("iteration_time_s", "energy_j")


def front_order(first: Floats, second: Floats) -> Ints:
    """Indices of the non-dominated points, ascending in ``first``; one sort and one running minimum."""
    finite = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    order = finite[np.lexsort((second[finite], first[finite]))]  # stable: ties stay in the order given
    best = np.minimum.accumulate(second[order])
    improves = np.ones(len(order), dtype=bool)
    improves[1:] = best[1:] < best[:-1]
    return order[improves].astype(np.int64)


def is_covered(front_first: Floats, front_second: Floats, first: Floats, second: Floats) -> Bools:
    """True where a front point is at most equal in both objectives; the front is sorted by ``first``."""
    if len(front_first) == 0:
        return np.zeros(len(first), dtype=bool)
    left = np.searchsorted(front_first, first, side="right") - 1
    covered = (left >= 0) & (front_second[np.maximum(left, 0)] <= second)
    return np.asarray(covered & ~np.isnan(first), dtype=bool)  # an unknown bound rules nothing out


def hypervolume(first: Floats, second: Floats, reference: tuple[float, float]) -> float:
    """Area dominated by the points and bounded by ``reference``; points beyond the reference add nothing."""
    order = front_order(first, second)
    x, y = first[order], second[order]
    inside = (x < reference[0]) & (y < reference[1])
    x, y = x[inside], y[inside]
    ceiling = np.concatenate(([reference[1]], y[:-1])) if len(y) else y
    return float(np.sum((reference[0] - x) * (ceiling - y)))


def nadir(first: Floats, second: Floats, margin: float = 0.1) -> tuple[float, float]:
    """A reference point just beyond the worst values of a front, by ``margin`` of each objective's span.

    Tight on purpose: with a loose reference the hypervolume saturates long before the front is found.
    """

    def beyond(values: Floats) -> float:
        span = float(np.ptp(values)) or abs(float(np.max(values)))
        return float(np.max(values)) + margin * span

    return beyond(first), beyond(second)


def take(columns: Columns, index: Ints | Bools | slice) -> Columns:
    """The chosen rows of every column."""
    return {name: values[index] for name, values in columns.items()}


def concat(parts: list[Columns]) -> Columns:
    """Rows of several tables one after another, in the columns that all of them have."""
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in shared}


def front_rows(plans: Columns) -> Ints:
    """Indices of the feasible (``violation`` <= 0), non-dominated rows, sorted by time."""
    feasible = np.flatnonzero(plans["violation"] <= 0.0)
    return feasible[front_order(*(values[feasible] for values in objectives(plans)))]


def front_of(plans: Columns) -> Columns:
    """The feasible, non-dominated rows, sorted by time."""
    return take(plans, front_rows(plans))


def merge(front: Columns | None, batch: Columns) -> Columns:
    """The front of a running front and a new batch; on a tie, what was there first stays."""
    if front is None:
        return front_of(batch)
    newcomers = take(batch, ~is_covered(*objectives(front), *objectives(batch)))
    return front_of(concat([front, newcomers]))


def objectives(plans: Columns) -> tuple[Floats, Floats]:
    """The two objective columns."""
    return plans[OBJECTIVES[0]], plans[OBJECTIVES[1]]


def evenly(front: Columns, count: int) -> Ints:
    """At most ``count`` indices spread evenly over a sorted front, both ends included."""
    size = len(front[OBJECTIVES[0]])
    if size <= count:
        return np.arange(size, dtype=np.int64)
    return np.unique(np.linspace(0, size - 1, count).round().astype(np.int64))


def below_chord(time_s: Floats, energy_j: Floats) -> Floats:
    """Distance of each plan below the chord from the fastest plan to that of least energy, in logarithms, (n,).

    Both axes are scaled to the chord's span, as in Satopaa et al., Finding a "Kneedle" in a Haystack (2011).
    """
    fast, least = np.lexsort((energy_j, time_s))[0], np.lexsort((time_s, energy_j))[0]
    spans = time_s[least] / time_s[fast], energy_j[fast] / energy_j[least]
    if min(spans) <= 1.0:
        return np.asarray(-np.log(time_s * energy_j))  # one plan is best in both
    x = np.log(time_s / time_s[fast]) / np.log(spans[0])
    y = np.log(energy_j / energy_j[least]) / np.log(spans[1])
    return np.asarray(1.0 - x - y)
