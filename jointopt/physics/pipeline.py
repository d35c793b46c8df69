"""Makespan of 1F1B and interleaved 1F1B with unequal ranks: the longest path through `schedule`'s graph, closed form.

A rank's *round* r is the steady pair of forward slot r + w and backward slot r, after w warm-up forwards.
"""

from __future__ import annotations

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


def _interleaved_time_s(f: Floats, b: Floats, v: int, m: Ints) -> Floats:
    """Makespan of interleaved 1F1B for p >= 2, v >= 2, m >= 2p; f and b (p, n) per *chunk*, m (n,).

    The longest path waits on one rank j, between the best way in and the way out (f and b swapped). That the routes
    listed are all that can win is not proven, but tested over 10^6 plans (tests/bench/bench_pipeline.py).
    """
    warmup = _warmup_column(len(f), v, 2 * len(f))
    path = _fill_s(f, b, v, warmup) + _fill_s(b, f, v, warmup) + (m * v - warmup) * (f + b)
    return np.asarray(path.max(axis=0))


def _one_group_time_s(f: Floats, b: Floats, v: int, m: Ints) -> Floats:
    """Makespan of interleaved 1F1B for m = p >= 2, v >= 2; f and b (p, n) per *chunk*.

    Ranks up to c = p/2 - 1 run all forwards before any backward: a path turns there between the two, or on a
    later rank as in the longer schedule.
    """
    p, c, slots = len(f), (len(f) - 2) // 2, len(f) * v
    t = f + b
    warmup = _warmup_column(p, v, p)
    last_slot = np.full_like(warmup, slots - 1)
    all_f, all_b = _forward_path_s(f, v, last_slot), _forward_path_s(b, v, last_slot)
    in_f, _, up_f = _turning_paths_s(f, b, v, warmup)
    in_b, _, up_b = _turning_paths_s(b, f, v, warmup)
    fill, drain = np.maximum(in_f, up_f), np.maximum(in_b, up_b)
    rounds = slots - warmup
    # with one steady round, a path cannot both come up from a later rank and leave to one
    path = np.where(rounds == 1, np.maximum(fill + in_b, in_f + drain), fill + drain) + rounds * t
    path[: c + 1] = (all_f + t + all_b)[: c + 1]
    if p % 2 == 0:  # rank c's last forward and first backward are neighbours: a path may enter between them
        path[c] = np.maximum(path[c], np.maximum(up_f[c] + t[c] + all_b[c], up_b[c] + t[c] + all_f[c]))
    return np.asarray(path.max(axis=0))


def _forward_path_s(f: Floats, v: int, slot: Floats) -> Floats:
    """Longest path over forwards alone to the start of forward ``slot`` (p, 1) of each rank, (p, n).

    Down the ranks, waiting at the slowest so far; or once round the ring first, so that the wait may be at the
    slowest of all. Group 1 starts with chunk 0, which receives nothing: the way round ends before slot v p.
    """
    p = len(f)
    sums, slowest = _prefix_sums(f), _running_max(f)
    late = np.maximum(slot - (v * p - 1), 0)
    round_first = sums[p] + (slot - late - p) * slowest[-1] + late * slowest
    return np.asarray(sums[:-1] + np.maximum(slot * slowest, round_first))


def _turning_paths_s(f: Floats, b: Floats, v: int, warmup: Floats) -> tuple[Floats, Floats, Floats]:
    """Longest paths into rank j's steady state, each (p, n): forwards alone, turned, up.

    ``forwards`` arrives at round 0. ``turned`` turns on the best rank i >= j and goes on by backwards up to and
    including rank 0. ``up`` turns on a rank i > j and comes up to round 1, counted back to round 0 (minus t_j).
    """
    forwards = _forward_path_s(f, v, warmup)
    sum_b = _prefix_sums(b)
    turned = _suffix_max(forwards + f + sum_b[1:])
    up = np.full_like(f, -np.inf)
    up[:-1] = turned[1:] - sum_b[:-2] - (f + b)[:-1]
    return forwards, turned, up


def _fill_s(f: Floats, b: Floats, v: int, warmup: Floats) -> Floats:
    """(p, n): longest path to round 0 of each rank j; one that arrives in round x counts minus x t_j.

    The ways in: forwards alone; forwards to a rank i > j, a turn, backwards up to j; a turn on any i and backwards
    round the ring, p + 1 rounds; from i > j by forwards round the ring, which is open again from slot v p on.
    """
    p = len(f)
    t = f + b
    sum_f, sum_b = _prefix_sums(f), _prefix_sums(b)
    forwards, turned, up = _turning_paths_s(f, b, v, warmup)
    best = np.maximum(forwards, up)
    ring = _forward_ring_s(f, t, v, warmup, best, up)
    best = np.maximum(best, turned[0] + sum_b[p] - sum_b[:-1] - (p + 1) * t)
    return np.asarray(np.maximum(best, ring + sum_f[p] + sum_f[:-1] - (v * p + p - warmup) * t))


def _forward_ring_s(f: Floats, t: Floats, v: int, warmup: Floats, fill: Floats, up: Floats) -> Floats:
    """(p, n): for each j, longest path to forward slot v p of a rank i > j, minus the forwards of ranks 0 .. i-1.

    Ranks i > c reach slot v p in their steady state and wait for it there. Rank c is the last that passes it in
    warm-up; one above it only adds hops. After a turn, c leaves w_c + 1 - v p rounds later.
    """
    p, c = len(f), (len(f) - 2) // 2
    sum_f = _prefix_sums(f)
    later = _suffix_max(fill[c + 1 :] + (v * p - warmup[c + 1 :]) * t[c + 1 :] - sum_f[c + 1 : p])
    wait = np.full_like(f, -np.inf)
    wait[c : p - 1] = later
    if c > 0:
        direct = _forward_path_s(f, v, np.full_like(warmup, v * p))[c]
        turned = up[c] + t[c] - (warmup[c] + 1 - v * p) * t[:c]
        wait[:c] = np.maximum(later[0], np.maximum(direct, turned) - sum_f[c])
    return wait
