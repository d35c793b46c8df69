"""Pipeline schedules: which pass a rank runs when, and what it waits for.

1F1B and interleaved 1F1B, and zero-bubble schedules, whose backward passes are split into gradients of inputs and of
weights. Rank i of p, virtual chunk c of v, micro-batch j of m; a rank's k-th forward (backward) is its *slot* k.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jointopt.core.errors import PlanError
from jointopt.core.schema import Bools, Floats, Ints
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE, V_SHAPED

FORWARD, INPUT, WEIGHT, WHOLE = range(4)  # whole: a backward pass that is not split
MOST_GROUPS = 3  # of pp micro-batches, until what interleaved ranks hold repeats
MOST_ROUNDS = 4  # of pp micro-batches, until what ranks of zero-bubble schedules hold repeats
_BLOCK = 256  # plans walked through at once


class Pass(NamedTuple):
    """One micro-batch through one virtual chunk of a rank."""

    kind: int  # FORWARD, INPUT, WEIGHT or WHOLE
    chunk: int
    micro_batch: int

    @property
    def backward(self) -> bool:
        """Whether it is a backward pass, or a part of one."""
        return self.kind != FORWARD


def warmup_slots(pp: int, vpp: int, num_micro_batches: int, rank: Ints | int) -> Ints:
    """Forwards (of one chunk each) that a rank runs before its first backward; of several ranks an array.

    1F1B and interleaved: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; counts as in Megatron Core's
    `get_pp_rank_microbatches` with micro-batch groups of p. Older Megatron-LM ran all forwards first when m = p.
    """
    ahead = np.subtract(pp - 1, rank)
    return np.asarray(np.minimum(ahead if vpp == 1 else 2 * ahead + (vpp - 1) * pp, num_micro_batches * vpp))


def schedule_order(pp: int, vpp: int, num_micro_batches: int, rank: int) -> list[Pass]:
    """The passes of one rank in Megatron-LM's order: 1F1B, or interleaved 1F1B if vpp > 1.

    Interleaved (Narayanan et al. 2021, arXiv:2104.04473, section 2.2): groups of p micro-batches pass chunk 0, then 1,
    and so on; backwards from the last chunk down. Raises PlanError where Megatron-LM has no such schedule.
    """
    check_micro_batches(np.array([pp]), np.array([vpp]), np.array([num_micro_batches]))
    slots, group = num_micro_batches * vpp, pp if vpp > 1 else 1
    warmup = int(warmup_slots(pp, vpp, num_micro_batches, rank))
    forward, backward = [], []
    for slot in range(slots):
        groups, inside = divmod(slot, group * vpp)
        chunk, member = divmod(inside, group)
        forward.append(Pass(FORWARD, chunk, groups * group + member))
        backward.append(Pass(WHOLE, vpp - 1 - chunk, groups * group + member))
    steady = itertools.chain(*zip(forward[warmup:], backward, strict=False))
    return [*forward[:warmup], *steady, *backward[slots - warmup :]]


def rank_order(schedule: str, pp: int, num_micro_batches: int, rank: int, vpp: int = 1) -> list[Pass]:
    """The passes of one rank in order; ``dualpipev`` with fewer than 2 pp micro-batches runs as zbv.

    ZB-H1 (Qi et al. 2024, arXiv:2401.10241, section 2.1) is 1F1B, and weights ``rank`` micro-batches behind, so that
    each rank holds pp of them.
    """
    m = num_micro_batches
    if schedule not in CHUNKS_OF_SCHEDULE:
        return schedule_order(pp, vpp, m, rank)
    if schedule == "dualpipev" and m >= 2 * pp:
        return _dual_order(pp, m, rank)
    if schedule != "zb-h1":
        return [one for one in _v_order(pp, m, rank) if one.micro_batch < m]
    order = []
    for one in schedule_order(pp, 1, m, rank):
        order.append(Pass(INPUT, 0, one.micro_batch) if one.backward else one)
        if one.backward and one.micro_batch >= rank:
            order.append(Pass(WEIGHT, 0, one.micro_batch - rank))
    return order + [Pass(WEIGHT, 0, j) for j in range(max(m - rank, 0), m)]


def _v_order(pp: int, m: int, rank: int) -> list[Pass]:
    """ZB-V, section 6, phase by phase as PyTorch numbers them, for at least 2 pp - 1 micro-batches."""
    m, behind = max(2 * pp - 1, m), pp - rank
    count = {key: itertools.count() for key in itertools.product(range(3), range(2))}
    first, second = [((FORWARD, c), (INPUT, c), (WEIGHT, c)) for c in range(2)]
    phases = (  # how often each, and its passes
        (2 * behind - 1, first[:1]), (rank, (second[0], first[0])), (behind, second),
        (m - (2 * behind - 1 + rank), first + second),
        (behind - 1, first[1:] + second),  # forwards of chunk 0 are done
        (rank, (first[1], second[1])), (behind, first[1:]), (rank, second[2:]), (rank, first[2:]),
    )  # fmt: skip
    return [Pass(kind, chunk, next(count[kind, chunk])) for times, each in phases for kind, chunk in each * times]


def _dual_order(pp: int, m: int, rank: int) -> list[Pass]:
    """DualPipeV, step by step as PyTorch numbers them: halves of the last steps are split, to fill the drain."""
    behind, done, waiting = pp - rank - 1, [[0, 0], [0, 0]], list[Pass]()
    order: list[Pass] = []
    # from the middle of the drain on passes are split, of odd ranks with the second chunk, of even ones with the first
    drain, split = 2 * (rank + 1), rank + 1 + (rank + 1) % 2 if rank % 2 else 2 * ((rank + 1) // 2) + 1
    phases = (  # how often each, and its passes
        (2 * behind, ((FORWARD, 0),)), (rank + 1, ((FORWARD, 0), (FORWARD, 1))),
        (behind, ((INPUT, 1), (WEIGHT, 1), (FORWARD, 1))),
        (m - 2 * pp + rank + 1, ((FORWARD, 0), (WHOLE, 1), (FORWARD, 1), (WHOLE, 0))),
        (behind, ((WHOLE, 1), (FORWARD, 1), (WHOLE, 0))),
        (1, tuple((INPUT if number >= split else WHOLE, 1 - number % 2) for number in range(drain))),
        (behind, ((WEIGHT, 0), (INPUT if split < drain else WHOLE, 0))), (rank + 1, ((WEIGHT, 0),)),
    )  # fmt: skip
    for kind, chunk in (one for times, each in phases for one in each * times):
        if kind == WEIGHT:
            order += [waiting.pop(0)] if waiting else []
            continue
        count = done[kind != FORWARD]
        order.append(Pass(kind, chunk, count[chunk]))
        if kind == INPUT:
            waiting.append(Pass(WEIGHT, chunk, count[chunk]))
        count[chunk] += 1
    return order


def predecessor(
    schedule: str, pp: int, vpp: int, rank: int, kind: int, chunk: int, micro_batch: int
) -> tuple[int, int, int, int] | None:
    """(rank, kind, chunk, micro-batch) of the pass that delivers a pass's input.

    None for the data loader and for a rank's own gradients of weights. A backward pass is delivered by gradients of
    inputs, be they part of a whole backward pass or not.
    """
    if kind == WEIGHT:
        return None
    last, along_v = pp * vpp - 1, schedule in V_SHAPED
    place = last - rank if along_v and chunk else chunk * pp + rank
    if kind != FORWARD and place == last:
        return rank, FORWARD, chunk, micro_batch
    place += -1 if kind == FORWARD else 1
    if place < 0:
        return None
    chunk, source = divmod(place, pp)
    if along_v and chunk:
        source = pp - 1 - source
    return source, FORWARD if kind == FORWARD else INPUT, chunk, micro_batch


@dataclass(frozen=True, eq=False)
class Graph:
    """Passes of one iteration, (N,) each, in an order of execution: every one stands behind all that it waits for."""

    pp: int
    vpp: int
    num_micro_batches: int
    rank: Ints
    kind: Ints
    chunk: Ints
    micro_batch: Ints
    previous: Ints  # the rank's pass before, -1 = none
    source: Ints  # the pass that delivers the input, -1 = none or `previous`

    @functools.cached_property
    def backward(self) -> Bools:
        """Which are backward passes, or parts of them."""
        return np.asarray(self.kind != FORWARD)

    @functools.cached_property
    def last(self) -> Bools:
        """Which is its rank's last pass."""
        return ~np.isin(np.arange(len(self)), self.previous)

    def __len__(self) -> int:
        return len(self.rank)

    def of_rank(self, rank: int) -> Ints:
        """Numbers of the rank's passes in the order in which it runs them."""
        return np.flatnonzero(self.rank == rank)


