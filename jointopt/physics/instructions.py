"""A clock per instruction of a pipeline: a pass of one micro-batch through one chunk of a rank.

One starts when its rank's previous instruction and its input are ready: it has at most two predecessors. First the
schedule as a graph and what a clock costs there, then solvers of least energy.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from jointopt.core.errors import UsageError
from jointopt.core.schema import Bools, Floats, Ints
from jointopt.physics import clock_law
from jointopt.physics.cost_model import CostModel
from jointopt.physics.makespan import dp_exposed_s, makespan_s
from jointopt.physics.schedule import Graph, ends_s, schedule_graph

FORWARD, BACKWARD, LAST = 0, 1, 2  # the last instruction of a rank is a backward pass and an optimizer step
KINDS = 3  # per rank


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
    """Time and energy of the passes of one layout, (pp, c): of every stage at each of c clocks.

    Times are of one micro-batch through all chunks of the rank, with what else occupies it. Energy is of all GPUs of
    the stage, leakage included, beyond what they would draw waiting; what no clock changes is left out. Both are
    corrected as by `CostModel.corrected`, but for its offset of the power, which counts as waiting.
    """

    clock_mhz: Floats  # (c,)
    forward_s: Floats
    backward_s: Floats
    forward_j: Floats
    backward_j: Floats
    step_j: Floats  # of the optimizer step, at the clock that the last backward pass leaves behind


def instruction_costs(physics: CostModel, index: int, clock_mhz: Floats, slower: float) -> InstructionCosts:
    """Time and energy of every stage's passes at the clocks (c,), as `CostModel.times` and `clock_law`.

    ``slower``: `stretch_of_plan` of the plan whose clocks are moved.
    """
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


def stretch_of_plan(physics: CostModel, index: int, stage_clock_mhz: Floats) -> float:
    """Corrected over predicted time of layout row ``index`` with its stages at these clocks (pp,)."""
    t = physics.times(int(physics.group_of[index]), physics.row_of[[index]], stage_clock_mhz[None])
    return float(physics.stretch(np.array([index]), t.total_s)[0])


def beyond_schedule_s(physics: CostModel, index: int, slower: float) -> Callable[[Floats, Floats], float]:
    """Seconds of the iteration beyond its schedule: gradients that do not hide, optimizer step, overhead.

    The function returned takes the time of the first forward and of the last backward pass of each stage, (pp,):
    gradients hide under the last backward pass, gathered weights under the first forward pass. ``slower``: as for
    `instruction_costs`.
    """
    g, rows = int(physics.group_of[index]), physics.row_of[[index]]
    costs = physics.groups[g]
    profile = physics.job.training.framework
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


def efficient_options(clock_mhz: Floats, duration_s: Floats, energy_j: Floats) -> Options:
    """The clocks that no other beats in both time and energy; of equal ones the lowest clock."""
    order = np.lexsort((clock_mhz, energy_j, duration_s))
    best = np.minimum.accumulate(energy_j[order])
    keep = order[np.concatenate(([True], best[1:] < best[:-1]))]
    return Options(clock_mhz[keep], duration_s[keep], energy_j[keep])


def convex_options(options: Options) -> Options:
    """The options on the lower convex hull of energy over time, which no mix of two clocks beats."""
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
    """A schedule and the options of each kind of its instructions; a choice (N,) is one of them per instruction."""

    graph: Graph
    options: Sequence[Options]  # by `kind`

    @functools.cached_property
    def kind(self) -> Ints:
        """Row of the options of each instruction, (N,): instructions of one kind cost the same."""
        graph = self.graph
        return np.asarray(graph.rank * KINDS + np.where(graph.last, LAST, graph.backward.astype(np.int64)))

    def durations_s(self, choice: Ints) -> Floats:
        """Seconds of each instruction, (N,), under a choice."""
        return np.asarray(self._tables["duration_s"][self.kind, choice])

    def energy_j(self, choice: Ints) -> float:
        """Energy of all instructions beyond waiting, J, under a choice."""
        return float(self._tables["energy_j"][self.kind, choice].sum())

    def clocks_mhz(self, choice: Ints) -> Floats:
        """Clock of each instruction, (N,), under a choice."""
        return np.asarray(self._tables["clock_mhz"][self.kind, choice])

    def makespan_s(self, choice: Ints) -> float:
        """Seconds of the schedule under a choice."""
        return float(ends_s(self.graph, self.durations_s(choice)).max())

    @functools.cached_property
    def _tables(self) -> dict[str, Floats]:
        """Options as columns, (kinds, most options), the last of a kind again behind it."""
        width = max(map(len, self.options))
        rows = [[np.pad(row, (0, width - len(row)), mode="edge") for row in vars(one).values()] for one in self.options]
        return dict(zip(vars(self.options[0]), np.array(rows).swapaxes(0, 1), strict=True))

    def fastest(self) -> Ints:
        """Every instruction at its least time, (N,)."""
        return np.zeros(len(self.graph), np.int64)

    def slowest(self) -> Ints:
        """Every instruction at its least energy, (N,)."""
        return np.array([len(options) - 1 for options in self.options])[self.kind]

    def within(self, duration_s: Floats) -> Ints:
        """The slowest option of each instruction that takes at most ``duration_s`` (N,); else its fastest."""
        choice = np.empty(len(self.graph), np.int64)
        for kind, options in enumerate(self.options):
            at = np.flatnonzero(self.kind == kind)
            fits = np.searchsorted(options.duration_s, duration_s[at] * (1.0 + 1e-9), side="right") - 1
            choice[at] = np.maximum(fits, 0)
        return choice

    def at_clocks(self, rank_clock_mhz: Floats) -> Ints:
        """The option that a clock per rank (pp,) comes to: as fast as that clock allows, at no more energy."""
        of_kind = []
        for kind, options in enumerate(self.options):
            slower = np.flatnonzero(options.clock_mhz <= rank_clock_mhz[kind // KINDS] + 1e-6)
            of_kind.append(int(slower[0]) if len(slower) else len(options) - 1)
        return np.array(of_kind)[self.kind]

    def spend_slack(self, choice: Ints, makespan_s: float) -> Ints:
        """The choice (N,) with instructions slowed until none can be slowed alone without delaying the end.

        The intrinsic energy bloat of Perseus (Chung et al., SOSP'24), removed greedily, one option per round and
        instruction. Never takes more than ``makespan_s`` nor more energy than the choice that it starts from.
        """
        graph, chosen, slowest = self.graph, choice.copy(), self.slowest()
        previous, source, slowed = graph.previous.tolist(), graph.source.tolist(), [True]
        while any(slowed):
            seconds, slowed = self.durations_s(chosen), (chosen < slowest).tolist()
            following = self.durations_s(np.minimum(chosen + 1, slowest)).tolist()
            latest = latest_ends_s(graph, seconds, makespan_s * (1.0 + _ROUNDING)).tolist()
            ends = [0.0] * (len(graph) + 1)
            for k, (a, b, own) in enumerate(zip(previous, source, seconds.tolist(), strict=True)):
                start = max(ends[a], ends[b])
                slowed[k] = slowed[k] and start + following[k] <= latest[k]
                ends[k] = start + (following[k] if slowed[k] else own)
            chosen += np.array(slowed)
        return chosen


def windowed_problem(problem: Problem, most: int) -> Problem:
    """The same ranks with as many of the micro-batches as ``most`` instructions allow, but no fewer than ranks."""
    graph = problem.graph
    group = graph.pp if graph.vpp > 1 else 1
    size = max(most // (2 * graph.pp * graph.vpp), graph.pp) // group * group
    if size >= graph.num_micro_batches:
        return problem
    return Problem(schedule_graph(graph.pp, graph.vpp, size), problem.options)


def extend_choice(part: Problem, choice: Ints, whole: Problem, pace_s: float) -> Ints:
    """A choice (N,) for the problem ``whole``, from one for ``part``, its `windowed_problem`.

    First and last micro-batches keep their options. All between take the pair of forward and backward options of least
    energy with which their rank does a micro-batch, all its chunks, in ``pace_s``; without such a pair the fastest.
    """
    kept, middle = _origin(part.graph, whole.graph)
    steady, most_s = np.zeros(len(part.options), np.int64), pace_s / part.graph.vpp * (1.0 + 1e-9)
    for first in range(0, len(part.options), KINDS):
        forward, backward = part.options[first + FORWARD], part.options[first + BACKWARD]
        seconds: Floats = forward.duration_s[:, None] + backward.duration_s
        energy = np.where(seconds <= most_s, forward.energy_j[:, None] + backward.energy_j, np.inf)
        if np.isfinite(energy).any():
            steady[first : first + 2] = np.unravel_index(int(energy.argmin()), energy.shape)
    return np.where(middle, steady[whole.kind], choice[kept])


@functools.lru_cache(maxsize=4)
def _origin(part: Graph, whole: Graph) -> tuple[Ints, Bools]:
    """(instruction of ``part`` that stands for each of ``whole``, whether that is left out of ``part``), (N,) each."""
    few, left_out = part.num_micro_batches, whole.num_micro_batches - part.num_micro_batches
    group = part.pp if part.vpp > 1 else 1
    head = few // 2 // group * group
    batch = whole.micro_batch
    same = np.maximum(np.where(batch < head, batch, batch - left_out), 0)
    keys = [
        zip(*(c.tolist() for c in (graph.rank, graph.kind, graph.chunk, of_batch)), strict=True)
        for graph, of_batch in ((part, part.micro_batch), (whole, same))
    ]
    position = {key: k for k, key in enumerate(keys[0])}
    kept = np.array([position[key] for key in keys[1]])
    return kept, (batch >= head) & (batch < head + left_out)


# Least energy within a makespan as a linear programme: exact where a clock may be mixed with its neighbour.


_BREAKS = 24  # options of a kind that the programme sees at most; the answer may take any


def least_energy(problem: Problem, makespan_s: float) -> tuple[Floats, float] | None:
    """(seconds of each instruction (N,), their energy in J) within ``makespan_s``; None where no clocks are that fast.

    Variables are the start of each instruction and how much of each piece of its convex time-energy curve it takes
    (derived here); a lower bound for clocks on the curve's corners. HiGHS takes 1.5 s for 8 ranks x 192 micro-batches.
    """
    graph, kind = problem.graph, problem.kind
    curves = []
    for curve in map(convex_options, problem.options):
        at = np.unique(np.linspace(0, len(curve) - 1, _BREAKS).round().astype(int))
        curves.append(Options(curve.clock_mhz[at], curve.duration_s[at], curve.energy_j[at]))
    shortest = np.array([c.duration_s[0] for c in curves])[kind]
    # the straight pieces of every instruction's curve: whose each is, its length in s and its slope in J/s
    lengths = [np.diff(curves[k].duration_s) for k in kind]
    owner, room_s = np.repeat(np.arange(len(graph)), list(map(len, lengths))), np.concatenate(lengths)
    slope_w = np.concatenate([np.diff(curves[k].energy_j) for k in kind]) / room_s
    n = len(graph)
    limits, right = _precedence(graph, owner, shortest, makespan_s)
    result = linprog(
        np.concatenate((np.zeros(n), slope_w)),
        A_ub=limits,
        b_ub=right,
        bounds=np.column_stack((np.zeros(n + len(owner)), np.concatenate((np.full(n, np.inf), room_s)))),
        method="highs",
    )
    if result.x is None:
        return None
    longer_s = np.bincount(owner, weights=result.x[n:], minlength=n)
    fastest_j = float(np.array([c.energy_j[0] for c in curves])[kind].sum())
    return shortest + longer_s, fastest_j + float(result.fun)


def _precedence(graph: Graph, owner: Ints, shortest_s: Floats, makespan_s: float) -> tuple[coo_array, Floats]:
    """Rows "start + duration <= start of what waits", or <= the makespan for a rank's last instruction."""
    before = np.concatenate((graph.previous, graph.source))
    then = np.tile(np.arange(len(graph)), 2)[before >= 0]
    first = np.concatenate((before[before >= 0], np.flatnonzero(graph.last)))
    n, rows = len(graph), np.arange(len(first))
    pieces_of = [np.flatnonzero(owner == k) for k in range(n)]
    piece_rows = np.repeat(rows, [len(pieces_of[k]) for k in first])
    pieces = np.concatenate([pieces_of[k] for k in first])
    row = np.concatenate((rows, rows[: len(then)], piece_rows))
    column = np.concatenate((first, then, n + pieces))
    value = np.concatenate((np.ones(len(first)), -np.ones(len(then)), np.ones(len(pieces))))
    right = np.where(rows < len(then), 0.0, makespan_s) - shortest_s[first]
    return coo_array((value, (row, column)), shape=(len(rows), n + len(owner))).tocsr(), right


# The time-energy frontier of a schedule by the `lowtime` package (version 0.3), the one file that calls it.


_SCALE = 10.0  # of the dearest unit: lowtime takes 1e4 for infinite and 1e-6 for nothing
_FLAT = 1e-3  # a last unit that saves less than this share of the dearest one is left out


def need_lowtime() -> None:
    """UsageError with the command that installs lowtime, where it is missing."""
    if importlib.util.find_spec("lowtime") is None:
        raise UsageError(
            "Polishing with lowtime needs the package lowtime, which is not installed here: "
            "pip install 'jointopt[polish]' (or lowtime), or choose --solver linear, which needs nothing more."
        )


def lowtime_schedules(problem: Problem, unit_s: float) -> Iterator[Floats]:
    """Seconds of each instruction, (N,), of ever faster schedules, the least-energy one first, ``unit_s`` apart.

    The Phillips-Dessouky algorithm, as Perseus (Chung et al., SOSP'24) uses it: a minimum cut over the critical
    instructions per unit of time; exact for convex curves, but for the time that it rounds to units.
    """
    import networkx
    from lowtime.graph_utils import add_sink_node, add_source_node
    from lowtime.operation import Operation
    from lowtime.solver import PhillipsDessouky

    logging.getLogger("lowtime").setLevel(logging.WARNING)
    curves, graph = [convex_options(options) for options in problem.options], problem.graph
    dearest = max(float(-np.diff(_units(c, unit_s), append=c.energy_j[-1]).min(initial=0.0)) for c in curves)
    if not dearest:  # no clock changes anything
        yield problem.durations_s(problem.slowest())
        return
    specs = [_spec(curve, unit_s, _SCALE / dearest) for curve in curves]
    operations: list[Any] = [Operation(spec=specs[kind]) for kind in problem.kind]
    shortest = np.array([curve.duration_s[0] for curve in curves])[problem.kind]
    least = np.array([operation.min_duration for operation in operations])

    def seconds() -> Floats:
        units = np.array([operation.duration for operation in operations]) - least
        return np.asarray(shortest + units * unit_s)

    activities: Any = networkx.DiGraph(source_node="source", sink_node="sink")
    activities.add_nodes_from((k, {"op": operation}) for k, operation in enumerate(operations))
    for before in (graph.previous, graph.source):
        activities.add_edges_from((a, k) for k, a in enumerate(before.tolist()) if a >= 0)
    add_source_node(activities, "source")
    add_sink_node(activities, "sink")
    yield seconds()
    for _ in PhillipsDessouky(activities).run():
        yield seconds()


def _units(curve: Options, unit_s: float) -> Floats:
    """Energy of a curve after 0, 1, 2, ... units more than its shortest time."""
    count = int(np.ceil((curve.duration_s[-1] - curve.duration_s[0]) / unit_s - 1e-9))
    after_s = curve.duration_s[0] + unit_s * np.arange(count + 1)
    return np.asarray(np.interp(after_s, curve.duration_s, curve.energy_j))


def _spec(curve: Options, unit_s: float, scale: float) -> Any:
    """The curve in units of time: as many as the shortest time has, rounded, and from there one by one."""
    from lowtime.cost_model import CostModel
    from lowtime.operation import CandidateExecutionOptions, ExecutionOption, OperationSpec

    energy = _units(curve, unit_s) * scale
    while len(energy) > 1 and energy[-2] - energy[-1] < _FLAT * _SCALE:
        energy = energy[:-1]
    first = max(1, round(curve.duration_s[0] / unit_s))
    cost = {first + k: float(value) for k, value in enumerate(energy)}

    class Curve(CostModel):
        def __call__(self, quant_time: int) -> float:
            return cost[quant_time]

    options = [ExecutionOption(float(k), 1.0, value, k) for k, value in cost.items()]  # in units: all are whole
    return OperationSpec(CandidateExecutionOptions(options), Curve())
