"""Layouts as float arrays, and how their layers lie on the stages."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from jointopt.core.schema import (
    LAYOUT_COLUMNS,
    MODULES,
    OFFLOAD,
    RECOMPUTE_CODES,
    SCHEDULE,
    STAGE_LAYERS,
    Bools,
    Columns,
    Floats,
    Ints,
)
from jointopt.jobs.defaults import completed
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE, V_SHAPED
from jointopt.jobs.job import Job, Training
from jointopt.jobs.model import Layer, Model, kinds_of
from jointopt.jobs.plans.stages import framework_split

FIRST, LAST = 0, 1  # where `Split.differing_ranks` has the first rank of a pipeline, and the last one of several


class LayoutArrays:
    """Layout columns as floats, and what every formula needs of them.

    Arrays (L, pp) are of all ranks, of layouts of one depth, or (L, K) of the ``ranks`` that `of_ranks` picked; the
    first is always rank 0.
    """

    ranks: Ints | None = None

    def __init__(self, job: Job, layouts: Columns) -> None:
        layouts = completed(job, layouts)
        self.job, self.layouts = job, layouts
        f = {k: v.astype(float) for k, v in layouts.items()}
        self.tp, self.cp, self.ep, self.dp, self.vpp = f["tp"], f["cp"], f["ep"], f["dp"], f["vpp"]
        self.sp = layouts["sequence_parallel"].astype(bool)
        profile = job.training.framework
        # one rank has nothing to shard, whatever a recorded run calls its stage
        zero = np.where(layouts["dp"] * layouts["cp"] > 1, layouts["zero_stage"], 0)
        # weights and gradients that stay whole for all micro-batches are sharded no further than ZeRO-1's
        kept = (layouts["pp"] > 1) & (zero > 1) & profile.gathers_once_with_pipeline
        self.zero = np.where(kept, 1, zero)
        self.pp = layouts["pp"].astype(np.int64)
        self.recompute = Recompute(layouts, job.model.num_layers)
        self.offloads_optimizer = layouts["offload"] == OFFLOAD.code("optimizer")
        self.offloads_activations = layouts["offload"] == OFFLOAD.code("activations")
        self.tokens = f["micro_batch_size"] * job.training.seq_length / self.cp
        batches = job.training.global_batch_size // (layouts["dp"] * layouts["micro_batch_size"])
        self.micro_batches = batches.astype(np.int64)
        # experts see the tokens of as many tensor ranks as cut them
        self.expert_tp = np.maximum(f["etp"], 1.0)
        spanned = self.dp * self.cp * (self.tp / self.expert_tp if profile.experts_span_tp else 1.0)
        self.expert_dp = np.maximum(spanned / self.ep, 1.0)  # ranks that hold the same experts
        self.gtp, self.egtp = f["gtp"], f["egtp"]
        self.gathers = bool(np.any(layouts["gtp"] * layouts["egtp"] > 1))  # whether any has weights to gather
        # ranks over which ZeRO shards one copy of a state
        self.shards = self.dp * self.cp / (f["dp_replicate"] * self.gtp)
        self.expert_shards = np.maximum(self.expert_dp / (f["dp_replicate"] * self.egtp), 1.0)
        self.token_share = self.expert_tp / self.tp
        self.sharded_tokens = np.where(self.sp, self.tokens / self.tp, self.tokens)
        # what `memory.Parameters.sharded` and `layers.adapters` need to know of a layout
        self.zero_shards = self.zero[:, None], self.shards[:, None], self.expert_shards[:, None]
        self.adapter_cuts = self.tokens, self.tp, self.token_share, self.expert_tp

    def of_ranks(self, ranks: Ints | None) -> LayoutArrays:
        """The same layouts, whose arrays (L, K) are of these ``ranks`` alone; None: of all ranks, (L, pp)."""
        part = copy.copy(self)
        part.ranks = ranks
        return part

    @functools.cached_property
    def expert_spread(self) -> Floats:
        """Standard deviation of an expert's tokens of a micro-batch over their mean, (L,)."""
        model = self.job.model
        tokens = self.tokens * self.token_share * self.ep * model.moe_router_topk / model.num_experts
        return expert_spread(model, self.job.training, tokens)

    @functools.cached_property
    def expert_load(self) -> Floats:
        """Tokens of the most loaded rank of an expert group over the mean, (L,)."""
        return most_loaded(self.job.model, self.ep, self.expert_spread)

    @functools.cached_property
    def kept_copies(self) -> Floats:
        """Routed copies per token that a rank keeps, (L,): the most loaded one where routing is stated to be uneven.

        What random logits leave differs by layer, and evens out over those that a rank keeps.
        """
        load = 1.0 if self.job.training.moe_routing == "forced" else self.expert_load
        return np.asarray(self.job.model.moe_router_topk * self.token_share * load)

    @functools.cached_property
    def split(self) -> Split:
        """The split of the layers over the ranks and their chunks."""
        return chunk_layers(self.job, self.layouts)

    @functools.cached_property
    def starts(self) -> Floats:
        """1 where a rank has the first chunk, with the embedding, else 0, (L, pp): the first rank."""
        return np.asarray(self._ranks == 0, float)

    @functools.cached_property
    def ends(self) -> Floats:
        """1 where a rank has the last chunk, with head and loss, else 0, (L, pp): the last rank, of a V the first."""
        first_has = np.array([schedule in V_SHAPED for schedule in self.split.schedule])[self.split.which]
        return np.asarray(self._ranks == np.where(first_has, 0, self.pp - 1)[:, None], float)

    @property
    def _ranks(self) -> Ints:
        return np.arange(self.pp[0])[None, :] if self.ranks is None else self.ranks

    @property
    def borders(self) -> Floats:
        """How many ends of the pipeline a rank is, 0 to 2, (L, pp): it has as many neighbours less."""
        return np.asarray(self.starts + (self._ranks == self.pp[:, None] - 1))

    @functools.cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The kinds of the model's layers, as `job_kinds`."""
        return job_kinds(self.job)

    @functools.cached_property
    def layers_of_kinds(self) -> list[Floats]:
        """Layers per rank of each of ``kinds``, (L, pp) each."""
        return [self.split.of_rank(chunks, self.ranks) for chunks in self.split.kinds]

    @functools.cached_property
    def layers(self) -> Floats:
        """Layers per rank, (L, pp)."""
        return functools.reduce(np.add, self.layers_of_kinds)

    @functools.cached_property
    def moe_layers(self) -> Floats:
        """How many of each rank's layers have experts, (L, pp)."""
        return self.weighed([float(kind.ffn == "experts") for kind in self.kinds])

    @property
    def dense_layers(self) -> Floats:
        """How many of each rank's layers have no experts, (L, pp)."""
        return self.layers - self.moe_layers

    def weighed(self, of_kinds: Sequence[Floats | float]) -> Floats:
        """Sum over a rank's layers of what each of ``kinds`` has, (L, pp); values broadcast with (L, pp)."""
        return np.asarray(sum(value * count for value, count in zip(of_kinds, self.layers_of_kinds, strict=True)))


