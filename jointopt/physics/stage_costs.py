"""Costs of layouts before any clock is chosen: the data that `costs` fills, and what makespan and energy read of it.

Arrays are (layouts, pp) unless stated, or (layouts, K) of the ranks that differ: of ranks that cost the same one is
kept, and ``kind`` says which. Times are in seconds of one micro-batch at the maximum clock.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from jointopt.core.schema import Columns, Floats, Ints
from jointopt.core.units import PICO
from jointopt.jobs.cluster import PowerConstants
from jointopt.jobs.framework import V_SHAPED, overlap_share
from jointopt.jobs.job import Job
from jointopt.physics.layouts import FIRST, LAST, Split

# Pipelines of priced layouts: which of their ranks are alike, and how the chunks of a rank share its time.


@dataclass(frozen=True)
class Pipelines:
    """What the makespan of L layouts of one depth depends on, the seconds of their ranks aside.

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
        """Seconds (n, K) of the ranks that differ, of layouts ``rows`` (n,), copied to all ranks, (n, pp)."""
        return seconds if self.kind is None else over_ranks(seconds, self.kind.take(rows, 0))

    def before(self, seconds: Floats, rows: Ints, of_alike: int) -> Floats:
        """Sums of ``seconds`` over the ranks before each rank, (n, pp) or (n, K).

        ``of_alike``: whether a rank that stands for several is the `FIRST` or the `LAST` of them.
        """
        if self.kind is None:
            return np.asarray(np.cumsum(seconds, axis=1) - seconds)
        counts = self.split.ranks_before[of_alike].take(self.split.which[rows], 0)
        return np.asarray(np.matmul(counts, seconds[:, :, None])[:, :, 0])

    def chunk_shares(self, rows: Ints, passes: int = 3) -> Floats:
        """Shares of a rank's seconds that its chunks take, (passes, n, pp, vpp): of forward, and of backward.

        Of layouts with one vpp and schedule; at the top clock, by their layers, embedding and head. The third of three
        ``passes`` is the share of each chunk's backward pass that is gradients of weights.
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
        for number in np.flatnonzero(self.split.irregular).tolist():
            rows = np.flatnonzero(self.split.which == number)
            found, kind = self._shares_of_kinds(rows, 2)
            of_each = of_chunks(found)
            shares[:, rows] = of_each if of_kinds else of_each[:, :, kind[0]]
        return shares


def of_rows(values: Floats, rows: Ints | slice) -> Floats:
    """``values`` (L, ...) at ``rows``, (n, ...), column-major where they were.

    On few columns, formulas take a third of the time so.
    """
    if not values.flags.f_contiguous:
        return values[rows] if isinstance(rows, slice) else values.take(rows, 0)
    return np.asfortranarray(values[rows]) if isinstance(rows, slice) else values.T.take(rows, values.ndim - 1).T


def across_ranks(extreme: np.ufunc, seconds: Floats) -> Floats:
    """Largest or least over the ranks of ``seconds`` (n, pp), (n,); ``extreme``: numpy.maximum or minimum.

    Transposed first, which takes a quarter of the time.
    """
    return np.asarray(extreme.reduce(np.ascontiguousarray(seconds.T)))


def over_ranks(values: Floats, kind: Ints) -> Floats:
    """Values (L, K) of the ranks that differ, copied to every rank, (L, pp); ``kind`` (L, pp): the K that each is."""
    return np.asarray(values.take(np.arange(len(values))[:, None] * values.shape[1] + kind))


# Costs of layouts by rank.


@dataclass(frozen=True)
class StageCosts:
    """Clock-independent costs of layouts with one pipeline depth; of any until `by_depth` has them apart."""

    layouts: Columns  # layout columns, length L; zero_stage as it acts, see `LayoutArrays.zero`
    layers: Floats  # (L, pp)
    split: Split  # the same by chunk
    # (L, 3, kinds + 2) forward, backward, of it gradients of weights: a layer of each kind, the embedding, the head
    units_s: Floats
    num_micro_batches: Ints  # (L,)
    replicas: Ints  # (L,) GPUs per stage
    forward_sm_s: Floats
    forward_memory_s: Floats
    forward_comm_s: Floats  # exposed tp, cp and ep collectives
    backward_sm_s: Floats
    backward_memory_s: Floats
    backward_comm_s: Floats
    host_s: Floats  # (L, pp) floor of forward plus backward
    p2p_s: Floats  # (L,) one boundary crossing; paid on every receive
    gather_s: Floats  # ZeRO-3 weight gathers of one pass of one micro-batch, before overlap
    reduce_s: Floats  # gradient and parameter traffic once per iteration, before overlap
    optimizer_s: Floats
    flops: Floats  # of one micro-batch, forward and backward, weighted by the energy of the precision
    forward_flops: Floats  # of them those forward
    hbm_bytes: Floats  # of one micro-batch
    link_j: Floats  # communication energy of one micro-batch on one rank, the sum of ``link_parts_j``
    iteration_link_j: Floats  # of the gradient traffic, once
    iteration_hbm_bytes: Floats  # of the optimizer step
    slowest_step_s: Floats  # (L,) optimizer step of the slowest stage
    comm_parts_s: dict[str, Floats]  # tp_comm, cp_comm, ep_comm: forward plus backward, exposed
    link_parts_j: dict[str, Floats]  # those, pp_comm and zero_comm
    collective_sm_s: Floats  # exposed tp, cp and ep collectives as seconds of kernels that fill the GPU
    waiting_sm_s: Floats  # of both passes' ``_sm_s``, those of a rank with more tokens, for which a mean one waits
    # (L, pp): which of the K ranks that differ each rank is as, and (L, K): these ranks; None: all ranks are here
    kind: Ints | None = None
    ranks: Ints | None = None

    @property
    def depth(self) -> int:
        """Ranks of a pipeline, pp."""
        return int((self.layers if self.kind is None else self.kind).shape[1])

    @classmethod
    def stacked(cls, jobs: Sequence[StageCosts]) -> tuple[StageCosts, Ints]:
        """(Costs of the same L layouts for several jobs, sorted by depth; which is which, (jobs x L,)).

        Position l + j L of the latter is layout l of job j.
        """
        pp = jobs[0].layouts["pp"]
        order = np.argsort(np.tile(pp, len(jobs)), kind="stable")
        found: dict[str, Any] = {}
        for one in fields(cls):
            held = [getattr(costs, one.name) for costs in jobs]
            if isinstance(held[0], dict):
                found[one.name] = {part: np.concatenate([of[part] for of in held])[order] for part in held[0]}
            elif one.name == "split":
                found[one.name] = held[0].of(order % len(pp))
            else:
                found[one.name] = of_rows(np.concatenate(held), order)
        return cls(**found), order

    def by_depth(self) -> Iterator[tuple[slice, StageCosts]]:
        """(rows, costs) of the layouts of each depth; layouts are sorted by depth."""
        pp = self.layouts["pp"]
        ends = [0, *(np.flatnonzero(np.diff(pp)) + 1).tolist(), len(pp)]
        if len(ends) == 2:
            yield slice(0, len(pp)), self
            return
        for rows in map(slice, ends[:-1], ends[1:]):
            found: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
            for name, held in found.items():
                if isinstance(held, dict):
                    found[name] = {part: values[rows] for part, values in held.items()}
                else:
                    found[name] = held.trimmed(rows) if name == "split" else of_rows(held, rows)
            depth = int(pp[rows.start])
            found["kind"] = found["kind"][:, :depth]
            yield rows, StageCosts(**found)

    def of_all_ranks(self) -> StageCosts:
        """The same costs of every rank, (L, pp)."""
        if self.kind is None:
            return self
        at = np.arange(len(self.kind))[:, None] * self.layers.shape[1] + self.kind
        every: dict[str, Any] = {name: getattr(self, name).take(at) for name in OF_RANKS}
        for name in ("comm_parts_s", "link_parts_j"):
            every[name] = {part: values.take(at) for part, values in getattr(self, name).items()}
        return replace(self, **every, kind=None, ranks=None)

    def dp_overlap(self, job: Job, rows: Ints) -> Floats | float:
        """The share of gradient and ZeRO traffic that may hide: one of all layouts, or of each of the rows, (n, 1)."""
        if not self.chooses_overlap:  # queried thousands of times in a search
            return job.training.framework.dp_overlap
        return np.asarray(overlap_share(job.training.framework, "dp", self.layouts["overlap"]))[rows, None]

    @functools.cached_property
    def chooses_overlap(self) -> bool:
        """Whether any layout states what overlaps."""
        return bool(self.layouts["overlap"].any())

    @functools.cached_property
    def present(self) -> frozenset[str]:
        """Which of host_s, gather_s and reduce_s any stage of any layout has."""
        return frozenset(name for name in ("host_s", "gather_s", "reduce_s") if getattr(self, name).any())

    @functools.cached_property
    def pipelines(self) -> Pipelines:
        """The part of them that their makespan reads."""
        vpp, schedule = self.layouts["vpp"], self.layouts["schedule"]
        of_all = self.depth, self.split, self.units_s, self.p2p_s, self.num_micro_batches, vpp, schedule
        return Pipelines(*of_all, self.kind)


OF_RANKS = (
    "layers", "forward_sm_s", "forward_memory_s", "forward_comm_s", "backward_sm_s", "backward_memory_s",
    "backward_comm_s", "host_s", "gather_s", "reduce_s", "optimizer_s", "flops", "forward_flops", "hbm_bytes", "link_j",
    "iteration_link_j", "iteration_hbm_bytes", "collective_sm_s", "waiting_sm_s",
)  # fmt: skip


@dataclass(frozen=True)
class PricedGroup:
    """Layouts of one depth: costs of the ranks that differ, and the clocks in MHz that these reach, (L, K)."""

    costs: StageCosts
    ceiling_mhz: Floats

    @functools.cached_property
    def of_all_ranks(self) -> StageCosts:
        """The costs of every rank, (L, pp)."""
        return self.costs.of_all_ranks()

    @functools.cached_property
    def ceiling_of_all_ranks(self) -> Floats:
        """The clocks in MHz that every rank reaches, (L, pp)."""
        return self.ceiling_mhz if self.costs.kind is None else over_ranks(self.ceiling_mhz, self.costs.kind)


def with_pauses(costs: StageCosts, duty: Floats) -> StageCosts:
    """Costs with kernels that take ``duty`` (L, pp) times as long, 1 or more, as a power limit pauses them."""
    if not np.any(duty > 1.0):
        return costs
    names = ("forward_sm_s", "forward_memory_s", "backward_sm_s", "backward_memory_s")
    longer: dict[str, Any] = {name: getattr(costs, name) * duty for name in names}
    return replace(costs, **longer)


def passes_s(costs: StageCosts, job: Job, rows: Ints, stretch: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Seconds (n, pp) of one micro-batch of layouts ``rows``: forward, backward, of them ZeRO-3 gathers, and kernels.

    ``stretch`` (n, pp): the top clock over that of each stage. Gathers: what no compute hides, (1, 1) where
    there are none.
    """
    forward_kernel = of_rows(costs.forward_sm_s, rows) * stretch
    forward_kernel += of_rows(costs.forward_memory_s, rows)
    backward_kernel = of_rows(costs.backward_sm_s, rows) * stretch
    backward_kernel += of_rows(costs.backward_memory_s, rows)
    forward = forward_kernel + of_rows(costs.forward_comm_s, rows)
    backward = backward_kernel + of_rows(costs.backward_comm_s, rows)
    if "host_s" in costs.present:
        host = of_rows(costs.host_s, rows)
        waits = job.model.is_moe and job.training.framework.host_waits
        forward = beside_host_s(forward, host / 3.0, waits)
        backward = beside_host_s(backward, host * (2.0 / 3.0), waits)
    left = np.zeros((1, 1))
    if "gather_s" in costs.present:
        gather = of_rows(costs.gather_s, rows)
        hidden = costs.dp_overlap(job, rows) * gather
        left_forward = gather - np.minimum(hidden, forward)
        left_backward = gather - np.minimum(hidden, backward)
        forward += left_forward
        backward += left_backward
        left = left_forward + left_backward
    p2p = costs.p2p_s[rows, None]
    forward += p2p
    backward += p2p
    kernel = np.add(forward_kernel, backward_kernel, out=forward_kernel)
    return forward, backward, left, kernel


