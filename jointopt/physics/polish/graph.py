"""The instructions of one pipeline iteration, each a pass of one micro-batch through one chunk of a rank.

One starts when its rank's previous instruction and its input are ready: it has at most two predecessors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jointopt.core.schema import Bools, Floats, Ints
from jointopt.physics import clock_law
from jointopt.physics.cost_model import CostModel
from jointopt.physics.makespan import dp_exposed_s, makespan_s
from jointopt.physics.schedule import data_dependency, execution_order, schedule_order

FORWARD, BACKWARD, LAST = 0, 1, 2  # the last instruction of a rank is a backward pass and an optimizer step
KINDS = 3  # per rank


@dataclass(frozen=True, eq=False)
class Graph:
    """Instructions, (N,) each, in an order of execution: every one stands behind all that it waits for."""

    pp: int
    vpp: int
    num_micro_batches: int
    rank: Ints
    backward: Bools
    chunk: Ints
    micro_batch: Ints
    previous: Ints  # the rank's instruction before, -1 = none
    source: Ints  # the instruction that delivers the input, -1 = none or `previous`
    last: Bools  # the rank's last one

    @functools.cached_property
    def kind(self) -> Ints:
        """Row of `Options` of each instruction: instructions of one kind cost the same."""
        return np.asarray(self.rank * KINDS + np.where(self.last, LAST, self.backward.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.rank)

    def of_rank(self, rank: int) -> Ints:
        """Numbers of the rank's instructions in the order in which it runs them."""
        return np.flatnonzero(self.rank == rank)


@functools.lru_cache(maxsize=8)
def schedule_graph(pp: int, vpp: int, num_micro_batches: int) -> Graph:
    """The graph of 1F1B, or of interleaved 1F1B if vpp > 1; PlanError where there is no such schedule."""
    orders = [schedule_order(pp, vpp, num_micro_batches, rank) for rank in range(pp)]
    predecessor = data_dependency(pp, vpp)
    sequence = execution_order(orders, predecessor)
    number = {step: index for index, step in enumerate(sequence)}
    before = {(r, b): (r, a) for r, order in enumerate(orders) for a, b in itertools.pairwise(order)}
    previous = [number[before[step]] if step in before else -1 for step in sequence]
    sources = [predecessor(*step) for step in sequence]
    source = np.array([-1 if s is None else number[s] for s in sources])
    return Graph(
        pp, vpp, num_micro_batches, rank=np.array([rank for rank, _ in sequence]),
        backward=np.array([op.backward for _, op in sequence]),
        chunk=np.array([op.chunk for _, op in sequence]),
        micro_batch=np.array([op.micro_batch for _, op in sequence]), previous=np.array(previous),
        source=np.where(source == np.array(previous), -1, source),
        last=np.array([op == orders[rank][-1] for rank, op in sequence]),
    )  # fmt: skip


def ends_s(graph: Graph, duration_s: Floats) -> Floats:
    """End of each instruction, (N,) seconds, if it starts as soon as it can; the largest is the makespan."""
    ends = [0.0] * (len(graph) + 1)  # the place behind the last one, -1, stands for "waits for nothing"
    waits = zip(graph.previous.tolist(), graph.source.tolist(), duration_s.tolist(), strict=True)
    for k, (a, b, seconds) in enumerate(waits):
        ends[k] = max(ends[a], ends[b]) + seconds
    return np.array(ends[:-1])


def latest_ends_s(graph: Graph, duration_s: Floats, makespan_s: float) -> Floats:
    """Latest end of each instruction, (N,) seconds, so that the iteration ends at ``makespan_s``."""
    latest = [makespan_s] * (len(graph) + 1)
    previous, source, seconds = graph.previous.tolist(), graph.source.tolist(), duration_s.tolist()
    for k in range(len(graph) - 1, -1, -1):
        start = latest[k] - seconds[k]
        a, b = previous[k], source[k]
        latest[a] = min(latest[a], start)
        latest[b] = min(latest[b], start)
    return np.array(latest[:-1])


# One plan with a clock of its own for each forward and backward pass of a micro-batch.


