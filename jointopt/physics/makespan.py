"""Makespan of the pipelines of priced layouts: closed forms where chunks are alike, else chunk by chunk."""

from __future__ import annotations

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.physics.chunks import chunked_time_s, path_bound_s
from jointopt.physics.costs import StageCosts
from jointopt.physics.pipeline import iteration_time_s


def makespan_s(costs: StageCosts, rows: Ints, forward: Floats, backward: Floats, bound: bool) -> Floats:
    """Seconds (n,) of the schedule of layouts ``rows``, bubble included, for times of one micro-batch, (n, pp).

    The last group of interleaved runs may be partly empty. ``bound``: where chunks differ, no more than that, and fast.
    """
    depth, batches = costs.depth, costs.num_micro_batches[rows]
    vpp = costs.layouts["vpp"][rows]
    full = np.where((vpp > 1) & (depth > 1), -(-batches // depth) * depth, batches)
    uneven = costs.split.uneven[costs.split.which[rows]] & (depth > 1)
    alike = slice(None) if not uneven.any() else ~uneven
    makespan = np.empty(len(rows))
    seconds = forward[alike], backward[alike]
    makespan[alike] = iteration_time_s(*seconds, np.full(len(seconds[0]), depth), vpp[alike], full[alike])
    key = full * uneven << 32 | vpp
    for shape in np.unique(key[uneven]).tolist():
        at = np.flatnonzero(key == shape)
        chunks = chunk_times_s(costs, rows[at], forward[at], backward[at])
        makespan[at] = (path_bound_s if bound else chunked_time_s)(*chunks, shape >> 32)
    return np.asarray(makespan - (full - batches) * (forward + backward).max(axis=1))


def chunk_times_s(costs: StageCosts, rows: Ints, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """Forward and backward seconds of every chunk, (vpp, pp, n) each, of layouts with one vpp; ranks' are (n, pp).

    Chunks share what their rank takes as their layers, embedding and head do at the top clock, and sends evenly.
    """
    which = costs.split.which[rows]
    numbers, place = np.unique(which, return_inverse=True)
    dense, moe = (np.stack([kind[i] for i in numbers])[place] for kind in (costs.split.dense, costs.split.moe))
    vpp = dense.shape[2]
    sends = costs.p2p_s[rows, None]
    found = []
    for direction, seconds in enumerate((forward, backward)):
        units = costs.units_s[rows, direction, :, None, None]
        work = units[:, 0] * dense + units[:, 1] * moe
        work[:, 0, 0] += units[:, 2, 0, 0]
        work[:, -1, -1] += units[:, 3, 0, 0]
        whole = work.sum(axis=2, keepdims=True)
        share = np.divide(work, whole, out=np.full_like(work, 1.0 / vpp), where=whole > 0.0)
        chunks = share * (seconds - sends)[:, :, None] + sends[:, :, None] / vpp
        found.append(np.ascontiguousarray(chunks.transpose(2, 1, 0)))
    return found[0], found[1]
