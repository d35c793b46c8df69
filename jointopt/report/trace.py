"""The passes of plans as a trace in the Trace Event Format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from jointopt.physics.explain.timeline import KINDS
from jointopt.report.page.pictured import Pictured, mean_power_w

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
