"""The plans that a report takes apart: which of a proposal's document, and their parts, passes, power and trace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jointopt.core.atomic_write import write_failure, write_whole
from jointopt.core.errors import UsageError
from jointopt.core.schema import LAYOUT_COLUMNS, Floats
from jointopt.core.short_repr import ShortRepr
from jointopt.core.units import GIB
from jointopt.jobs.objectives import OBJECTIVES
from jointopt.physics.explain.parts import Breakdown
from jointopt.physics.explain.timeline import KINDS, Timeline
from jointopt.report.page.render import Page
from jointopt.report.plans import are_alike, differing_columns, plan_words
from jointopt.report.tables import tidy_parts
from jointopt.search.pareto import below_chord

MOST = 6
POWER_STEPS = 400  # of the line of power over the iteration
MICRO = 1e6
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class ChosenPlan:
    """One entry of a proposal with what it stands for."""

    name: str
    entry: Entry


def layout_key(entry: Entry) -> tuple[tuple[str, Any], ...]:
    """The layout of an entry: the same for entries that differ in clocks and power limits alone."""
    return tuple((name, entry[name]) for name in LAYOUT_COLUMNS if name in entry)


def chosen_plans(
    front: Sequence[Entry], reference: Entry | None, baseline: str = "", recommended: int | None = None
) -> list[ChosenPlan]:
    """At most `MOST` plans, by time: the reference, the recommended and the fastest plan, the knee, others.

    Those are the plan of least energy and the fastest of other layouts.
    """
    names = {0: ["fastest"]}  # of rows
    if recommended is not None:
        names.setdefault(recommended, []).append("recommended")
    time_s, energy_j = (np.array([entry.get(name) for entry in front], np.float64) for name in OBJECTIVES)
    if np.isfinite(energy_j).all():
        knee = int(below_chord(time_s, energy_j).argmax())
        least = int(energy_j.argmin())  # the slowest, unless there are objectives beside time and energy
        if least:
            names.setdefault(least, []).append("least energy")
        if knee not in names:
            names[knee] = ["knee"]
    rows = {row: ", ".join(words) for row, words in names.items()}
    shown = {layout_key(front[row]) for row in rows}
    for row, entry in enumerate(front):
        if layout_key(entry) not in shown and len(rows) < MOST - 1:
            shown.add(layout_key(entry))
            rows[row] = ""
    varied = differing_columns(dict(layout_key(front[row])) for row in rows)
    distinguishing = {row: {name: front[row].get(name) for name in varied} for row in sorted(rows)}
    found = [
        ChosenPlan(rows[row] or f"fastest with {plan_words(layout, varied)}", front[row])
        for row, layout in distinguishing.items()
    ]
    if reference is None or (not baseline and are_alike(reference, front[0])):
        return found
    usual = "reference: fastest layout, all clocks at their maximum"
    return [ChosenPlan(f"baseline: {baseline}" if baseline else usual, reference), *found]


@dataclass(frozen=True, repr=False)
class PlanPicture(ShortRepr):
    """One chosen plan; powers are in W of one GPU of each stage, (pp,)."""

    letter: str
    chosen: ChosenPlan
    text: str  # the plan as `--plan` takes it
    parts: Breakdown
    timeline: Timeline
    runs_w: Floats  # while passes run
    waits_w: Floats
    started: Mapping[str, Any]  # target, text that starts it there, notes, or why it is refused

    @property
    def totals(self) -> Mapping[str, Mapping[str, float]]:
        """The three breakdowns, as `jointopt explain` names their parts: s, J and GiB."""
        return {
            "time_s": tidy_parts(self.parts.time_s), "energy_by_part_j": tidy_parts(self.parts.energy_j),
            "memory_gib": tidy_parts({name: value / GIB for name, value in self.parts.memory_bytes.items()}),
        }  # fmt: skip


def mean_power_w(plan: PlanPicture) -> tuple[Floats, Floats]:
    """(ends of `POWER_STEPS` equal steps of the iteration in s, the start too, mean power of a GPU in each in W)."""
    line, (from_s, to_s) = plan.timeline, plan.timeline.repeated_s
    edges, watts = np.linspace(0.0, line.iteration_s, POWER_STEPS + 1), np.zeros(POWER_STEPS)
    optimizer_s, begins_s = line.tail_s["optimizer"], line.pipeline_s + line.tail_s["gradients"]
    for rank in range(len(plan.runs_w)):
        own = line.rank == rank
        start_s, end_s = line.start_s[own], line.end_s[own]
        passed = np.concatenate([[0.0], np.cumsum(end_s - start_s)])
        # of passes that are not listed the rank runs as many seconds as its total still lacks
        unlisted = plan.parts.busy_s[rank] - optimizer_s - passed[-1] if to_s > from_s else 0.0
        # times, and the seconds until then in which the rank's passes and its optimizer step run
        busy = np.stack([passed[:-1], passed[1:]], axis=1).reshape(-1) + np.repeat(start_s >= from_s, 2) * unlisted
        done = passed[-1] + unlisted
        times = np.append(np.stack([start_s, end_s], axis=1), [begins_s, begins_s + optimizer_s])
        until = np.interp(edges, times, np.append(busy, [done, done + optimizer_s]))
        shares = np.diff(until) / np.diff(edges)
        watts += plan.waits_w[rank] + shares * (plan.runs_w[rank] - plan.waits_w[rank])
    return edges, watts / len(plan.runs_w)


def encoded_passes(line: Timeline) -> dict[str, object]:
    """The passes in few characters: a letter each, seconds by letter and rank, and the waits before some of them.

    The page draws from that as many passes as there is room for.
    """
    pairs, letter = np.unique(np.stack([line.kind, line.chunk]), axis=1, return_inverse=True)
    letter = letter.reshape(-1)
    lengths = line.end_s - line.start_s
    count, ranks = pairs.shape[1], []
    for rank in range(int(line.rank.max()) + 1):
        own = line.rank == rank
        seconds = np.zeros(count)
        seconds[letter[own]] = lengths[own]
        # before which passes the rank waits longer than rounding: (number of the pass, s)
        gaps = line.start_s[own] - np.concatenate([[0.0], line.end_s[own][:-1]])
        waits = [[int(i), float(f"{gaps[i]:.7g}")] for i in np.flatnonzero(gaps > 1e-7 * line.iteration_s)]
        ranks.append({
            "passes": "".join(map(_letter, letter[own].tolist())),
            "seconds": [float(f"{value:.9g}") for value in seconds.tolist()], "waits": waits,
        })  # fmt: skip
    return {
        "letters": [_letter(i) for i in range(count)],
        "kinds": [KINDS[kind] for kind in pairs[0].tolist()], "chunks": pairs[1].tolist(), "ranks": ranks,
        "pipeline_s": line.pipeline_s, "tail_s": line.tail_s, "iteration_s": line.iteration_s,
        "repeated_s": list(line.repeated_s), "micro_batches": line.num_micro_batches,
    }  # fmt: skip


def _letter(number: int) -> str:
    """One character for each kind and chunk, none of which JSON or HTML escapes."""
    return chr(0x61 + number) if number < 26 else chr(0x100 + number)


def _events(pid: int, plan: PlanPicture) -> Iterator[dict[str, Any]]:
    """The events of one plan: its passes, what is left out of them or follows on every stage, and its power."""

    def block(rank: int, name: str, category: str, start_s: float, end_s: float) -> dict[str, Any]:
        times = {"ts": start_s * MICRO, "dur": (end_s - start_s) * MICRO}
        return {"ph": "X", "pid": pid, "tid": rank, "name": name, "cat": category} | times

    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"{plan.letter}: {plan.chosen.name}"}}
    for rank, clock in enumerate(plan.parts.clock_mhz.tolist()):
        name = f"stage {rank + 1}, {clock:.0f} MHz, {plan.runs_w[rank]:.0f} W"
        yield {"ph": "M", "pid": pid, "tid": rank, "name": "thread_name", "args": {"name": name}}
    line = plan.timeline
    columns = (line.rank, line.kind, line.chunk, line.micro_batch, line.start_s, line.end_s)
    for rank, kind, chunk, micro_batch, *times in zip(*(c.tolist() for c in columns), strict=True):
        yield block(rank, KINDS[kind], "pass", *times) | {"args": {"micro_batch": micro_batch, "chunk": chunk}}
    at, rest = line.pipeline_s, [("more micro-batches, as before", *line.repeated_s)]
    for name, seconds in line.tail_s.items():
        rest.append((name, at, at + seconds))
        at += seconds
    for rank in range(len(plan.runs_w)):
        yield from (block(rank, name, "iteration", *times) for name, *times in rest if times[1] > times[0])
    edges, watts = mean_power_w(plan)
    for start_s, power in zip(edges.tolist(), watts.tolist(), strict=False):
        yield {"ph": "C", "pid": pid, "name": "mean power of a GPU, W", "ts": start_s * MICRO, "args": {"W": power}}


@dataclass(frozen=True, repr=False)
class ProposalReport(ShortRepr):
    """A report: its page, and the passes of its plans for a trace viewer."""

    page: Page
    plans: Sequence[PlanPicture]

    def write(self, path: str | Path) -> None:
        """Writes the page as one HTML file.

        Parameters
        ----------
        path : str or Path
            Is written over where it exists.
        """
        try:
            self.page.write(path)
        except OSError as error:
            raise UsageError(f"{path}: {write_failure(error)}.") from error

    def write_trace(self, path: str | Path) -> None:
        """Writes the passes for Perfetto: a process per plan, a thread per stage, a counter of power."""
        events = [event for number, plan in enumerate(self.plans, 1) for event in _events(number, plan)]
        trace = {"traceEvents": events, "displayTimeUnit": "ms"}
        write_whole(Path(path), json.dumps(trace, separators=(",", ":")))

    def _repr_html_(self) -> str:
        """The report as a notebook shows it."""
        return self.page._repr_html_()