@dataclass(frozen=True)
class InstructionCosts:
    """Time and energy of the passes of one layout at each of the clocks (c,), for every stage: (pp, c).

    Times are of one micro-batch through all chunks of the rank, with what else occupies it. Both are as
    `CostModel.corrected` has them, but for watts beside the power: they come on top like waiting. Energy is that of all
    GPUs of the stage beyond waiting, leakage included; waiting and what no clock changes come on top.
    """

    clock_mhz: Floats  # (c,)
    forward_s: Floats
    backward_s: Floats
    forward_j: Floats
    backward_j: Floats
    step_j: Floats  # of the optimizer step, at the clock that the last backward pass leaves behind


def instruction_costs(physics: CostModel, index: int, clock_mhz: Floats) -> InstructionCosts:
    """Time and energy of every stage's passes at the clocks (c,), by the formulas of `CostModel.times` and `power`."""
    g, row = int(physics.group_of[index]), int(physics.row_of[index])
    costs, k = physics.groups[g], physics.power
    depth, count = costs.depth, len(clock_mhz)
    everywhere = np.repeat(clock_mhz[:, None], depth, axis=1)
    t = physics.times(g, np.full(count, row), everywhere)
    forward_flops = costs.forward_flops[row]
    stretch = physics.top_mhz / t.clock_mhz
    collectives_s = costs.collective_sm_s[row] / 2.0  # as many forward as backward
    waiting_s = costs.waiting_sm_s[row] / 3.0  # for ranks with more tokens, backward twice as long as forward
    forward_rest_s = costs.forward_memory_s[row] + collectives_s
    backward_rest_s = costs.backward_memory_s[row] + collectives_s
    slower = physics.time_factor[index]
    gpus = slower * physics.power_factor[index] * costs.replicas[row]

    def joules(kernel_s: Floats, flops: Floats | float) -> Floats:
        """Energy of kernels on all GPUs of a stage that follows its clock, less the waiting that they displace."""
        parts = clock_law.energy_parts_j(k, t.clock_mhz, physics.top_mhz, kernel_s, kernel_s, flops, 0.0, 0.0)
        waiting_j = max(k.wait_w - k.static_w, 0.0) * kernel_s
        return np.asarray((parts["active"] + parts["compute"] - waiting_j) * gpus).T

    return InstructionCosts(
        clock_mhz=clock_mhz, forward_s=slower * t.forward_s.T, backward_s=slower * t.backward_s.T,
        forward_j=joules((costs.forward_sm_s[row] - waiting_s) * stretch + forward_rest_s, forward_flops),
        backward_j=joules(
            (costs.backward_sm_s[row] - 2.0 * waiting_s) * stretch + backward_rest_s, costs.flops[row] - forward_flops
        ),
        step_j=joules(np.broadcast_to(costs.optimizer_s[row], stretch.shape), 0.0),
    )  # fmt: skip


def beyond_schedule_s(physics: CostModel, index: int) -> Callable[[Floats, Floats], float]:
    """Seconds of the iteration beyond its schedule: gradients that do not hide, optimizer step, overhead.

    The function returned takes the time of the first forward and of the last backward pass of each stage, (pp,):
    gradients hide under the last backward pass, gathered weights under the first forward pass.
    """
    g, rows = int(physics.group_of[index]), physics.row_of[[index]]
    costs = physics.groups[g]
    profile, slower = physics.job.training.framework, float(physics.time_factor[index])
    fixed_s = float(costs.slowest_step_s[rows[0]]) + profile.iteration_overhead_s
    overlap = costs.dp_overlap(physics.job, rows)

    def seconds(first_forward_s: Floats, last_backward_s: Floats) -> float:
        passes = first_forward_s[None] / slower, last_backward_s[None] / slower
        exposed = dp_exposed_s(
            costs, rows, passes, makespan_s(costs.pipelines, rows, *passes), overlap, profile.ddp_window
        )
        return slower * (float(exposed[0]) + fixed_s)

    return seconds


# Options of an instruction (time against energy over the clocks), choices among them, and windows of a schedule.


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
