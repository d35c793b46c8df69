"""Exact Pareto arithmetic, mostly in two objectives, all minimised, as functions on plain arrays.

Treatment of ties, everywhere in this file: of several points with the same values, only the first one
given is on the front. A point with a value that is not finite is never on a front.
"""

from __future__ import annotations

from collections.abc import Sequence

import moocore
import numpy as np

from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.jobs.objectives import OBJECTIVES as OBJECTIVES
from jointopt.jobs.plans.text import widened

_AT_ONCE = 256  # points compared with a whole front


def front_order(first: Floats, second: Floats) -> Ints:
    """Indices of the non-dominated points, ascending in ``first``; one sort and one running minimum."""
    finite = np.flatnonzero(np.isfinite(first) & np.isfinite(second))
    order = finite[np.lexsort((second[finite], first[finite]))]  # stable: ties stay in the order given
    best = np.minimum.accumulate(second[order])
    improves = np.ones(len(order), dtype=bool)
    improves[1:] = best[1:] < best[:-1]
    return order[improves].astype(np.int64)


def is_covered(front_first: Floats, front_second: Floats, first: Floats, second: Floats) -> Bools:
    """Whether a front point is at most equal in both objectives, (n,); the front is sorted by its first one."""
    if len(front_first) == 0:
        return np.zeros(len(first), dtype=bool)
    left = np.searchsorted(front_first, first, side="right") - 1
    covered = (left >= 0) & (front_second[np.maximum(left, 0)] <= second)
    return np.asarray(covered & ~np.isnan(first), dtype=bool)  # an unknown bound rules nothing out


def first_impossible(name: str, values: Floats) -> tuple[int, str] | None:
    """The row of the first impossible one of the ``values`` of a goal, and which number was expected; else None.

    Time and energy are above 0, since their logarithms are taken, all other goals from 0 on.
    """
    least, possible = ("above 0", values > 0.0) if name in OBJECTIVES else ("from 0 on", values >= 0.0)
    wrong = np.flatnonzero(~(np.isfinite(values) & possible))
    return (int(wrong[0]), f"a finite number {least}") if len(wrong) else None


def non_dominated(values: Floats) -> Ints:
    """Indices of the non-dominated rows of (n, k), ascending in the first column, for any number of objectives."""
    finite = np.flatnonzero(np.isfinite(values).all(axis=1))
    order = finite[np.lexsort(values[finite].T[::-1])]  # stable: ties stay in the order given
    return order[moocore.is_nondominated(values[order])].astype(np.int64) if len(order) else order


def is_beaten(front: Floats, points: Floats) -> Bools:
    """Whether some row of ``front`` (f, k) is at most equal in every column, for each row of ``points`` (n, k)."""
    parts = [points[at : at + _AT_ONCE] for at in range(0, len(points), _AT_ONCE)]
    return np.concatenate([np.zeros(0, bool), *(_at_most(front, part).any(axis=1) for part in parts)])


def _at_most(points: Floats, others: Floats) -> Bools:
    """Whether each of ``points`` (m, k) is at most equal in every column to each of the ``others`` (n, k), (n, m)."""
    found = np.ones((len(others), len(points)), bool)
    for own, other in zip(points.T, others.T, strict=True):  # column by column: a third of the time of all at once
        found &= own[None, :] <= other[:, None]
    return found


def hypervolume(first: Floats, second: Floats, reference: tuple[float, float]) -> float:
    """Area dominated by the points and bounded by ``reference``; points beyond the reference add nothing."""
    order = front_order(first, second)
    x, y = first[order], second[order]
    inside = (x < reference[0]) & (y < reference[1])
    x, y = x[inside], y[inside]
    ceiling = np.concatenate(([reference[1]], y[:-1])) if len(y) else y
    return float(np.sum((reference[0] - x) * (ceiling - y)))


def volume(points: Floats, front: Floats) -> float:
    """How much of the space below the `nadir` of a ``front`` (f, k) the points (n, k) dominate.

    Of two columns it is their `hypervolume`. Of more it is a share of the box between the best values of the front and
    a tenth of its span beyond the worst, all in logarithms; a column without a span has none to share.
    """
    if front.shape[1] == 2:
        return hypervolume(points[:, 0], points[:, 1], nadir(front[:, 0], front[:, 1]))
    low, span = np.log(front.min(axis=0)), np.log(front.max(axis=0) / front.min(axis=0))
    beyond = np.maximum(np.log(points) - low, 0.0)
    scaled = np.where(span > 0.0, beyond / np.where(span > 0.0, 1.1 * span, 1.0), beyond > 0.0)
    return float(moocore.hypervolume(scaled, ref=np.ones(front.shape[1])))


