"""Pipelines of priced layouts: which of their ranks are alike, and how the chunks of a rank share its time."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.jobs.framework import V_SHAPED
from jointopt.physics.layouts import FIRST, LAST, Split


@dataclass(frozen=True)
class Pipelines:
    """All that the makespan of L layouts of one depth depends on beside the seconds of their ranks.

    Seconds of ranks are (n, pp), or (n, K) of the ranks that differ (`Split.differing_ranks`) where ``kind`` (L, pp)
    states which of these each rank is as.
    """

    depth: int
    split: Split
    units_s: Floats  # (L, 3, kinds + 2), as in `stage_costs.StageCosts`
    p2p_s: Floats  # (L,), as there
    num_micro_batches: Ints  # (L,)
    vpp: Ints  # (L,)
    schedule: Ints  # (L,), codes
    kind: Ints | None = None

    def of_all_ranks(self, seconds: Floats, rows: Ints) -> Floats:
        """Seconds of ranks of the layouts ``rows`` (n,) as those of all ranks, (n, pp)."""
        return seconds if self.kind is None else over_ranks(seconds, self.kind.take(rows, 0))

    def before_first(self, seconds: Floats, rows: Ints) -> Floats:
        """Sums of the seconds of all ranks before each rank; of ranks alike, before the first of them."""
        return self._before(seconds, rows, 0)

    def before_last(self, seconds: Floats, rows: Ints) -> Floats:
        """Sums of the seconds of all ranks before each rank; of ranks alike, before the last of them."""
        return self._before(seconds, rows, 1)

    def _before(self, seconds: Floats, rows: Ints, which: int) -> Floats:
        if self.kind is None:
            return np.asarray(np.cumsum(seconds, axis=1) - seconds)
        counts = self.split.ranks_before[which].take(self.split.which[rows], 0)
        return np.asarray(np.matmul(counts, seconds[:, :, None])[:, :, 0])

    def chunk_shares(self, rows: Ints, passes: int = 3) -> Floats:
        """Shares of a rank's seconds that its chunks take, (3, n, pp, vpp): forward, backward, weights of the latter.

        Of layouts with one vpp and schedule; at the top clock, by their layers, embedding and head. The third is the
        share of each chunk's backward pass. ``passes``: the first so many of them.
        """
        shares, kind = self._shares_of_kinds(rows, passes)
        return np.asarray(shares[:, np.arange(len(kind))[:, None], kind])

    def _shares_of_kinds(self, rows: Ints, passes: int) -> tuple[Floats, Ints]:
        """`chunk_shares` of the K ranks that differ, (passes, n, K, vpp); which of them each rank is as, (n, pp)."""
        numbers, place = np.unique(self.split.which[rows], return_inverse=True)
        ranks, kind = (of_splits[numbers] for of_splits in self.split.differing_ranks)
        kinds = [
            np.stack([chunks[number][of] for number, of in zip(numbers, ranks, strict=True)])[place]
            for chunks in self.split.kinds
        ]
        ends = FIRST if self.split.schedule[numbers[0]] in V_SHAPED else LAST
        units = self.units_s[rows, :passes].transpose(1, 2, 0)[..., None, None]
        work = functools.reduce(operator.add, (units[:, at] * layers for at, layers in enumerate(kinds)))
        work[:, :, FIRST, 0] += units[:, -2, :, 0, 0]
        work[:, :, ends, -1] += units[:, -1, :, 0, 0]
        whole, shares = work[:2].sum(axis=3, keepdims=True), np.full_like(work, 1.0 / work.shape[3])
        np.divide(work[:2], whole, out=shares[:2], where=whole > 0.0)
        if passes > 2:
            shares[2] = np.minimum(np.divide(work[2], work[1], out=np.zeros_like(work[2]), where=work[1] > 0.0), 1.0)
        return shares, kind[place, : self.depth]

    @functools.cached_property
    def first_shares(self) -> Floats:
        """Shares of a rank's seconds, forward and backward, that its first chunk takes, (2, L, pp), or (2, L, K)."""
        return self._shares(lambda shares: shares[..., 0], self.kind is not None)

    @functools.cached_property
    def largest_shares(self) -> Floats:
        """Shares of a rank's seconds, forward and backward, that its longest chunk takes, (2, L, pp)."""
        return self._shares(lambda shares: shares.max(axis=3), False)

    def _shares(self, of_chunks: Callable[[Floats], Floats], of_kinds: bool) -> Floats:
        width = self.split.differing_ranks[0].shape[1] if of_kinds else self.depth
        shares = np.empty((2, width, len(self.p2p_s))).transpose(0, 2, 1)  # a column in one piece, as of `of_rows`
        shares[:] = 1.0 / self.vpp[:, None]
        for number in np.flatnonzero(self.split.walked).tolist():
            rows = np.flatnonzero(self.split.which == number)
            found, kind = self._shares_of_kinds(rows, 2)
            of_each = of_chunks(found)
            shares[:, rows] = of_each if of_kinds else of_each[:, :, kind[0]]
        return shares


def of_rows(values: Floats, rows: Ints | slice) -> Floats:
    """Values (L, ...) of some of the layouts, (n, ...), of which a column lies in one piece if it did.

    Formulas on few columns, most of them with a value per layout beside, take a third of the time so.
    """
    if not values.flags.f_contiguous:
        return values[rows] if isinstance(rows, slice) else values.take(rows, 0)
    return np.asfortranarray(values[rows]) if isinstance(rows, slice) else values.T.take(rows, values.ndim - 1).T


def across_ranks(extreme: np.ufunc, seconds: Floats) -> Floats:
    """The largest or least of the seconds (n, pp) of each plan's ranks, (n,); ``extreme``: numpy.maximum or minimum.

    Transposed first: rank by rank over all plans it takes a quarter of the time of plan by plan over few ranks.
    """
    return np.asarray(extreme.reduce(np.ascontiguousarray(seconds.T)))


def over_ranks(values: Floats, kind: Ints) -> Floats:
    """Values (L, K) of the ranks that differ as those of every rank, (L, pp), which is as ``kind`` (L, pp) states."""
    return np.asarray(values.take(np.arange(len(values))[:, None] * values.shape[1] + kind))
