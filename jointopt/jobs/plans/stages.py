"""How many transformer layers each pipeline stage, and each model chunk of it, holds."""

from __future__ import annotations

import functools
import heapq
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jointopt.core.errors import PlanError
from jointopt.core.schema import STAGE_LAYERS, Bools, Columns, Ints
from jointopt.jobs.framework import Framework
from jointopt.jobs.job import Job
from jointopt.jobs.model import Model

MOST_CHUNKS = 12  # per rank; published runs have up to 12
Split = tuple[int, ...]  # layers of each chunk in the order of the pipeline
_UNEVEN = 1.1  # most that the heaviest chunk of an interleaved split holds, over an equal share of layers and ends


def token_costs(model: Model) -> tuple[int, int]:
    """Multiplications per token of a layer, experts that it is not sent to left out, and of the head."""
    return round(model.layer_weights), model.vocab_size * model.hidden_size


def tail_layers(model: Model) -> float:
    """Cost of what follows the last layer, in layers: the head, and each multi-token-prediction module.

    A module is a projection, a layer and a head (DeepSeek-V3, arXiv:2412.19437, section 2.2).
    """
    per_layer, head = token_costs(model)
    return (head + model.mtp_num_layers * (per_layer + head + 2 * model.hidden_size**2)) / per_layer


def framework_split(job: Job, pp: int, vpp: int) -> tuple[float, ...]:
    """Layers of each chunk in the order of the pipeline, (pp*vpp,), as the framework splits them by itself.

    Even where pp divides the layers, as in Megatron; else, and for a framework that splits by cost, the head counts by
    its multiplications. Chunks of a rank are equal, so that they may be fractions of layers.
    """
    if job.training.framework.layers_by_cost:
        ranks: tuple[float, ...] = layers_by_cost(job.model.num_layers, pp, *token_costs(job.model))
    else:
        ranks = layers_per_stage(job.model.num_layers, pp, vpp, head_layers=tail_layers(job.model))
    return tuple(layers / vpp for layers in ranks) * vpp


def offered_splits(job: Job, pp: int, vpp: int) -> list[Split]:
    """The splits of the layers over pp*vpp chunks that a search tries, each once; () stands for a blank.

    These are the framework's own; those with embedding and head counted as layers, where that divides; and a balanced
    one where there is no other, or where its heaviest rank is 5 % lighter. Uneven interleaved chunks cost time, so that
    a balanced one is left out beyond `_UNEVEN`.

    Meta's Llama 3 405B (arXiv:2407.21783, section 3.3.2), 126 layers over 16 x 8 chunks, is one with both ends counted.
    """
    layers, framework, chunks = job.model.num_layers, job.training.framework, pp * vpp
    even = layers % chunks == 0
    blank = even or (vpp == 1 and "even_stages" not in framework.rules and pp <= layers)
    found: list[Split] = [()] if blank else []
    if pp == 1 or chunks > layers + 2 * (vpp > 1) or vpp > MOST_CHUNKS:
        return found
    if "ends" in framework.stage_splits:
        found += _with_ends(layers, chunks)
    if "any" in framework.stage_splits:
        tail = tail_layers(job.model)
        split = balanced_split(layers, pp, vpp, tail)
        loads = [heaviest_rank(other or (layers / chunks,) * chunks, pp, tail) for other in found]
        close = max(split) * chunks <= _UNEVEN * (layers + 2)
        lighter = heaviest_rank(split, pp, tail) < 0.95 * min(loads, default=np.inf)
        if lighter and (vpp == 1 or close) and not (() in found and not even):
            found.append(split)
    return found


