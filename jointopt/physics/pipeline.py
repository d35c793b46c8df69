"""Makespan of 1F1B and interleaved 1F1B with unequal ranks: the longest path through `schedule`'s graph, closed form.

A rank's *round* r is the steady pair of forward slot r + w and backward slot r, after w warm-up forwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.errors import PlanError
from jointopt.core.schema import Floats, Ints
from jointopt.physics.schedule import check_micro_batches, warmup_slots

BLOCK_TIMES = 8192  # plans per block times pp: keeps the dozen temporaries of that size in the L2 cache


def iteration_time_s(forward_s: Floats, backward_s: Floats, pp: Ints, vpp: Ints, num_micro_batches: Ints) -> Floats:
    """Makespan of one iteration's pipeline schedule, seconds, (n,): 1F1B where vpp = 1, else interleaved.

    ``forward_s``, ``backward_s`` (n, >= pp): seconds of one micro-batch on each rank, all its chunks, with the blocking
    receives. Derived here: the longest path through the schedules of Narayanan et al. 2021 (arXiv:2104.04473), whose
    (m + (p - 1)/v)(f + b) of section 2.2 it is for equal ranks. Exact for equal chunks within a rank and a head on the
    last; chunks of other layers: `jointopt.physics.chunks`. PlanError for a plan with no such schedule.
    """
    pp, vpp, m = (np.asarray(a) for a in (pp, vpp, num_micro_batches))
    check_micro_batches(pp, vpp, m)
    if pp.size and int(pp.max()) > forward_s.shape[1]:
        raise PlanError(
            f"The pipeline times must have a column per rank: expected at least {int(pp.max())} (the largest pp), "
            f"got {forward_s.shape[1]}; widen forward_s and backward_s."
        )
    time_s = np.empty(len(pp))
    most = int(vpp.max(initial=0)) + 1
    shape = pp * most + vpp
    for which in np.flatnonzero(np.bincount(shape)).tolist():
        (p, v), rows = divmod(which, most), np.flatnonzero(shape == which)
        step = BLOCK_TIMES // p + 1
        for block in (rows[i : i + step] for i in range(0, len(rows), step)):
            f, b = (np.ascontiguousarray(a[block, :p].T, dtype=np.float64) for a in (forward_s, backward_s))
            time_s[block] = _equal_shape_time_s(f, b, v, m[block])
    return time_s


def _equal_shape_time_s(f: Floats, b: Floats, v: int, m: Ints) -> Floats:
    """Makespan of plans of one pp and vpp; f, b (p, n), rank by rank."""
    p = len(f)
    if p == 1:
        return np.asarray(m * (f[0] + b[0]))
    if v == 1:
        return _one_f_one_b_time_s(f, b, m)
    f, b = f / v, b / v
    one_group = m == p
    time_s = np.empty(len(m))
    for which, price in ((one_group, _one_group_time_s), (~one_group, _interleaved_time_s)):
        if which.any():
            time_s[which] = price(f[:, which], b[:, which], v, m[which])
    return time_s


def _prefix_sums(a: Floats) -> Floats:
    """(p + 1, n): row i is the sum of rows 0 .. i-1."""
    sums = np.zeros((len(a) + 1, a.shape[1]))
    for i, row in enumerate(a):
        np.add(sums[i], row, out=sums[i + 1])
    return sums


def _running_max(a: Floats) -> Floats:
    """(p, n): row i is the maximum of rows 0 .. i."""
    top = a.copy()
    for i in range(1, len(a)):
        np.maximum(top[i - 1], a[i], out=top[i])
    return top


def _suffix_max(a: Floats) -> Floats:
    """(p, n): row i is the maximum of rows i .. p-1."""
    return _running_max(a[::-1])[::-1]


def _one_f_one_b_time_s(f: Floats, b: Floats, m: Ints) -> Floats:
    """Makespan of 1F1B, f and b (p, n), m (n,); exact for any times and any m >= 1.

    A steady round on rank i costs t_i = f_i + b_i, so the longest path waits on one rank j, between warm-up forwards
    down to a rank i >= j and cool-down backwards; S prefix sums of t, F and B running maxima of f and b:
        max_j max_{i>=j} [S_{i+1} + (p-1-i) F_i] + max_{k>=j} [S_{k+1} + (p-1-k) B_k] - S_j + (m-p+j-1) t_j
    """
    p = len(f)
    t = f + b
    s, slowest_f, slowest_b = _prefix_sums(t), _running_max(f), _running_max(b)
    rank = np.arange(p, dtype=np.float64)[:, None]
    fill = s[1:] + (p - 1 - rank) * slowest_f
    drain = s[1:] + (p - 1 - rank) * slowest_b
    last_fill, last_drain = _suffix_max(fill), _suffix_max(drain)
    rounds = m - (p + 1) + rank
    path = last_fill + last_drain - s[:-1] + rounds * t
    if (m <= p).any():
        # rank p-m has a single steady round, so a path cannot both come up to it and leave it downwards;
        # ranks above run all forwards before any backward: a path that turns there, S_{j+1} + (m-1) (F_j + B_j), is no
        # longer than that of rank p-m
        once = np.maximum(fill + last_drain, last_fill + drain) - s[:-1] - t
        path = np.where(rounds >= 0, path, np.where(rounds == -1, once, 0.0))
    return np.asarray(path.max(axis=0))


def last_turns_s(forward_s: Floats, backward_s: Floats, m: Ints) -> Floats:
    """Seconds (p, n) of the longest paths through 1F1B that turn on each rank last, and then wait on none after it.

    From there they go through the last backward passes of that rank and of all before it: parts of what
    `_one_f_one_b_time_s` takes the longest of. ``forward_s``, ``backward_s`` (p, n); minus infinity where ``m`` (n,) is
    so small that no rank up to there has a steady round.
    """
    p, t = len(forward_s), forward_s + backward_s
    s, rank = _prefix_sums(t), np.arange(p, dtype=np.float64)[:, None]
    last_fill = _suffix_max(s[1:] + (p - 1 - rank) * _running_max(forward_s))
    steady = m + (rank - p - 1)
    arrived = np.where(steady >= 0, last_fill - s[:-1] + steady * t, -np.inf)
    return np.asarray(_running_max(arrived) + s[1:] + (p - 1 - rank) * backward_s)


def _warmup_column(p: int, v: int, m: int) -> Floats:
    """Warm-up forwards of each rank, (p, 1)."""
    return np.array([warmup_slots(p, v, m, rank) for rank in range(p)], dtype=np.float64)[:, None]


@dataclass(frozen=True)
class _Passes:
    """Passes of one direction, one chunk of each rank, and the sums and maxima that paths through them are made of."""

    each: Floats  # (p, n) s
    sums: Floats  # (p + 1, n), as `_prefix_sums`
    slowest: Floats  # (p, n), as `_running_max`

    @classmethod
    def of(cls, seconds: Floats) -> _Passes:
        return cls(seconds, _prefix_sums(seconds), _running_max(seconds))


def _interleaved_time_s(forward_s: Floats, backward_s: Floats, v: int, m: Ints) -> Floats:
    """Makespan of interleaved 1F1B for p >= 2, v >= 2, m >= 2p; times (p, n) per *chunk*, m (n,).

    The longest path waits on one rank j, between the best way in and the way out (f and b swapped). That the routes
    listed are all that can win is not proven, but tested over 10^6 plans (tests/bench/bench_pipeline.py).
    """
    f, b, t = _Passes.of(forward_s), _Passes.of(backward_s), forward_s + backward_s
    warmup = _warmup_column(len(t), v, 2 * len(t))
    path = _fill_s(f, b, t, v, warmup)
    path += _fill_s(b, f, t, v, warmup)
    path += (m * v - warmup) * t
    return np.asarray(path.max(axis=0))


def _one_group_time_s(forward_s: Floats, backward_s: Floats, v: int, m: Ints) -> Floats:
    """Makespan of interleaved 1F1B for m = p >= 2, v >= 2; times (p, n) per *chunk*.

    Ranks up to c = p/2 - 1 run all forwards before any backward: a path turns there between the two, or on a
    later rank as in the longer schedule.
    """
    f, b, t = _Passes.of(forward_s), _Passes.of(backward_s), forward_s + backward_s
    p, c, slots = len(t), (len(t) - 2) // 2, len(t) * v
    warmup, first = _warmup_column(p, v, p), slice(c + 1)
    last_slot = np.full((c + 1, 1), slots - 1.0)
    all_f, all_b = _forward_path_s(f, v, last_slot, first), _forward_path_s(b, v, last_slot, first)
    in_f, _, up_f = _turning_paths_s(f, b, t, v, warmup)
    in_b, _, up_b = _turning_paths_s(b, f, t, v, warmup)
    fill, drain = np.maximum(in_f, up_f), np.maximum(in_b, up_b)
    rounds = slots - warmup
    # with one steady round, a path cannot both come up from a later rank and leave to one
    path = np.where(rounds == 1, np.maximum(fill + in_b, in_f + drain), fill + drain) + rounds * t
    path[first] = all_f + t[first] + all_b
    if p % 2 == 0:  # rank c's last forward and first backward are neighbours: a path may enter between them
        path[c] = np.maximum(path[c], np.maximum(up_f[c] + t[c] + all_b[c], up_b[c] + t[c] + all_f[c]))
    return np.asarray(path.max(axis=0))


def _forward_path_s(f: _Passes, v: int, slot: Floats, ranks: slice = slice(None)) -> Floats:
    """Longest path over forwards alone to the start of forward ``slot`` (k, 1) of each of ``ranks``, (k, n).

    Down the ranks, waiting at the slowest so far; or once round the ring first, so that the wait may be at the
    slowest of all. Group 1 starts with chunk 0, which receives nothing: the way round ends before slot v p.
    """
    p, slowest = len(f.each), f.slowest[ranks]
    late = np.maximum(slot - (v * p - 1), 0)
    round_first = (slot - late - p) * f.slowest[-1]
    round_first += f.sums[p]
    round_first += late * slowest
    path = slot * slowest
    np.maximum(path, round_first, out=path)
    path += f.sums[:-1][ranks]
    return path


def _turning_paths_s(f: _Passes, b: _Passes, t: Floats, v: int, warmup: Floats) -> tuple[Floats, Floats, Floats]:
    """Longest paths into rank j's steady state, each (p, n): forwards alone, turned, up.

    ``forwards`` arrives at round 0. ``turned`` turns on the best rank i >= j and goes on by backwards up to and
    including rank 0. ``up`` turns on a rank i > j and comes up to round 1, counted back to round 0 (minus t_j).
    """
    forwards = _forward_path_s(f, v, warmup)
    turning = forwards + f.each
    turning += b.sums[1:]
    turned = _suffix_max(turning)
    up = np.full_like(t, -np.inf)
    np.subtract(turned[1:], b.sums[:-2], out=up[:-1])
    up[:-1] -= t[:-1]
    return forwards, turned, up


def _fill_s(f: _Passes, b: _Passes, t: Floats, v: int, warmup: Floats) -> Floats:
    """(p, n): longest path to round 0 of each rank j; one that arrives in round x counts minus x t_j.

    The ways in: forwards alone; forwards to a rank i > j, a turn, backwards up to j; a turn on any i and backwards
    round the ring, p + 1 rounds; from i > j by forwards round the ring, which is open again from slot v p on.
    """
    p = len(t)
    forwards, turned, up = _turning_paths_s(f, b, t, v, warmup)
    best = np.maximum(forwards, up, out=forwards)
    ring = _forward_ring_s(f, t, v, warmup, best, up)
    back = (turned[0] + b.sums[p]) - b.sums[:-1]
    back -= (p + 1) * t
    np.maximum(best, back, out=best)
    ring += f.sums[p]
    ring += f.sums[:-1]
    ring -= (v * p + p - warmup) * t
    return np.maximum(best, ring, out=best)


def _forward_ring_s(f: _Passes, t: Floats, v: int, warmup: Floats, fill: Floats, up: Floats) -> Floats:
    """(p, n): for each j, longest path to forward slot v p of a rank i > j, minus the forwards of ranks 0 .. i-1.

    Ranks i > c reach slot v p in their steady state and wait for it there. Rank c is the last that passes it in
    warm-up; one above it only adds hops. After a turn, c leaves w_c + 1 - v p rounds later.
    """
    p, c = len(t), (len(t) - 2) // 2
    waits = (v * p - warmup[c + 1 :]) * t[c + 1 :]
    waits += fill[c + 1 :]
    waits -= f.sums[c + 1 : p]
    later = _suffix_max(waits)
    wait = np.full_like(t, -np.inf)
    wait[c : p - 1] = later
    if c > 0:
        (direct,) = _forward_path_s(f, v, np.full((1, 1), float(v * p)), slice(c, c + 1))
        turned = up[c] + t[c] - (warmup[c] + 1 - v * p) * t[:c]
        wait[:c] = np.maximum(later[0], np.maximum(direct, turned) - f.sums[c])
    return wait