@functools.lru_cache(maxsize=8)
def schedule_graph(pp: int, vpp: int, num_micro_batches: int, schedule: str = "1f1b") -> Graph:
    """The graph of a schedule: 1F1B, interleaved if vpp > 1; PlanError where there is no such schedule."""
    orders = [rank_order(schedule, pp, num_micro_batches, rank, vpp) for rank in range(pp)]
    number: dict[tuple[int, ...] | None, int] = {None: -1}
    rows, at, latest = list[tuple[int, ...]](), [0] * pp, [-1] * pp
    total = sum(map(len, orders))
    while len(rows) < total:
        before = len(rows)
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                kind, chunk, micro_batch = order[at[rank]]
                source = number.get(predecessor(schedule, pp, vpp, rank, kind, chunk, micro_batch))
                if source is None:
                    break
                number[rank, INPUT if kind == WHOLE else kind, chunk, micro_batch] = len(rows)
                rows.append((rank, kind, chunk, micro_batch, latest[rank], source))
                latest[rank] = len(rows) - 1
                at[rank] += 1
        if len(rows) == before:
            raise PlanError(
                f"The pipeline schedule deadlocks after {before} of {total} passes, every rank waiting for another: "
                f"expected orders in which each input is produced first, got positions {at} that cannot advance."
            )
    ranks, kinds, chunks, micro_batches, previous, source_of = np.array(rows).T
    source_of = np.where(source_of == previous, -1, source_of)
    return Graph(pp, vpp, num_micro_batches, ranks, kinds, chunks, micro_batches, previous, source_of)