def shifted_splits(layers: int, pp: int, vpp: int, most_off: int) -> list[Split]:
    """Splits, each once, of equal chunks but for the two ends and one run of chunks with a layer more, or less.

    The first chunk is up to 2 layers lighter than the others, the last up to ``most_off``, as embedding and head weigh;
    the run makes up for it, anywhere between. Hill climbing over single layers found nothing better from the front of
    any job that was tried (`tests/bench/bench_splits.py`).
    """
    chunks = pp * vpp
    bases = {layers // chunks, -(-layers // chunks)} - {0}
    found: dict[Split, None] = {}
    for base, first, last in itertools.product(sorted(bases), range(3), range(most_off + 1)):
        least = base - max(first, last)
        more = layers - (base * chunks - first - last)
        inside, run = base + (1 if more > 0 else -1), abs(more)
        if least < (vpp == 1) or run > chunks - 2 or (run and inside < 1):
            continue
        for start in range(chunks - 1 - run if run else 1):
            middle = [base] * start + [inside] * run + [base] * (chunks - 2 - run - start)
            found[(base - first, *middle, base - last)] = None
    return list(found)


def recipe_split(job: Job, pp: int, vpp: int) -> Split:
    """The uneven split that a blank means for a framework whose recipes must state one; () for all others.

    Embedding and head count as layers where that divides, as in the recipes; else it is the balanced split.
    """
    layers, framework = job.model.num_layers, job.training.framework
    stated = "even_stages" in framework.rules and "ends" in framework.stage_splits
    if not stated or pp == 1 or layers % (pp * vpp) == 0 or pp * vpp > layers + 2:
        return ()
    return next(iter(_with_ends(layers, pp * vpp)), None) or balanced_split(layers, pp, vpp, tail_layers(job.model))


def can_be_built(framework: Framework, split: Sequence[int]) -> bool:
    """Whether the framework can be given these layers per chunk, in a pipeline of at least two chunks."""
    if "any" in framework.stage_splits:
        return all(split[1:-1])  # the first and the last chunk have embedding and head to run
    return "ends" in framework.stage_splits and split in _with_ends(sum(split), len(split))


def split_mask(c: Columns, holds: Callable[[Split, Any], Any]) -> Bools:
    """A mask of ``holds(layers of the split, pp*vpp)`` where ``stage_layers`` is stated, else false."""
    codes, chunks = np.broadcast_arrays(c["stage_layers"], c["pp"] * c["vpp"])
    out = np.zeros(codes.shape, np.bool_)
    for code in np.unique(codes[codes > 0]).tolist():
        at = codes == code
        out[at] = holds(STAGE_LAYERS.numbers(code), chunks[at])
    return out


def states_even(model: Model, c: Columns) -> Bools:
    """A mask, true where ``stage_layers`` states equal chunks, which is what a blank means."""
    layers = model.num_layers
    return split_mask(c, lambda split, chunks: (chunks == len(split)) & (len(set(split)) == 1) & (sum(split) == layers))


def largest_chunk(model: Model, c: Columns) -> Ints:
    """Layers of the largest chunk of each layout: as stated, else of equal chunks, rounded up; columns broadcast."""
    most = -(-model.num_layers // (c["pp"] * c["vpp"]))
    for code in np.unique(c["stage_layers"]).tolist():
        if code:
            most = np.where(c["stage_layers"] == code, max(STAGE_LAYERS.numbers(code)), most)
    return np.asarray(most, np.int64)


def _with_ends(layers: int, chunks: int) -> list[Split]:
    """Splits, else even, in which the head, or embedding and head, count as a layer (Megatron's account-for-...)."""
    found = []
    for ends in ((1, 1), (0, 1)):
        each, rest = divmod(layers + sum(ends), chunks)
        if rest == 0 and each >= 1 and chunks > sum(ends):  # both ends of two chunks leave them even
            found.append((each - ends[0], *(each,) * (chunks - 2), each - ends[1]))
    return found


def heaviest_rank(split: Sequence[float], pp: int, head_layers: float) -> float:
    """Layers of the heaviest rank, with ``head_layers`` more on the last one."""
    ranks = [sum(split[rank::pp]) for rank in range(pp)]
    return float(max([*ranks[:-1], ranks[-1] + head_layers]))


@functools.lru_cache(maxsize=4096)
def balanced_split(num_layers: int, pp: int, vpp: int, head_layers: float) -> Split:
    """Layers of each chunk in the order of the pipeline whose heaviest rank is lightest, the head counted as layers.

    Within a rank likewise, chunk by chunk; of equals the two ends come last, and of the others later ones first, where
    fewer micro-batches are alive. Interleaved, the first and the last chunk may hold embedding and head alone.
    """
    least = [vpp] * pp
    if vpp > 1:
        least[0], least[-1] = vpp - 1, vpp - 1
    ranks = _spread(num_layers, least, [0.0] * (pp - 1) + [head_layers])
    chunks = [0] * (pp * vpp)
    for rank, layers in enumerate(ranks):
        first, last = rank == 0 and vpp > 1, rank == pp - 1 and vpp > 1
        least = [int(not ((first and c == 0) or (last and c == vpp - 1))) for c in range(vpp)]
        loads = [head_layers * (last and c == vpp - 1) for c in range(vpp)]
        chunks[rank::pp] = _spread(layers, least, loads)
    return tuple(chunks)


def _spread(layers: int, least: list[int], on_top: list[float]) -> list[int]:
    """Counts of at least ``least`` that make the heaviest lightest; each further layer goes to the lightest place."""
    counts = list(least)
    last = len(counts) - 1
    heap = [(n + load, i == 0, i == last, -i) for i, (n, load) in enumerate(zip(counts, on_top, strict=True))]
    heapq.heapify(heap)
    for _ in range(layers - sum(least)):
        load, first, end, minus = heap[0]
        counts[-minus] += 1
        heapq.heapreplace(heap, (load + 1.0, first, end, minus))
    return counts


@functools.lru_cache(maxsize=4096)
def layers_per_stage(
    num_layers: int, pp: int, vpp: int = 1, embedding_layers: float = 0.0, head_layers: float = 0.0
) -> tuple[float, ...]:
    """Layers per pipeline rank, (pp,); PlanError where pp > ``num_layers``.

    Where pp does not divide them, the integers, at least one each, whose sorted loads are lexicographically smallest:
    the first carries ``embedding_layers`` on top, the last ``head_layers`` (in units of one layer, as in Megatron-LM's
    account-for-loss). Of equals the later comes first (1F1B keeps fewer micro-batches alive there) and the two ends
    last, as in the 126 layers of Llama 3 405B (arXiv:2407.21783, section 3.3.2).
    """
    if pp > num_layers:
        raise PlanError(f"The pp of a plan must be at most the model's {num_layers} layers; got {pp}.")
    # interleaved plans that do not divide them occur in tables alone: chunks from all over the model, equal shares
    if num_layers % pp == 0 or vpp > 1:
        return (num_layers / pp,) * pp
    on_top = [0.0] * pp
    on_top[0] += embedding_layers
    on_top[-1] += head_layers
    return tuple(map(float, _spread(num_layers, [1] * pp, on_top)))


@functools.lru_cache(maxsize=4096)
def layers_by_cost(num_layers: int, pp: int, layer_cost: int, head_cost: int) -> Split:
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
    layers[rank], layers[-1] = 0, layers[rank]
    return tuple(layers)


# The split that options of Megatron, and of what follows it, state.


@dataclass(frozen=True)
class Chunks:
    """The dealing of layers to the chunks of the pipeline; ends that are not stated are None."""

    layout: str | None
    ends: tuple[int | None, int | None]  # layers of the first and the last stage
    inside: tuple[bool, bool]  # whether the embedding and the loss count as layers
    stages: int | None  # of a rank
    each: int | None  # layers of a stage

    def __call__(self, plan: Mapping[str, Any], layers: int) -> dict[str, Any]:
        """``vpp``, and ``stage_layers`` where the split is not Megatron's even one."""
        pp, stages = plan.get("pp") or 1, self.stages
        if self.layout is not None:
            split = [stage.count("t") for stage in _repeated(self.layout).split("|")]
            stages = stages or len(split) // pp
        else:
            stages = stages or (layers // pp // self.each if self.each else None)
            split = self._split(layers, pp, stages or 1) if pp > 1 else []
        vpp = {"vpp": stages if stages and stages > 1 else 1}
        return vpp | ({"stage_layers": ";".join(map(str, split))} if split else {})

    def _split(self, layers: int, pp: int, chunks: int) -> list[int]:
        if any(self.inside):
            numbers = [(layers + sum(self.inside)) // (pp * chunks)] * (pp * chunks)
            numbers[0] -= self.inside[0]
            numbers[-1] -= self.inside[1]
            return numbers
        first, last = self.ends
        stated = [end for end in self.ends if end is not None]
        if not any(stated):
            return []
        middle = (layers - sum(stated)) // max(pp - len(stated), 1)
        row = [middle if first is None else first, *[middle] * (pp - 2), middle if last is None else last]
        return [number // chunks for _ in range(chunks) for number in row]


def _repeated(layout: str) -> str:
    """``Et*3|(tt|)*2mL`` -> ``Ettt|tt|tt|mL``."""
    text = layout.replace(",", "").replace(" ", "").strip("'\"")
    text = re.sub(r"\(([^()]*)\)\*(\d{1,4})", lambda found: found[1] * int(found[2]), text)
    return re.sub(r"(\w)\*(\d{1,4})", lambda found: found[1] * int(found[2]), text)
