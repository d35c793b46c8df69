"""Makespan of the pipelines of priced layouts: closed forms where chunks are alike, else chunk by chunk."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import SCHEDULE, Floats, Ints
from jointopt.physics.chunks import chunked_time_s, path_bound_s
from jointopt.physics.costs import StageCosts
from jointopt.physics.pipeline import iteration_time_s
from jointopt.physics.zero_bubble import zero_bubble_time_s
from jointopt.spec.framework import CHUNKS_OF_SCHEDULE, V_SHAPED


def makespan_s(costs: StageCosts, rows: Ints, forward: Floats, backward: Floats, bound: bool) -> Floats:
    """Seconds (n,) of the schedule of layouts ``rows``, bubble included, for times of one micro-batch, (n, pp).

    The last group of interleaved runs may be partly empty. ``bound``: where chunks differ, no more than that, and fast.
    """
    depth, batches, which = costs.depth, costs.num_micro_batches[rows], costs.split.which[rows]
    vpp = costs.layouts["vpp"][rows]
    split = np.array([costs.depth > 1 and schedule in CHUNKS_OF_SCHEDULE for schedule in costs.split.schedule])
    full = np.where((vpp > 1) & (depth > 1) & ~split[which], -(-batches // depth) * depth, batches)
    walked = (costs.split.uneven & (depth > 1) | split)[which]
    alike = slice(None) if not walked.any() else ~walked
    makespan = np.empty(len(rows))
    seconds = forward[alike], backward[alike]
    makespan[alike] = iteration_time_s(*seconds, np.full(len(seconds[0]), depth), vpp[alike], full[alike])
    kind = costs.layouts["schedule"][rows].astype(np.int64)
    key = walked * (full << 32 | kind << 16 | vpp)
    for shape in np.unique(key[walked]).tolist():
        at = np.flatnonzero(key == shape)
        schedule = SCHEDULE.text(shape >> 16 & 0xFFFF)
        makespan[at] = _walked_s(costs, rows[at], forward[at], backward[at], schedule, shape >> 32, bound)
    return np.asarray(makespan - (full - batches) * (forward + backward).max(axis=1))


def _walked_s(
    costs: StageCosts, rows: Ints, forward: Floats, backward: Floats, schedule: str, batches: int, bound: bool
) -> Floats:
    """Seconds (n,) of layouts with one schedule, vpp and number of micro-batches, chunk by chunk."""
    forward_s, backward_s, weight_s = chunk_times_s(costs, rows, forward, backward)
    if schedule in CHUNKS_OF_SCHEDULE:
        if bound:
            return path_bound_s(forward_s, backward_s, batches, weight_s)
        return zero_bubble_time_s(schedule, forward_s, backward_s - weight_s, weight_s, batches)
    return (path_bound_s if bound else chunked_time_s)(forward_s, backward_s, batches)


def chunk_times_s(costs: StageCosts, rows: Ints, forward: Floats, backward: Floats) -> tuple[Floats, Floats, Floats]:
    """Seconds of every chunk, (vpp, pp, n), forward, backward and of it gradients of weights; ranks' are (n, pp).

    Of layouts with one vpp and schedule. Chunks share what their rank takes as their layers, embedding and head do at
    the top clock, and sends evenly.
    """
    numbers, place = np.unique(costs.split.which[rows], return_inverse=True)
    dense, moe = (np.stack([kind[i] for i in numbers])[place] for kind in (costs.split.dense, costs.split.moe))
    vpp, last = dense.shape[2], 0 if costs.split.schedule[numbers[0]] in V_SHAPED else -1
    sends = costs.p2p_s[rows, None]
    works = []
    for direction in range(3):
        units = costs.units_s[rows, direction, :, None, None]
        work = units[:, 0] * dense + units[:, 1] * moe
        work[:, 0, 0] += units[:, 2, 0, 0]
        work[:, last, -1] += units[:, 3, 0, 0]
        works.append(work)
    found = []
    for work, seconds in zip(works, (forward, backward), strict=False):
        whole = work.sum(axis=2, keepdims=True)
        share = np.divide(work, whole, out=np.full_like(work, 1.0 / vpp), where=whole > 0.0)
        found.append(share * (seconds - sends)[:, :, None] + sends[:, :, None] / vpp)
    of_weights = np.divide(works[2], works[1], out=np.zeros_like(works[2]), where=works[1] > 0.0)
    found.append(np.minimum(of_weights, 1.0) * found[1])
    forward_s, backward_s, weight_s = (np.ascontiguousarray(chunks.transpose(2, 1, 0)) for chunks in found)
    return forward_s, backward_s, weight_s
