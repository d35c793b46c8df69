"""The answer of ``polish``: the schedules of one plan with a clock per pass, and the one chosen, stage by stage.

The file for Zeus is that of the schedulers `PointSolution` and `PointSolution3D` of zeus 0.16.0 (``zeus/optimizer/
pipeline_frequency/server/scheduler.py``): ``*.py``, read with ``eval``, a list with one entry per rank (3D: pipeline
rank). An entry is a list of (instruction, MHz as an integer) for one iteration in the order of execution; the client
raises an error where ``on_instruction_begin(name)`` differs. The integration guide (https://ml.energy/zeus/optimize/
pipeline_frequency_optimizer/) names the instructions ``forward`` and ``backward``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jointopt.core.atomic_write import check_file, write_whole
from jointopt.core.errors import UsageError
from jointopt.core.facts import Assumption
from jointopt.core.quote import comment, python_text, sh_word
from jointopt.core.schema import Columns, Floats
from jointopt.jobs.job import Job
from jointopt.physics.schedule import Graph
from jointopt.report import tables
from jointopt.report.plans import COMPARED, basis_lines, better_words, compared_lines, half_difference, short_clocks
from jointopt.report.tables import Result, TextColumn, pick

Schedule = list[list[tuple[str, int]]]  # (instruction, clock in MHz) per pipeline rank in its order of execution
_COARSE = 0.5  # of the shortest pass: the unit of time from which the answer is rough
_PERCENT = "+.2f"  # beside the plan
_SHORT_S = 0.05  # a pass below which the time that a change of clock takes is worth a word


@dataclass(frozen=True)
class PolishedPoint:
    """One schedule with a clock per instruction, priced by the physics: all GPUs, one iteration."""

    iteration_time_s: float
    energy_j: float
    clock_mhz: Floats  # (N,), of the instructions of `Polished.graph`


@dataclass(frozen=True)
class Polished(Result):
    """A plan under a clock for each forward and backward pass of a micro-batch, beside the plan as it was given."""

    rows = "points"
    job: Job
    plan: Mapping[str, Any]  # plan columns; stage_clock_mhz is a list of floats
    iteration_time_s: float  # of the plan with its stage clocks
    energy_j: float
    slowdown: float  # that was allowed
    solver: str  # lowtime | linear
    unit_s: float | None  # of time, that lowtime counted in
    shortest_pass_s: float  # the shortest forward or backward pass at the fastest clock
    solved_micro_batches: int  # for fewer than the plan's, the ones in the middle share their clocks
    graph: Graph
    points: tuple[PolishedPoint, ...]  # by time; none is beaten in both time and energy
    chosen: PolishedPoint  # least energy within the slowdown
    seconds: float  # that it took
    assumed: tuple[Assumption, ...] = ()  # what no source states, and what stands in
    informed_by: Mapping[str, int] = field(default_factory=dict)  # measured runs that corrected it, by place
    # of the points, (points,) each: `surrogate.differences.against` the plan with its stage clocks, where it is known
    against_plan: Columns = field(default_factory=dict)

    def saving(self, point: PolishedPoint) -> float:
        """Share of the plan's energy that the point saves."""
        return 1.0 - point.energy_j / self.energy_j

    def against(self, point: PolishedPoint) -> dict[str, float]:
        """How a point differs from the plan, with intervals and the probabilities that it is faster and leaner."""
        at = next(i for i, one in enumerate(self.points) if one is point)
        return {name: float(values[at]) for name, values in self.against_plan.items()}

    @property
    def schedule(self) -> Schedule:
        """The chosen schedule: one list of (instruction, clock in MHz) per pipeline rank, in order of execution."""
        names = ("forward", "backward")
        graph, clock = self.graph, self.chosen.clock_mhz
        return [
            [(names[int(graph.backward[k])], round(float(clock[k]))) for k in graph.of_rank(rank)]
            for rank in range(graph.pp)
        ]

    def document(self) -> dict[str, Any]:
        """The plan, its schedules, and the clocks of the chosen one in order of execution."""
        keys = (
            "job=job.name plan iteration_time_s energy_j slowdown solver unit_s solved_micro_batches seconds "
            "informed_by num_micro_batches=graph.num_micro_batches assumed"
        )

        def entry(point: PolishedPoint) -> dict[str, Any]:
            lowest, highest = point.clock_mhz.min(), point.clock_mhz.max()
            results = pick(point, "iteration_time_s energy_j") | {"energy_saved": self.saving(point)}
            results |= self.against(point)
            return results | {"lowest_clock_mhz": lowest, "highest_clock_mhz": highest}

        chosen = entry(self.chosen) | {"stages": self.schedule}
        return pick(self, keys) | {"points": list(map(entry, self.points)), "chosen": chosen}

    def text(self) -> str:
        """The plan, its schedules by time beside it, the chosen one per stage, and how they were found."""
        graph, clocks = self.graph, short_clocks(self.plan["stage_clock_mhz"], 40)
        chunks = f" of {graph.vpp} chunks" if graph.vpp > 1 else ""
        time, energy = (tables.result(name, getattr(self, name)) for name in ("iteration_time_s", "energy_j"))
        (slower,) = tables.percent_of([self.chosen.iteration_time_s], self.iteration_time_s, _PERCENT)
        saved = f"{100 * self.saving(self.chosen):z.2f} % of the energy at {slower} % iteration time"
        title = [
            f"{self.job.name}: {graph.pp} stages{chunks}, {graph.num_micro_batches:,} micro-batches, {len(graph):,} "
            f"passes; with one clock per stage ({clocks} MHz) {time} and {energy} per iteration.",
            f"A clock per pass saves {saved}.",
        ]
        points = _points(self)
        legend = ["= least energy within the slowdown that was allowed; Δ% is relative to one clock per stage."]
        remarks = tables.paragraphs([*legend, *compared_lines(_rows(self), points), *_remarks(self)])
        return tables.blocks_text(
            tables.paragraphs(title), points, _stages(self), remarks, basis_lines(self.assumed, self.informed_by)
        )

    def write_zeus(self, path: Path) -> None:
        """Writes the schedule for `PointSolution3D`; UsageError unless the name ends in ``.py``, as Zeus requires."""
        check_zeus_path(path)
        found = f"{self.chosen.iteration_time_s:.6g} s and {self.chosen.energy_j:.6g} J per iteration, all GPUs"
        rows = [f"{python_text(row)},\n" for row in self.schedule]
        write_whole(path, "".join(["[\n", *rows, "]\n", f"# jointopt polish: {comment(self.job.name)}, {found}\n"]))


