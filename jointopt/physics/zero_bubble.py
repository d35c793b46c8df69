"""Zero-bubble pipeline schedules, whose backward passes are split into gradients of inputs and of weights.

Qi et al. 2023 (arXiv:2401.10241): ``zb-h1`` as PyTorch's ScheduleInterleavedZeroBubble runs it with one stage per rank,
``zbv`` as ScheduleZBVZeroBubble does, whose two chunks per rank lie along a V: the first and the last are rank 0's.
``dualpipev`` is ScheduleDualPipeV along the same V, after DeepSeek-V3 (arXiv:2412.19437, section 3.2.1); a forward and
the backward that it is paired with are priced one after the other, as PyTorch runs them where nothing overlaps them.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE

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
