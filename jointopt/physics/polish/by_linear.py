"""Least energy within a makespan as a linear programme: exact where a clock may be mixed with its neighbour."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from jointopt.core.schema import Floats, Ints
from jointopt.physics.polish.graph import Graph
from jointopt.physics.polish.options import Options, Problem, convex

_BREAKS = 24  # options of a kind that the programme sees at most; the answer may take any


def least_energy(problem: Problem, makespan_s: float) -> tuple[Floats, float] | None:
    """(seconds of each instruction (N,), their energy in J) within ``makespan_s``; None where no clocks are that fast.

    Variables are the start of each instruction and how much of each piece of its convex time-energy curve it takes
    (derived here); a lower bound for clocks on the curve's corners. HiGHS takes 1.5 s for 8 ranks x 192 micro-batches.
    """
    graph = problem.graph
    curves = []
    for curve in map(convex, problem.options):
        at = np.unique(np.linspace(0, len(curve) - 1, _BREAKS).round().astype(int))
        curves.append(Options(curve.clock_mhz[at], curve.duration_s[at], curve.energy_j[at]))
    shortest = np.array([c.duration_s[0] for c in curves])[graph.kind]
    owner, room_s, slope_w = _pieces([curves[kind] for kind in graph.kind])
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
    fastest_j = float(np.array([c.energy_j[0] for c in curves])[graph.kind].sum())
    return shortest + longer_s, fastest_j + float(result.fun)


def _pieces(curves: Sequence[Options]) -> tuple[Ints, Floats, Floats]:
    """(instruction, length in s, slope in J/s) of every straight piece of every instruction's curve."""
    lengths = [np.diff(c.duration_s) for c in curves]
    owner = np.repeat(np.arange(len(curves)), [len(piece) for piece in lengths])
    rises = [np.diff(c.energy_j) for c in curves]
    room = np.concatenate(lengths)
    return owner, room, np.concatenate(rises) / room


def _precedence(graph: Graph, owner: Ints, shortest_s: Floats, makespan_s: float) -> tuple[coo_array, Floats]:
    """Rows "start + duration <= start of what waits", or <= the makespan for a rank's last instruction."""
    waits = [(before, k) for k, before in enumerate(graph.previous.tolist()) if before >= 0]
    waits += [(before, k) for k, before in enumerate(graph.source.tolist()) if before >= 0]
    first = np.array([a for a, _ in waits] + np.flatnonzero(graph.last).tolist())
    then = np.array([b for _, b in waits])
    n, rows = len(graph), np.arange(len(first))
    pieces_of = [np.flatnonzero(owner == k) for k in range(n)]
    piece_rows = np.repeat(rows, [len(pieces_of[k]) for k in first])
    pieces = np.concatenate([pieces_of[k] for k in first])
    row = np.concatenate((rows, rows[: len(then)], piece_rows))
    column = np.concatenate((first, then, n + pieces))
    value = np.concatenate((np.ones(len(first)), -np.ones(len(then)), np.ones(len(pieces))))
    right = np.where(rows < len(then), 0.0, makespan_s) - shortest_s[first]
    return coo_array((value, (row, column)), shape=(len(rows), n + len(owner))).tocsr(), right
