"""The answer of ``polish``: the schedules of one plan with a clock per pass, and the one chosen, stage by stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jointopt.core.schema import Floats
from jointopt.physics.polish.graph import Graph
from jointopt.report import table
from jointopt.report.assumed import assumptions, informed_lines
from jointopt.report.clocks import short_clocks
from jointopt.report.documents import POLISH, Result
from jointopt.report.table import TextColumn
from jointopt.spec.job import Job

Schedule = list[
    list[tuple[str, int]]
]  # (instruction, clock in MHz) per pipeline rank in its order of execution
_COARSE = 0.5  # of the shortest pass: the unit of time from which the answer is rough
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

    keys = POLISH
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
    assumed: tuple[object, ...] = ()  # as in `Proposal`
    informed_by: Mapping[str, int] = field(default_factory=dict)  # measured runs that corrected it, by place

    def saving(self, point: PolishedPoint) -> float:
        """Share of the plan's energy that the point saves."""
        return 1.0 - point.energy_j / self.energy_j

    @property
    def schedule(self) -> Schedule:
        """The chosen schedule: one list of (instruction, clock in MHz) per pipeline rank, in order of execution."""
        names = ("forward", "backward")
        graph, clock = self.graph, self.chosen.clock_mhz
        return [
            [(names[int(graph.backward[k])], round(float(clock[k]))) for k in graph.of_rank(rank)]
            for rank in range(graph.pp)
        ]

    def text(self) -> str:
        """The plan, its schedules by time beside it, the chosen one per stage, and how they were found."""
        remarks = [
            "= the schedule of least energy within the slowdown that was allowed; Δ% is relative to one clock per "
            "stage.",
            _how(self),
            *_warnings(self),
        ]
        blocks = [
            _title(self),
            _points(self),
            _stages(self),
            [*table.paragraphs(remarks), *informed_lines(self.informed_by)],
            assumptions(self.assumed),
        ]
        return "\n\n".join("\n".join(block) for block in blocks if block)


def _title(found: Polished) -> list[str]:
    graph, clocks = found.graph, short_clocks(found.plan["stage_clock_mhz"], 40)
    chunks = f" of {graph.vpp} chunks" if graph.vpp > 1 else ""
    time = table.quantity(found.iteration_time_s, table.TIME_UNITS)
    energy = table.quantity(found.energy_j, table.ENERGY_UNITS)
    slower = _percent([found.chosen.iteration_time_s], found.iteration_time_s)[0]
    passes = f"{graph.num_micro_batches:,} micro-batches, {len(graph):,} passes"
    saved = f"{100 * found.saving(found.chosen):.2f} % of the energy"
    return [
        *table.wrapped(
            f"{found.job.name}: {graph.pp} stages{chunks}, {passes}; with one clock per stage ({clocks} MHz) {time} "
            f"and {energy} per iteration."
        ),
        *table.wrapped(f"A clock per pass saves {saved} at {slower} % iteration time."),
    ]


def _percent(values: list[float], reference: float) -> list[str]:
    cells = table.fixed([100 * (value / reference - 1) for value in values], "+.2f")
    return [cell.replace("-0.00", "+0.00") for cell in cells]


def _points(found: Polished) -> list[str]:
    """One line per schedule; none is beaten by another, nor by the plan, in both time and energy."""
    points, time, energy = found.points, found.iteration_time_s, found.energy_j
    times, energies = [p.iteration_time_s for p in points], [p.energy_j for p in points]
    columns = [
        TextColumn("", ["=" if point is found.chosen else "" for point in points]),
        table.measured("time", times, table.TIME_UNITS, unit_at=time, scale=time),
        table.measured("energy", energies, table.ENERGY_UNITS, unit_at=energy, scale=energy),
        TextColumn("time\nΔ%", _percent(times, time)),
        TextColumn("energy\nΔ%", _percent(energies, energy)),
        TextColumn("clocks\nMHz", [_range(p.clock_mhz) for p in points]),
    ]
    return table.lay_out(columns, gap="  ")


def _range(clock_mhz: Floats) -> str:
    return table.span(f"{clock_mhz.min():.0f}", f"{clock_mhz.max():.0f}")


def _stages(found: Polished) -> list[str]:
    """The chosen schedule's clocks per stage: the plan's, then those of forward and backward passes."""
    graph, clock = found.graph, found.chosen.clock_mhz
    columns = [
        TextColumn("stage", [str(rank + 1) for rank in range(graph.pp)]),
        TextColumn("plan\nMHz", table.fixed(found.plan["stage_clock_mhz"], ".0f")),
    ]
    for name, which in (("forward", ~graph.backward), ("backward", graph.backward)):
        of_rank = [clock[which & (graph.rank == rank)] for rank in range(graph.pp)]
        columns.append(TextColumn(f"{name}\nMHz", [_range(clocks) for clocks in of_rank]))
        columns.append(TextColumn("mean", table.fixed([clocks.mean() for clocks in of_rank], ".0f")))
    return table.lay_out(columns, gap="  ")


def _how(found: Polished) -> str:
    all_batches, few = found.graph.num_micro_batches, found.solved_micro_batches
    text = f"Solved in {found.seconds:.1f} s with {found.solver}"
    if found.unit_s is not None:
        share = 100 * found.unit_s / found.shortest_pass_s
        text += f" in units of {1e3 * found.unit_s:.3g} ms ({share:.0f} % of the shortest pass)"
    if few < all_batches:
        text += (
            f" for the first and last of {few} micro-batches; the {all_batches - few:,} between run at one pace, each "
            "stage with one clock for forward and one for backward passes"
        )
    return f"{text}. Time and energy are those of the whole iteration, priced pass by pass."


def _warnings(found: Polished) -> list[str]:
    """Sentences that a user should read before running the schedule."""
    out = []
    if found.unit_s is not None and found.unit_s > _COARSE * found.shortest_pass_s:
        out.append("That unit is coarse: --solver linear is exact, or give lowtime more --seconds.")
    if found.shortest_pass_s < _SHORT_S:
        out.append(
            f"The shortest pass takes {1e3 * found.shortest_pass_s:.3g} ms. A GPU needs time to change its clock "
            "(arXiv:2502.20075 measures how long), which these figures leave out: measure before you rely on them."
        )
    return out
