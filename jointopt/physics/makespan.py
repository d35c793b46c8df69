"""Makespan of the pipelines of priced layouts: closed forms where chunks are alike, else chunk by chunk.

And the gradient traffic that sticks out of it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import SCHEDULE, Floats, Ints
from jointopt.physics.chunks import chunked_time_s, path_bound_s
from jointopt.physics.layout_arrays import Split
from jointopt.physics.pipeline import iteration_time_s
from jointopt.physics.zero_bubble import zero_bubble_time_s
from jointopt.spec.framework import CHUNKS_OF_SCHEDULE, V_SHAPED

if TYPE_CHECKING:
    from jointopt.physics.stage_costs import StageCosts


@dataclass(frozen=True)
class Pipelines:
    """All that the makespan of L layouts of one depth depends on beside the seconds of their ranks."""

    depth: int
    split: Split
    units_s: Floats  # (L, 3, kinds + 2), as in `stage_costs.StageCosts`
    p2p_s: Floats  # (L,), as there
    num_micro_batches: Ints  # (L,)
    vpp: Ints  # (L,)
    schedule: Ints  # (L,), codes

    def chunk_shares(self, rows: Ints) -> Floats:
        """Shares of a rank's seconds that its chunks take, (3, n, pp, vpp): forward, backward, weights of the latter.

        Of layouts with one vpp and schedule; at the top clock, by their layers, embedding and head. The third is the
        share of each chunk's backward pass.
        """
        numbers, place = np.unique(self.split.which[rows], return_inverse=True)
        kinds = [np.stack([kind[i] for i in numbers])[place] for kind in self.split.kinds]
        last = 0 if self.split.schedule[numbers[0]] in V_SHAPED else -1
        units = self.units_s[rows].transpose(1, 2, 0)[..., None, None]
        work = functools.reduce(operator.add, (units[:, at] * layers for at, layers in enumerate(kinds)))
        work[:, :, 0, 0] += units[:, -2, :, 0, 0]
        work[:, :, last, -1] += units[:, -1, :, 0, 0]
        whole, shares = work[:2].sum(axis=3, keepdims=True), np.full_like(work, 1.0 / work.shape[3])
        np.divide(work[:2], whole, out=shares[:2], where=whole > 0.0)
        shares[2] = np.minimum(np.divide(work[2], work[1], out=np.zeros_like(work[2]), where=work[1] > 0.0), 1.0)
        return np.asarray(shares)

    @functools.cached_property
    def first_shares(self) -> Floats:
        """Shares of a rank's seconds, forward and backward, that its first chunk takes, (2, L, pp)."""
        return self._shares(lambda shares: shares[..., 0])

    @functools.cached_property
    def largest_shares(self) -> Floats:
        """Shares of a rank's seconds that its longest chunk takes, (2, L, pp)."""
        return self._shares(lambda shares: shares.max(axis=3))

    def _shares(self, of_chunks: Callable[[Floats], Floats]) -> Floats:
        shares = np.ones((2, len(self.p2p_s), self.depth))
        for number in np.flatnonzero(self.split.walked).tolist():
            rows = np.flatnonzero(self.split.which == number)
            shares[:, rows] = of_chunks(self.chunk_shares(rows)[:2])
        return shares


@dataclass(frozen=True)
class StageTimes:
    """One evaluation of plans with one pipeline depth: (n, pp) arrays unless stated."""

    clock_mhz: Floats  # really reached
    forward_s: Floats  # of one micro-batch, everything that occupies the stage
    backward_s: Floats
    gather_exposed_s: Floats  # ZeRO-3 gathers of one micro-batch that compute does not hide
    kernel_s: Floats  # compute kernels of one micro-batch
    makespan_s: Floats  # (n,)
    dp_exposed_s: Floats  # (n,)
    optimizer_s: Floats  # (n,)
    total_s: Floats  # (n,)


Makespan = Callable[[Pipelines, Ints, Floats, Floats], Floats]
Stages = tuple[Floats, Floats, Floats, Floats, Floats]  # the first five of `StageTimes`


def makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
    """Seconds (n,) of the schedule of layouts ``rows``, bubble included, for times of one micro-batch, (n, pp).

    The last group of interleaved runs may be partly empty.
    """
    return _makespan_s(pipes, rows, forward, backward, _each_walked_s)


def least_makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
    """Seconds (n,) that `makespan_s` is not below, fast: the same but where chunks of a rank differ."""
    return _makespan_s(pipes, rows, forward, backward, _least_s)


def most_makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
    """Seconds (n,) that `makespan_s` is not above, fast: the same but where chunks of a rank differ."""
    return _makespan_s(pipes, rows, forward, backward, _most_s)


