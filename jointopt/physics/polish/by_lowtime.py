"""The time-energy frontier of a schedule by the `lowtime` package (version 0.3), the one file that calls it."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jointopt.core.errors import UsageError
from jointopt.core.schema import Floats
from jointopt.physics.polish.graph import Graph
from jointopt.physics.polish.options import Options, Problem, convex

_SCALE = 10.0  # of the dearest unit: lowtime takes 1e4 for infinite and 1e-6 for nothing
_FLAT = 1e-3  # a last unit that saves less than this share of the dearest one is left out


def need_lowtime() -> None:
    """UsageError with the command that installs lowtime, where it is missing."""
    if importlib.util.find_spec("lowtime") is None:
        raise UsageError(
            "Polishing with lowtime needs the package lowtime, which is not installed here: "
            "pip install 'jointopt[polish]' (or lowtime), or choose --solver linear, which needs nothing more."
        )


def shortened(problem: Problem, unit_s: float) -> Iterator[Floats]:
    """Seconds of each instruction, (N,), from the slowest schedule of least energy down, ``unit_s`` at a time.

    The Phillips-Dessouky algorithm, as Perseus (Chung et al., SOSP'24) uses it: a minimum cut over the critical
    instructions per unit of time; exact for convex curves, but for the time that it rounds to units.
    """
    from lowtime.operation import Operation
    from lowtime.solver import PhillipsDessouky

    logging.getLogger("lowtime").setLevel(logging.WARNING)
    curves = [convex(options) for options in problem.options]
    dearest = max(_dearest_unit_j(curve, unit_s) for curve in curves)
    if not dearest:  # no clock changes anything
        yield problem.durations_s(problem.slowest())
        return
    specs = [_spec(curve, unit_s, _SCALE / dearest) for curve in curves]
    operations: list[Any] = [Operation(spec=specs[kind]) for kind in problem.graph.kind]
    shortest = np.array([curve.duration_s[0] for curve in curves])[problem.graph.kind]
    least = np.array([operation.min_duration for operation in operations])

    def seconds() -> Floats:
        units = np.array([operation.duration for operation in operations]) - least
        return np.asarray(shortest + units * unit_s)

    yield seconds()
    for _ in PhillipsDessouky(_activity_graph(problem.graph, operations)).run():
        yield seconds()


def _units(curve: Options, unit_s: float) -> Floats:
    """Energy of a curve after 0, 1, 2, ... units more than its shortest time."""
    count = int(np.ceil((curve.duration_s[-1] - curve.duration_s[0]) / unit_s - 1e-9))
    after_s = curve.duration_s[0] + unit_s * np.arange(count + 1)
    return np.asarray(np.interp(after_s, curve.duration_s, curve.energy_j))


def _dearest_unit_j(curve: Options, unit_s: float) -> float:
    return float(-np.diff(_units(curve, unit_s), append=curve.energy_j[-1]).min(initial=0.0))


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


def _activity_graph(graph: Graph, operations: Sequence[Any]) -> Any:
    """The schedule as lowtime's graph of operations, with its source and sink."""
    import networkx
    from lowtime.graph_utils import add_sink_node, add_source_node

    out: Any = networkx.DiGraph(source_node="source", sink_node="sink")
    out.add_nodes_from((k, {"op": operation}) for k, operation in enumerate(operations))
    for before in (graph.previous, graph.source):
        out.add_edges_from((a, k) for k, a in enumerate(before.tolist()) if a >= 0)
    add_source_node(out, "source")
    add_sink_node(out, "sink")
    return out
