"""Makespan of the pipelines of priced layouts: closed forms where chunks are alike, else chunk by chunk."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import SCHEDULE, Floats, Ints
from jointopt.physics.chunks import chunked_time_s, path_bound_s
from jointopt.physics.costs import StageCosts
from jointopt.physics.pipeline import iteration_time_s
from jointopt.physics.zero_bubble import zero_bubble_time_s
from jointopt.spec.framework import CHUNKS_OF_SCHEDULE


def makespan_s(costs: StageCosts, rows: Ints, forward: Floats, backward: Floats, bound: bool) -> Floats:
    """Seconds (n,) of the schedule of layouts ``rows``, bubble included, for times of one micro-batch, (n, pp).

    The last group of interleaved runs may be partly empty. ``bound``: where chunks differ, no more than that, and fast.
    """
    depth, batches, which = costs.depth, costs.num_micro_batches[rows], costs.split.which[rows]
    vpp = costs.layouts["vpp"][rows]
    own, walked = costs.split.own_passes[which], costs.split.walked[which]
    full = np.where((vpp > 1) & (depth > 1) & ~own, -(-batches // depth) * depth, batches)
    alike = slice(None) if not walked.any() else ~walked
    makespan = np.empty(len(rows))
    seconds = forward[alike], backward[alike]
    makespan[alike] = iteration_time_s(*seconds, np.full(len(seconds[0]), depth), vpp[alike], full[alike])
    if bound:
        at = np.flatnonzero(walked)
        makespan[at] = _least_s(costs, rows[at], forward[at], backward[at], full[at])
        walked = np.zeros_like(walked)
    kind = costs.layouts["schedule"][rows].astype(np.int64)
    key = walked * (full << 32 | kind << 16 | vpp)
    for shape in np.unique(key[walked]).tolist():
        at = np.flatnonzero(key == shape)
        schedule = SCHEDULE.text(shape >> 16 & 0xFFFF)
        makespan[at] = _walked_s(costs, rows[at], forward[at], backward[at], schedule, shape >> 32)
    return np.asarray(makespan - (full - batches) * (forward + backward).max(axis=1))


def _least_s(costs: StageCosts, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """Seconds (n,) that `_walked_s` does not go below; ranks of schedules with passes of their own end as they like."""
    sends, vpp = costs.p2p_s[rows, None], costs.layouts["vpp"][rows, None]
    shares = costs.first_shares[:, rows]
    first, back = (share * (s - sends) + sends / vpp for share, s in zip(shares, (forward, backward), strict=True))
    first += np.where(costs.split.own_passes[costs.split.which[rows], None], 0.0, back)
    return path_bound_s(first, forward + backward, batches)


def _walked_s(costs: StageCosts, rows: Ints, forward: Floats, backward: Floats, schedule: str, batches: int) -> Floats:
    """Seconds (n,) of layouts with one schedule, vpp and number of micro-batches, chunk by chunk."""
    forward_s, backward_s, weight_s = chunk_times_s(costs, rows, forward, backward)
    if schedule in CHUNKS_OF_SCHEDULE:
        return zero_bubble_time_s(schedule, forward_s, backward_s - weight_s, weight_s, batches)
    return chunked_time_s(forward_s, backward_s, batches)


def chunk_times_s(costs: StageCosts, rows: Ints, forward: Floats, backward: Floats) -> tuple[Floats, Floats, Floats]:
    """Seconds of every chunk, (vpp, pp, n), forward, backward and of it gradients of weights; ranks' are (n, pp).

    Of layouts with one vpp and schedule. Chunks share what their rank takes as `StageCosts.chunk_shares`, and sends
    evenly.
    """
    sends, shares = costs.p2p_s[rows, None], costs.chunk_shares(rows)
    even = sends[:, :, None] / shares.shape[3]
    forward_s, backward_s = (
        share * (seconds - sends)[:, :, None] + even
        for share, seconds in zip(shares, (forward, backward), strict=False)
    )
    found = (chunks.transpose(2, 1, 0) for chunks in (forward_s, backward_s, shares[2] * backward_s))
    forward_s, backward_s, weight_s = map(np.ascontiguousarray, found)
    return forward_s, backward_s, weight_s
