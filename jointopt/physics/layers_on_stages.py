"""Layers whose activations the ranks of a pipeline hold at once, and the few ranks that may need most memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.framework import CHUNKS_OF_SCHEDULE
from jointopt.physics.layouts import LayoutArrays, Split
from jointopt.physics.schedule import MOST_GROUPS, MOST_ROUNDS, alive_chunks, held_chunks


@dataclass(frozen=True)
class Held:
    """Layers of each kind whose activations the ranks hold, at the times at which each may hold most.

    ``group`` (L,): layouts of one split and number of micro-batches; ``layers``: (groups, times, 2, ranks).
    """

    group: Ints
    layers: Floats

    @classmethod
    def of(cls, lay: LayoutArrays) -> Held:
        """The layers held by all ranks of the layouts."""
        batches = np.minimum(lay.micro_batches, MOST_ROUNDS * lay.pp)
        keys, group = np.unique(lay.split.which << 32 | batches, return_inverse=True)
        found = [_layers_held(lay.split, int(lay.pp[0]), key >> 32, key & 0xFFFFFFFF) for key in keys.tolist()]
        times = np.arange(max(map(len, found)))
        return cls(group, np.stack([layers[np.minimum(times, len(layers) - 1)] for layers in found]))

    def of_ranks(self, ranks: Ints) -> Held:
        """The layers held by the ranks (groups, K) of each group."""
        return Held(self.group, np.take_along_axis(self.layers, ranks[:, None, None], axis=3))

    def most_bytes(self, dense: Floats, moe: Floats) -> Floats:
        """Most bytes alive at once on every rank, (L, ranks), of so many bytes per layer of each kind there."""
        held = np.zeros((len(self.group), self.layers.shape[3]))
        for count in self.layers.swapaxes(0, 1):
            at = count[self.group]
            np.maximum(held, dense * at[:, 0] + moe * at[:, 1], out=held)
        return held

    def heaviest_ranks(self, split: Split) -> Ints:
        """Ranks, (groups, K), of which one needs most memory; those of groups with fewer are filled up with rank 0.

        All but those that have the layers of the rank before them, neither embedding nor head, and hold no more at any
        time: what a rank needs grows with what it holds.
        """
        which = split.which[np.unique(self.group, return_index=True)[1]]
        own = np.stack([split.layers(kind)[which] for kind in ("dense", "moe")])
        less = (own[..., 1:] == own[..., :-1]).all(axis=0)
        less &= (self.layers[..., 1:] <= self.layers[..., :-1]).all(axis=(1, 2))
        less[:, :1] = less[:, -1:] = False
        order = np.argsort(np.pad(less, ((0, 0), (1, 0))), axis=1, kind="stable")
        kept = own.shape[2] - less.sum(axis=1)
        return np.where(np.arange(kept.max()) < kept[:, None], order[:, : kept.max()], 0)


def _layers_held(split: Split, pp: int, which: int, num_micro_batches: int) -> Floats:
    """`Held.layers` of one split and number of micro-batches, (times, 2, pp)."""
    kinds = split.dense[which], split.moe[which]
    alive = _alive(split.schedule[which], pp, kinds[0].shape[1], num_micro_batches)
    layers = np.stack([np.einsum("itc,ic->ti", alive, chunks) for chunks in kinds], axis=1)
    if not all(chunks.any() for chunks in kinds):  # of one kind alone most layers are most bytes
        layers = layers.max(axis=0, keepdims=True)
    return np.unique(layers, axis=0) if len(layers) > 1 else layers


def _alive(schedule: str, pp: int, vpp: int, num_micro_batches: int) -> Ints:
    """Micro-batches that each chunk of each rank holds, (pp, times, vpp)."""
    if CHUNKS_OF_SCHEDULE.get(schedule) == vpp:
        return held_chunks(schedule, pp, num_micro_batches)
    return alive_chunks(pp, vpp, min(num_micro_batches, MOST_GROUPS * pp))
