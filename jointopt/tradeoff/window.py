"""A few micro-batches stand for many: their first and last ones keep their clocks, the middle repeats."""

from __future__ import annotations

import numpy as np

from jointopt.schema import Floats, Ints
from jointopt.tradeoff.graph import BACKWARD, FORWARD, KINDS, schedule_graph
from jointopt.tradeoff.options import Problem


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
    graph, few = whole.graph, part.graph.num_micro_batches
    head = _head(part)
    left_out = graph.num_micro_batches - few
    batch = graph.micro_batch
    middle = (batch >= head) & (batch < head + left_out)
    same = np.clip(np.where(batch < head, batch, batch - left_out), 0, few - 1)
    position = {key: k for k, key in enumerate(_keys(part, part.graph.micro_batch))}
    kept = choice[[position[key] for key in _keys(whole, same)]]
    return np.where(middle, _steady(part, pace_s)[graph.kind], kept)


def _head(part: Problem) -> int:
    """How many of the first micro-batches keep their clocks: half, in whole groups of an interleaved schedule."""
    group = part.graph.pp if part.graph.vpp > 1 else 1
    return part.graph.num_micro_batches // 2 // group * group


def _keys(problem: Problem, micro_batch: Ints) -> list[tuple[int, ...]]:
    graph = problem.graph
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
