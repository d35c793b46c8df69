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
    """Layers per pipeline rank, shape (n, max pp), 0 beyond each plan's pp; PlanError where pp >
    ``num_layers``.

    Equal where pp divides the layers. Where it does not, the integers that make the heaviest stage lightest,
    the first stage carrying ``embedding_layers`` and the last ``head_layers`` on top (costs in units of one
    layer; the idea of Megatron-LM's account-for-embedding and account-for-loss). Interleaved plans (``vpp`` >
    1) whose layers do not divide occur only in tables of measurements; a rank then holds chunks from all over
    the model, and its share is taken as equal, hence a fraction.
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
    fractional = (np.asarray(vpp) > 1) & (num_layers % pp != 0)
    layers[fractional] = equal[pp[fractional]]
    return layers


@functools.lru_cache(maxsize=4096)
def layers_by_cost(num_layers: int, pp: int, layer_cost: int, head_cost: int) -> tuple[int, ...]:
    """Layers per pipeline rank as nanotron gives them out: a rank takes blocks until it has more than its share.

    Costs are multiplications per token of a layer and of the head, the embedding is free; the share of rank i ends at
    (i + 1) / pp of their sum (`build_model` in nanotron's models/base.py). The head counts as the last rank's: where it
    follows layers on an earlier rank, those stand there too, and ranks with neither hold nothing.
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

    Giving each further layer to the lightest stage is optimal because all layers weigh the same. Among
    equally light stages the later one comes first (1F1B keeps fewer micro-batches alive there), and the two
    ends come last, as in the 126 layers of Llama 3 405B (arXiv:2407.21783, section 3.3.2: one layer less on
    the first and last stage).
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
