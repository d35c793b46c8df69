"""The schedule of rungs over the steps of a signal: one dynamic programme, exact for limits, dwell times and ramps.

A rung is a way to run: tokens/s, mean power and a power that it stays below; or a pause. Shapes: n rungs, T steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from jointopt.core.schema import Bools, Floats, Ints

PAUSED = -1  # the layout of a pause
_WORTHS = 100  # of a token that are tried at most
_EQUAL, _CLOSE = 1e-12, 1e-9  # relative; the latter of costs that no closer schedule is looked for
_LEAST = 1e-60  # worth of a token above none
_HOUR_S, _MINUTE_S = 3600.0, 60.0


@dataclass(frozen=True)
class Rungs:
    """What a run may do in a step, (n,) each, and what changes cost."""

    tokens_per_s: Floats
    power_kw: Floats
    power_kw_high: Floats
    layout: Ints  # 0 is that of the start, others are changed to; `PAUSED`
    checkpoint_s: float = 0.0  # the least time of a pause, and lost at a change of layout
    restart_s: float = 0.0  # lost after a pause, and at a change of layout

    def lost_s(self, before: int, after: int) -> float:
        """The time in s without tokens after a change from one layout, or a pause, to another."""
        if before == after or after == PAUSED:
            return 0.0
        return self.restart_s + (0.0 if before == PAUSED else self.checkpoint_s)

    def take(self, rows: Ints) -> Rungs:
        """Some of the rungs."""
        names = ("tokens_per_s", "power_kw", "power_kw_high", "layout")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def on_hull(self) -> Ints:
        """The rungs that are best at some worth of a token, of each layout: those that no mix of two others beats."""
        kept: list[int] = []
        for one in np.unique(self.layout):
            chain: list[int] = []
            rows = np.flatnonzero(self.layout == one)
            for row in rows[np.lexsort((self.tokens_per_s[rows], self.power_kw[rows]))].tolist():
                while len(chain) > 1 and self._slope(chain[-2], row) >= self._slope(chain[-2], chain[-1]):
                    chain.pop()
                chain.append(row)
            kept += chain
        return np.sort(np.array(kept, np.int64))

    def _slope(self, first: int, second: int) -> float:
        """Tokens/s for each kW more from one rung to another."""
        more_kw = float(self.power_kw[second] - self.power_kw[first])
        return float(self.tokens_per_s[second] - self.tokens_per_s[first]) / max(more_kw, 1e-300)


@dataclass(frozen=True)
class Steps:
    """The signal: T + 1 bounds of its steps in s; limits in kW and costs of a kWh in its steps, (T,) each."""

    bounds_s: Floats
    limit_kw: Floats
    cost_per_kwh: Floats

    @property
    def seconds(self) -> Floats:
        """The length of each step."""
        return np.diff(self.bounds_s)


@dataclass(frozen=True)
class Schedule:
    """A rung for each step; there is one step more than in the signal where two rungs share one of its steps."""

    bounds_s: Floats
    rung: Ints
    tokens: Floats  # of each step
    cost: Floats  # of each step
    gap: float = 0.0  # most by which another schedule could cost less, as a share of what the steps cost and earn

    @property
    def totals(self) -> tuple[float, float]:
        """Cost and tokens of all steps."""
        return float(self.cost.sum()), float(self.tokens.sum())


@dataclass(frozen=True)
class Dispatch:
    """Schedules of ``rungs`` over ``steps``: changes of power keep the ramp, and a rung stays for the dwell time.

    They begin at any rung of layout 0, or with a change from it.
    """

    rungs: Rungs
    steps: Steps
    dwell_s: float = 0.0
    ramp_kw_per_min: float = np.inf
    _blocked: Bools = field(init=False)  # whether a rung breaks the limit of a step, (T, n)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_blocked", self.rungs.power_kw_high > self.steps.limit_kw[:, None])

    @property
    def _is_free(self) -> bool:
        """Whether each step may have any rung of its layout, whatever the step before has."""
        return self.dwell_s == 0.0 and np.isinf(self.ramp_kw_per_min)

    def best(self, worth: float, per_cost: float = 1.0) -> Schedule | None:
        """The schedule of least cost (times ``per_cost``) less ``worth`` a token; None where none keeps the limits."""
        rungs = self.rungs
        value = worth * rungs.tokens_per_s - per_cost / _HOUR_S * self.steps.cost_per_kwh[:, None] * rungs.power_kw
        value = np.where(self._blocked, -np.inf, value * self.steps.seconds[:, None])
        alone = value.argmax(axis=1).astype(np.int64)
        if self._is_free and (rungs.layout[alone] == 0).all() and np.isfinite(value.max(axis=1)).all():
            return self.schedule(alone)  # no step is better off, so that no pause and no change pays
        found = self._best_path(worth, value)
        return None if found is None else self.schedule(found)

    def least_cost(self, tokens: float) -> Schedule | None:
        """The schedule of the least cost that makes so many tokens; None where none does within the limits.

        Where a token is worth just enough (Lagrange's multiplier) two schedules are equally good, of which one makes
        fewer and one more: they are followed one after the other, and without dwell time or ramp they share a step.
        ``gap`` is what that leaves open.
        """
        most = self.best(1.0, 0.0)
        if most is None or most.tokens.sum() < tokens * (1.0 - _EQUAL):
            return None
        price, top = self.steps.cost_per_kwh, int(self.rungs.tokens_per_s.argmax())
        usual = float(np.abs(price).mean()) / _HOUR_S * self.rungs.power_kw[top] / self.rungs.tokens_per_s[top]
        balance = _Balance(replace(self, dwell_s=0.0, ramp_kw_per_min=np.inf), tokens, most)
        worth = balance.worth_from(float(usual), 2.0)
        if not self._is_free:
            balance = _Balance(self, tokens, most)
            balance.worth_from(worth, 1.01)
        found, bound = balance.more, balance.bound
        if balance.less is not None:
            found = min(self._mixed(found, balance.less, tokens), key=lambda one: one.totals[0])
        cost = found.totals[0]
        return replace(found, gap=max(cost - bound, 0.0) / max(float(np.abs(found.cost).sum()), 1e-300))

    def schedule(self, rung: Ints, bounds_s: Floats | None = None) -> Schedule:
        """The schedule of a rung (m,) for each step, whose m + 1 bounds are those of the signal or lie between them."""
        bounds_s = self.steps.bounds_s if bounds_s is None else bounds_s
        layout, useful_s = self.rungs.layout[rung].tolist(), np.diff(bounds_s)
        of = np.searchsorted(self.steps.bounds_s, bounds_s[:-1], side="right") - 1
        cost = useful_s * self.rungs.power_kw[rung] / _HOUR_S * self.steps.cost_per_kwh[of]
        before = min(layout[0], 0)
        for at, after in enumerate(layout):
            if lost_s := self.rungs.lost_s(before, after):
                ends = np.minimum(bounds_s[at + 1 :], bounds_s[at] + lost_s)
                useful_s[at:] -= np.maximum(ends - bounds_s[at:-1], 0.0)
            before = after
        return Schedule(bounds_s, rung, useful_s * self.rungs.tokens_per_s[rung], cost)

    def _best_path(self, worth: float, value: Floats) -> Ints | None:
        """The rungs (T,) of the greatest value, each (T, n), less the worth of tokens lost by changes; None: none is.

        ``best[b, r]`` is that of all ways to be at rung r before bound b and free to leave it. A change at b is tied
        until the dwell time, the checkpoint or the restart are over, and leads to a later bound.
        """
        rungs, count = self.rungs, len(value)
        total = np.cumsum(np.pad(np.where(self._blocked, 0.0, value), ((1, 0), (0, 0))), axis=0)
        blocked = np.cumsum(np.pad(self._blocked, ((1, 0), (0, 0))), axis=0)
        best = np.full((count + 1, len(rungs.layout)), -np.inf)
        best[0, rungs.layout == 0] = 0.0
        bound_before, rung_before = np.zeros((2, *best.shape), np.int64)
        paused, every = rungs.layout == PAUSED, np.arange(len(rungs.layout))
        # to stay at any rung may be worth more than a pause
        stays = (value[:, ~paused] >= value[:, paused].max(axis=1, initial=-np.inf)[:, None]).all()
        layouts = np.unique(rungs.layout[~paused] if stays else rungs.layout)
        groups = [np.flatnonzero(rungs.layout == one) for one in layouts]
        changes = [(rows, into, *self._change(rows, into)) for rows in groups for into in groups]
        losses = [worth * lost_s * rungs.tokens_per_s[into] for _, into, lost_s, _ in changes]
        for b in range(count):
            # a rung that stays is a change to itself without a tie
            options: list[tuple[Ints, Floats, Ints, int]] = [(every, best[b], every, b + 1)]
            for (rows, into, _, ends), loss in zip(changes, losses, strict=True):
                reached, source = self._reached(b, rows, into, best[b, rows])
                options.append((into, reached - loss, source, int(ends[b])))
            for into, gain, source, end in options:
                found = gain + total[end, into] - total[b, into]
                better = (found > best[end, into]) & (blocked[end, into] == blocked[b, into])
                if better.any():
                    rows = into[better]
                    best[end, rows], bound_before[end, rows] = found[better], b
                    rung_before[end, rows] = source[better] if len(source) > 1 else source
        if not np.isfinite(best[-1]).any():
            return None
        path, b, rung = np.zeros(count, np.int64), count, int(best[-1].argmax())
        while b:
            start = int(bound_before[b, rung])
            path[start:b] = rung
            b, rung = start, int(rung_before[b, rung])
        return path

    def _reached(self, b: int, rows: Ints, into: Ints, best: Floats) -> tuple[Floats, Ints]:
        """(the best value among rungs ``rows`` from which each of ``into`` is reached at the bound b, which that is).

        One value for all of ``into`` where there is no ramp.
        """
        if np.isinf(self.ramp_kw_per_min):
            first = best.argmax()
            return best[first : first + 1], rows[first : first + 1]
        reach = np.where(self._within_ramp(b, rows, into), best[:, None], -np.inf)
        return reach.max(axis=0), rows[reach.argmax(axis=0)]

    def _change(self, rows: Ints, into: Ints) -> tuple[float, Ints]:
        """(seconds lost by a change between rungs of two layouts, the bound at which one at each bound is over)."""
        before, after = (int(self.rungs.layout[some[0]]) for some in (rows, into))
        lost_s = self.rungs.lost_s(before, after)
        tied_s = max(self.dwell_s, self.rungs.checkpoint_s if after == PAUSED != before else lost_s)
        bounds_s = self.steps.bounds_s
        ends = np.searchsorted(bounds_s, bounds_s[:-1] + tied_s * (1.0 - _EQUAL))
        return lost_s, np.clip(ends, np.arange(1, len(bounds_s)), len(bounds_s) - 1)

    def _within_ramp(self, b: int, rows: Ints, into: Ints) -> Bools:
        """Whether the ramp allows changes at the bound b, (len(rows), len(into)).

        A change has the time of the shorter of the two steps that it lies between.
        """
        if np.isinf(self.ramp_kw_per_min) or b == 0:  # nothing is known of what was before
            return np.ones((len(rows), len(into)), np.bool_)
        power_kw = self.rungs.power_kw
        most_kw = self.ramp_kw_per_min * float(self.steps.seconds[b - 1 : b + 1].min()) / _MINUTE_S
        return np.asarray(np.abs(power_kw[rows, None] - power_kw[into]) <= most_kw * (1.0 + _EQUAL))

    def _mixed(self, more: Schedule, less: Schedule, tokens: float) -> Iterator[Schedule]:
        """Schedules that follow one of two and then the other, and make so many tokens; ``more`` comes first."""
        yield more
        bounds_s, layout = self.steps.bounds_s, self.rungs.layout
        for first, last in ((more, less), (less, more)):
            parts = [np.concatenate([[0.0], np.cumsum(one)]) for one in (first.tokens, last.tokens)]
            made = parts[0] + parts[1][-1] - parts[1]  # by the schedule that changes at each bound
            alike = layout[first.rung] == layout[last.rung]
            alike[1:] &= alike[:-1] & (layout[first.rung[:-1]] == layout[last.rung[1:]])
            for at in np.flatnonzero((made[1:] >= tokens) != (made[:-1] >= tokens)).tolist():
                if self._is_free and alike[at : at + 2].all():
                    share = (tokens - made[at]) / (made[at + 1] - made[at])
                    middle = bounds_s[at] + share * (bounds_s[at + 1] - bounds_s[at])
                    rung = np.concatenate([first.rung[: at + 1], last.rung[at:]])
                    yield self.schedule(rung, np.insert(bounds_s, at + 1, middle))
                for change in (at, at + 1):
                    mixed = self.schedule(np.concatenate([first.rung[:change], last.rung[change:]]))
                    if mixed.tokens.sum() >= tokens and self.keeps(mixed):
                        yield mixed

    def keeps(self, found: Schedule) -> bool:
        """Whether a schedule of the signal's own steps keeps limits, ramp, dwell time, and the time of each change."""
        rung = found.rung
        if self._blocked[np.arange(len(rung)), rung].any():
            return False
        at = np.flatnonzero(np.diff(rung)) + 1
        ends = np.append(at, len(rung))
        if self.rungs.layout[rung[0]] != 0:
            at = np.append(0, at)
        else:
            ends = ends[1:]
        first = np.flatnonzero(self.rungs.layout == 0)[:1]
        for b, end in zip(at.tolist(), ends.tolist(), strict=True):
            pair = rung[b - 1 : b] if b else first, rung[b : b + 1]
            if end < self._change(*pair)[1][b] or not self._within_ramp(b, *pair).all():
                return False
        return True


@dataclass
class _Balance:
    """Schedules on both sides of a number of tokens, ever closer in the worth of a token, and a bound of the cost."""

    dispatch: Dispatch
    tokens: float
    more: Schedule  # makes so many tokens
    less: Schedule | None = None  # makes fewer
    bound: float = -np.inf  # that the cost of no schedule of so many tokens is below

    def worth_from(self, worth: float, factor: float) -> float:
        """Find the worth at which both are equally good, from a guess that may be off by a factor; return it."""
        line, is_above = np.inf, False  # what neither of the two is below at this worth; whether ``more`` is of a worth
        for _ in range(_WORTHS):
            found = self.dispatch.best(worth)
            if found is None:
                break
            cost, made = found.totals
            value = cost - worth * made
            self.bound = max(self.bound, value + worth * self.tokens)
            if value >= line:
                break
            if made >= self.tokens:
                self.more, is_above = found, True
            else:
                self.less = found
            if self.more.totals[0] - self.bound <= _CLOSE * abs(self.bound) or (self.less is None and worth == 0.0):
                break
            if self.less is not None and is_above:
                (cost, made), (below, fewer) = self.more.totals, self.less.totals
                worth = (cost - below) / (made - fewer)
                line = cost - worth * made - _EQUAL * (abs(cost) + abs(worth * made))
            else:
                worth = worth / factor if self.less is None else max(worth * factor, _LEAST)
                worth, factor = worth if worth >= _LEAST else 0.0, min(factor * factor, 1e6)
        return worth
