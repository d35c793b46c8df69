"""1F1B and interleaved 1F1B: which operation a rank runs when, and what it waits for.

Rank i of p, virtual chunk c of v, micro-batch j of m; a rank's k-th forward (backward) is its *slot* k.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jointopt.core.errors import PlanError
from jointopt.core.schema import Floats, Ints


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
