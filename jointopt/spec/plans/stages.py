"""How many transformer layers each pipeline stage holds."""

from __future__ import annotations

import functools
import heapq

import numpy as np

from jointopt.core.errors import PlanError
from jointopt.core.schema import Floats, Ints


def layers_per_stage(
    num_layers: int, pp: Ints, vpp: Ints, embedding_layers: float = 0.0, head_layers: float = 0.0
) -> Floats:
    """Layers per pipeline rank, shape (n, max pp), 0 beyond each plan's pp; PlanError where pp > ``num_layers``.

    Where pp does not divide them, the integers that make the heaviest stage lightest: the first carries
    ``embedding_layers`` on top, the last ``head_layers`` (in units of one layer, as in Megatron-LM's account-for-loss).
    """
    pp = np.asarray(pp, np.int64)
    equal = np.zeros((int(pp.max(initial=0)) + 1, int(pp.max(initial=0))))
    uneven = np.zeros_like(equal)
    for degree in np.flatnonzero(np.bincount(pp)).tolist():
        equal[degree, :degree] = num_layers / degree
        uneven[degree, :degree] = num_layers / degree
        if num_layers % degree:
            uneven[degree, :degree] = _uneven_split(num_layers, degree, embedding_layers, head_layers)
    layers = uneven[pp]
    # such interleaved plans occur in tables alone: chunks from all over the model, taken as equal shares
    fractional = (np.asarray(vpp) > 1) & (num_layers % pp != 0)
    layers[fractional] = equal[pp[fractional]]
    return layers


@functools.lru_cache(maxsize=4096)
def layers_by_cost(num_layers: int, pp: int, layer_cost: int, head_cost: int) -> tuple[int, ...]:
    """Layers per rank as nanotron's `build_model` gives them out: a rank takes blocks until it exceeds its share.

    Costs are multiplications per token, the embedding is free; the share of rank i ends at (i + 1) / pp of the sum.
    The head counts as the last rank's: where it follows layers on an earlier rank, those stand there too.
    """
    total = num_layers * layer_cost + head_cost
    layers, rank, done = [0] * pp, 0, 0
    for _ in range(num_layers):
        layers[rank] += 1
        done += layer_cost
        rank += done * pp > total * (rank + 1)
    if rank < pp - 1:
        layers[rank], layers[-1] = 0, layers[rank]
    return tuple(layers)


@functools.lru_cache(maxsize=4096)
def _uneven_split(num_layers: int, pp: int, embedding_layers: float, head_layers: float) -> tuple[int, ...]:
    """The integer split, at least one layer per stage, whose sorted loads are lexicographically smallest.

    Each further layer goes to the lightest stage. Of equals the later comes first (1F1B keeps fewer micro-batches alive
    there) and the two ends last, as in the 126 layers of Llama 3 405B (arXiv:2407.21783, section 3.3.2).
    """
    if pp > num_layers:
        raise PlanError(f"The pp of a plan must be at most the model's {num_layers} layers; got {pp}.")
    layers, loads = [1] * pp, [1.0] * pp
    loads[0] += embedding_layers
    loads[-1] += head_layers
    heap = [(load, i == 0, i == pp - 1, -i) for i, load in enumerate(loads)]
    heapq.heapify(heap)
    for _ in range(num_layers - pp):
        load, first, last, minus_stage = heap[0]
        layers[-minus_stage] += 1
        heapq.heapreplace(heap, (load + 1.0, first, last, minus_stage))
    return tuple(layers)
