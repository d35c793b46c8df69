"""Least energy within a makespan as a linear programme: exact where a clock may be mixed with its neighbour."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from jointopt.core.errors import UsageError
from jointopt.core.schema import Floats, Ints
from jointopt.physics.polish.graph import Options, Problem, convex_options
from jointopt.physics.schedule import Graph

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