def kv_heads_of_rank(model: Model, tp: Floats) -> Floats:
    """KV heads that a rank attends to: its share, or one of its own where tp exceeds them (Megatron Core 0.16)."""
    return np.asarray(np.maximum(model.num_query_groups, tp) / tp)


class Split:
    """Layers of every chunk of L layouts, by the few distinct splits among them.

    ``which`` (L,): the split of each layout. Per split: its schedule; ``kinds``: of each of `job_kinds` the layers of
    each chunk, (pp, vpp), per split. ``zero_bubble`` (splits,): pipelines with a zero-bubble schedule. ``irregular``
    (splits,): pipelines without a closed form of the makespan, since chunks differ or the schedule is a zero-bubble
    one.
    """

    def __init__(self, which: Ints, schedule: list[str], kinds: list[list[Floats]]) -> None:
        self.which, self.schedule, self.kinds = which, schedule, kinds
        uneven = [any((of_kind != of_kind[:, :1]).any() for of_kind in split) for split in zip(*kinds, strict=True)]
        own = np.array([name in CHUNKS_OF_SCHEDULE for name in schedule])
        piped = np.array([len(chunks) > 1 for chunks in kinds[0]])
        self.zero_bubble = own & piped
        self.irregular = (np.array(uneven) | own) & piped

    def of(self, rows: Ints | slice) -> Split:
        """The split of some of the layouts."""
        part = copy.copy(self)
        part.which = self.which[rows]
        return part

    def trimmed(self, rows: slice) -> Split:
        """As `of`, less the distinct splits that none of these layouts has."""
        numbers, which = np.unique(self.which[rows], return_inverse=True)
        if len(numbers) == len(self.schedule):
            return self.of(rows)
        part = copy.copy(self)
        part.differing_ranks = (self.differing_ranks[0][numbers], self.differing_ranks[1][numbers])
        part.ranks_before = self.ranks_before[:, numbers]
        part.which, at = which.reshape(-1), numbers.tolist()
        part.schedule = [self.schedule[number] for number in at]
        part.kinds = [[chunks[number] for number in at] for chunks in self.kinds]
        part.zero_bubble, part.irregular = self.zero_bubble[numbers], self.irregular[numbers]
        return part

    def of_rank(self, chunks: list[Floats], ranks: Ints | None = None) -> Floats:
        """Layers of one kind that each rank holds, (L, pp), or those of ``ranks`` (L, K)."""
        layers = layers_of_ranks(chunks)
        return np.asfortranarray(layers[self.which] if ranks is None else layers[self.which[:, None], ranks])

    @functools.cached_property
    def differing_ranks(self) -> tuple[Ints, Ints]:
        """(ranks (splits, K) of which no two cost the same chunk by chunk, the place there of each rank (splits, pp)).

        Rank 0 at `FIRST`, the last of several at `LAST`, then one for each distinct row of chunks; filled up with rank
        0.
        """
        firsts, kinds = [], []
        for number, chunks in enumerate(self.kinds[0]):
            rows = np.concatenate([of_kind[number] for of_kind in self.kinds], axis=1).tolist()
            names = [(FIRST,), *((LAST + 1, *row) for row in rows[1:-1]), (LAST,)][: len(chunks)]
            number_of = {name: at for at, name in enumerate(sorted(set(names)))}
            firsts.append(np.array([names.index(name) for name in number_of]))
            kinds.append(np.array([number_of[name] for name in names]))
        return _filled(firsts), _filled(kinds)

    @functools.cached_property
    def ranks_before(self) -> Floats:
        """Counts (2, splits, K, K): [0, s, k, j] of ranks alike to j before the first rank alike to k; [1] the last."""
        ranks, kind = self.differing_ranks
        out = np.zeros((2, *ranks.shape, ranks.shape[1]))
        for number, chunks in enumerate(self.kinds[0]):
            each = np.eye(ranks.shape[1])[kind[number, : len(chunks)]]
            before = np.cumsum(each, axis=0) - each
            for name, here in enumerate(each.T):
                if len(places := np.flatnonzero(here)):
                    out[:, number, name] = before[places[0]], before[places[-1]]
        return out


