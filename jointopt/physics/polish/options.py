"""Options of an instruction (time against energy over the clocks), choices among them, and windows of a schedule."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Bools, Floats, Ints
from jointopt.physics.polish.graph import BACKWARD, FORWARD, KINDS, Graph, ends_s, latest_ends_s, schedule_graph

_ROUNDING = 1e-12  # of a makespan


@dataclass(frozen=True)
class Options:
    """Clocks of one kind of instruction, (c,) each, fastest first: time rises strictly, energy falls strictly.

    Energy is beyond that of waiting for as long, so a constant and the makespan times the waiting power are left out.
    """

    clock_mhz: Floats
    duration_s: Floats
    energy_j: Floats

    def __len__(self) -> int:
        return len(self.clock_mhz)


def efficient(clock_mhz: Floats, duration_s: Floats, energy_j: Floats) -> Options:
    """The clocks that no other beats in both time and energy; of equal ones the lowest clock."""
    order = np.lexsort((clock_mhz, energy_j, duration_s))
    best = np.minimum.accumulate(energy_j[order])
    keep = order[np.concatenate(([True], best[1:] < best[:-1]))]
    return Options(clock_mhz[keep], duration_s[keep], energy_j[keep])


def convex(options: Options) -> Options:
    """The options on the lower convex hull of energy over time: all that a mix of clocks cannot beat."""
    kept: list[int] = []
    t, e = options.duration_s.tolist(), options.energy_j.tolist()
    for k in range(len(options)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            if (e[b] - e[a]) * (t[k] - t[a]) < (e[k] - e[a]) * (t[b] - t[a]):
                break
            kept.pop()
        kept.append(k)
    return Options(options.clock_mhz[kept], options.duration_s[kept], options.energy_j[kept])


@dataclass(frozen=True)
class Problem:
    """A schedule and the options of each kind of its instructions (`Graph.kind` numbers them)."""

    graph: Graph
    options: Sequence[Options]

    def durations_s(self, choice: Ints) -> Floats:
        """Seconds of each instruction, (N,), under a choice (N,) of its options."""
        return self._values(choice, "duration_s")

    def energy_j(self, choice: Ints) -> float:
        """Energy of all instructions beyond waiting, J, under a choice (N,)."""
        return float(self._values(choice, "energy_j").sum())

    def clocks_mhz(self, choice: Ints) -> Floats:
        """Clock of each instruction, (N,), under a choice (N,)."""
        return self._values(choice, "clock_mhz")

    def makespan_s(self, choice: Ints) -> float:
        """Seconds of the schedule under a choice (N,)."""
        return float(ends_s(self.graph, self.durations_s(choice)).max())

    def _values(self, choice: Ints, name: str) -> Floats:
        return np.asarray(self._tables[name][self.graph.kind, choice])

    @functools.cached_property
    def _last_option(self) -> Ints:
        return np.array([len(options) - 1 for options in self.options])[self.graph.kind]

    @functools.cached_property
    def _tables(self) -> dict[str, Floats]:
        width = max(map(len, self.options))

        def table(name: str) -> Floats:
            rows = (getattr(options, name) for options in self.options)
            return np.array([np.pad(row, (0, width - len(row)), mode="edge") for row in rows])

        return {name: table(name) for name in ("clock_mhz", "duration_s", "energy_j")}

    def fastest(self) -> Ints:
        """Every instruction at its least time, (N,)."""
        return np.zeros(len(self.graph), np.int64)

    def slowest(self) -> Ints:
        """Every instruction at its least energy, (N,)."""
        return self._last_option.copy()

    def within(self, duration_s: Floats) -> Ints:
        """The slowest option of each instruction that takes at most ``duration_s`` (N,); else its fastest."""
        choice = np.empty(len(self.graph), np.int64)
        for kind, options in enumerate(self.options):
            at = np.flatnonzero(self.graph.kind == kind)
            fits = np.searchsorted(options.duration_s, duration_s[at] * (1.0 + 1e-9), side="right") - 1
            choice[at] = np.maximum(fits, 0)
        return choice

    def at_clocks(self, rank_clock_mhz: Floats) -> Ints:
        """The option that a clock per rank (pp,) comes to: as fast as that clock allows, at no more energy."""
        of_kind = []
        for kind, options in enumerate(self.options):
            slower = np.flatnonzero(options.clock_mhz <= rank_clock_mhz[kind // KINDS] + 1e-6)
            of_kind.append(int(slower[0]) if len(slower) else len(options) - 1)
        return np.array(of_kind)[self.graph.kind]

    def spend_slack(self, choice: Ints, makespan_s: float) -> Ints:
        """The choice (N,) with every instruction slowed that delays nothing: none can be slowed further alone.

        The intrinsic energy bloat of Perseus (Chung et al., SOSP'24), removed greedily, one option per round and
        instruction. Never takes more than ``makespan_s`` nor more energy than the choice that it starts from.
        """
        chosen = choice.copy()
        while self._slowed(chosen, makespan_s * (1.0 + _ROUNDING)).any():
            pass
        return chosen

    def _slowed(self, chosen: Ints, makespan_s: float) -> Bools:
        """One round of `spend_slack`, in place; which instructions were slowed, (N,)."""
        graph = self.graph
        seconds = self.durations_s(chosen)
        following = self.durations_s(np.minimum(chosen + 1, self._last_option)).tolist()
        latest = latest_ends_s(graph, seconds, makespan_s).tolist()
        can = (chosen < self._last_option).tolist()
        ends = [0.0] * (len(graph) + 1)
        waits = zip(graph.previous.tolist(), graph.source.tolist(), seconds.tolist(), strict=True)
        for k, (a, b, own) in enumerate(waits):
            start = max(ends[a], ends[b])
            can[k] = can[k] and start + following[k] <= latest[k]
            ends[k] = start + (following[k] if can[k] else own)
        slowed = np.array(can)
        chosen += slowed
        return slowed


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

    Those between all take the forward and backward option of least energy with which each rank does a micro-batch, all
    its chunks, in ``pace_s``; ranks that cannot, run as fast as they can.
    """
    kept, middle = _origin(part.graph, whole.graph)
    steady = np.zeros(len(part.options), np.int64)
    for rank in range(part.graph.pp):
        steady[rank * KINDS : rank * KINDS + 2] = _cheapest_pair(part, rank, pace_s / part.graph.vpp)
    return np.where(middle, steady[whole.graph.kind], choice[kept])


@functools.lru_cache(maxsize=4)
def _origin(part: Graph, whole: Graph) -> tuple[Ints, Bools]:
    """For each instruction of the whole its likeness in the window, and whether it is of the middle, (N,)."""
    few, left_out = part.num_micro_batches, whole.num_micro_batches - part.num_micro_batches
    group = part.pp if part.vpp > 1 else 1
    head = few // 2 // group * group
    batch = whole.micro_batch
    same = np.maximum(np.where(batch < head, batch, batch - left_out), 0)
    position = {key: k for k, key in enumerate(_keys(part, part.micro_batch))}
    kept = np.array([position[key] for key in _keys(whole, same)])
    return kept, (batch >= head) & (batch < head + left_out)


def _keys(graph: Graph, micro_batch: Ints) -> list[tuple[int, ...]]:
    columns = (graph.rank, graph.backward, graph.chunk, micro_batch)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _cheapest_pair(part: Problem, rank: int, pace_s: float) -> Ints:
    """(forward, backward) option of a rank that together take at most ``pace_s`` at the least energy."""
    forward, backward = (part.options[rank * KINDS + kind] for kind in (FORWARD, BACKWARD))
    seconds: Floats = forward.duration_s[:, None] + backward.duration_s
    energy = np.where(seconds <= pace_s * (1.0 + 1e-9), forward.energy_j[:, None] + backward.energy_j, np.inf)
    if not np.isfinite(energy).any():
        return np.zeros(2, np.int64)
    return np.array(np.unravel_index(int(energy.argmin()), energy.shape))
