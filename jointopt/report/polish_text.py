"""A polished plan, for people."""

from __future__ import annotations

import numpy as np

from jointopt.report.assumed import assumptions
from jointopt.report.clocks import short_clocks
from jointopt.report.informed import informed_lines
from jointopt.report.polish_results import Polished, PolishedPoint
from jointopt.report.table import (
    ENERGY_UNITS,
    TIME_UNITS,
    TextColumn,
    lay_out,
    numbers,
    unit_of,
    wrapped,
)

_COARSE = 0.5  # of the shortest pass: the unit of time from which the answer is rough
_SHORT_S = 0.05  # a pass from which on the time that a change of clock takes is worth a word


def polished_text(polished: Polished) -> str:
    """The plan, its schedules by time beside it, the chosen one per stage, and how they were found."""
    lines = [*_title(polished), "", *_points(polished), "", *_stages(polished), ""]
    lines += [line for text in _remarks(polished) for line in wrapped(text)]
    lines += informed_lines(polished.informed_by)
    if polished.assumed:
        lines += ["", *assumptions(polished.assumed)]
    return "\n".join(lines)


def _title(polished: Polished) -> list[str]:
    job, graph = polished.job, polished.graph
    clocks = short_clocks(polished.plan["stage_clock_mhz"], 40)
    chunks = f" of {graph.vpp} chunks" if graph.vpp > 1 else ""
    (second, s), (joule, j) = _units(polished)
    time = numbers([polished.iteration_time_s / second], polished.iteration_time_s / second)[0]
    energy = numbers([polished.energy_j / joule], polished.energy_j / joule)[0]
    chosen = polished.chosen
    return [
        *wrapped(
            f"{job.name}: {graph.pp} stages{chunks}, {graph.num_micro_batches:,} micro-batches, {len(graph):,} passes; "
            f"with one clock per stage ({clocks} MHz) {time} {s} and {energy} {j} per iteration."
        ),
        *wrapped(
            f"A clock per pass saves {100 * polished.saving(chosen):.2f} % of the energy at "
            f"{_percent(chosen.iteration_time_s / polished.iteration_time_s - 1)} % iteration time."
        ),
    ]


def _units(polished: Polished) -> tuple[tuple[float, str], tuple[float, str]]:
    return unit_of(polished.iteration_time_s, TIME_UNITS), unit_of(polished.energy_j, ENERGY_UNITS)


def _percent(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-0.00", "+0.00")


def _points(polished: Polished) -> list[str]:
    """One line per schedule; none is beaten by another, nor by the plan, in both time and energy."""
    (second, s), (joule, j) = _units(polished)
    points, time, energy = polished.points, polished.iteration_time_s, polished.energy_j
    return lay_out(
        [
            TextColumn("", ["=" if point is polished.chosen else "" for point in points]),
            TextColumn(f"time\n{s}", numbers([p.iteration_time_s / second for p in points], time / second)),
            TextColumn(f"energy\n{j}", numbers([p.energy_j / joule for p in points], energy / joule)),
            TextColumn("time\nΔ%", [_percent(p.iteration_time_s / time - 1) for p in points]),
            TextColumn("energy\nΔ%", [_percent(p.energy_j / energy - 1) for p in points]),
            TextColumn("clocks\nMHz", [_range(p.clock_mhz) for p in points]),
        ],
        gap="  ",
    )


def _range(clock_mhz: np.ndarray) -> str:
    low, high = round(clock_mhz.min()), round(clock_mhz.max())
    return str(low) if low == high else f"{low}..{high}"


def _stages(polished: Polished) -> list[str]:
    """The chosen schedule's clocks per stage: the plan's, then those of forward and backward passes."""
    graph, clock = polished.graph, polished.chosen.clock_mhz
    passes = {"forward\nMHz": ~graph.backward, "backward\nMHz": graph.backward}
    ranks = range(graph.pp)
    columns = [
        TextColumn("stage", [str(rank + 1) for rank in ranks]),
        TextColumn("plan\nMHz", [f"{c:.0f}" for c in polished.plan["stage_clock_mhz"]]),
    ]
    for name, which in passes.items():
        of_rank = [clock[which & (graph.rank == rank)] for rank in ranks]
        columns.append(TextColumn(name, [_range(c) for c in of_rank]))
        columns.append(TextColumn("mean", [f"{c.mean():.0f}" for c in of_rank]))
    return lay_out(columns, gap="  ")


def _remarks(polished: Polished) -> list[str]:
    return [
        "= the schedule of least energy within the slowdown that was allowed; Δ% is relative to one clock per stage.",
        _how(polished),
        *_warnings(polished),
    ]


def _how(polished: Polished) -> str:
    all_batches, few = polished.graph.num_micro_batches, polished.solved_micro_batches
    said = f"Solved in {polished.seconds:.1f} s with {polished.solver}"
    if polished.unit_s is not None:
        share = 100 * polished.unit_s / polished.shortest_pass_s
        said += f" in units of {1e3 * polished.unit_s:.3g} ms ({share:.0f} % of the shortest pass)"
    if few < all_batches:
        said += (
            f" for the first and last of {few} micro-batches; the {all_batches - few:,} between run at one pace, each "
            f"stage with one clock for forward and one for backward passes"
        )
    return f"{said}. Time and energy are those of the whole iteration, priced pass by pass."


def _warnings(polished: Polished) -> list[str]:
    """What the user should know before running it."""
    out = []
    if polished.unit_s is not None and polished.unit_s > _COARSE * polished.shortest_pass_s:
        out.append("That unit is coarse: --solver linear is exact, or give lowtime more --seconds.")
    if polished.shortest_pass_s < _SHORT_S:
        out.append(
            f"The shortest pass takes {1e3 * polished.shortest_pass_s:.3g} ms. A GPU needs time to change its clock "
            f"(arXiv:2502.20075 measures how long), which these figures leave out: measure before you rely on them."
        )
    return out


def chosen_line(point: PolishedPoint) -> str:
    """The chosen schedule in one line, for the head of an exported file."""
    return f"{point.iteration_time_s:.6g} s and {point.energy_j:.6g} J per iteration, all GPUs"
