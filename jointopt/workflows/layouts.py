"""The best splits of a job's GPUs, on the front and behind it, each with its clocks condensed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from jointopt.core.schema import Bools, Columns, Floats, Ints
from jointopt.jobs.job import Job
from jointopt.physics.cost_model import CostModel
from jointopt.physics.explain.parts import time_parts
from jointopt.physics.makespan import least_makespan_s
from jointopt.physics.throughput import with_rates
from jointopt.report.layout_table import NEAR, Layout
from jointopt.report.tables import plan_entries
from jointopt.search.fastest import ranked
from jointopt.search.pareto import below_chord, concat, front_order, take
from jointopt.search.problem import Problem
from jointopt.surrogate.intervals import RESULTS

SHOWN = 8  # splits that a proposal keeps, and those of its front
RANKED = 96  # layouts whose splits are distinguished
CLOCKS = 16  # of the grid, that the curve of a layout beyond the front is looked for at
SPLIT = ("dp", "tp", "pp", "cp", "ep", "etp", "dp_replicate")  # columns that state how the GPUs are split


def best_layouts(
    job: Job, problem: Problem, physics: CostModel, fitting: Floats, answer: Columns, layout_index: Ints,
    known: Callable[[Columns], Columns],
) -> tuple[Layout, ...]:  # fmt: skip
    """The `SHOWN` fastest splits, and those of the front, by the time of their fastest plan.

    ``fitting`` (L,): the probability that each layout fits. ``answer``: the front's plans as they are shown,
    ``layout_index`` (n,) their layouts; ``known`` gives of others what is known beside their results. Of a split
    its best layout stands, on the front if one is; its plans are those of the front, or of one clock on every stage,
    with or without slack used.
    """
    order, time_s = ranked(problem, RANKED)
    order = np.concatenate([order, np.setdiff1d(layout_index, order)])
    cells = np.stack([physics.layouts[name][order] for name in SPLIT], axis=1)
    _, first, group = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    group = np.argsort(np.argsort(first))[group.reshape(-1)]  # numbered in the order of their best layouts
    of_front = _places(order, layout_index, group)
    ranks, layout = group[: len(time_s)], order[: len(time_s)] % problem.num_distinct  # whatever its power limit
    kept = np.union1d(np.arange(min(SHOWN, int(group.max()) + 1)), of_front)
    best = [_best(order, group, number, layout_index) for number in kept.tolist()]
    families = [problem.under_all_limits(layout) for layout in best]
    sweeps = _priced(problem, physics, fitting, np.concatenate(families))
    curves = _curves(job, sweeps, families, answer, layout_index, known)
    found = [
        Layout(
            rank=number + 1, plans=curves[row], time_s=time_parts_of(physics, best[row], curves[row][0]),
            on_front=int((of_front == number).sum()), near=_near(time_s, ranks == number, layout),
        )
        for row, number in enumerate(kept.tolist())
        if curves[row]
    ]  # fmt: skip
    # what the fastest plans really take differs a little from the bounds that splits are ranked by
    found.sort(key=lambda layout: float(layout.plans[0]["iteration_time_s"]))
    places = np.maximum.accumulate([place if place <= SHOWN else one.rank for place, one in enumerate(found, 1)])
    return tuple(replace(one, rank=int(place)) for place, one in zip(places, found, strict=True))


def _places(order: Ints, layouts: Ints, group: Ints) -> Ints:
    """The group of each of the layouts."""
    sorter = np.argsort(order)
    return group[sorter[np.searchsorted(order, layouts, sorter=sorter)]]


def _best(order: Ints, group: Ints, number: int, on_front: Ints) -> int:
    """The fastest layout of a split that is on the front, else its fastest."""
    own = order[group == number]
    return int(next((layout for layout in on_front.tolist() if layout in own), own[0]))


def _near(time_s: Floats, own: Bools, layout: Ints) -> int:
    """Number of layouts of the ``own`` rows (n,) within `NEAR` of the fastest, which is not counted itself."""
    times = time_s[own]
    return len(np.unique(layout[own][times <= (1.0 + NEAR) * times.min()])) - 1 if len(times) else 0


def _curves(
    job: Job, sweeps: tuple[Columns, Ints], families: list[Ints], answer: Columns, layout_index: Ints,
    known: Callable[[Columns], Columns],
) -> list[tuple[Mapping[str, Any], ...]]:  # fmt: skip
    """Of each layout under all its limits: the fastest plan, the knee, the least energy, if any is feasible."""
    priced, of = sweeps
    on_front, beyond, ends = [], [], []
    for family in families:
        own = take(answer, np.flatnonzero(np.isin(layout_index, family)))
        swept = np.flatnonzero(np.isin(of, family))
        count, rows = len(own["pp"]), _condensed(concat([own, take(priced, swept)]))
        on_front.append(_entries(job, take(own, rows[rows < count])))
        beyond.append(swept[rows[rows >= count] - count])
        ends.append(len(beyond[-1]))
    others = _entries(job, known(take(priced, np.concatenate(beyond))))
    parts = np.split(np.arange(len(others)), np.cumsum(ends)[:-1])
    return [
        tuple(sorted((*found, *(others[row] for row in part)), key=lambda one: one["iteration_time_s"]))
        for found, part in zip(on_front, parts, strict=True)
    ]


def _entries(job: Job, plans: Columns) -> list[dict[str, Any]]:
    return plan_entries(with_rates(job, plans)) if len(plans["pp"]) else []


def _priced(problem: Problem, physics: CostModel, fitting: Floats, layouts: Ints) -> tuple[Columns, Ints]:
    """(plans of layouts at `CLOCKS` clocks with and without slack, their layouts)."""
    clocks = np.unique(np.linspace(0, problem.num_clocks - 1, CLOCKS).round().astype(np.int64))
    shares = (0.0, 1.0) if problem.stage_clocks is not None else (0.0,)
    layout, clock, slack = (axis.reshape(-1) for axis in np.meshgrid(layouts, clocks, shares, indexing="ij"))
    stage_clocks = problem.decode_clocks(layout, clock, slack)
    values = physics.evaluate(layout, stage_clocks)
    feasible = np.flatnonzero(values["violation"] <= 0.0)
    plans: Columns = {name: values[layout] for name, values in physics.layouts.items()}
    plans |= {name: values[name] for name in RESULTS} | {
        "stage_clock_mhz": stage_clocks,
        "fit_probability": fitting[layout],
    }
    return take(plans, feasible), layout[feasible]


def _condensed(plans: Columns) -> Ints:
    """Of plans the fastest, the knee and the one of least energy, by time; the fastest where energy is not known."""
    time_s, energy_j = plans["iteration_time_s"], plans["energy_j"]
    if not np.isfinite(energy_j).all():
        return np.argsort(time_s, kind="stable")[:1]
    front = front_order(time_s, energy_j)
    if not len(front):
        return front
    knee = int(below_chord(time_s[front], energy_j[front]).argmax())
    return np.asarray(front[np.unique([0, knee, len(front) - 1])])


def time_parts_of(physics: CostModel, layout: int, plan: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of a plan by part, which add up to its time."""
    g, rows = int(physics.group_of[layout]), physics.row_of[[layout]]
    stretch = float(physics.time_factor[layout])
    # the schedule need not be walked through again: its length is what the rest of the known time leaves
    t = physics.times(g, rows, np.asarray(plan["stage_clock_mhz"])[None], least_makespan_s)
    total_s = np.array([float(plan["iteration_time_s"]) / stretch])
    t = replace(t, makespan_s=t.makespan_s + total_s - t.total_s, total_s=total_s)
    return {name: stretch * float(seconds[0]) for name, seconds in time_parts(physics.groups[g], rows, t).items()}
