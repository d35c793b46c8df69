"""What a run has been through, by its logs and Slurm's accounting: its starts and stops, checkpoints, and work lost."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from jointopt.core.errors import UsageError
from jointopt.core.input_files import regular_bytes
from jointopt.core.progress import steps
from jointopt.frameworks.failures import failure_of
from jointopt.frameworks.logs import Batch, Iteration, lines_with_iterations, moment_of
from jointopt.jobs.catalog.catalog_files import read_yaml

_MOST_BYTES = 1_000_000_000
_LATE_S = 60.0  # by which two programs may see one moment differently
_BACK_S = 5.0  # by which lines of one program may be out of order
_MOST_TAIL = 200  # lines after the last iteration in which the error stands
_COLUMNS = ("State", "Start", "End")
_SACCT = "sacct --duplicates --parsable2 --format=JobID,State,Start,End,NNodes,Restarts"
_NO_TIME = ("Unknown", "None")  # of a job that has not begun
_PLANNED, _FAILURE, _RUNNING = "planned", "failure", "running"  # how a start ended
# lines of Megatron-LM, of torchtitan, and of what is built on them
_SAVE_BEGIN = re.compile(r"\bsaving (?:the |a |full |model )*checkpoint\b", re.I)
_SAVE_END = re.compile(r"successfully saved checkpoint|finished saving the checkpoint", re.I)
_SAVE_MS = re.compile(r"\bsave-checkpoint[ .]*: \(?(?:[\d.]+, )?(\d+\.?\d*)")
_SAVE_S = re.compile(r"finished saving the checkpoint.*in (\d+\.?\d*) seconds", re.I)
_BEGIN = re.compile(r"after megatron is initialized|> initializing torch distributed|Starting job:")
_LOAD = re.compile(r"\b(?:loading (?:the )?checkpoint|loaded (?:the )?checkpoint)", re.I)
_LOAD_ITERATION = re.compile(r"at iteration\s+(\d+)|\bstep-(\d+)")
_ORDERLY_END = re.compile(
    r"exiting program (?:at|after)|after training is done|training completed|DUE TO TIME LIMIT", re.I
)


@dataclass
class Start:
    """One start of a run's program: the iterations that it logged, the checkpoints it wrote, how and when it ended."""

    source: str
    begun_s: float = math.nan
    ended_s: float = math.nan
    end: str = ""  # planned, failure or running; blank where nothing says it
    cause: str = ""
    nodes: float = math.nan
    iterations: list[Iteration] = field(default_factory=list)
    checkpoint: int | None = None  # the iteration of the checkpoint that it loaded
    saves_s: list[float] = field(default_factory=list)  # in which each checkpoint stopped training; NaN: not known
    writes_s: list[float] = field(default_factory=list)  # from then until it was whole, of asynchronous ones
    trained_s: float = math.nan  # when it was last seen to train, or to have saved
    last_kept: float = math.inf  # the last iteration that no later start did again


@dataclass(frozen=True)
class History:
    """A run as it happened over all its starts; means in s, NaN where no file tells them."""

    sources: tuple[str, ...]
    starts: int
    failures: int
    planned_stops: int
    causes: Mapping[str, int]
    calendar_s: float
    ran_s: float  # in which its program ran
    node_hours: float
    detection_s: float  # from the last sign of training until the program ended
    restart_s: float  # from then until training went on
    planned_stop_s: float
    checkpoint_s: float  # in which a checkpoint stopped training
    checkpoint_write_s: float  # from then until it was whole
    checkpoint_interval_s: float  # of training
    iteration_time_s: float
    iterations: int  # that count in the end
    lost_iterations: int
    effective_time_ratio: float
    lost: Mapping[str, float]  # shares of the calendar time by work, checkpoint, restart, other
    remarks: tuple[str, ...]

    @property
    def trained(self) -> bool:
        """Whether any file tells of training, and not of allocations alone."""
        return self.iterations > 0


