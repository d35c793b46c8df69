"""1F1B and interleaved 1F1B: which operation a rank runs when, and what it waits for.

Rank i of p, virtual chunk c of v, micro-batch j of m; a rank's k-th forward (backward) is its *slot* k.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jointopt.core.errors import PlanError
from jointopt.core.schema import Floats, Ints
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE


@dataclass(frozen=True, slots=True)
class Operation:
    """One micro-batch's forward or backward pass through one virtual chunk of a rank."""

    backward: bool
    chunk: int
    micro_batch: int


MOST_GROUPS = 3  # of pp micro-batches, until what interleaved ranks hold repeats
Order = Sequence[Operation]
Predecessor = Callable[[int, Operation], tuple[int, Operation] | None]


def warmup_slots(pp: int, vpp: int, num_micro_batches: int, rank: int) -> int:
    """Forwards (of one chunk each) that a rank runs before its first backward.

    1F1B and interleaved: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; counts as in Megatron Core's
    `get_pp_rank_microbatches` with micro-batch groups of p. Older Megatron-LM ran all forwards first when m = p.
    """
    ahead = pp - 1 - rank
    slots = ahead if vpp == 1 else 2 * ahead + (vpp - 1) * pp
    return min(slots, num_micro_batches * vpp)


def schedule_order(pp: int, vpp: int, num_micro_batches: int, rank: int) -> list[Operation]:
    """The operations of one rank in Megatron-LM's order: 1F1B, or interleaved 1F1B if vpp > 1.

    Interleaved (Narayanan et al. 2021, arXiv:2104.04473, section 2.2): groups of p micro-batches pass chunk 0, then 1,
    and so on; backwards from the last chunk down. Raises PlanError where Megatron-LM has no such schedule.
    """
    check_micro_batches(np.array([pp]), np.array([vpp]), np.array([num_micro_batches]))
    slots = num_micro_batches * vpp
    group = pp if vpp > 1 else 1
    warmup = warmup_slots(pp, vpp, num_micro_batches, rank)

    def operation(slot: int, backward: bool) -> Operation:
        groups, inside = divmod(slot, group * vpp)
        chunk, member = divmod(inside, group)
        return Operation(backward, vpp - 1 - chunk if backward else chunk, groups * group + member)

    order = [operation(slot, False) for slot in range(warmup)]
    for slot in range(slots - warmup):
        order += [operation(slot + warmup, False), operation(slot, True)]
    return order + [operation(slot, True) for slot in range(slots - warmup, slots)]