def nadir(first: Floats, second: Floats) -> tuple[float, float]:
    """A reference point just beyond the worst values of a front, by a tenth of each objective's span.

    Tight on purpose: with a loose reference the hypervolume saturates long before the front is found.
    """
    worst = [float(np.max(values)) for values in (first, second)]
    spans = [float(np.ptp(values)) or abs(most) for values, most in zip((first, second), worst, strict=True)]
    return worst[0] + 0.1 * spans[0], worst[1] + 0.1 * spans[1]


def take(columns: Columns, index: Ints | Bools | slice) -> Columns:
    """The chosen rows of every column."""
    return {name: values[index] for name, values in columns.items()}


def concat(parts: list[Columns]) -> Columns:
    """Rows of several tables one after another, in the columns that all of them have."""
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in shared}


def concat_plans(parts: list[Columns]) -> Columns:
    """As `concat`, of plans whose deepest pipelines differ: clocks of stages that a table does not have are blank."""
    deepest = max(part["stage_clock_mhz"].shape[1] for part in parts)
    return concat([part | {"stage_clock_mhz": widened(part["stage_clock_mhz"], deepest)} for part in parts])


def front_rows(plans: Columns, goals: Sequence[str] = OBJECTIVES) -> Ints:
    """Indices of the feasible (``violation`` <= 0), non-dominated rows, sorted by the first goal, which is time."""
    feasible = np.flatnonzero(plans["violation"] <= 0.0)
    if len(goals) == 2:
        return feasible[front_order(*(plans[name][feasible] for name in goals))]
    return feasible[non_dominated(stacked(take(plans, feasible), goals))]


def front_of(plans: Columns, goals: Sequence[str] = OBJECTIVES) -> Columns:
    """The feasible, non-dominated rows, sorted by time."""
    return take(plans, front_rows(plans, goals))


def merge(front: Columns | None, batch: Columns, goals: Sequence[str] = OBJECTIVES) -> Columns:
    """The front of a running front and a new batch; on a tie, what was there first stays."""
    if front is None:
        return front_of(batch, goals)
    if len(goals) == 2:
        beaten = is_covered(*(of[name] for of in (front, batch) for name in goals))
    else:
        beaten = is_beaten(stacked(front, goals), stacked(batch, goals))
    return front_of(concat([front, take(batch, ~beaten)]), goals)


def stacked(plans: Columns, goals: Sequence[str]) -> Floats:
    """The columns of the goals side by side, (n, k)."""
    return np.column_stack([plans[name] for name in goals])


def objectives(plans: Columns) -> tuple[Floats, Floats]:
    """The two objective columns."""
    return plans[OBJECTIVES[0]], plans[OBJECTIVES[1]]


def evenly_spaced(front: Columns, count: int) -> Ints:
    """At most ``count`` indices at equal steps along a sorted front, both ends among them."""
    size = len(next(iter(front.values())))
    if size <= count:
        return np.arange(size, dtype=np.int64)
    return np.unique(np.linspace(0, size - 1, count).round().astype(np.int64))


def farthest_rows(values: Floats, count: int) -> Ints:
    """At most ``count`` rows of (n, k) far from each other, ascending: the best in each column, then farthest points.

    How far a row is from a chosen one is how much better it is in its best column, as a share of the column's span.
    """
    span = np.ptp(values, axis=0)
    scaled = (values - values.min(axis=0)) / np.where(span > 0.0, span, 1.0)
    chosen, missed = list(dict.fromkeys(scaled.argmin(axis=0).tolist())), np.full(len(values), np.inf)
    for place in range(min(count, len(values))):
        if place == len(chosen):
            chosen.append(int(missed.argmax()))
        missed = np.minimum(missed, np.maximum(scaled[chosen[place]] - scaled, 0.0).max(axis=1))
        missed[chosen[place]] = -1.0
    return np.sort(chosen[:count]).astype(np.int64)


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
