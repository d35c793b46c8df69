"""Iterations of one run: which of them count as measured, and the result columns of those that do."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jointopt.measure.launchers.rows import result_row

# Why an iteration does not count.
SKIPPED, NAN, CUT = "skipped for gradients that were not finite", "with NaN", "cut off in the log"
CHECKPOINT, EVALUATION, WARM_UP = "beside a checkpoint", "beside an evaluation", "of warm-up"


@dataclass(frozen=True)
class Iteration:
    """One line of a log: the mean of the iterations since the line before, up to ``number``."""

    number: int
    seconds: float  # per iteration
    rank: str = ""  # label of the rank that wrote it
    energy_per_gpu_j: float = math.nan
    power_per_gpu_w: float = math.nan
    loss: float = math.nan
    fault: str = ""  # why it does not count; blank: it does
    ended_s: float = math.nan  # when its line was written, in s since 1970
    span: int = 1  # iterations that it is the mean of


@dataclass(frozen=True)
class RunLog:
    """The iterations that count, how many do not by reason, and the memory of the fullest rank; NaN where unknown."""

    kept: tuple[Iteration, ...]
    dropped: Mapping[str, int] = field(default_factory=dict)
    peak_memory_gib: float = math.nan
    remark: str = ""  # on what the times are

    @property
    def iteration_s(self) -> tuple[float, ...]:
        """Seconds of each iteration that counts."""
        return tuple(one.seconds for one in self.kept)

    def median(self, name: str) -> float:
        """Median of a field over the iterations that count and have it; NaN where none has."""
        values = [getattr(one, name) for one in self.kept]
        return statistics.median(finite) if (finite := [v for v in values if math.isfinite(v)]) else math.nan


def run_log(
    iterations: Sequence[Iteration], warmup: int, peak_memory_gib: float = math.nan, remark: str = ""
) -> RunLog:
    """The run that the lines of a log tell, without its first ``warmup`` iterations, nor those after a restart.

    Where several ranks wrote, the one with most losses counts: others hold placeholders. ValueError where no iteration
    counts, with the reasons.
    """
    judged = _without_warm_up(_of_one_rank(iterations), warmup)
    dropped = Counter(one.fault for one in judged if one.fault)
    kept = tuple(one for one in judged if not one.fault)
    if not kept:
        why = f", of which {_counted(dropped)}" if dropped else ""
        raise ValueError(f"{len(judged)} iterations in the log{why}")
    return RunLog(kept, dropped, peak_memory_gib, remark)


def measured(log: RunLog, num_gpus: int, metered: bool = False) -> dict[str, Any]:
    """The result columns of a log; energy only where it holds any (0 J means that the program had no meter).

    ``metered``: another meter will say how much there was, so that the notes leave it open.
    """
    seconds = statistics.median(log.iteration_s)
    spread = (max(log.iteration_s) - min(log.iteration_s)) / seconds
    notes = [f"{len(log.kept)} iterations, spread {spread:.1%}, loss {log.kept[-1].loss:.5g}"]
    notes += [_counted(log.dropped) + " left out"] if log.dropped else []
    notes += [log.remark] if log.remark else []
    joules = log.median("energy_per_gpu_j")
    energy = {"energy_j": joules * num_gpus, "avg_power_w": log.median("power_per_gpu_w")}
    if not joules > 0:
        energy = {}
        notes += [] if metered else ["energy not measured"]
    return result_row(", ".join(notes), iteration_time_s=seconds, peak_memory_gib=log.peak_memory_gib, **energy)


def _counted(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _of_one_rank(iterations: Iterable[Iteration]) -> list[Iteration]:
    by_rank: dict[str, list[Iteration]] = {}
    for one in iterations:
        by_rank.setdefault(one.rank, []).append(one)
    return max(by_rank.values(), key=lambda ones: (sum(one.loss >= 0 for one in ones), len(ones)), default=[])


def _without_warm_up(iterations: Iterable[Iteration], warmup: int) -> list[Iteration]:
    """The iterations in order, the first of each start of the program marked; a line that stands twice counts once."""
    starts: list[list[Iteration]] = []
    for one in iterations:
        last = starts[-1][-1] if starts else None
        if last and one.number == last.number and one.seconds == last.seconds:
            continue
        if last is None or one.number <= last.number:
            starts.append([])
        starts[-1].append(one)
    return [one for start in starts for one in _marked(start, warmup)]


def _marked(lines: list[Iteration], warmup: int) -> Iterator[Iteration]:
    """The lines of one start with their spans, those marked that hold any of its first ``warmup`` iterations."""
    ends = [one.number for one in lines]
    span = min((b - a for a, b in itertools.pairwise(ends)), default=1)
    begun = max(ends[0] - span, min(ends[0] - 1, 0))  # the iteration before the first line; NeMo counts from 0
    for before, one in zip([begun, *ends], lines, strict=False):
        cold = before < begun + warmup and not one.fault
        yield dataclasses.replace(one, span=span, fault=WARM_UP if cold else one.fault)
