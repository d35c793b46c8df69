"""A chosen plan taken apart for a report: parts, passes, power, heat, and what starts it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jointopt.core.schema import Floats, Ints
from jointopt.core.units import GIB
from jointopt.physics.explain.parts import Breakdown
from jointopt.physics.explain.timeline import KINDS, Timeline
from jointopt.report.page.choice import Chosen
from jointopt.report.tables import tidy_parts

POWER_STEPS = 400  # of the line of power over the iteration


@dataclass(frozen=True)
class Started:
    """The words that start a plan in a framework, or why it has none."""

    target: str
    text: str = ""
    refused: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pictured:
    """One chosen plan; powers are in W of one GPU of each stage, (pp,)."""

    letter: str
    chosen: Chosen
    text: str  # the plan as `--plan` takes it
    parts: Breakdown
    timeline: Timeline
    runs_w: Floats  # while passes run
    waits_w: Floats
    started: Started

    @property
    def totals(self) -> Mapping[str, Mapping[str, float]]:
        """The three breakdowns, as `jointopt explain` names their parts: s, J and GiB."""
        memory = {name: value / GIB for name, value in self.parts.memory_bytes.items()}
        return {
            "time_s": tidy_parts(self.parts.time_s), "energy_by_part_j": tidy_parts(self.parts.energy_j),
            "memory_gib": tidy_parts(memory),
        }  # fmt: skip


def mean_power_w(plan: Pictured, steps: int = POWER_STEPS) -> tuple[Floats, Floats]:
    """(ends of equal steps of the iteration in s (steps + 1,), mean power of a GPU in each step in W (steps,))."""
    line = plan.timeline
    edges = np.linspace(0.0, line.iteration_s, steps + 1)
    watts = np.zeros(steps)
    for rank in range(len(plan.runs_w)):
        shares = np.diff(np.interp(edges, *_busy_so_far(plan, rank))) / np.diff(edges)
        watts += plan.waits_w[rank] + shares * (plan.runs_w[rank] - plan.waits_w[rank])
    return edges, watts / len(plan.runs_w)


def _busy_so_far(plan: Pictured, rank: int) -> tuple[Floats, Floats]:
    """Times, and the seconds until then in which a rank's passes and its optimizer step run."""
    line, own = plan.timeline, plan.timeline.rank == rank
    start_s, end_s = line.start_s[own], line.end_s[own]
    lengths = end_s - start_s
    optimizer_s = line.tail_s["optimizer"]
    passed = np.concatenate([[0.0], np.cumsum(lengths)])
    from_s, to_s = line.repeated_s
    # of passes that are not listed the rank runs as many seconds as its total still lacks
    unlisted = plan.parts.busy_s[rank] - optimizer_s - passed[-1] if to_s > from_s else 0.0
    after = np.concatenate([[False], start_s >= from_s])
    times = np.stack([start_s, end_s], axis=1).reshape(-1)
    busy = np.stack([passed[:-1], passed[1:]], axis=1).reshape(-1)
    busy += np.repeat(after[1:], 2) * unlisted
    begins = line.pipeline_s + line.tail_s["gradients"]
    done = passed[-1] + unlisted
    times = np.concatenate([times, [begins, begins + optimizer_s]])
    return times, np.concatenate([busy, [done, done + optimizer_s]])


