"""Makespan of the pipelines of priced layouts: closed forms where chunks are alike, else chunk by chunk.

And the gradient traffic that sticks out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jointopt.core.schema import SCHEDULE, Bools, Floats, Ints
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE
from jointopt.physics.chunks import chunked_time_s, path_bound_s
from jointopt.physics.pipeline import iteration_time_s, last_turns_s
from jointopt.physics.pipelines import Pipelines, across_ranks, of_rows
from jointopt.physics.zero_bubble import zero_bubble_time_s

if TYPE_CHECKING:
    from jointopt.jobs.job import Job
    from jointopt.physics.stage_costs import StageCosts


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
    """Seconds (n,) of the schedule of layouts ``rows``, bubble included, for times of one micro-batch (`Pipelines`).

    The last group of pp micro-batches of interleaved runs may be partly empty: each of those in it takes an equal share
    of what the whole group adds; the first group adds to the way through the first chunks.
    """
    return _makespan_s(pipes, rows, forward, backward, _each_walked_s)


def least_makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
    """Seconds (n,) that `makespan_s` is not below, fast: the same but where chunks of a rank differ."""
    return _makespan_s(pipes, rows, forward, backward, _least_s)


def most_makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
    """Seconds (n,) that `makespan_s` is not above, fast: the same but where chunks of a rank differ."""
    return _makespan_s(pipes, rows, forward, backward, _most_s)


def _makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, walked_s: _Walked) -> Floats:
    depth, batches = pipes.depth, pipes.num_micro_batches[rows]
    own = pipes.split.own_passes[pipes.split.which[rows]]
    last = np.where((pipes.vpp[rows] > 1) & ~own, batches % depth, 0)  # micro-batches of a group that is not full
    part = last > 0
    whole = np.where(part, batches + depth - last, batches)
    after = _full_groups_s(pipes, rows, forward, backward, whole, walked_s)
    if not part.any():
        return after
    first, back = first_chunks_s(pipes, rows, forward, backward)
    before = across_ranks(np.maximum, pipes.before_last(first + back, rows))
    some = part & (batches > depth)
    seconds = rows[some], forward[some], backward[some]
    before[some] = _full_groups_s(pipes, *seconds, (batches - last)[some], walked_s)
    return np.where(part, before + last / depth * (after - before), after)


def _full_groups_s(
    pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints, walked_s: _Walked
) -> Floats:
    """Seconds (n,) of ``batches`` micro-batches, of interleaved runs full groups of them."""
    walked = pipes.split.walked[pipes.split.which[rows]]
    alike = slice(None) if not walked.any() else ~walked
    makespan, some = np.empty(len(rows)), rows[alike]
    passes = pipes.of_all_ranks(forward[alike], some), pipes.of_all_ranks(backward[alike], some)
    makespan[alike] = iteration_time_s(*passes, np.full(len(some), pipes.depth), pipes.vpp[some], batches[alike])
    if walked.any():
        makespan[walked] = walked_s(pipes, rows[walked], forward[walked], backward[walked], batches[walked])
    return makespan


_Walked = Callable[[Pipelines, Ints, Floats, Floats, Ints], Floats]


def _least_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """Seconds (n,) that `_each_walked_s` is not below; ranks of schedules with own passes end as they like."""
    first, back = _ways_s(pipes, rows, forward, backward)
    return path_bound_s(pipes.before_last(first + back, rows), forward + backward, batches)


def first_chunks_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """Seconds that each rank's first chunk takes of one micro-batch, forward and backward, of ranks as those given."""
    sends, vpp = pipes.p2p_s[rows, None], pipes.vpp[rows, None]
    if not pipes.split.walked.any():
        return forward / vpp, backward / vpp
    first, back = (of_rows(shares, rows) for shares in pipes.first_shares)
    first *= forward - sends
    back *= backward - sends
    even = sends / vpp
    first += even
    back += even
    return first, back


def _most_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """Seconds (n,) that `_each_walked_s` is not above: all chunks as long as the rank's longest, or one rank at a time.

    A schedule takes no longer where a pass does not; some rank is always at work.
    """
    forward, backward = (pipes.of_all_ranks(seconds, rows) for seconds in (forward, backward))
    sends, vpp, own = pipes.p2p_s[rows, None], pipes.vpp[rows], pipes.split.own_passes[pipes.split.which[rows]]
    shares = vpp[:, None] * pipes.largest_shares[:, rows]
    most_f, most_b = (share * (s - sends) + sends for share, s in zip(shares, (forward, backward), strict=True))
    out, depth = batches * (forward + backward).sum(axis=1), np.full(len(rows), pipes.depth)
    out[~own] = iteration_time_s(most_f[~own], most_b[~own], depth[~own], vpp[~own], batches[~own])
    return np.asarray(out)