def data_dependency(pp: int, vpp: int) -> Predecessor:
    """The rule by which a (rank, operation) delivers an operation's input; None = the data loader."""

    def predecessor(rank: int, op: Operation) -> tuple[int, Operation] | None:
        stage = op.chunk * pp + rank
        if op.backward and stage == pp * vpp - 1:
            return rank, Operation(False, op.chunk, op.micro_batch)
        source = stage + 1 if op.backward else stage - 1
        return None if source < 0 else (source % pp, Operation(op.backward, source // pp, op.micro_batch))

    return predecessor


def execution_order(orders: Sequence[Order], predecessor: Predecessor) -> list[tuple[int, Operation]]:
    """All (rank, operation) in one sequence that respects every rank's order and every dependency.

    Raises PlanError if the ranks would wait for each other for ever.
    """
    done: set[tuple[int, Operation]] = set()
    sequence: list[tuple[int, Operation]] = []
    position = [0] * len(orders)
    total = sum(len(order) for order in orders)
    while len(sequence) < total:
        before = len(sequence)
        for rank, order in enumerate(orders):
            while position[rank] < len(order):
                op = order[position[rank]]
                source = predecessor(rank, op)
                if source is not None and source not in done:
                    break
                done.add((rank, op))
                sequence.append((rank, op))
                position[rank] += 1
        if len(sequence) == before:
            raise PlanError(
                f"The pipeline schedule deadlocks after {before} of {total} operations, every rank waiting for "
                f"another: expected orders in which each input is produced first, got positions {position} "
                f"that cannot advance; reorder the operations."
            )
    return sequence


def replay(
    pp: int, vpp: int, num_micro_batches: int, duration_s: Callable[[int, Operation], Floats]
) -> dict[tuple[int, Operation], Floats]:
    """End of every (rank, operation), (n,) seconds for n plans, if each starts as soon as rank and input are ready.

    ``duration_s(rank, operation)``: seconds (n,), queried in the order of execution. Raises PlanError for a plan with
    no such schedule.
    """
    orders = [schedule_order(pp, vpp, num_micro_batches, rank) for rank in range(pp)]
    predecessor = data_dependency(pp, vpp)
    free, end_s = [np.zeros(1)] * pp, dict[tuple[int, Operation], Floats]()
    for rank, op in execution_order(orders, predecessor):
        source = predecessor(rank, op)
        start_s = free[rank] if source is None else np.maximum(free[rank], end_s[source])
        free[rank] = end_s[rank, op] = start_s + duration_s(rank, op)
    return end_s


@functools.lru_cache(maxsize=4096)
def alive_chunks(pp: int, vpp: int, num_micro_batches: int) -> Ints:
    """Micro-batches whose activations each chunk of each rank holds, (pp, times, vpp), at the times it may hold most.

    Just after forward w + r of round r, w the warm-up: min(m, p - i) for 1F1B; interleaved, on rank 0, of its layers
    p (1 + (p - 1)/(p v)) where chunks are equal (Korthikanti et al. 2022, arXiv:2205.05198). Exact for the schedule:
    counts are linear between the rounds listed, where a chunk's turn ends, and repeat after `MOST_GROUPS` of pp.
    """
    if vpp == 1:
        return np.asarray(np.minimum(num_micro_batches, pp - np.arange(pp))[:, None, None])
    slots = -(-num_micro_batches // pp) * pp * vpp
    warmup = np.minimum(2 * (pp - 1 - np.arange(pp)[:, None]) + (vpp - 1) * pp, slots)
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


# Zero-bubble pipeline schedules, whose backward passes are split into gradients of inputs and of weights.


FORWARD, INPUT, WEIGHT, WHOLE = range(4)  # whole: a backward pass that is not split
MOST_ROUNDS = 4  # of pp micro-batches, until what ranks hold repeats
_BLOCK = 256  # plans walked through at once
Pass = tuple[int, int, int]  # kind, chunk, micro-batch


def rank_order(schedule: str, pp: int, num_micro_batches: int, rank: int) -> list[Pass]:
    """The passes of one rank in order; ``dualpipev`` starts with 2 pp micro-batches at least, below them it is zbv."""
    if schedule == "dualpipev" and num_micro_batches >= 2 * pp:
        return _dual_order(pp, num_micro_batches, rank)
    order = (_h1_order if schedule == "zb-h1" else _v_order)(pp, num_micro_batches, rank)
    return [one for one in order if one[2] < num_micro_batches]


def _h1_order(pp: int, m: int, rank: int) -> list[Pass]:
    """ZB-H1, section 2.1: 1F1B, and weights ``rank`` micro-batches behind, so that each rank holds pp of them."""
    warmup = min(pp - 1 - rank, m)
    order = [(FORWARD, 0, j) for j in range(warmup)]
    for j in range(m):
        if warmup + j < m:
            order.append((FORWARD, 0, warmup + j))
        order.append((INPUT, 0, j))
        if j >= rank:
            order.append((WEIGHT, 0, j - rank))
    return order + [(WEIGHT, 0, j) for j in range(max(m - rank, 0), m)]


def _v_order(pp: int, m: int, rank: int) -> list[Pass]:
    """ZB-V, section 6, phase by phase as PyTorch numbers them, for at least 2 pp - 1 micro-batches."""
    m, behind = max(2 * pp - 1, m), pp - rank
    count = {key: itertools.count() for key in itertools.product(range(3), range(2))}
    order: list[Pass] = []

    def add(*passes: tuple[int, int]) -> None:
        order.extend((kind, chunk, next(count[kind, chunk])) for kind, chunk in passes)

    def times(number: int, *passes: tuple[int, int]) -> None:
        for _ in range(number):
            add(*passes)

    first, second = [((FORWARD, c), (INPUT, c), (WEIGHT, c)) for c in range(2)]
    times(2 * behind - 1, first[0])
    times(rank, second[0], first[0])
    times(behind, *second)
    times(m - (2 * behind - 1 + rank), *first, *second)
    times(behind - 1, *first[1:], *second)  # forwards of chunk 0 are done
    times(rank, first[1], second[1])
    times(behind, first[1], first[2])
    times(rank, second[2])
    times(rank, first[2])
    return order


def _dual_order(pp: int, m: int, rank: int) -> list[Pass]:
    """DualPipeV, step by step as PyTorch numbers them: halves of the last steps are split, to fill the drain."""
    behind, done, waiting = pp - rank - 1, [[0, 0], [0, 0]], list[Pass]()
    order: list[Pass] = []

    def add(kind: int, chunk: int) -> None:
        count = done[kind != FORWARD]
        order.append((kind, chunk, count[chunk]))
        if kind == INPUT:
            waiting.append((WEIGHT, chunk, count[chunk]))
        count[chunk] += 1

    def times(number: int, *passes: tuple[int, int]) -> None:
        for _ in range(number):
            for kind, chunk in passes:
                if kind != WEIGHT:
                    add(kind, chunk)
                elif waiting:
                    order.append(waiting.pop(0))

    times(2 * behind, (FORWARD, 0))
    times(rank + 1, (FORWARD, 0), (FORWARD, 1))
    times(behind, (INPUT, 1), (WEIGHT, 1), (FORWARD, 1))
    times(m - 2 * pp + rank + 1, (FORWARD, 0), (WHOLE, 1), (FORWARD, 1), (WHOLE, 0))
    times(behind, (WHOLE, 1), (FORWARD, 1), (WHOLE, 0))
    # from the middle of these on passes are split, of odd ranks with the second chunk, of even ones with the first
    split = rank + 1 + (rank + 1) % 2 if rank % 2 else 2 * ((rank + 1) // 2) + 1
    for number in range(2 * (rank + 1)):
        add(INPUT if number >= split else WHOLE, 1 - number % 2)
    times(behind, (WEIGHT, 0), (INPUT if split < 2 * (rank + 1) else WHOLE, 0))
    times(rank + 1, (WEIGHT, 0))
    return order


@dataclass(frozen=True)
class _Program:
    """Passes numbered from 1 in an order of execution, those of one wave at once; pass 0 stands for no pass, at 0 s.

    ``waves`` are where they begin; per pass (N,) the rank's pass before, the one that delivers the input, and the row
    of the durations (kind, chunk, rank).
    """

    waves: list[int]
    before: Ints
    source: Ints
    duration: Ints


@functools.lru_cache(maxsize=256)
def _program(schedule: str, pp: int, m: int) -> _Program:
    chunks = CHUNKS_OF_SCHEDULE[schedule]
    queues = [list(reversed(rank_order(schedule, pp, m, rank))) for rank in range(pp)]
    number: dict[tuple[int, Pass] | None, int] = {None: 0}
    waves, latest, rows = [1], [0] * pp, list[tuple[int, int, int]]()
    while any(queues):
        ready = [
            (rank, queue[-1], number[needs])
            for rank, queue in enumerate(queues)
            if queue and (needs := predecessor(schedule, pp, rank, queue[-1])) in number
        ]
        for rank, one, source in ready:
            queues[rank].pop()
            rows.append((latest[rank], source, (one[0] * chunks + one[1]) * pp + rank))
            latest[rank] = number[rank, (INPUT, *one[1:]) if one[0] == WHOLE else one] = len(rows)
        waves.append(len(rows) + 1)
    return _Program(waves, *np.array(rows).T)


def predecessor(schedule: str, pp: int, rank: int, one: Pass) -> tuple[int, Pass] | None:
    """The (rank, pass) that delivers a pass's input; None for the data loader and for a rank's own gradients."""
    kind, chunk, micro_batch = one
    places = CHUNKS_OF_SCHEDULE[schedule] * pp
    place = places - 1 - rank if chunk else rank
    kind = INPUT if kind == WHOLE else kind
    if kind == INPUT and place == places - 1:
        return rank, (FORWARD, chunk, micro_batch)
    place += {FORWARD: -1, INPUT: 1, WEIGHT: -places}[kind]
    if place < 0:
        return None
    return (place, (kind, 0, micro_batch)) if place < pp else (2 * pp - 1 - place, (kind, 1, micro_batch))


def zero_bubble_time_s(schedule: str, forward_s: Floats, input_s: Floats, weight_s: Floats, m: int) -> Floats:
    """Makespan in s, (n,), for seconds (vpp, pp, n) of one micro-batch on each chunk, by direction of the pass.

    Exact for the order of the schedule: each pass starts as soon as its rank and its input are ready.
    """
    chunks, pp, n = forward_s.shape
    program = _program(schedule, pp, m)
    durations = np.concatenate([forward_s, input_s, weight_s, input_s + weight_s]).reshape(4 * chunks * pp, n)
    time_s = np.empty(n)
    for start in range(0, n, _BLOCK):
        rows = np.ascontiguousarray(durations[:, start : start + _BLOCK])
        ends = np.zeros((program.waves[-1], rows.shape[1]))
        for first, stop in itertools.pairwise(program.waves):
            wave, of = ends[first:stop], slice(first - 1, stop - 1)
            np.maximum(ends[program.before[of]], ends[program.source[of]], out=wave)
            wave += rows[program.duration[of]]
        time_s[start : start + _BLOCK] = ends.max(axis=0)
    return time_s


@functools.lru_cache(maxsize=1024)
def held_chunks(schedule: str, pp: int, num_micro_batches: int) -> Ints:
    """Micro-batches whose activations each chunk of each rank holds, (pp, times, vpp), at the times it may hold most.

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