def encoded(line: Timeline) -> dict[str, object]:
    """The passes in few characters: a letter each, seconds by letter and rank, and the waits before some of them.

    The page draws from that as many passes as there is room for.
    """
    pairs, letter = np.unique(np.stack([line.kind, line.chunk]), axis=1, return_inverse=True)
    letter = letter.reshape(-1)
    lengths = line.end_s - line.start_s
    ranks = []
    for rank in range(int(line.rank.max()) + 1):
        own = line.rank == rank
        ranks.append({
            "passes": "".join(map(_letter, letter[own].tolist())),
            "seconds": _by_letter(letter[own], lengths[own], pairs.shape[1]),
            "waits": _waits(line.start_s[own], line.end_s[own], line.iteration_s),
        })  # fmt: skip
    return {
        "letters": [_letter(i) for i in range(pairs.shape[1])],
        "kinds": [KINDS[kind] for kind in pairs[0].tolist()], "chunks": pairs[1].tolist(), "ranks": ranks,
        "pipeline_s": line.pipeline_s, "tail_s": line.tail_s, "iteration_s": line.iteration_s,
        "repeated_s": list(line.repeated_s), "micro_batches": line.num_micro_batches,
    }  # fmt: skip


def _letter(number: int) -> str:
    """One character for each kind and chunk, none of which JSON or HTML escapes."""
    return chr(0x61 + number) if number < 26 else chr(0x100 + number)


def _by_letter(letter: Ints, lengths: Floats, count: int) -> list[float]:
    seconds = np.zeros(count)
    seconds[letter] = lengths
    return [float(f"{value:.9g}") for value in seconds.tolist()]


def _waits(start_s: Floats, end_s: Floats, whole_s: float) -> list[list[float]]:
    """[number of the pass, seconds waited before it] of passes that wait longer than rounding."""
    gaps = start_s - np.concatenate([[0.0], end_s[:-1]])
    return [[int(i), float(f"{gaps[i]:.7g}")] for i in np.flatnonzero(gaps > 1e-7 * whole_s)]


# The passes of plans as a trace in the Trace Event Format, which Perfetto and chrome://tracing open.


MICRO = 1e6


def trace_text(plans: Sequence[Pictured]) -> str:
    """One JSON document: a process per plan, a thread per pipeline stage, counters of clock and power."""
    events = [event for number, plan in enumerate(plans, 1) for event in _events(number, plan)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, separators=(",", ":"))


def _events(pid: int, plan: Pictured) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"{plan.letter}: {plan.chosen.name}"}}
    for rank, clock in enumerate(plan.parts.clock_mhz.tolist()):
        name = f"stage {rank + 1}, {clock:.0f} MHz, {plan.runs_w[rank]:.0f} W"
        yield {"ph": "M", "pid": pid, "tid": rank, "name": "thread_name", "args": {"name": name}}
    line = plan.timeline
    columns = (line.rank, line.kind, line.chunk, line.micro_batch, line.start_s, line.end_s)
    for rank, kind, chunk, micro_batch, start_s, end_s in zip(*(c.tolist() for c in columns), strict=True):
        yield {
            "ph": "X", "pid": pid, "tid": rank, "name": KINDS[kind], "cat": "pass", "ts": start_s * MICRO,
            "dur": (end_s - start_s) * MICRO, "args": {"micro_batch": micro_batch, "chunk": chunk},
        }  # fmt: skip
    yield from _tail(pid, plan)
    edges, watts = mean_power_w(plan)
    for start_s, power in zip(edges.tolist(), watts.tolist(), strict=False):
        yield {"ph": "C", "pid": pid, "name": "mean power of a GPU, W", "ts": start_s * MICRO, "args": {"W": power}}


def _tail(pid: int, plan: Pictured) -> Iterator[dict[str, Any]]:
    """Passes that are left out as a block, then gradients, the optimizer step and the rest, on every stage."""
    line, at = plan.timeline, plan.timeline.pipeline_s
    blocks = [("more micro-batches, as before", *line.repeated_s)]
    for name, seconds in line.tail_s.items():
        blocks.append((name, at, at + seconds))
        at += seconds
    for rank in range(len(plan.runs_w)):
        for name, start_s, end_s in blocks:
            if end_s > start_s:
                yield {
                    "ph": "X", "pid": pid, "tid": rank, "name": name, "cat": "iteration", "ts": start_s * MICRO,
                    "dur": (end_s - start_s) * MICRO,
                }  # fmt: skip