def _each_walked_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """Seconds (n,) of pipelines without a closed form."""
    forward, backward = (pipes.of_all_ranks(seconds, rows) for seconds in (forward, backward))
    out, own = np.empty(len(rows)), pipes.split.own_passes[pipes.split.which[rows]]
    key = np.where(own, batches, 1) << 32 | pipes.schedule[rows].astype(np.int64) << 16 | pipes.vpp[rows]
    for shape in np.unique(key).tolist():
        at = np.flatnonzero(key == shape)
        schedule = SCHEDULE.text(shape >> 16 & 0xFFFF)
        out[at] = _walked_s(pipes, rows[at], forward[at], backward[at], schedule, batches[at])
    return out


def _walked_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, schedule: str, batches: Ints) -> Floats:
    """Seconds (n,) of layouts with one schedule and vpp, chunk by chunk; with own passes, of one number of batches."""
    if schedule in CHUNKS_OF_SCHEDULE:
        forward_s, backward_s, weight_s = chunk_times_s(pipes, rows, forward, backward, weights=True)
        return zero_bubble_time_s(schedule, forward_s, backward_s - weight_s, weight_s, int(batches[0]))
    forward_s, backward_s = chunk_times_s(pipes, rows, forward, backward)
    return chunked_time_s(forward_s, backward_s, batches)


def chunk_times_s(
    pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, *, weights: bool = False
) -> list[Floats]:
    """Seconds of every chunk, (vpp, pp, n), forward, backward and of it gradients of ``weights``; ranks' are (n, pp).

    Of layouts with one vpp and schedule. Chunks share what their rank takes as `Pipelines.chunk_shares`, and sends
    evenly.
    """
    sends, shares = pipes.p2p_s[rows, None], pipes.chunk_shares(rows, 3 if weights else 2)
    even = sends[:, :, None] / shares.shape[3]
    found = [
        np.ascontiguousarray((share * (seconds - sends)[:, :, None] + even).transpose(2, 1, 0))
        for share, seconds in zip(shares[:2], (forward, backward), strict=True)
    ]
    return [*found, np.ascontiguousarray(shares[2].transpose(2, 1, 0)) * found[1]] if weights else found


def ends_s(
    costs: StageCosts, job: Job, rows: Ints, passes: tuple[Floats, Floats], makespan: Floats
) -> tuple[Floats, Floats, Floats]:
    """Seconds (n,) of gradient traffic that nothing hides, of the optimizer step, and of the whole iteration.

    ``passes``: as of `makespan_s`, and its seconds, ``makespan`` (n,).
    """
    profile = job.training.framework
    exposed = dp_exposed_s(costs, rows, passes, makespan, costs.dp_overlap(job, rows), profile.ddp_window)
    step = costs.slowest_step_s[rows]
    return exposed, step, makespan + exposed + step + profile.iteration_overhead_s


def dp_exposed_s(
    costs: StageCosts, rows: Ints, passes: tuple[Floats, Floats], makespan: Floats, overlap: Floats | float,
    ddp_window: float = 0.0,
) -> Floats:  # fmt: skip
    """Seconds (n,) of gradient traffic that neither hides under compute nor under the drain of the pipeline.

    ``passes``: as of `makespan_s`, and its seconds or a bound of them, ``makespan`` (n,). At most the
    share ``overlap``, one or (n, 1), of the traffic hides (Megatron's ``overlap_grad_reduce``,
    ``overlap_param_gather``); without ZeRO and pipelines all that has time in ``ddp_window`` of a backward pass.
    """
    if "reduce_s" not in costs.present:
        return np.zeros(len(rows))
    reduce, zero = of_rows(costs.reduce_s, rows), costs.layouts["zero_stage"][rows, None]
    # what is at hand is the last backward pass; the distributed optimizer gathers weights under the next forward pass
    window = passes[1] + np.where(zero == 1, passes[0], 0.0)
    if costs.depth == 1:
        # ZeRO-2/3 scatter after every micro-batch and may hide under all of them
        window = np.where(zero >= 2, costs.num_micro_batches[rows, None] * passes[1], window)
        left = reduce - np.minimum(overlap * reduce, window)
        if ddp_window:
            hidden = np.minimum(reduce, ddp_window * passes[1])
            left = np.where((zero == 0) & (overlap > 0.0), reduce - hidden, left)
        return np.asarray(left[:, 0])
    return _exposed_of_pipelines_s(costs, rows, passes, makespan, (reduce, overlap * reduce, window))