def read_history(files: Sequence[Path], batch: Batch, nodes: int) -> History:
    """The history of one run from its logs and tables of sacct, in any order; UsageError where they make none."""
    starts: list[Start] = []
    allocations: list[Start] = []
    remarks: list[str] = []
    for path in steps(list(dict.fromkeys(files)), "logs read"):
        try:
            raw = regular_bytes(path, _MOST_BYTES, "a log of training or a table of sacct")
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
        text = raw.decode("utf-8", "replace")
        if _is_account(text):
            allocations += _allocations(text, path.name)
            continue
        reader = _Reader(path.name)
        reader.read(text, batch)
        starts += reader.starts
        if reader.jumps:
            times = "once" if reader.jumps == 1 else f"{reader.jumps} times"
            remarks.append(f"{path.name}: its clock went back {times}; it is taken to have gone on")
    starts = _with_allocations(_without_copies(starts), allocations)
    sources = tuple(dict.fromkeys(path.name for path in files))
    return _history(starts, sources, nodes, tuple(remarks))


class _Reader:
    """The starts that one log tells, line by line; a clock that goes back goes on from the last line."""

    def __init__(self, source: str) -> None:
        self.source, self.starts = source, [Start(source)]
        self.jumps, self.shift_s, self.last_s = 0, 0.0, -math.inf
        self.open_save: tuple[int, float] | None = None  # iterations so far, and when a checkpoint began
        self.tail: list[str] = []  # lines since the last iteration

    def read(self, text: str, batch: Batch) -> None:
        """All lines of a log; UsageError where none of them is an iteration with a time."""
        lines = list(lines_with_iterations(text, batch))
        ranks = Counter(one.rank for _, found in lines for one in found).most_common(1)
        for line, found in lines:
            for one in found:
                if one.rank == ranks[0][0] and math.isfinite(one.ended_s):
                    self._iteration(one)
            if not found:
                self._event(line.text)
        self._end()
        starts = [one for one in self.starts if one.iterations or (one.cause and math.isfinite(one.begun_s))]
        if not starts or (ranks and not any(one.iterations for one in starts)):
            why = "its iterations have no times" if ranks else "it holds no iteration"
            raise UsageError(
                f"{self.source}: {why}; expected a log of Megatron-LM, torchtitan or the like whose lines begin with "
                f"times ([2026-01-31 12:00:00] iteration 10/ 100 |), or the output of {_SACCT}."
            )
        self.starts = starts

    def _at(self, moment_s: float, passed_s: float) -> float:
        """A time of this log, ``passed_s`` after the line before at least, on a clock that does not go back."""
        moment_s += self.shift_s
        if moment_s < self.last_s - _BACK_S:
            self.jumps, self.shift_s = self.jumps + 1, self.shift_s + self.last_s + passed_s - moment_s
            moment_s = self.last_s + passed_s
        self.last_s = max(moment_s, self.last_s)
        return moment_s

    def _iteration(self, one: Iteration) -> None:
        start, last = self.starts[-1], next(iter(self.starts[-1].iterations[-1:]), None)
        if last and (one.number, one.seconds) == (last.number, last.seconds):
            return  # a line that stands twice
        if last and one.number <= last.number:
            start, last = self._start(), None
        span = one.number - last.number if last else 1
        ended_s = self._at(one.ended_s, one.seconds * span)
        start.begun_s = min(ended_s - one.seconds, start.begun_s if last or math.isfinite(start.begun_s) else math.inf)
        if last and self._is_saving(start):
            start.saves_s[-1] = max(ended_s - one.seconds * span - last.ended_s, 0.0)
        start.iterations.append(replace(one, ended_s=ended_s))
        start.trained_s = start.ended_s = ended_s
        self.tail = []

    def _event(self, text: str) -> None:
        """A line of another kind: of a checkpoint, an end, or any, by whose time the program still ran."""
        start, moment_s = self.starts[-1], moment_of(text)
        loads = _LOAD.search(text)
        begins = bool(loads or _BEGIN.search(text))
        if begins and start.iterations:
            start = self._start()
        known = bool(begins or _SAVE_BEGIN.search(text) or _SAVE_END.search(text))
        if math.isfinite(moment_s) and (known or moment_s + self.shift_s >= self.last_s):
            moment_s = self._at(moment_s, 0.0) if known else moment_s + self.shift_s
            start.begun_s = moment_s if math.isnan(start.begun_s) else start.begun_s
            start.ended_s = moment_s
        if loads and (found := _LOAD_ITERATION.search(text)):
            start.checkpoint = int(found[1] or found[2])
        self._checkpoint(start, text, moment_s)
        start.end = _PLANNED if _ORDERLY_END.search(text) else start.end
        self.tail = [*self.tail[-_MOST_TAIL:], text]

    def _checkpoint(self, start: Start, text: str, moment_s: float) -> None:
        """What a line says of a checkpoint: that it begins, is whole, or how long it stopped training."""
        if _SAVE_BEGIN.search(text) and not _SAVE_END.search(text):
            self.open_save = len(start.iterations), moment_s if math.isfinite(moment_s) else self.last_s
            start.saves_s.append(math.nan)
        elif self.open_save and start.saves_s and _SAVE_END.search(text):
            count, begun_s = self.open_save
            if len(start.iterations) > count:  # training has gone on meanwhile
                passed_s = (self.last_s if math.isnan(moment_s) else moment_s) - begun_s
                start.writes_s.append(max(passed_s - start.saves_s[-1], 0.0))
            else:
                start.saves_s[-1] = moment_s - begun_s
                start.trained_s = moment_s if math.isfinite(moment_s) else start.trained_s
        stated = (_SAVE_S.search(text), 1.0) if _SAVE_S.search(text) else (_SAVE_MS.search(text), 1e-3)
        if stated[0] and start.saves_s:
            start.saves_s[-1] = float(stated[0][1]) * stated[1]

    def _is_saving(self, start: Start) -> bool:
        """Whether the last checkpoint has begun since the last iteration, and how long it takes is not known."""
        begun = self.open_save is not None and self.open_save[0] == len(start.iterations)
        return begun and bool(start.saves_s) and math.isnan(start.saves_s[-1])

    def _start(self) -> Start:
        """The beginning of a next start."""
        self._end()
        self.starts.append(Start(self.source))
        return self.starts[-1]

    def _end(self) -> None:
        """The end of a start: the checkpoint in which it was killed is none, and the error that it left."""
        start = self.starts[-1]
        if self._is_saving(start):
            start.saves_s.pop()
        failure = failure_of("\n".join(self.tail), 1, False, 0.0)
        if failure.detail != "exit code 1":
            start.cause = str(failure.kind)
        self.open_save, self.tail = None, []