def layers_of_ranks(chunks: list[Floats]) -> Floats:
    """Layers of each rank, (splits, deepest pp), from ``chunks`` (pp, vpp) of each split."""
    return _filled([of_rank.sum(axis=1) for of_rank in chunks])


def _filled(rows: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Rows as one array, (rows, longest), zeros behind shorter ones."""
    out = np.zeros((len(rows), max(map(len, rows))), rows[0].dtype)
    for number, row in enumerate(rows):
        out[number, : len(row)] = row
    return out


def split_of(job: Job, pp: int, vpp: int, code: int) -> Sequence[float]:
    """Layers of every chunk in the order of the pipeline: as the ``code`` of a split states, else the framework's."""
    stated = STAGE_LAYERS.numbers(code)
    return stated if len(stated) == pp * vpp else framework_split(job, pp, vpp)


def chunk_layers(job: Job, layouts: Columns) -> Split:
    """The layers of every chunk as stated, else as the framework splits them (`stages.framework_split`).

    Chunk c of rank r is place c·pp + r of the pipeline, along a V place 2·pp - 1 - r for its second chunk. Layers that
    predict further tokens follow the last one: on the last chunk where a split does not count them. A chunk that ends
    within a layer has the part of it.
    """
    # a number for each depth, interleaving, schedule and split; models have at most 10,000 layers (14 bits)
    pp, vpp, schedule = (layouts[name].astype(np.int64) for name in ("pp", "vpp", "schedule"))
    keys, which = np.unique(pp << 49 | vpp << 35 | schedule << 27 | layouts["stage_layers"], return_inverse=True)
    model, schedules, every = job.model, list[str](), job_layers(job)
    kinds, counts = job_kinds(job), np.arange(len(every) + 1)
    # layers of each kind among the first 0, 1, 2, ...
    firsts = [np.cumsum([0.0, *(float(layer == kind) for layer in every)]) for kind in kinds]
    found: list[list[Floats]] = [[] for _ in kinds]
    for key in keys.tolist():
        depth, chunks_of_rank = key >> 49, key >> 35 & 0x3FFF
        schedules.append(SCHEDULE.text(key >> 27 & 0xFF))
        layers = np.array(split_of(job, depth, chunks_of_rank, key & 0x7FFFFFF), dtype=float)
        if layers.sum() == model.num_layers:  # multi-token-prediction layers follow the last one
            layers[-1] += model.mtp_num_layers
        ends = np.cumsum([0.0, *layers])
        for of_kind, first in zip(found, firsts, strict=True):
            held = layers if len(kinds) == 1 else np.round(np.diff(np.interp(ends, counts, first)), 9)
            chunks = held.reshape(chunks_of_rank, depth).T.copy()
            if schedules[-1] in V_SHAPED:
                chunks[:, 1] = chunks[::-1, 1]
            of_kind.append(chunks)
    return Split(which.reshape(-1), schedules, found)


def layout_pieces(layouts: Columns, cells: int, together: int) -> Iterator[tuple[Ints, Columns]]:
    """(rows, their columns): all layouts in one piece, sorted by depth, of at most ``together`` cells.

    Else as `by_depth`. Cells are layouts x deepest pp: formulas on few layouts cost as much as on many, but so do the
    cells that fill up shallow pipelines.
    """
    depth = layouts["pp"]
    if len(depth) * int(depth.max(initial=1)) > together:
        yield from by_depth(layouts, cells)
        return
    rows = np.argsort(depth, kind="stable")
    yield rows, {k: layouts[k][rows] for k in LAYOUT_COLUMNS if k in layouts}


def by_depth(layouts: Columns, cells: int, stages: int | None = None) -> Iterator[tuple[Ints, Columns]]:
    """(rows, their columns) of layouts of one depth at a time, about ``cells`` layouts x stages a piece.

    ``stages``: counted per layout, by default its depth.
    """
    for depth in np.unique(layouts["pp"]).tolist():
        rows, size = np.flatnonzero(layouts["pp"] == depth), max(cells // (stages or depth), 1)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            yield part, {k: layouts[k][part] for k in LAYOUT_COLUMNS if k in layouts}


# Recomputation as plans state it: bytes that modules drop, layers recomputed whole, collectives redone.


class Recompute:
    """Modules and layers that each of L layouts recomputes; all arrays are (L,)."""

    def __init__(self, layouts: Columns, num_layers: int) -> None:
        selective, self.full = (layouts["recompute"] == RECOMPUTE_CODES[name] for name in ("selective", "full"))
        self.modules = np.where(selective, layouts["recompute_modules"], 0)
        self.usual = selective & (self.modules == 0)  # what the framework calls selective
        self.chunk_layers = np.where(self.full, layouts["recompute_num_layers"], 0)
        self._vpp = layouts["vpp"]
        some = np.minimum(self.chunk_layers * layouts["vpp"] * layouts["pp"] / num_layers, 1.0)
        self.full_share = np.where(self.chunk_layers > 0, some, self.full.astype(float))  # of all layers

    def has(self, name: str) -> Bools:
        """A mask, (L,), true where a module is among those recomputed."""
        return np.asarray(self.modules & MODULES.bit(name) > 0)

    def full_layers(self, layers: Floats) -> Floats:
        """Layers of each stage that are recomputed whole, (L, pp); ``layers`` (pp,) or (L, pp).

        Megatron's "block" recomputes the first ``recompute_num_layers`` of each model chunk.
        """
        first = np.minimum((self.chunk_layers * self._vpp)[:, None], layers)
        every = np.where(self.full[:, None], layers, 0.0)
        return np.asarray(np.where(self.chunk_layers[:, None] > 0, first, every))

    def dispatches_again(self) -> Floats:
        """Share of a layer's forward all-to-alls that is redone, (L,)."""
        return np.asarray(np.maximum(self.full_share, self.has("moe")))


def input_bytes(training: Training) -> float:
    """Bytes per element of a linear layer's kept input: 1 in fp8, 9/16 in fp4 (a scale per 16), where TE keeps it so.

    Transformer Engine saves the quantized, columnwise copy of inputs for the weight gradient, with the scales that a
    stated recipe has (blockwise 4/128, mxfp8 1/32 of a byte per element); other stacks save bf16.
    """
    plain = 4.0 if training.dtype == "fp32" else 2.0
    if training.fp8_recipe is not None and training.framework.quantized_inputs:
        return training.fp8_recipe.operand_bytes
    quantized = {"fp8": 1.0, "fp4": 0.5625} if training.framework.quantized_inputs else {}
    return quantized.get(training.dtype, plain)


# How unevenly routers load experts, and the ranks and nodes that hold them: of the most loaded one over the mean.


@functools.lru_cache(maxsize=1024)
def expected_largest(count: int) -> float:
    """Expected largest of ``count`` draws of a standard normal, whose distribution is a power of the normal one."""
    x = np.linspace(-9.0, 9.0, 1801)
    below = np.array([NormalDist().cdf(at) for at in x.tolist()]) ** count
    return float(np.sum(0.5 * (x[1:] + x[:-1]) * np.diff(below)))


def expert_spread(model: Model, training: Training, tokens: Floats) -> Floats:
    """Standard deviation of an expert's tokens over their mean, (L,); ``tokens`` (L,): that mean.

    By what is stated of the most loaded expert (1 + MaxVio, arXiv:2408.15664), or, where balance is forced, what random
    logits leave: a token meets an expert with probability k/E, so that the count is binomial.
    """
    if training.moe_routing == "forced":
        share = model.moe_router_topk / model.num_experts
        return np.asarray(np.sqrt((1.0 - share) / np.maximum(tokens, 1.0)))
    return np.full(np.shape(tokens), (training.moe_load_imbalance - 1.0) / expected_largest(model.num_experts))


def most_loaded(model: Model, places: Floats, spread: Floats) -> Floats:
    """Tokens of the most loaded of ``places`` over the mean of all, (L,), where experts have that relative spread.

    A place holds E/places experts drawn without replacement from E whose tokens add up to a constant: the variance of
    their mean is spread²·(E - g)/((E - 1)·g), g of them (sampling from a finite population; derived here).
    """
    held = model.num_experts / places
    even = (model.num_experts - held) / (max(model.num_experts - 1, 1) * held)
    counts, back = np.unique(np.maximum(np.rint(places), 1.0), return_inverse=True)
    largest = np.array([expected_largest(int(count)) for count in counts.tolist()])[back]
    return np.asarray(np.minimum(1.0 + largest * spread * np.sqrt(even), np.maximum(places, 1.0)))


# How many keys a query meets in attention: all before it, or those of a sliding window.


_SKIPPING = ("flash2", "flash3")  # FlashAttention has windows since 2.3; other kernels work all scores out and mask
# queries that a block of flash kernels works on at once, for heads up to 128 wide (flash_fwd_launch_template.h)
BLOCK_QUERIES = 128
# keys that a query meets in the mean over a rank's, and the share of the queries whose window starts late, (L,): those
# whose window starts after the first token cost a second, partly masked block of keys beside the diagonal's
Span = tuple[Floats | float, Floats | float]


def windowed_span(seq_length: int, window: int, cp: Floats) -> Span:
    """The span, (L,), of a window of fewer tokens than the sequence on the slowest of ``cp`` context-parallel ranks.

    Query t meets min(t, window) keys, s·w - w²/2 pairs of the whole sequence. Of its 2·cp slices a rank has the r-th
    from both ends, as Megatron Core and Transformer Engine share causal work out; with windows those in the middle have
    most, which this is. Derived here; the token itself is left out as in s²/2.
    """
    half = seq_length / (2.0 * cp)
    ends = seq_length / 2.0 - half, seq_length / 2.0 + half
    first, last = (np.minimum(end, window) * (end - np.minimum(end, window) / 2.0) for end in ends)
    late = [np.maximum(end - window, 0.0) for end in ends]
    return (last - first) / (2.0 * half), (late[1] - late[0]) / (2.0 * half)


def seen_share(window: int, seq_length: int) -> float:
    """Share of a causal mask's pairs that a window leaves, 1 where it holds the sequence: (s·w - w²/2) over s²/2."""
    share = min(window / seq_length, 1.0)
    return share * (2.0 - share)


# The kinds of a job's layers: those of its model, windows that spare nothing left out.


def job_layers(job: Job) -> tuple[Layer, ...]:
    """The model's layers and those that predict further tokens, as they are priced.

    A window counts where it is shorter than the sequence and the kernel skips what lies outside. Layers that predict
    tokens are like the last one that sees all tokens (DeepSeek-V3, and Qwen3-Next after three of linear attention).
    """
    return _priced_layers(job.model, job.training.seq_length if job.training.attention in _SKIPPING else 0)


@functools.lru_cache(maxsize=256)
def _priced_layers(model: Model, longest: int) -> tuple[Layer, ...]:
    found = [layer if layer.window < longest else _unwindowed(layer) for layer in model.pattern]
    softmax = (one for one in reversed(found) if not one.window and one.parts == 2 and has_scores(one))
    last = next(softmax, _unwindowed(found[-1]))
    return (*found, *[last] * model.mtp_num_layers)


def has_scores(layer: Layer) -> bool:
    """Whether its attention has scores: a softmax over tokens."""
    return any("scores" in kinds_of("attention")[kind] for kind in layer.mixers)


def has_latents(layer: Layer) -> bool:
    """Whether its keys and values are made of latents."""
    return layer.attention in ("mla", "sparse")


def _unwindowed(layer: Layer) -> Layer:
    attention = "full" if layer.attention in ("sliding", "chunked") else layer.attention
    return Layer(attention, layer.ffn)


def job_kinds(job: Job) -> tuple[Layer, ...]:
    """The distinct layers of a job: whole ones before those with windows, dense ones before those with experts."""
    return _kinds(job_layers(job))


@functools.lru_cache(maxsize=256)
def _kinds(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    order = {kind: (kind.window > 0, kind.ffn == "experts", at) for at, kind in enumerate(dict.fromkeys(layers))}
    return tuple(sorted(order, key=lambda kind: order[kind]))