def _exposed_of_pipelines_s(
    costs: StageCosts, rows: Ints, passes: tuple[Floats, Floats], makespan: Floats,
    traffic: tuple[Floats, Floats, Floats],
) -> Floats:  # fmt: skip
    """Seconds (n,) of `dp_exposed_s` where rank i ends its last backward pass before rank 0, which ends the pipeline.

    As much before as the way home is long, or more; where even so much leaves no rank with more than rank 0 has, rank 0
    decides. ``traffic``: all of a rank, what may hide of it, and the time for that in 1F1B, of ranks as ``passes``.
    """
    (reduce, may_hide, window), (forward, backward) = traffic, passes
    zero, vpp = (costs.layouts[name][rows, None] for name in ("zero_stage", "vpp"))
    own = costs.split.own_passes[costs.split.which[rows], None]
    paced, stays = (vpp > 1) | own, reduce - may_hide
    plain = (~paced & (zero < 2))[:, 0]
    # interleaved, chunks keep the pace of one rank; ZeRO-2/3 scatter after every micro-batch and hide under all of them
    steady = costs.num_micro_batches[rows, None] - np.where(paced, 0, 1)
    turns = np.where(zero >= 2, steady, np.where(paced, 1, 0))
    window = window - np.where(paced, backward, 0.0)
    window -= turns * forward
    # ranks of schedules with passes of their own end together; a makespan of interleaved ones need not have a whole
    # pass of rank 0, so that only what hides nowhere is certain
    exposed = np.where(plain, np.maximum(stays[:, 0], reduce[:, 0] - window[:, 0]), stays[:, 0])
    if own.any():
        exposed = np.where(own[:, 0], stays.max(axis=1), exposed)
    ways = _ways_s(pipes := costs.pipelines, rows, forward, backward)
    # no path is longer than the makespan: mostly that leaves no rank's traffic to end after rank 0's
    rounds_s = turns * across_ranks(np.minimum, forward + backward)[:, None]
    longest = np.maximum(stays, reduce - (window + rounds_s))
    longest -= pipes.before_first(ways[1], rows)
    if len(late := np.flatnonzero(across_ranks(np.maximum, longest) > exposed)):
        of_ranks = (reduce, stays, window, forward, backward, *ways)
        each = [pipes.of_all_ranks(seconds.take(late, 0), rows[late]) for seconds in of_ranks]
        end = _traffic_ends_s(costs, rows[late], each, turns[late], plain[late])
        exposed[late] = np.maximum(exposed[late], end - makespan[late])
    return exposed


def _traffic_ends_s(costs: StageCosts, rows: Ints, of_ranks: Sequence[Floats], turns: Ints, plain: Bools) -> Floats:
    """Seconds (n,) from the start of an iteration until the gradient traffic of all ranks has ended, at least.

    Paths through the schedule: down to rank k, all of its work, and back up to rank i <= k, which then has its last
    backward pass behind it, and may have had that beside its traffic. Sums of passes, so that no faster pass makes
    them longer. What is counted back from the makespan may be: that need not wait for rank i. ``of_ranks``, (n, pp)
    each: all traffic of a rank, what cannot hide of it, the time in which the rest may, its passes, and `_ways_s`.
    ``turns`` (n, 1): micro-batches under which it hides on rank k; ``plain`` (n,): layouts of plain 1F1B.
    """
    reduce, stays, window, forward, backward, first, back = of_ranks
    there, home = np.cumsum(first, axis=1) - first, np.cumsum(back, axis=1) - back
    batches, step = costs.num_micro_batches[rows, None], forward + backward
    work = there + batches * step + home
    longest = work.copy()
    late = np.flatnonzero(across_ranks(np.maximum, stays - home) > stays[:, 0])  # else rank 0 decides
    by_chunks = _ways_by_chunks_s(costs.pipelines, rows[late], forward[late], backward[late])
    longest[late] = np.maximum(longest[late], (batches * step)[late] + by_chunks)
    if plain.any():
        turned = last_turns_s(forward[plain].T, backward[plain].T, batches[plain, 0])
        longest[plain] = np.maximum(longest[plain], turned.T)
    starts = _from_here(np.where(plain[:, None], longest, work - turns * step)) - window
    ends = np.maximum(_from_here(longest) + stays, starts + reduce)
    return across_ranks(np.maximum, ends - home)


def _ways_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """Seconds of the first micro-batch on each rank on its way down, and of the last one on its way back to rank 0.

    Of ranks as those given. Ranks of schedules with own passes end as they like: 0.
    """
    first, back = first_chunks_s(pipes, rows, forward, backward)
    if (own := pipes.split.own_passes[pipes.split.which[rows]]).any():
        back = np.where(own[:, None], 0.0, back)
    return first, back


def _ways_by_chunks_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
    """Seconds (n, pp) of both ways of `_ways_s` to each rank, by that chunk of it for which it waits most.

    Where chunks differ, else 0.

    On its way to it the first micro-batch goes through the chunks before it, under which the rank has those of a whole
    group of micro-batches to do; so it is on the way back.
    """
    at_most, which = np.zeros(forward.shape), pipes.split.which[rows]
    differ = pipes.split.walked[which] & ~pipes.split.own_passes[which] & (pipes.num_micro_batches[rows] >= pipes.depth)
    for vpp in np.unique(pipes.vpp[rows][differ]).tolist():
        at = np.flatnonzero(differ & (pipes.vpp[rows] == vpp))
        for chunks in chunk_times_s(pipes, rows[at], forward[at], backward[at]):
            done, ring = np.cumsum(chunks, axis=0) - chunks, chunks.sum(axis=1, keepdims=True)
            ahead = np.cumsum(chunks, axis=1) - chunks + np.cumsum(ring, axis=0) - ring
            at_most[at] += (ahead - pipes.depth * done).max(axis=0).T
    return at_most


def _from_here(values: Floats) -> Floats:
    """The largest of the values of each rank and those after it, (n, pp)."""
    return np.asarray(np.maximum.accumulate(values[:, ::-1], axis=1)[:, ::-1])