def _without_copies(starts: Iterable[Start]) -> list[Start]:
    """The starts by time, those that two files tell once; UsageError where two ran at the same time."""
    ordered: list[Start] = []
    for start in sorted(starts, key=lambda one: one.begun_s):
        last = ordered[-1] if ordered else None
        if last is None or not start.begun_s < last.ended_s - _LATE_S:
            ordered.append(start)
            continue
        own, others = ({one.number for one in each.iterations} for each in (start, last))
        if not own & others:
            raise UsageError(
                f"{start.source} and {last.source} ran at the same time; --from takes the logs of one run, one after "
                "the other."
            )
        ordered[-1] = max(last, start, key=lambda one: len(one.iterations))
    return ordered


# Slurm's accounting


def _is_account(text: str) -> bool:
    head = text.lstrip().partition("\n")[0].strip().split("|")
    return len(head) > 1 and "State" in head


def _allocations(text: str, source: str) -> list[Start]:
    """The allocations of a table of sacct, without their steps, in the order of their begin."""
    head, *lines = [line.strip().split("|") for line in text.strip().splitlines()]
    if missing := [name for name in _COLUMNS if name not in head]:
        raise UsageError(f"{source} lacks the column {', '.join(missing)}; expected the output of {_SACCT}.")
    rows = [dict(zip(head, line, strict=True)) for line in lines if len(line) == len(head)]  # others are cut off
    rows = [row for row in rows if "." not in row.get("JobID", "") and row["Start"] not in _NO_TIME]
    listed = Counter(row.get("JobID", "") for row in rows)
    found = []
    for row in rows:
        job, restarts = row.get("JobID", ""), row.get("Restarts", "")
        if restarts.isdecimal() and int(restarts) >= listed[job]:
            raise UsageError(
                f"{source}: job {job} was started {int(restarts) + 1} times, of which {listed[job]} is listed; "
                f"expected the output of {_SACCT}, which lists all."
            )
        state = row["State"].split(" ")[0].rstrip("+")
        ends = read_yaml("reliability.yaml")["slurm_states"]
        if state not in ends:
            raise UsageError(f"{source}: {row['State'][:40]!r} is no state that is known; expected {', '.join(ends)}.")
        begun_s, ended_s = moment_of(row["Start"]), moment_of(row["End"])
        if math.isnan(begun_s) or (math.isnan(ended_s) and ends[state] != _RUNNING):
            times = f"{row['Start'][:30]!r} to {row['End'][:30]!r}"
            raise UsageError(f"{source}: {times} is no time of sacct; expected such as 2026-01-31T12:00:00.")
        nodes = row.get("NNodes") or row.get("AllocNodes") or ""
        found.append(Start(source, begun_s, ended_s, ends[state], state if ends[state] == _FAILURE else "",
                           float(nodes) if nodes.isdecimal() and int(nodes) else math.nan))  # fmt: skip
    return sorted(found, key=lambda one: one.begun_s)


