"""The instructions of one pipeline iteration, each a pass of one micro-batch through one chunk of a rank.

One starts when its rank's previous instruction and its input are ready: it has at most two predecessors.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Bools, Floats, Ints
from jointopt.physics.schedule import data_dependency, execution_order, schedule_order

FORWARD, BACKWARD, LAST = 0, 1, 2  # the last instruction of a rank is a backward pass and an optimizer step
KINDS = 3  # per rank


@dataclass(frozen=True, eq=False)
class Graph:
    """Instructions, (N,) each, in an order of execution: every one stands behind all that it waits for."""

    pp: int
    vpp: int
    num_micro_batches: int
    rank: Ints
    backward: Bools
    chunk: Ints
    micro_batch: Ints
    previous: Ints  # the rank's instruction before, -1 = none
    source: Ints  # the instruction that delivers the input, -1 = none or `previous`
    last: Bools  # the rank's last one

    @functools.cached_property
    def kind(self) -> Ints:
        """Row of `Options` of each instruction: instructions of one kind cost the same."""
        return np.asarray(self.rank * KINDS + np.where(self.last, LAST, self.backward.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.rank)

    def of_rank(self, rank: int) -> Ints:
        """Numbers of the rank's instructions in the order in which it runs them."""
        return np.flatnonzero(self.rank == rank)


@functools.lru_cache(maxsize=8)
def schedule_graph(pp: int, vpp: int, num_micro_batches: int) -> Graph:
    """The graph of 1F1B, or of interleaved 1F1B if vpp > 1; PlanError where there is no such schedule."""
    orders = [schedule_order(pp, vpp, num_micro_batches, rank) for rank in range(pp)]
    predecessor = data_dependency(pp, vpp)
    sequence = execution_order(orders, predecessor)
    number = {step: index for index, step in enumerate(sequence)}
    before = {(r, b): (r, a) for r, order in enumerate(orders) for a, b in itertools.pairwise(order)}
    previous = [number[before[step]] if step in before else -1 for step in sequence]
    sources = [predecessor(*step) for step in sequence]
    source = np.array([-1 if s is None else number[s] for s in sources])
    return Graph(
        pp, vpp, num_micro_batches, rank=np.array([rank for rank, _ in sequence]),
        backward=np.array([op.backward for _, op in sequence]),
        chunk=np.array([op.chunk for _, op in sequence]),
        micro_batch=np.array([op.micro_batch for _, op in sequence]), previous=np.array(previous),
        source=np.where(source == np.array(previous), -1, source),
        last=np.array([op == orders[rank][-1] for rank, op in sequence]),
    )  # fmt: skip


def ends_s(graph: Graph, duration_s: Floats) -> Floats:
    """End of each instruction, (N,) seconds, if it starts as soon as it can; the largest is the makespan."""
    ends = [0.0] * (len(graph) + 1)  # the place behind the last one, -1, stands for "waits for nothing"
    waits = zip(graph.previous.tolist(), graph.source.tolist(), duration_s.tolist(), strict=True)
    for k, (a, b, seconds) in enumerate(waits):
        ends[k] = max(ends[a], ends[b]) + seconds
    return np.array(ends[:-1])


def latest_ends_s(graph: Graph, duration_s: Floats, makespan_s: float) -> Floats:
    """Latest end of each instruction, (N,) seconds, so that the iteration ends at ``makespan_s``."""
    latest = [makespan_s] * (len(graph) + 1)
    previous, source, seconds = graph.previous.tolist(), graph.source.tolist(), duration_s.tolist()
    for k in range(len(graph) - 1, -1, -1):
        start = latest[k] - seconds[k]
        a, b = previous[k], source[k]
        latest[a] = min(latest[a], start)
        latest[b] = min(latest[b], start)
    return np.array(latest[:-1])