def ends_s(graph: Graph, duration_s: Floats) -> Floats:
    """End of each pass, (N,) seconds, if it starts as soon as it can; the largest is the makespan."""
    ends = [0.0] * (len(graph) + 1)  # the place behind the last one, -1, stands for "waits for nothing"
    waits = zip(graph.previous.tolist(), graph.source.tolist(), duration_s.tolist(), strict=True)
    for k, (a, b, seconds) in enumerate(waits):
        ends[k] = max(ends[a], ends[b]) + seconds
    return np.array(ends[:-1])


def replay(
    pp: int, vpp: int, num_micro_batches: int, duration_s: Callable[[int, Pass], Floats]
) -> dict[tuple[int, Pass], Floats]:
    """End of every (rank, pass) of 1F1B, (n,) seconds for n plans, if each starts as soon as rank and input are ready.

    ``duration_s(rank, pass)``: seconds (n,), queried in the order of execution. Raises PlanError for a plan with
    no such schedule.
    """
    graph = schedule_graph(pp, vpp, num_micro_batches)
    ends, found = [np.zeros(1)] * (len(graph) + 1), dict[tuple[int, Pass], Floats]()
    columns = (graph.rank, graph.kind, graph.chunk, graph.micro_batch, graph.previous, graph.source)
    for k, (rank, *one, a, b) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        ends[k] = found[rank, Pass(*one)] = np.maximum(ends[a], ends[b]) + duration_s(rank, Pass(*one))
    return found


@functools.lru_cache(maxsize=256)
def _waves(schedule: str, pp: int, m: int) -> tuple[list[int], Ints, Ints, Ints]:
    """Passes of a schedule in waves that may run at once, numbered from 1; pass 0 stands for none, at 0 s.

    (First pass of each wave; and per pass, (N,): the rank's pass before, the pass that delivers its input, its row in
    the durations by kind, chunk and rank.)
    """
    vpp = CHUNKS_OF_SCHEDULE[schedule]
    graph = schedule_graph(pp, vpp, m, schedule)
    wave = ends_s(graph, np.ones(len(graph)))
    order, number = np.argsort(wave, kind="stable"), np.zeros(len(graph) + 1, np.int64)
    number[order] = np.arange(1, len(graph) + 1)
    starts = [*(np.flatnonzero(np.diff(wave[order], prepend=0.0)) + 1).tolist(), len(graph) + 1]
    duration = (graph.kind * vpp + graph.chunk) * pp + graph.rank
    return starts, number[graph.previous[order]], number[graph.source[order]], duration[order]