def _with_allocations(starts: list[Start], allocations: Sequence[Start]) -> list[Start]:
    """The starts with what sacct says of their begin and end, and its allocations in which no log tells of any."""
    found = list(starts)
    for one in allocations:
        until = one.ended_s if math.isfinite(one.ended_s) else math.inf
        own = [each for each in starts if one.begun_s - _LATE_S <= each.begun_s <= until + _LATE_S]
        if not own:  # it came to no iteration; one that was cancelled says nothing of a run that has logs
            found += [one] if one.end == _FAILURE or not starts else []
            continue
        first, last = own[0], own[-1]
        first.begun_s = min(one.begun_s, first.begun_s)
        last.end, last.cause = one.end, last.cause or one.cause
        if math.isfinite(one.ended_s):
            last.ended_s = max(one.ended_s, last.trained_s)
        for each in own:
            each.nodes = one.nodes
    return sorted(found, key=lambda one: one.begun_s)


# All of a run


def _history(starts: list[Start], sources: tuple[str, ...], nodes: int, remarks: tuple[str, ...]) -> History:
    """What the starts of a run come to."""
    _state_spans(starts)
    again: float = math.inf
    for start in reversed(starts):
        start.last_kept = again
        if start.iterations:
            first = start.iterations[0]
            again = min(again, first.number - first.span if start.checkpoint is None else start.checkpoint)
    lines = [(start, one) for start in starts for one in start.iterations]
    undone = [min(max(one.number - start.last_kept, 0.0), one.span) for start, one in lines]
    trained_s = [one.seconds * one.span for _, one in lines]
    work_s = sum(one.seconds * count for (_, one), count in zip(lines, undone, strict=True))
    for before, after in pairwise(starts):
        before.end = before.end if before.end in (_PLANNED, _FAILURE) else _FAILURE
        before.ended_s = min(before.ended_s, after.begun_s) if after.begun_s >= before.trained_s else before.ended_s
    if starts and not starts[-1].end:
        starts[-1].end = _FAILURE if starts[-1].cause else _RUNNING
    failed, stops = [one for one in starts if one.end == _FAILURE], _stops(starts)
    saves_s = [value for start in starts for value in start.saves_s]
    known_s, restarts = [value for value in saves_s if math.isfinite(value)], [sum(one[1:]) for one in stops]
    ran = [
        (max(one.ended_s - one.begun_s, 0.0), nodes if math.isnan(one.nodes) else one.nodes)
        for one in starts if math.isfinite(one.ended_s)
    ]  # fmt: skip
    if not any(seconds for seconds, _ in ran):
        raise UsageError(f"{', '.join(sources)}: no start of the run has ended or was seen to train; expected one.")
    calendar_s = max(one.ended_s for one in starts if math.isfinite(one.ended_s)) - starts[0].begun_s
    useful_s = sum(trained_s) - work_s
    saving_s = statistics.fmean(known_s) * len(saves_s) if known_s else 0.0
    lost = {"work": work_s, "checkpoint": saving_s, "restart": sum(restarts)}
    lost["other"] = max(calendar_s - useful_s - sum(lost.values()), 0.0)
    whole_s = useful_s + sum(lost.values())
    if others := sorted({f"{of:.0f}" for _, of in ran if of != nodes}):
        remarks += (
            f"The run had {', '.join(others)} nodes, and the job has {nodes}: failures are taken per node-hour",
        )
    return History(
        sources=sources, starts=len(starts), failures=len(failed),
        planned_stops=sum(one.end == _PLANNED for one in starts[:-1]),
        causes=dict(Counter(one.cause or "unknown" for one in failed).most_common()), calendar_s=calendar_s,
        ran_s=sum(seconds for seconds, _ in ran), node_hours=sum(seconds * of for seconds, of in ran) / 3600.0,
        detection_s=_mean(one[1] for one in stops if one[0] == _FAILURE),
        restart_s=_mean(one[2] for one in stops if one[0] == _FAILURE),
        planned_stop_s=_mean(one[1] + one[2] for one in stops if one[0] == _PLANNED),
        checkpoint_s=_mean(known_s), checkpoint_write_s=_mean(value for one in starts for value in one.writes_s),
        checkpoint_interval_s=sum(trained_s) / len(saves_s) if saves_s else math.nan,
        iteration_time_s=statistics.median(one.seconds for _, one in lines) if lines else math.nan,
        iterations=round(sum(one.span for _, one in lines) - sum(undone)), lost_iterations=round(sum(undone)),
        effective_time_ratio=useful_s / whole_s if lines else math.nan,
        lost={name: value / whole_s if lines else math.nan for name, value in lost.items()}, remarks=remarks,
    )  # fmt: skip


