"""A few micro-batches stand for many: their first and last ones keep their clocks, the middle repeats."""

from __future__ import annotations

import functools

import numpy as np

from jointopt.core.schema import Bools, Floats, Ints
from jointopt.physics.polish.graph import BACKWARD, FORWARD, KINDS, Graph, schedule_graph
from jointopt.physics.polish.options import Problem


def window(problem: Problem, most: int) -> Problem:
    """The same ranks with as many of the micro-batches as ``most`` instructions allow, but no fewer than ranks."""
    graph = problem.graph
    group = graph.pp if graph.vpp > 1 else 1
    size = max(most // (2 * graph.pp * graph.vpp), graph.pp) // group * group
    if size >= graph.num_micro_batches:
        return problem
    return Problem(schedule_graph(graph.pp, graph.vpp, size), problem.options)


def widened(part: Problem, choice: Ints, whole: Problem, pace_s: float) -> Ints:
    """A choice for the whole from one for its `window`: first and last micro-batches keep theirs.

    Those between take the forward and backward option of least energy with which each rank does a micro-batch in
    ``pace_s``; ranks that cannot, run as fast as they can. Time and energy are for the whole schedule to say; what this
    cannot do is let the middle micro-batches differ.
    """
    kept, middle = _origin(part.graph, whole.graph)
    return np.where(middle, _steady(part, pace_s)[whole.graph.kind], choice[kept])


@functools.lru_cache(maxsize=4)
def _origin(part: Graph, whole: Graph) -> tuple[Ints, Bools]:
    """For each instruction of the whole its likeness in the window, and whether it is of the middle, (N,)."""
    few, left_out = part.num_micro_batches, whole.num_micro_batches - part.num_micro_batches
    group = part.pp if part.vpp > 1 else 1
    head = few // 2 // group * group
    batch = whole.micro_batch
    same = np.clip(np.where(batch < head, batch, batch - left_out), 0, few - 1)
    position = {key: k for k, key in enumerate(_keys(part, part.micro_batch))}
    kept = np.array([position[key] for key in _keys(whole, same)])
    return kept, (batch >= head) & (batch < head + left_out)


def _keys(graph: Graph, micro_batch: Ints) -> list[tuple[int, ...]]:
    columns = (graph.rank, graph.backward, graph.chunk, micro_batch)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _steady(part: Problem, pace_s: float) -> Ints:
    """Option of each kind of instruction at which every rank does a micro-batch, all its chunks, in ``pace_s``."""
    chosen = np.zeros(KINDS * part.graph.pp, np.int64)
    for rank in range(part.graph.pp):
        chosen[rank * KINDS : rank * KINDS + 2] = _cheapest_pair(part, rank, pace_s / part.graph.vpp)
    return chosen


def _cheapest_pair(part: Problem, rank: int, pace_s: float) -> Ints:
    """(forward, backward) option of a rank that together take at most ``pace_s`` at the least energy."""
    forward, backward = (part.options[rank * KINDS + kind] for kind in (FORWARD, BACKWARD))
    seconds: Floats = forward.duration_s[:, None] + backward.duration_s
    energy = np.where(seconds <= pace_s * (1.0 + 1e-9), forward.energy_j[:, None] + backward.energy_j, np.inf)
    if not np.isfinite(energy).any():
        return np.zeros(2, np.int64)
    return np.array(np.unravel_index(int(energy.argmin()), energy.shape))