def beside_host_s(work_s: Floats, host_s: Floats, waits: bool) -> Floats:
    """Seconds of passes whose kernels and collectives take ``work_s`` and whose launches take the host ``host_s``.

    The longer of them, as the host runs ahead. Where it ``waits`` for the number of tokens of each expert in every
    layer, by turns it holds up kernels and they hold up it: the cubic sum, whose power is that of published runs of
    Qwen3-30B-A3B with 1, 4 and 8 sequences a micro-batch (8.8 ms a layer at most of the host, 10 to 22 of kernels).
    """
    return np.asarray(np.cbrt(work_s**3 + host_s**3) if waits else np.maximum(work_s, host_s))


def energy_terms(costs: StageCosts, k: PowerConstants) -> dict[str, Floats]:
    """Energy of an iteration of L layouts by how it follows the clock, so that a plan costs few operations.

    `clock_law.energy_parts_j` summed: ``clocked_j`` (L, pp) at the top clock, follows V²; ``active_j`` (L, pp) at the
    top clock, follows f·V²; ``fixed_j`` (L,) of all stages, whatever the clock; ``sm_s`` (L, pp) busy at the top clock,
    follows 1/f; ``other_s`` (L,) busy whatever the clock, of all stages. SM-bound time times f is constant.
    """
    batches = costs.num_micro_batches[:, None]
    sm = costs.forward_sm_s + costs.backward_sm_s - costs.waiting_sm_s
    memory = costs.forward_memory_s + costs.backward_memory_s
    hbm = batches * costs.hbm_bytes + costs.iteration_hbm_bytes
    link = batches * costs.link_j + costs.iteration_link_j
    steady = batches * (memory + costs.collective_sm_s) + costs.optimizer_s
    return {
        "clocked_j": batches * (k.pj_per_flop * PICO * costs.flops + k.active_w * sm),
        "active_j": k.active_w * steady,
        "fixed_j": (k.pj_per_hbm_byte * PICO * hbm + link).sum(axis=1),
        "sm_s": batches * sm,
        "other_s": steady.sum(axis=1),
    }


def summed(parts: Iterable[Floats]) -> Floats:
    """The sum of the parts, element by element."""
    return np.asarray(functools.reduce(np.add, parts))