def _state_spans(starts: Iterable[Start]) -> None:
    """Says of each line how many iterations it is the mean of: those since the line before, as usual of a first one."""
    steps = [b.number - a.number for start in starts for a, b in pairwise(start.iterations)]
    usual = statistics.mode(steps) if steps else 1
    for start in starts:
        before = start.checkpoint
        for place, one in enumerate(start.iterations):
            span = usual if before is None or not 0 < one.number - before <= max(usual, 1) else one.number - before
            span = one.number - start.iterations[place - 1].number if place else min(span, max(one.number, 1))
            start.iterations[place] = replace(one, span=span)


def _stops(starts: Iterable[Start]) -> list[tuple[str, float, float]]:
    """Of each stop after which training went on: how it ended, seconds until then, and from then to training."""
    found: list[tuple[str, float, float]] = []
    last: Start | None = None  # that trained
    stopped: Start | None = None  # the first that ended since
    for start in starts:
        if start.iterations:
            first = start.iterations[0]
            again_s = first.ended_s - first.seconds * first.span
            if last and stopped:
                ended_s = max(min(stopped.ended_s, again_s), last.trained_s)
                found.append((stopped.end, ended_s - last.trained_s, max(again_s - ended_s, 0.0)))
            last, stopped = start, start
        stopped = stopped or start
    return found


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return statistics.fmean(known) if known else math.nan
