"""The answer of ``polish``: the schedules of one plan with a clock per pass, and the one chosen, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jointopt.core.facts import Assumption
from jointopt.core.schema import Columns, Floats
from jointopt.frameworks.zeus import Schedule, write_schedule
from jointopt.jobs.job import Job
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.physics.schedule import Graph
from jointopt.report import tables
from jointopt.report.plans import COMPARED, basis_lines, better_words, compared_lines, difference_column, short_clocks
from jointopt.report.tables import Block, Result, TextColumn, pick

_COARSE = 0.5  # of the shortest pass: the unit of time from which the answer is rough
_PERCENT = "+.2f"  # beside the plan
_SHORT_S = 0.05  # a pass below which the time that a change of clock takes is worth a word


@dataclass(frozen=True)
class PolishedPoint:
    """One schedule with a clock per instruction, priced by the physics: all GPUs, one iteration."""

    iteration_time_s: float
    energy_j: float
    clock_mhz: Floats  # (N,), of the instructions of `Polished.graph`


@dataclass(frozen=True, repr=False)
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
    # of the points, (points,) each: `surrogate.intervals.plan_differences` to the plan, where its clocks are known
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

    def blocks(self) -> Iterator[Block]:
        """The plan, its schedules by time beside it, the chosen one per stage, and how they were found."""
        graph, clocks, chosen = self.graph, short_clocks(self.plan["stage_clock_mhz"], 40), self.chosen
        chunks = f" of {graph.vpp} chunks" if graph.vpp > 1 else ""
        time, energy = (tables.result_text(name, getattr(self, name)) for name in OBJECTIVES)
        (slower,) = tables.percent_of([chosen.iteration_time_s], self.iteration_time_s, _PERCENT)
        yield (
            f"{self.job.name}: {graph.pp} stages{chunks}, {graph.num_micro_batches:,} micro-batches, {len(graph):,} "
            f"passes; with one clock per stage ({clocks} MHz) {time} and {energy} per iteration.",
            f"A clock per pass saves {100 * self.saving(chosen):z.2f} % of the energy at {slower} % iteration time.",
        )
        # differences of the plan from itself, then those of the points from it; empty where they are not known
        against = list(map(self.against, self.points))
        rows: list[dict[str, float]] = [dict.fromkeys(against[0], 0.0), *against]
        points = _points(self, rows)
        yield [points]
        yield [_stages(self)]
        legend = "= least energy within the slowdown that was allowed; Δ% is relative to one clock per stage."
        yield [legend, *compared_lines(rows, points), *_remarks(self)]
        yield [basis_lines(self.assumed, self.informed_by)]

    def write_zeus(self, path: Path) -> None:
        """Writes the schedule for Zeus; UsageError unless the name ends in ``.py``, as Zeus requires."""
        found = f"{self.chosen.iteration_time_s:.6g} s and {self.chosen.energy_j:.6g} J per iteration, all GPUs"
        write_schedule(self.schedule, path, f"jointopt polish: {self.job.name}, {found}")


def _points(found: Polished, rows: Sequence[Mapping[str, float]]) -> list[str]:
    """One line per schedule; none is beaten by another, nor by the plan, in both time and energy."""
    points, plan = found.points, [found] * len(found.points)
    columns = [
        TextColumn("", ["=" if point is found.chosen else "" for point in points]),
        *(tables.figure_column(column, points, getattr(found, column)) for column in COMPARED.values()),
        *(difference_column(name, points, plan, rows[1:], form=_PERCENT) for name in COMPARED),
        *([TextColumn("better\nt|E %", better_words(rows)[1:])] if found.against_plan else []),
        TextColumn("clocks\nMHz", _clock_ranges([p.clock_mhz for p in points])),
    ]
    return tables.lay_out(columns)


def _clock_ranges(clocks_mhz: Sequence[Floats]) -> list[str]:
    """Lowest and highest of each of several arrays of clocks."""
    return [tables.range_text(f"{clocks.min():.0f}", f"{clocks.max():.0f}") for clocks in clocks_mhz]


def _stages(found: Polished) -> list[str]:
    """The chosen schedule's clocks per stage: the plan's, then those of forward and backward passes."""
    graph, clock = found.graph, found.chosen.clock_mhz
    columns = [
        TextColumn("stage", [str(rank + 1) for rank in range(graph.pp)]),
        TextColumn("plan\nMHz", tables.format_values(found.plan["stage_clock_mhz"], ".0f")),
    ]
    for name, which in (("forward", ~graph.backward), ("backward", graph.backward)):
        of_rank = [clock[which & (graph.rank == rank)] for rank in range(graph.pp)]
        columns.append(TextColumn(f"{name}\nMHz", _clock_ranges(of_rank)))
        columns.append(TextColumn("mean", tables.format_values([clocks.mean() for clocks in of_rank], ".0f")))
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
