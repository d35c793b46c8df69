"""Slow ranks of a training run, from the times of every rank: which, since when, of which kind.

A rank is compared with the others of its group (one pipeline stage); a one-sided CUSUM (Page 1954, Biometrika 41) of
the logarithm of their ratio says when it became slow. Its threshold keeps false alarms of a run below `FALSE_ALARMS`
for independent normal noise; what is clipped keeps single long iterations (a garbage collection) from being one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from jointopt.core.schema import Floats, Ints

FALSE_ALARMS = 0.01  # per run of `_LEAST_ROWS` iterations or more
_LEAST_ROWS = 1000
FIRST = 20  # iterations that a rank without peers is compared with
_MARGIN, _STEP = 0.006, 0.01  # of the time: what ranks differ by anyway, and the excess above it that is sought
_LEAST = 0.015  # of the time: ranks that are healthy differ by less
_SPREAD = 3.0  # deviations of the ranks among themselves that are ordinary, where there are `_MANY` to tell
_MANY = 8
_LEAST_NOISE = 5e-4  # of the time
_CLIP = 5  # iterations at least that an alarm takes
_CLIP_SIGMA = 2.0  # deviations above which a single iteration counts for no more
_SAME_MOMENT = 10  # iterations by which ranks that slow down together may differ
HOTTER_C = 5.0  # than its peers: a clock that falls with it falls by heat
_HALF = 0.5  # of a slowdown: what explains that much of it is its kind
_UNEVEN = 3.0  # times the noise of the peers: work that differs from iteration to iteration


class Episode(NamedTuple):
    """One rank that is slow from row ``since`` to row ``until`` (outside), noticed at row ``noticed``."""

    rank: int
    since: int
    until: int
    noticed: int
    excess: float  # mean logarithm of its time over its peers'


def log_excess(time_s: Floats, group: Ints) -> Floats:
    """Logarithms (n, ranks) of times over the median of the other ranks of the same ``group`` (ranks,).

    A group as a whole is compared with its own first `FIRST` iterations, less what all other groups have changed, by
    its faster half; a run of one rank with its first ones alone. What is not known (NaN) is 0: no evidence.
    """
    logs, out = np.log(time_s), np.zeros(time_s.shape)
    groups = np.unique(group)
    fast = np.empty((len(logs), len(groups)))
    for number, one in enumerate(groups):
        members = np.flatnonzero(group == one)
        values = logs[:, members]
        values = np.where(np.isfinite(values), values, known_median(values, 1, keepdims=True))
        order, middle = np.sort(values, axis=1), (len(members) - 2) // 2
        fast[:, number] = np.median(order[:, : (len(members) + 1) // 2], axis=1)
        if len(members) > 1:
            low, high = order[:, [middle]], order[:, [middle + 1]]
            out[:, members] = values - np.where(values > low, low, high)
    change = fast - known_median(fast[:FIRST])
    for number, one in enumerate(groups if len(groups) > 1 or logs.shape[1] == 1 else ()):
        others = np.delete(change, number, axis=1)
        out[:, group == one] += change[:, [number]] - (known_median(others, 1, keepdims=True) if others.size else 0.0)
    return np.nan_to_num(out)


def known_median(values: Floats, axis: int = 0, *, keepdims: bool = False) -> Floats:
    """The median of what is known; NaN, without a warning, where nothing is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmedian(values, axis=axis, keepdims=keepdims))


def noise(excess: Floats) -> Floats:
    """Standard deviation (ranks,) from one iteration to the next, by a tail of differences: waits have long ones."""
    steps = np.quantile(np.abs(np.diff(excess, axis=0)), 0.9, axis=0) if len(excess) > 1 else np.zeros(excess.shape[1])
    return np.maximum(steps / (1.645 * math.sqrt(2.0)), _LEAST_NOISE)