def _makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, walked_s: _Walked) -> Floats:
    depth, batches, which = pipes.depth, pipes.num_micro_batches[rows], pipes.split.which[rows]
    vpp = pipes.vpp[rows]
    own, walked = pipes.split.own_passes[which], pipes.split.walked[which]
    full = np.where((vpp > 1) & (depth > 1) & ~own, -(-batches // depth) * depth, batches)
    alike = slice(None) if not walked.any() else ~walked
    makespan = np.empty(len(rows))
    seconds = forward[alike], backward[alike]
    makespan[alike] = iteration_time_s(*seconds, np.full(len(seconds[0]), depth), vpp[alike], full[alike])
    if walked.any():
        makespan[walked] = walked_s(pipes, rows[walked], forward[walked], backward[walked], full[walked])
    return np.asarray(makespan - (full - batches) * (forward + backward).max(axis=1))


_Walked = Callable[[Pipelines, Ints, Floats, Floats, Ints], Floats]


def _least_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """Seconds (n,) that `_each_walked_s` is not below; ranks of schedules with own passes end as they like."""
    sends, vpp = pipes.p2p_s[rows, None], pipes.vpp[rows, None]
    shares = pipes.first_shares[:, rows]
    first, back = (share * (s - sends) + sends / vpp for share, s in zip(shares, (forward, backward), strict=True))
    first += np.where(pipes.split.own_passes[pipes.split.which[rows], None], 0.0, back)
    return path_bound_s(first, forward + backward, batches)


def _most_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """Seconds (n,) that `_each_walked_s` is not above: all chunks as long as the rank's longest, or one rank at a time.

    A schedule takes no longer where a pass does not; some rank is always at work.
    """
    sends, vpp, own = pipes.p2p_s[rows, None], pipes.vpp[rows], pipes.split.own_passes[pipes.split.which[rows]]
    shares = vpp[:, None] * pipes.largest_shares[:, rows]
    most_f, most_b = (share * (s - sends) + sends for share, s in zip(shares, (forward, backward), strict=True))
    out, depth = batches * (forward + backward).sum(axis=1), np.full(len(rows), pipes.depth)
    out[~own] = iteration_time_s(most_f[~own], most_b[~own], depth[~own], vpp[~own], batches[~own])
    return np.asarray(out)


def _each_walked_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """Seconds (n,) of pipelines without a closed form."""
    out, own = np.empty(len(rows)), pipes.split.own_passes[pipes.split.which[rows]]
    key = np.where(own, batches, 1) << 32 | pipes.schedule[rows].astype(np.int64) << 16 | pipes.vpp[rows]
    for shape in np.unique(key).tolist():
        at = np.flatnonzero(key == shape)
        schedule = SCHEDULE.text(shape >> 16 & 0xFFFF)
        out[at] = _walked_s(pipes, rows[at], forward[at], backward[at], schedule, batches[at])
    return out


def _walked_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, schedule: str, batches: Ints) -> Floats:
    """Seconds (n,) of layouts with one schedule and vpp, chunk by chunk; with own passes, of one number of batches."""
    forward_s, backward_s, weight_s = chunk_times_s(pipes, rows, forward, backward)
    if schedule in CHUNKS_OF_SCHEDULE:
        return zero_bubble_time_s(schedule, forward_s, backward_s - weight_s, weight_s, int(batches[0]))
    return chunked_time_s(forward_s, backward_s, batches)


def chunk_times_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> tuple[Floats, Floats, Floats]:
    """Seconds of every chunk, (vpp, pp, n), forward, backward and of it gradients of weights; ranks' are (n, pp).

    Of layouts with one vpp and schedule. Chunks share what their rank takes as `Pipelines.chunk_shares`, and sends
    evenly.
    """
    sends, shares = pipes.p2p_s[rows, None], pipes.chunk_shares(rows)
    even = sends[:, :, None] / shares.shape[3]
    forward_s, backward_s = (
        share * (seconds - sends)[:, :, None] + even
        for share, seconds in zip(shares, (forward, backward), strict=False)
    )
    found = (chunks.transpose(2, 1, 0) for chunks in (forward_s, backward_s, shares[2] * backward_s))
    forward_s, backward_s, weight_s = map(np.ascontiguousarray, found)
    return forward_s, backward_s, weight_s


def dp_exposed_s(
    costs: StageCosts, rows: Ints, forward: Floats, backward: Floats, batches: Ints, overlap: Floats | float,
    ddp_window: float = 0.0,
) -> Floats:  # fmt: skip
    """Seconds (n,) of gradient traffic that neither hides under compute nor under the drain of the pipeline.

    At most the share ``overlap``, one or (n, 1), of it hides (Megatron's ``overlap_grad_reduce``,
    ``overlap_param_gather``); without ZeRO and pipelines all that has time in ``ddp_window`` of a backward pass.
    """
    if "reduce_s" not in costs.present:
        return np.zeros(len(rows))
    reduce = costs.reduce_s.take(rows, 0)
    zero = costs.layouts["zero_stage"][rows, None]
    vpp = costs.layouts["vpp"][rows, None]
    # time of a stage, per micro-batch, outside its forward pass: backward, and waiting for the slowest stage
    free = (forward + backward).max(axis=1, keepdims=True) - forward
    # what is at hand is the last backward pass (interleaved, its chunks keep the pace of the slowest stage);
    # ZeRO-2/3 scatter after every micro-batch and may hide under all of them
    window = np.where((vpp > 1) & (zero < 2), free, backward)
    window = window + np.where(zero >= 2, free * (batches[:, None] - 1), 0.0)
    # the distributed optimizer gathers weights under the next iteration's first forward pass
    window = window + np.where(zero == 1, forward, 0.0)
    hidden = np.minimum(overlap * reduce, window)
    if ddp_window and costs.depth == 1:
        hidden = np.where((zero == 0) & (overlap > 0.0), np.minimum(reduce, ddp_window * backward), hidden)
    left = reduce - hidden
    # stage i ends its last backward this much before stage 0; interleaved, that of its last chunk
    drained = (np.cumsum(backward, axis=1) - backward) / vpp
    return np.asarray(np.maximum((left - drained).max(axis=1), 0.0))