def zero_bubble_time_s(schedule: str, forward_s: Floats, input_s: Floats, weight_s: Floats, m: int) -> Floats:
    """Makespan in s, (n,), for seconds (vpp, pp, n) of one micro-batch on each chunk, by direction of the pass.

    Exact for the order of the schedule: each pass starts as soon as its rank and its input are ready.
    """
    chunks, pp, n = forward_s.shape
    starts, before, source, duration = _waves(schedule, pp, m)
    durations = np.concatenate([forward_s, input_s, weight_s, input_s + weight_s]).reshape(4 * chunks * pp, n)
    time_s = np.empty(n)
    for start in range(0, n, _BLOCK):
        rows = np.ascontiguousarray(durations[:, start : start + _BLOCK])
        ends = np.zeros((starts[-1], rows.shape[1]))
        for first, stop in itertools.pairwise(starts):
            wave, of = ends[first:stop], slice(first - 1, stop - 1)
            np.maximum(ends[before[of]], ends[source[of]], out=wave)
            wave += rows[duration[of]]
        time_s[start : start + _BLOCK] = ends.max(axis=0)
    return time_s


# What ranks hold, and what fits no schedule.


@functools.lru_cache(maxsize=4096)
def live_chunks_of_1f1b(pp: int, vpp: int, num_micro_batches: int) -> Ints:
    """Micro-batches whose activations each chunk of each rank holds in 1F1B, plain or interleaved, (pp, times, vpp).

    ``times``: the few at which a rank may hold most, just after forward w + r of round r, w the warm-up: min(m, p - i)
    for 1F1B; interleaved, on rank 0, of its layers p (1 + (p - 1)/(p v)) where chunks are equal (Korthikanti et al.
    2022, arXiv:2205.05198). Exact for the schedule: counts are linear between the rounds listed, where a chunk's turn
    ends, and repeat after `MOST_GROUPS` of pp.
    """
    if vpp == 1:
        return np.asarray(np.minimum(num_micro_batches, pp - np.arange(pp))[:, None, None])
    slots = -(-num_micro_batches // pp) * pp * vpp
    warmup = warmup_slots(pp, vpp, slots // vpp, np.arange(pp)[:, None])
    turns = pp * np.arange(vpp + 1)[None]
    rounds = np.concatenate([np.broadcast_to(turns, (pp, vpp + 1)), -(warmup + 1) % pp + turns], axis=1)
    rounds = np.minimum(rounds, np.maximum(slots - warmup - 1, 0))
    forwards = np.minimum(warmup + 1 + rounds, slots)
    alive = _per_chunk(forwards, pp, vpp) - _per_chunk(rounds, pp, vpp)[..., ::-1]
    return np.asarray(np.minimum(alive, num_micro_batches))


def _per_chunk(slots: Ints, pp: int, vpp: int) -> Ints:
    """Passes of each chunk among the first ``slots`` of one direction, (..., vpp), in the order of their turns."""
    groups, rest = np.divmod(slots[..., None], pp * vpp)
    return np.asarray(groups * pp + np.clip(rest - pp * np.arange(vpp), 0, pp))


def check_micro_batches(pp: Ints, vpp: Ints, m: Ints) -> None:
    """PlanError for the first plan whose micro-batches fit no schedule."""
    bad = (m < 1) | (pp < 1) | (vpp < 1) | ((vpp > 1) & (pp > 1) & (m % np.maximum(pp, 1) != 0))
    if bad.any():
        row = int(np.argmax(bad))
        raise PlanError(
            f"Plan {row} has no pipeline schedule: expected pp, vpp and num_micro_batches of at least 1, and "
            f"num_micro_batches divisible by pp when vpp > 1; got pp={pp[row]}, vpp={vpp[row]}, "
            f"num_micro_batches={m[row]}; change micro_batch_size, dp or vpp."
        )


@functools.lru_cache(maxsize=1024)
def live_chunks_of_zero_bubble(schedule: str, pp: int, num_micro_batches: int) -> Ints:
    """`live_chunks_of_1f1b` of a zero-bubble ``schedule``, (pp, times, vpp).

    From a forward to the gradients of the weights, which still need the inputs. From `MOST_ROUNDS` pp on they repeat.
    """
    counts = []
    for rank in range(pp):
        order = rank_order(schedule, pp, num_micro_batches, rank)
        change = np.zeros((len(order), CHUNKS_OF_SCHEDULE[schedule]), np.int64)
        for place, (kind, chunk, _) in enumerate(order):
            change[place, chunk] = (kind == FORWARD) - int(kind in (WEIGHT, WHOLE))
        counts.append(np.unique(np.cumsum(change, axis=0), axis=0))
    most = max(map(len, counts))
    return np.stack([np.pad(c, ((0, most - len(c)), (0, 0)), mode="edge") for c in counts])
