"""The answer of ``polish``: the schedules of one plan with a clock per pass, and the one chosen, stage by stage.

The file for Zeus is that of the scheduler `PointSolution` of zeus 0.16.0 (``zeus/optimizer/pipeline_frequency/server/
scheduler.py``): it must be called ``*.py``, is read with ``eval`` and must be a list with one entry per rank; an entry
is a list of (instruction, MHz as an integer) for one iteration, in the order in which the rank runs them. The client
(``zeus/optimizer/pipeline_frequency/optimizer.py``) takes the next one at each ``on_instruction_begin(name)`` and
raises an error if the name differs or an iteration has more or fewer; the integration guide
(https://ml.energy/zeus/optimize/pipeline_frequency_optimizer/) names the instructions ``forward`` and ``backward``.
`PointSolution3D` wants one entry per pipeline rank and gives it to all ranks of that stage.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jointopt.core.atomic_write import check_file, write_whole
from jointopt.core.errors import UsageError
from jointopt.core.schema import Floats
from jointopt.physics.polish.graph import Graph
from jointopt.report import table
from jointopt.report.assumed import assumptions, informed_lines
from jointopt.report.documents import Result, pick
from jointopt.report.plans import short_clocks
from jointopt.report.table import TextColumn
from jointopt.spec.job import Job

Schedule = list[list[tuple[str, int]]]  # (instruction, clock in MHz) per pipeline rank in its order of execution
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

    def _point(self, point: PolishedPoint) -> dict[str, Any]:
        lowest, highest = point.clock_mhz.min(), point.clock_mhz.max()
        results = pick(point, "iteration_time_s energy_j") | {"energy_saved": self.saving(point)}
        return results | {"lowest_clock_mhz": lowest, "highest_clock_mhz": highest}

    def document(self) -> dict[str, Any]:
        """The plan, its schedules, and the clocks of the chosen one in order of execution."""
        keys = (
            "job=job.name plan iteration_time_s energy_j slowdown solver unit_s solved_micro_batches seconds "
            "informed_by num_micro_batches=graph.num_micro_batches"
        )
        points = list(map(self._point, self.points))
        chosen = self._point(self.chosen) | {"stages": self.schedule}
        known = pick(self, keys) | {"points": points, "chosen": chosen}
        return known | {"assumed": list(map(str, self.assumed))}

    def text(self) -> str:
        """The plan, its schedules by time beside it, the chosen one per stage, and how they were found."""
        legend = "= the schedule of least energy within the slowdown that was allowed; Δ% is relative to one clock per "
        remarks = table.paragraphs([f"{legend}stage.", _how(self), *_warnings(self)])
        return table.blocks_text(
            _title(self), _points(self), _stages(self), [*remarks, *informed_lines(self.informed_by)],
            assumptions(self.assumed),
        )  # fmt: skip

    def write_zeus(self, path: Path) -> None:
        """Writes the schedule for `PointSolution3D`; UsageError unless the name ends in ``.py``, as Zeus requires."""
        check_zeus_path(path)
        found = f"{self.chosen.iteration_time_s:.6g} s and {self.chosen.energy_j:.6g} J per iteration, all GPUs"
        rows = [f"{row!r},\n" for row in self.schedule]
        write_whole(path, "".join(["[\n", *rows, "]\n", f"# jointopt polish: {self.job.name}, {found}\n"]))


def check_zeus_path(path: Path) -> None:
    """UsageError unless the name ends in ``.py``; the OSError that would keep it from being written."""
    if path.suffix != ".py":
        raise UsageError(f"--zeus must name a file that ends in .py, as Zeus requires; got {str(path)!r}.")
    check_file(path)


def zeus_command(path: Path) -> str:
    """The command that starts Zeus' server with the schedule; every rank of a stage then gets the stage's entry."""
    arguments = shlex.quote(json.dumps({"solution_path": str(path)}))
    return (
        f"ZEUS_PFO_SCHEDULER=PointSolution3D ZEUS_PFO_SCHEDULER_ARGS={arguments} "
        f"uvicorn zeus.optimizer.pipeline_frequency.server.router:app --port 7787"
    )


def _title(found: Polished) -> list[str]:
    graph, clocks = found.graph, short_clocks(found.plan["stage_clock_mhz"], 40)
    chunks = f" of {graph.vpp} chunks" if graph.vpp > 1 else ""
    time = table.quantity(found.iteration_time_s, table.TIME_UNITS)
    energy = table.quantity(found.energy_j, table.ENERGY_UNITS)
    slower = _percent([found.chosen.iteration_time_s], found.iteration_time_s)[0]
    saved = f"{100 * found.saving(found.chosen):.2f} % of the energy"
    return table.paragraphs(
        [
            f"{found.job.name}: {graph.pp} stages{chunks}, {graph.num_micro_batches:,} micro-batches, {len(graph):,} "
            f"passes; with one clock per stage ({clocks} MHz) {time} and {energy} per iteration.",
            f"A clock per pass saves {saved} at {slower} % iteration time.",
        ]
    )


def _percent(values: Iterable[float], reference: float) -> list[str]:
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
        TextColumn("clocks\nMHz", _ranges([p.clock_mhz for p in points])),
    ]
    return table.lay_out(columns, gap="  ")


def _ranges(clocks_mhz: Sequence[Floats]) -> list[str]:
    return [table.span(f"{clocks.min():.0f}", f"{clocks.max():.0f}") for clocks in clocks_mhz]


def _stages(found: Polished) -> list[str]:
    """The chosen schedule's clocks per stage: the plan's, then those of forward and backward passes."""
    graph, clock = found.graph, found.chosen.clock_mhz
    columns = [
        TextColumn("stage", [str(rank + 1) for rank in range(graph.pp)]),
        TextColumn("plan\nMHz", table.fixed(found.plan["stage_clock_mhz"], ".0f")),
    ]
    for name, which in (("forward", ~graph.backward), ("backward", graph.backward)):
        of_rank = [clock[which & (graph.rank == rank)] for rank in range(graph.pp)]
        columns.append(TextColumn(f"{name}\nMHz", _ranges(of_rank)))
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