def check_zeus_path(path: Path) -> None:
    """UsageError unless the name ends in ``.py``; the OSError that would keep it from being written."""
    if path.suffix != ".py":
        raise UsageError(f"--zeus must name a file that ends in .py, as Zeus requires; got {str(path)!r}.")
    check_file(path)


def zeus_command(path: Path) -> str:
    """The command that starts Zeus' server with the schedule; every rank of a stage then gets the stage's entry."""
    arguments = sh_word(json.dumps({"solution_path": str(path)}))
    return (
        f"ZEUS_PFO_SCHEDULER=PointSolution3D ZEUS_PFO_SCHEDULER_ARGS={arguments} "
        f"uvicorn zeus.optimizer.pipeline_frequency.server.router:app --port 7787"
    )


def _points(found: Polished) -> list[str]:
    """One line per schedule; none is beaten by another, nor by the plan, in both time and energy."""
    points, rows = found.points, _rows(found)
    columns = [
        TextColumn("", ["=" if point is found.chosen else "" for point in points]),
        *(tables.of(column, points, getattr(found, column)) for column in COMPARED.values()),
        *(_difference(name, found, rows) for name in COMPARED),
        *([TextColumn("better\nt|E %", better_words(rows)[1:])] if found.against_plan else []),
        TextColumn("clocks\nMHz", _ranges([p.clock_mhz for p in points])),
    ]
    return tables.lay_out(columns)


def _rows(found: Polished) -> list[dict[str, float]]:
    """Differences of the plan from itself, then those of the points from it; empty where they are not known."""
    points = [found.against(point) for point in found.points]
    return [dict.fromkeys(points[0], 0.0), *points]


def _difference(name: str, found: Polished, rows: Sequence[Mapping[str, float]]) -> TextColumn:
    """The column of time or energy of the points against the plan, with half of its interval where it is known."""
    column = COMPARED[name]
    percent = tables.percent_of((getattr(p, column) for p in found.points), getattr(found, column), _PERCENT)
    halves = [half_difference(row, name) for row in rows[1:]]
    return TextColumn(f"{name}\nΔ%", tables.plus_minus(percent, halves))


def _ranges(clocks_mhz: Sequence[Floats]) -> list[str]:
    return [tables.span(f"{clocks.min():.0f}", f"{clocks.max():.0f}") for clocks in clocks_mhz]


def _stages(found: Polished) -> list[str]:
    """The chosen schedule's clocks per stage: the plan's, then those of forward and backward passes."""
    graph, clock = found.graph, found.chosen.clock_mhz
    columns = [
        TextColumn("stage", [str(rank + 1) for rank in range(graph.pp)]),
        TextColumn("plan\nMHz", tables.fixed(found.plan["stage_clock_mhz"], ".0f")),
    ]
    for name, which in (("forward", ~graph.backward), ("backward", graph.backward)):
        of_rank = [clock[which & (graph.rank == rank)] for rank in range(graph.pp)]
        columns.append(TextColumn(f"{name}\nMHz", _ranges(of_rank)))
        columns.append(TextColumn("mean", tables.fixed([clocks.mean() for clocks in of_rank], ".0f")))
    return tables.lay_out(columns)


def _remarks(found: Polished) -> list[str]:
    """Sentences on how the schedules were found, and what a user should know before running one."""
    all_batches, few, unit_s = found.graph.num_micro_batches, found.solved_micro_batches, found.unit_s
    shortest_ms = 1e3 * found.shortest_pass_s
    how = f"Solved in {found.seconds:.1f} s with {found.solver}"
    how += f" in units of {1e3 * unit_s:.3g} ms (shortest pass: {shortest_ms:.3g} ms)" if unit_s else ""
    if few < all_batches:
        how += f" for the first and last of {few} micro-batches; the {all_batches - few:,} between run at one pace"
    out = [f"{how}. Time and energy are those of the whole iteration, priced pass by pass."]
    if unit_s is not None and unit_s > _COARSE * found.shortest_pass_s:
        out.append("That unit is coarse: --solver linear is exact, or give lowtime more --seconds.")
    if found.shortest_pass_s < _SHORT_S:
        out.append(
            f"The shortest pass takes {shortest_ms:.3g} ms; the time that a GPU needs to change its clock "
            "(arXiv:2502.20075) is left out: measure before you rely on these figures."
        )
    return out