def slow_episodes(excess: Floats, group: Ints, least: float = _LEAST) -> list[Episode]:
    """The episodes in which ranks are slow, by logarithms (n, ranks) as of `log_excess`.

    Those of less than ``least`` and the error of what a group is compared with, its first iterations, are none.
    """
    rows, ranks = excess.shape
    own, pooled, offsets = noise(excess), np.empty(ranks), np.median(excess, axis=0)
    for one in np.unique(group):
        members = group == one
        pooled[members] = np.median(own[members])
        offsets[members] -= np.median(np.sort(offsets[members])[: (members.sum() + 1) // 2])  # of its faster half
    offsets, half = np.sort(offsets), ranks // 2  # the shortest interval that holds half of them: as many may be slow
    spread = (offsets[half - 1 :] - offsets[: ranks - half + 1]).min() / 1.349 if ranks >= _MANY else 0.0
    margin = max(_MARGIN, _SPREAD * spread)
    limit = math.log(ranks * max(rows, _LEAST_ROWS) / FALSE_ALARMS)
    step = np.maximum(_STEP, pooled)  # where the noise is large, only large excesses are told soon
    over = np.minimum(excess - margin - step / 2.0, _CLIP_SIGMA * pooled)
    gain = np.minimum(step / pooled**2 * over, limit / _CLIP)
    total, start, noticed = np.zeros(ranks), np.zeros(ranks, np.int64), np.full(ranks, -1)
    found: list[tuple[int, int, int, int]] = []
    for row in range(rows):
        total = np.clip(total + gain[row], 0.0, limit)
        ended = total == 0.0
        for rank in np.flatnonzero(ended & (noticed >= 0)).tolist():
            found.append((rank, int(start[rank]), row, int(noticed[rank])))
        start[ended], noticed[ended] = row + 1, -1
        noticed[(total >= limit) & (noticed < 0)] = row
    found += [(rank, int(start[rank]), rows, int(noticed[rank])) for rank in np.flatnonzero(noticed >= 0).tolist()]
    episodes = [Episode(*one, float(np.median(excess[one[1] : one[2], one[0]]))) for one in _joined(found)]
    return [one for one in episodes if one.excess >= least + pooled[one.rank] / math.sqrt(FIRST)]


def _joined(found: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Episodes of a rank with short breaks between them as one."""
    joined: list[tuple[int, int, int, int]] = []
    for one in sorted(found):
        if joined and joined[-1][0] == one[0] and one[1] - joined[-1][2] <= FIRST:
            joined[-1] = (one[0], joined[-1][1], one[2], joined[-1][3])
        else:
            joined.append(one)
    return joined


def slow_units(episodes: list[Episode], unit: Ints) -> list[list[Episode]]:
    """The episodes, those of all ranks of one ``unit`` (ranks,) that begin at the same time as one list."""
    together: list[list[Episode]] = []
    rest = sorted(episodes, key=lambda one: (unit[one.rank], one.since))
    while rest:
        first = rest[0]
        same = [one for one in rest if unit[one.rank] == unit[first.rank] and one.since - first.since <= _SAME_MOMENT]
        whole = len({one.rank for one in same}) == (unit == unit[first.rank]).sum()
        together.append(same if whole else [first])
        rest = [one for one in rest if one not in together[-1]]
    return together


def kind_of(one: Episode, excess: Floats, group: Ints, seen: Mapping[str, Floats], *, whole_node: bool) -> str:
    """heat, power, clock, experts, host or unknown: what made a rank slow, by what moves with it.

    ``seen``: what is known of every rank and iteration, (n, ranks): clock_mhz, temperature_c, tokens, and heat and
    power (1 where NVML names that reason of a throttled clock). ``whole_node``: all ranks of its node are slow.
    """
    rows = slice(one.since, one.until)
    peers = np.flatnonzero((group == group[one.rank]) & (np.arange(len(group)) != one.rank))

    def beside(name: str) -> Floats:
        """Its values beside the median of its peers, (2, rows); where that is not known beside its own before."""
        values = seen[name]
        own = known_median(values[: one.since or FIRST, one.rank])
        other = known_median(values[rows][:, peers], 1) if len(peers) else own
        other = np.where(np.isfinite(other), other, own)  # peers of other nodes may not be known
        return np.stack(np.broadcast_arrays(values[rows, one.rank], other))

    clocks = "clock_mhz" in seen and np.isfinite(seen["clock_mhz"][rows, one.rank]).any()
    if clocks:
        mine, theirs = beside("clock_mhz")
        if np.nanmedian(np.log(theirs / mine)) >= _HALF * one.excess:
            for reason in ("heat", "power"):
                if reason in seen and np.nanmean(beside(reason)[0]) >= _HALF:
                    return reason
            hotter = "temperature_c" in seen and np.nanmedian(np.subtract(*beside("temperature_c"))) >= HOTTER_C
            return "heat" if hotter else "clock"
    if "tokens" in seen:
        mine, theirs = beside("tokens")
        if np.nanmedian(np.log(mine / theirs)) >= _HALF * one.excess:
            return "experts"
    level = noise(excess)
    if len(peers) and level[one.rank] >= _UNEVEN * np.median(level[peers]) and "tokens" not in seen:
        return "experts"
    return "host" if whole_node or clocks else "unknown"


def slowest_alone(together: list[Episode], excess: Floats, clock_mhz: Floats | None) -> int | None:
    """Which of ranks that wait for each other is the slow one: by its time, else by its clock; None: neither tells."""
    rows = slice(max(one.since for one in together), min(one.until for one in together))
    if rows.start >= rows.stop:
        return None
    times = np.median(excess[rows], axis=0)
    level = noise(excess) / math.sqrt(rows.stop - rows.start)
    ranks = sorted((one.rank for one in together), key=lambda rank: -times[rank])
    if times[ranks[0]] - times[ranks[1]] > max(4.0 * float(level[ranks].max()), 0.2 * times[ranks[0]]):
        return ranks[0]
    if clock_mhz is None:
        return None
    clocks = known_median(clock_mhz[rows])
    ranks.sort(key=lambda rank: float(clocks[rank]))
    return ranks[0] if math.log(clocks[ranks[1]] / clocks[ranks[0]]) >= _HALF * times[ranks[0]] else None


def usual_s(time_s: Floats, episodes: Iterable[Episode]) -> Floats:
    """Seconds (n, ranks) that ranks would take if none were slow: ``time_s``, while one is slow as its peers take."""
    usual = time_s.copy()
    for one in episodes:
        usual[one.since : one.until, one.rank] /= math.exp(one.excess)
    return usual
