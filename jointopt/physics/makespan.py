"""Makespan of the pipelines of priced layouts: closed forms where chunks are alike, else chunk by chunk.

And the gradient traffic that it does not hide. First what others call, then the closed forms of 1F1B, then the exact
walk through interleaved schedules whose chunks differ. Seconds of ranks are (n, pp), as `Pipelines` says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jointopt.core.errors import PlanError
from jointopt.core.schema import SCHEDULE, Bools, Floats, Ints
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE
from jointopt.jobs.job import Job
from jointopt.physics.layouts import FIRST, LAST
from jointopt.physics.schedule import check_micro_batches, warmup_slots, zero_bubble_time_s
from jointopt.physics.stage_costs import Pipelines, StageCosts, across_ranks, of_rows


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


def time_parts(costs: StageCosts, rows: Ints, t: StageTimes) -> dict[str, Floats]:
    """Seconds (n,) on the critical path: what the slowest stage does all along, then what no stage can hide.

    ``bubble``: the makespan less the slowest stage's own work, (p - 1)/m of it for equal stages (Narayanan et al.
    2021, arXiv:2104.04473, section 2.2.1); the split of the rest is derived here.
    """
    step = t.forward_s + t.backward_s
    slowest = step.argmax(axis=1)
    batches = costs.num_micro_batches[rows]

    def of_slowest(values: Floats) -> Floats:
        return np.asarray(np.broadcast_to(values, step.shape)[np.arange(len(rows)), slowest])

    parts = {"compute": batches * of_slowest(t.kernel_s)}
    parts |= {name: batches * of_slowest(seconds[rows]) for name, seconds in costs.comm_parts_s.items()}
    parts["pp_comm"] = 2.0 * batches * costs.p2p_s[rows]
    parts["zero_comm"] = batches * of_slowest(t.gather_exposed_s)
    running = batches * of_slowest(step)
    parts["host"] = running - sum(parts.values(), np.zeros(len(rows)))
    parts["bubble"] = t.makespan_s - running
    parts["dp_comm"] = t.dp_exposed_s
    parts["optimizer"] = t.optimizer_s
    parts["other"] = t.total_s - sum(parts.values(), np.zeros(len(rows)))
    return parts


Makespan = Callable[[Pipelines, Ints, Floats, Floats], Floats]
Stages = tuple[Floats, Floats, Floats, Floats, Floats]  # the first five of `StageTimes`


def makespan_s(
    pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, irregular_s: _IrregularMakespan | None = None
) -> Floats:
    """Seconds (n,) of the schedule of layouts ``rows``, bubble included, for times of one micro-batch (`Pipelines`).

    The last group of pp micro-batches of interleaved runs may be partly empty: each of those in it takes an equal share
    of what the whole group adds; the first group adds to the way through the first chunks. ``irregular_s``: how
    pipelines without a closed form are priced, by default exactly.
    """
    irregular_s, depth, batches = irregular_s or _exact_irregular_s, pipes.depth, pipes.num_micro_batches[rows]
    own = pipes.split.zero_bubble[pipes.split.which[rows]]
    last = np.where((pipes.vpp[rows] > 1) & ~own, batches % depth, 0)  # micro-batches of a group that is not full
    part = last > 0
    whole = np.where(part, batches + depth - last, batches)
    after = _full_groups_s(pipes, rows, forward, backward, whole, irregular_s)
    if not part.any():
        return after
    first, back = _ways_s(pipes, rows, forward, backward)
    before = across_ranks(np.maximum, pipes.before(first + back, rows, LAST))
    some = part & (batches > depth)
    seconds = rows[some], forward[some], backward[some]
    before[some] = _full_groups_s(pipes, *seconds, (batches - last)[some], irregular_s)
    return np.where(part, before + last / depth * (after - before), after)


def least_makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
    """A fast lower bound (n,) in s of `makespan_s`; equal to it but for `Split.irregular` pipelines."""
    return makespan_s(pipes, rows, forward, backward, _least_irregular_s)


def most_makespan_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
    """A fast upper bound (n,) in s of `makespan_s`; equal to it but for `Split.irregular` pipelines."""
    return makespan_s(pipes, rows, forward, backward, _most_irregular_s)


def _full_groups_s(
    pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints, irregular_s: _IrregularMakespan
) -> Floats:
    """Seconds (n,) of ``batches`` micro-batches, of interleaved runs full groups of them."""
    walked = pipes.split.irregular[pipes.split.which[rows]]
    alike = slice(None) if not walked.any() else ~walked
    makespan, some = np.empty(len(rows)), rows[alike]
    passes = pipes.of_all_ranks(forward[alike], some), pipes.of_all_ranks(backward[alike], some)
    makespan[alike] = regular_makespan_s(*passes, np.full(len(some), pipes.depth), pipes.vpp[some], batches[alike])
    if walked.any():
        makespan[walked] = irregular_s(pipes, rows[walked], forward[walked], backward[walked], batches[walked])
    return makespan


_IrregularMakespan = Callable[[Pipelines, Ints, Floats, Floats, Ints], Floats]


def _least_irregular_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """A lower bound (n,) of `_exact_irregular_s`, by a path through the last rank."""
    first, back = _ways_s(pipes, rows, forward, backward)
    return path_bound_s(pipes.before(first + back, rows, LAST), forward + backward, batches)


def _most_irregular_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """An upper bound (n,) of `_exact_irregular_s`: with all chunks as long as the rank's longest.

    Of zero-bubble schedules the sum over the ranks, of which one is always at work.
    """
    forward, backward = (pipes.of_all_ranks(seconds, rows) for seconds in (forward, backward))
    sends, vpp, own = pipes.p2p_s[rows, None], pipes.vpp[rows], pipes.split.zero_bubble[pipes.split.which[rows]]
    shares = vpp[:, None] * pipes.largest_shares[:, rows]
    most_f, most_b = (share * (s - sends) + sends for share, s in zip(shares, (forward, backward), strict=True))
    out, depth = batches * (forward + backward).sum(axis=1), np.full(len(rows), pipes.depth)
    out[~own] = regular_makespan_s(most_f[~own], most_b[~own], depth[~own], vpp[~own], batches[~own])
    return np.asarray(out)


def _exact_irregular_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, batches: Ints) -> Floats:
    """Seconds (n,) of pipelines without a closed form, chunk by chunk."""
    forward, backward = (pipes.of_all_ranks(seconds, rows) for seconds in (forward, backward))
    out, own = np.empty(len(rows)), pipes.split.zero_bubble[pipes.split.which[rows]]
    key = np.where(own, batches, 1) << 32 | pipes.schedule[rows].astype(np.int64) << 16 | pipes.vpp[rows]
    for shape in np.unique(key).tolist():
        at = np.flatnonzero(key == shape)
        schedule = SCHEDULE.text(shape >> 16 & 0xFFFF)
        if schedule in CHUNKS_OF_SCHEDULE:  # zero-bubble, of one number of micro-batches
            forward_s, backward_s, weight_s = chunk_times_s(pipes, rows[at], forward[at], backward[at], weights=True)
            out[at] = zero_bubble_time_s(schedule, forward_s, backward_s - weight_s, weight_s, shape >> 32)
        else:
            forward_s, backward_s = chunk_times_s(pipes, rows[at], forward[at], backward[at])
            out[at] = chunked_time_s(forward_s, backward_s, batches[at])
    return out


def chunk_times_s(
    pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats, *, weights: bool = False
) -> list[Floats]:
    """[forward, backward], seconds of every chunk, (vpp, pp, n) each, from those of ranks, (n, pp).

    Of layouts with one vpp and schedule. Chunks share the kernels of their rank by `Pipelines.chunk_shares`, its sends
    evenly. ``weights``: a third array, the gradients of weights within the backward pass.
    """
    sends, shares = pipes.p2p_s[rows, None], pipes.chunk_shares(rows, 3 if weights else 2)
    even = sends[:, :, None] / shares.shape[3]
    found = [
        np.ascontiguousarray((share * (seconds - sends)[:, :, None] + even).transpose(2, 1, 0))
        for share, seconds in zip(shares[:2], (forward, backward), strict=True)
    ]
    return [*found, np.ascontiguousarray(shares[2].transpose(2, 1, 0)) * found[1]] if weights else found


def iteration_totals_s(
    costs: StageCosts, job: Job, rows: Ints, passes: tuple[Floats, Floats], makespan: Floats
) -> tuple[Floats, Floats, Floats]:
    """(gradient traffic that nothing hides, optimizer step, whole iteration), seconds (n,) each.

    ``passes``: forward and backward seconds (n, pp) of a micro-batch; ``makespan`` (n,): of `makespan_s`.
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

    ``passes``: as in `iteration_totals_s`; ``makespan`` (n,): exact or a bound. At most the share ``overlap``, one or
    (n, 1), of the traffic hides (Megatron's ``overlap_grad_reduce``, ``overlap_param_gather``); without ZeRO and
    pipelines all that has time in ``ddp_window`` of a backward pass.
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
    """`dp_exposed_s` (n,) of layouts with pipelines, where ranks end their last backward pass before rank 0 does.

    Each ends at least the way back to rank 0 earlier; where no rank has more traffic left than that allows, rank 0
    decides. ``traffic``: seconds (n, pp) of all traffic of a rank, of the part that may hide, and of what it may hide
    under in 1F1B.
    """
    (reduce, may_hide, window), (forward, backward) = traffic, passes
    zero, vpp = (costs.layouts[name][rows, None] for name in ("zero_stage", "vpp"))
    own = costs.split.zero_bubble[costs.split.which[rows], None]
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
    longest -= pipes.before(ways[1], rows, FIRST)
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
    # the largest of each rank and those after it
    begun, ended = np.where(plain[:, None], longest, work - turns * step), longest
    begun, ended = (np.maximum.accumulate(one[:, ::-1], axis=1)[:, ::-1] for one in (begun, ended))
    ends = np.maximum(ended + stays, begun - window + reduce)
    return across_ranks(np.maximum, ends - home)


def _ways_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """(forward, backward) seconds of each rank's first chunk, shaped as the passes given.

    What the first micro-batch takes on its way down the ranks, and the last one on its way back to rank 0; back 0 for
    zero-bubble schedules, whose ranks wait for nothing at the end.
    """
    vpp, sends = pipes.vpp[rows, None], pipes.p2p_s[rows, None]
    if not pipes.split.irregular.any():
        return forward / vpp, backward / vpp
    first, back = (of_rows(shares, rows) for shares in pipes.first_shares)
    first *= forward - sends
    back *= backward - sends
    even = sends / vpp
    first += even
    back += even
    own = pipes.split.zero_bubble[pipes.split.which[rows], None]
    return first, np.where(own, 0.0, back) if own.any() else back


def _ways_by_chunks_s(pipes: Pipelines, rows: Ints, forward: Floats, backward: Floats) -> Floats:
    """Seconds (n, pp) that each rank waits at both ends of the schedule, by the chunk for which it waits most.

    0 where chunks are alike. The first micro-batch reaches a chunk through all chunks before it, while the rank does a
    whole group of micro-batches on its earlier chunks; the way back is the same in reverse.
    """
    at_most, which = np.zeros(forward.shape), pipes.split.which[rows]
    differ = (
        pipes.split.irregular[which] & ~pipes.split.zero_bubble[which] & (pipes.num_micro_batches[rows] >= pipes.depth)
    )
    for vpp in np.unique(pipes.vpp[rows][differ]).tolist():
        at = np.flatnonzero(differ & (pipes.vpp[rows] == vpp))
        for chunks in chunk_times_s(pipes, rows[at], forward[at], backward[at]):
            done, ring = np.cumsum(chunks, axis=0) - chunks, chunks.sum(axis=1, keepdims=True)
            ahead = np.cumsum(chunks, axis=1) - chunks + np.cumsum(ring, axis=0) - ring
            at_most[at] += (ahead - pipes.depth * done).max(axis=0).T
    return at_most


# Makespan of 1F1B and interleaved 1F1B with unequal ranks: the longest path through `schedule`'s graph, closed form.


BLOCK_TIMES = 8192  # plans per block times pp: keeps the dozen temporaries of that size in the L2 cache


def regular_makespan_s(forward_s: Floats, backward_s: Floats, pp: Ints, vpp: Ints, num_micro_batches: Ints) -> Floats:
    """Makespan of one iteration's pipeline schedule, seconds, (n,): 1F1B where vpp = 1, else interleaved.

    ``forward_s``, ``backward_s`` (n, >= pp): seconds of one micro-batch on each rank, all its chunks, with the blocking
    receives. Derived here: the longest path through the schedules of Narayanan et al. 2021 (arXiv:2104.04473), whose
    (m + (p - 1)/v)(f + b) of section 2.2 it is for equal ranks: the pipeline bubble is (p - 1)/(v m) of the work. Exact
    for equal chunks within a rank and a head on the last; chunks of other layers: `chunked_time_s`. PlanError for a
    plan with no such schedule.
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
    shape = (pp * most + vpp) * 2 + ((m == pp) & (vpp > 1))
    for which in np.flatnonzero(np.bincount(shape)).tolist():
        (p, v), rows = divmod(which // 2, most), np.flatnonzero(shape == which)
        step = BLOCK_TIMES // p + 1
        for block in (rows[i : i + step] for i in range(0, len(rows), step)):
            f, b = (np.ascontiguousarray(a[block, :p].T, dtype=np.float64) for a in (forward_s, backward_s))
            if p == 1:
                time_s[block] = m[block] * (f[0] + b[0])
            elif v == 1:
                time_s[block] = _one_f_one_b_time_s(f, b, m[block])
            else:  # one group of micro-batches, or more
                price = _one_group_time_s if which % 2 else _interleaved_time_s
                time_s[block] = price(f / v, b / v, v, m[block])
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
    warmup = warmup_slots(len(t), v, 2 * len(t), np.arange(len(t))[:, None]).astype(np.float64)
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
    warmup, first = warmup_slots(p, v, p, np.arange(p)[:, None]).astype(np.float64), slice(c + 1)
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
    round the ring, p + 1 rounds; from i > j by forwards round the ring, which is open again from slot v p on. Ranks
    i > c reach slot v p in their steady state and wait for it there. Rank c is the last that passes it in warm-up; one
    above it only adds hops. After a turn, c leaves w_c + 1 - v p rounds later.
    """
    p, c = len(t), (len(t) - 2) // 2
    forwards, turned, up = _turning_paths_s(f, b, t, v, warmup)
    best = np.maximum(forwards, up, out=forwards)
    # to forward slot v p of a rank i > j, minus the forwards of ranks 0 .. i-1
    waits = (v * p - warmup[c + 1 :]) * t[c + 1 :]
    waits += best[c + 1 :]
    waits -= f.sums[c + 1 : p]
    later = _suffix_max(waits)
    ring = np.full_like(t, -np.inf)
    ring[c : p - 1] = later
    if c > 0:
        (direct,) = _forward_path_s(f, v, np.full((1, 1), float(v * p)), slice(c, c + 1))
        after_turn = up[c] + t[c] - (warmup[c] + 1 - v * p) * t[:c]
        ring[:c] = np.maximum(later[0], np.maximum(direct, after_turn) - f.sums[c])
    back = (turned[0] + b.sums[p]) - b.sums[:-1]
    back -= (p + 1) * t
    np.maximum(best, back, out=best)
    ring += f.sums[p]
    ring += f.sums[:-1]
    ring -= (v * p + p - warmup) * t
    return np.maximum(best, ring, out=best)


# Makespan of interleaved 1F1B with a time for every chunk of a rank, exact: `schedule.replay` for many plans at once.


_ALIKE = 1e-12  # relative; two advances that differ by rounding


def chunked_time_s(forward_s: Floats, backward_s: Floats, num_micro_batches: Ints | int) -> Floats:
    """Makespan in s, (n,), for seconds (vpp, pp, n) of one micro-batch on each chunk, blocking receives included.

    ``num_micro_batches`` (n,) are multiples of pp, vpp and pp at least 2. The schedule is `schedule.schedule_order`'s.
    """
    _, p, n = forward_s.shape
    step = max(BLOCK_TIMES // p, 16)
    time_s, groups = np.empty(n), np.broadcast_to(num_micro_batches, n) // p
    for some in (np.flatnonzero(groups == 1), np.flatnonzero(groups > 1)):
        for block in (some[start : start + step] for start in range(0, len(some), step)):
            f, b = (np.ascontiguousarray(a[:, :, block], dtype=np.float64) for a in (forward_s, backward_s))
            time_s[block] = _block_time_s(f, b, groups[block])
    return time_s


def path_bound_s(ahead_s: Floats, rank_s: Floats, num_micro_batches: Ints) -> Floats:
    """Lower bound (n,) in s of the makespan of any schedule of a pipeline: one rank's work and the way to it.

    A path through the schedule: forwards of the first micro-batch down to a rank, all of its work (``rank_s`` (n, pp)
    of each of the micro-batches (n,)), and backwards from it where ranks end with a backward pass that the rank before
    waits for, as those of `chunked_time_s` do. ``ahead_s`` (n, pp): what is on the way of the first chunks of the ranks
    before. Of ranks alike the last has the longest way, and may stand for all.
    """
    return np.asarray((ahead_s + num_micro_batches[:, None] * rank_s).max(axis=1))


def _block_time_s(f: Floats, b: Floats, groups: Ints) -> Floats:
    """Makespan (n,) of one block of plans, walked from both ends to the middle of two groups of pp micro-batches.

    Read backwards in time the schedule is the same one, with passes exchanged: its longest path is the longest way to
    a cut and on from it, the latter as of plans (b, f). From there on further groups are walked through, but for those
    that only repeat: once all that the next step reads has moved on by one constant within a group, so it will in each
    further one, as the step takes maxima of sums. ``groups`` (n,): all 1, or all above.
    """
    v, p, n = f.shape
    period, least = p * v, min(int(groups.min()), 2)
    cut = (least - 1) * period - p + 2  # steps from the first one with a backward pass of rank 0, of both walks
    both = _State(np.concatenate([f, b], axis=2), np.concatenate([b, f], axis=2), int(groups.max()))
    both.run(-(period + p - 2), done := cut // 2)
    ahead, behind = both.of(slice(n)), both.of(slice(n, None))
    behind.run(done, cut - done)
    time_s, alive, left = np.empty(n), np.arange(n), groups - least
    while True:
        last = left[alive] == 0
        time_s[alive[last]] = ahead.of(last).joined_s(behind.of(last), done)
        if last.all():
            return time_s
        if last.any():
            alive, ahead, behind = alive[~last], ahead.of(~last), behind.of(~last)
        before = ahead.values()
        ahead.run(done, done + period)
        done += period
        left[alive] -= 1
        advance = ahead.values() - before
        fewest, most = advance.min(axis=(0, 1)), advance.max(axis=(0, 1))
        repeats = most - fewest <= _ALIKE * ahead.free.max(axis=0)
        if repeats.any():
            some = alive[repeats]
            here_s = ahead.of(repeats).joined_s(behind.of(repeats), done)
            time_s[some] = here_s + left[some] * most[repeats]
            alive, ahead, behind = alive[~repeats], ahead.of(~repeats), behind.of(~repeats)


class _State:
    """A walk through n schedules: when each rank is free and when its inputs are there, (pp or pp + 1, n) s."""

    def __init__(self, f: Floats, b: Floats, groups: int) -> None:
        self.f, self.b, self.groups = f, b, groups
        _, p, n = f.shape
        self.free = np.zeros((p, n))
        self.down = np.zeros((p + 1, n))  # row i: input of rank i's next forward; row p is what the last rank sends
        self.up = np.zeros((p + 1, n))  # row i + 1: input of rank i's next backward; row 0 is what the first one sends

    def values(self) -> Floats:
        """All of these times, (3, pp, n); an input that comes from no rank counts as there when the rank is free."""
        return np.stack([self.free, self.down[1:], self.up[:-1]])

    def of(self, rows: Floats | slice) -> _State:
        """The state of some plans."""
        part = _State.__new__(_State)  # to copy by `copy` takes as long as to take the rows
        part.groups = self.groups
        for name in ("f", "b", "free", "down", "up"):
            setattr(part, name, np.ascontiguousarray(getattr(self, name)[..., rows]))
        return part

    def joined_s(self, behind: _State, step: int) -> Floats:
        """Seconds, (n,), of the longest path: to this walk, before ``step``, and on from there as ``behind`` came."""
        v, p, _ = self.f.shape
        paths = [self.free + behind.free, self.down[1:p] + behind.up[1:p], self.up[1:p] + behind.down[1:p]]
        if (step + p - 2) % (p * v) >= p:  # rank 0's next forward is of no first chunk, so that the last rank sends it
            paths.append(self.down[p:] + behind.up[:1])
        if (step + p - 1) % (p * v) >= p:
            paths.append(self.up[:1] + behind.down[p:])
        return np.asarray(np.concatenate(paths).max(axis=0))

    def run(self, start: int, stop: int) -> None:
        """Walk through the steps ``start`` to ``stop`` - 1: of those ranks that have one, a forward and a backward."""
        v, p, _ = self.f.shape
        slots = self.groups * p * v
        for step in range(start, stop):
            slot = step + p * v + p - 2  # rank i runs its forward ``slot`` - i
            first, last = max(slot - slots + 1, 0), min(slot, p - 1) + 1
            if first < last:
                chunk, member = divmod(slot % (p * v), p)  # of rank 0; ranks beyond ``member`` are a chunk behind
                self.down[0] = self.down[p] if chunk else 0.0
                free = self.free[first:last]
                np.maximum(free, self.down[first:last], out=free)
                turn = min(max(member + 1, first), last)
                self.free[first:turn] += self.f[chunk, first:turn]
                self.free[turn:last] += self.f[chunk - 1, turn:last]
                self.down[first + 1 : last + 1] = free
            first, last = max(-step, 0), min(slots - step, p)  # rank i runs its backward slot ``step`` + i
            if first < last:
                chunk, member = divmod(step % (p * v), p)  # of rank 0, from the last; beyond p - member one further
                turn = min(max(p - member, first), last)
                self.up[p] = self.up[0] if (step + p - 1) % (p * v) // p else 0.0
                free = self.free[first:last]
                np.maximum(free, self.up[first + 1 : last + 1], out=free)
                self.free[first:turn] += self.b[v - 1 - chunk, first:turn]
                self.free[turn:last] += self.b[(v - 2 - chunk) % v, turn:last]
                self.up[first:last] = free
