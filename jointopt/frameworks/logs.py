"""The log of any known training program, read by the format of its lines, and when its iterations ran."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from jointopt.core.units import GIB
from jointopt.frameworks.options import NEWEST, option_table, version_key
from jointopt.runs.rows import result_row

_LEAST_WHOLE_S = 20.0  # a window whose end is known to a second alone
_MOST_BETWEEN = 0.1  # of the iterations' time: what may have passed between them, and be in no line
_ROUNDED_S = 1.0  # times of lines may be whole seconds


def read_run(text: str, warmup: int, batch: Batch) -> RunLog:
    """The run of a log after ``warmup`` iterations, by the first format that fits; ValueError where none counts."""
    if is_log(text):
        return read_log(text, warmup)
    form = next((form for form in FORMATS if form.is_log(text)), None)
    if form is None:
        raise ValueError("it holds no iteration")
    return form.read(text, warmup, batch)


def lines_with_iterations(text: str, batch: Batch) -> Iterator[tuple[Line, list[Iteration]]]:
    """The lines of a log in order, each with the iterations that it states; none where no format has their times."""
    if is_log(text):
        yield from ((line, _iterations(line)) for line in lines_of(text))
    elif form := next((form for form in FORMATS if not (form.elapsed or form.whole) and form.is_log(text)), None):
        yield from form.lines(text, batch)
    else:
        yield from ((line, []) for line in lines_of(text))


class Window(NamedTuple):
    """A time in which nothing but iterations that count ran: start and end in s since 1970, and their number."""

    start_s: float
    end_s: float
    iterations: int


def window_of(log: RunLog) -> Window:
    """The longest stretch of iterations that count, none between them that does not, by the times of its lines.

    ValueError says why there is none: lines without times (of this machine's zone), times that are too coarse for so
    short a stretch, or that tell more or less time than the iterations took.
    """
    stretch = max(_stretches(log.kept), key=_seconds)
    seconds, end = _seconds(stretch), stretch[-1].ended_s
    if not math.isfinite(end):
        raise ValueError("its lines hold no times")
    if end.is_integer() and seconds < _LEAST_WHOLE_S:
        raise ValueError(f"its times are whole seconds, too coarse for {seconds:.1f} s without an interruption")
    passed, counted = end - stretch[0].ended_s, seconds - _seconds(stretch[:1])
    if abs(passed - counted) > _ROUNDED_S + _MOST_BETWEEN * counted:
        raise ValueError(f"{passed:.1f} s passed from its first line that counts to its last, of which the iterations "
                         f"took {counted:.1f} s")  # fmt: skip
    return Window(end - seconds, end, sum(one.span for one in stretch))


def _stretches(kept: Iterable[Iteration]) -> list[list[Iteration]]:
    """The iterations in stretches without a gap."""
    found: list[list[Iteration]] = []
    for one in kept:
        if not found or one.number - found[-1][-1].number != one.span:
            found.append([])
        found[-1].append(one)
    return found


def _seconds(stretch: Iterable[Iteration]) -> float:
    return math.fsum(one.seconds * one.span for one in stretch)


# Iterations of one run: which of them count as measured, and the result columns of those that do.


# Why an iteration does not count.
SKIPPED, NAN, CUT = "skipped for gradients that were not finite", "with NaN", "cut off in the log"
CHECKPOINT, EVALUATION, WARM_UP = "beside a checkpoint", "beside an evaluation", "of warm-up"
SPIKE = "with a spike of the loss"
_SPIKE = 1.0  # nat above the losses before and after


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
    judged = _split_starts(_of_one_rank(iterations), warmup)
    dropped = Counter(one.fault for one in judged if one.fault)
    kept = tuple(one for one in judged if not one.fault)
    if not kept:
        why = f", of which {_count_text(dropped)}" if dropped else ""
        raise ValueError(f"{len(judged)} iterations in the log{why}")
    return RunLog(kept, dropped, peak_memory_gib, remark)


def result_columns(log: RunLog, num_gpus: int, metered: bool = False) -> dict[str, Any]:
    """The result columns of a log; energy only where it holds any (0 J means that the program had no meter).

    ``metered``: another meter will say how much there was, so that the notes leave it open.
    """
    seconds = statistics.median(log.iteration_s)
    spread = (max(log.iteration_s) - min(log.iteration_s)) / seconds
    notes = [f"{len(log.kept)} iterations, spread {spread:.1%}, loss {log.kept[-1].loss:.5g}"]
    notes += [_count_text(log.dropped) + " left out"] if log.dropped else []
    notes += [log.remark] if log.remark else []
    joules = log.median("energy_per_gpu_j")
    energy = {"energy_j": joules * num_gpus, "avg_power_w": log.median("power_per_gpu_w")}
    if not joules > 0:
        energy = {}
        notes += [] if metered else ["energy not measured"]
    return result_row(", ".join(notes), iteration_time_s=seconds, peak_memory_gib=log.peak_memory_gib, **energy)


def _count_text(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _of_one_rank(iterations: Iterable[Iteration]) -> list[Iteration]:
    by_rank: dict[str, list[Iteration]] = {}
    for one in iterations:
        by_rank.setdefault(one.rank, []).append(one)
    return max(by_rank.values(), key=lambda ones: (sum(one.loss >= 0 for one in ones), len(ones)), default=[])


def _split_starts(iterations: Iterable[Iteration], warmup: int) -> list[Iteration]:
    """The iterations in order, the first of each start of the program marked; a line that stands twice counts once."""
    starts: list[list[Iteration]] = []
    for one in iterations:
        last = starts[-1][-1] if starts else None
        if last and one.number == last.number and one.seconds == last.seconds:
            continue
        if last is None or one.number <= last.number:
            starts.append([])
        starts[-1].append(one)
    return [one for start in starts for one in _mark_warm_up(start, warmup)]


def _mark_warm_up(lines: list[Iteration], warmup: int) -> Iterator[Iteration]:
    """The lines of one start with their spans, those marked that hold any of its first ``warmup`` iterations."""
    ends = [one.number for one in lines]
    span = min((b - a for a, b in itertools.pairwise(ends)), default=1)
    begun = max(ends[0] - span, min(ends[0] - 1, 0))  # the iteration before the first line; NeMo counts from 0
    losses = [math.nan, *(one.loss for one in lines), math.nan]
    for before, one, beside in zip([begun, *ends], lines, zip(losses, losses[2:], strict=False), strict=False):
        cold = before < begun + warmup and not one.fault
        why = WARM_UP if cold else SPIKE if all(one.loss > other + _SPIKE for other in beside) else ""
        yield dataclasses.replace(one, span=span, fault=one.fault or why)


# Logs of programs that are not Megatron's, each by the format string of its training loop.


_NUMBER = r"[-+]?(?:(?i:nan|inf)|\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)"
_MAGNITUDE = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Batch:
    """The batch of one iteration, for logs that state a throughput instead of a time."""

    sequences: int
    seq_length: int
    num_gpus: int


Match = re.Match[str]
_Times = Callable[[Match, Batch], float]  # seconds of an iteration from its line


@dataclass(frozen=True)
class Format:
    """One program's entries: of an iteration (groups ``number``, perhaps ``loss``, ``memory``), and around them."""

    framework: str
    mark: str  # a text in every log of it
    iteration: re.Pattern[str]
    seconds: _Times
    beside: tuple[tuple[re.Pattern[str], str], ...] = ()  # what makes the next iteration no ordinary one
    memory: re.Pattern[str] | None = None  # of a line of its own
    bytes_per_unit: float = GIB  # of memory
    skipped: re.Pattern[str] | None = None  # a line whose group counts the skipped iterations so far
    remark: str = ""  # {} in it: how precisely the group ``rate`` is written
    ends: re.Pattern[str] | None = None  # an entry, where it is not the end of a line
    program: str = ""  # that writes it, where it is no framework
    elapsed: bool = False  # `seconds` are those since the program's start
    whole: bool = False  # it is the mean of a whole training

    def is_log(self, text: str) -> bool:
        """Whether a text holds an entry of iterations of this format."""
        return self.mark in text and any(self.iteration.search(entry.text) for entry in self._entries(text))

    def _entries(self, text: str) -> Iterator[Line]:
        if self.ends is not None and text[-1:] not in "\r\n":  # a last line without an end is cut off
            text = text.rpartition("\n")[0]
        lines = (line for line in lines_of(text) if not _is_comment(line))
        if self.ends is None:
            return lines
        return (Line("", one[-_MOST_ENTRY:]) for one in self.ends.split("\n".join(line.text for line in lines)))

    def read(self, text: str, warmup: int, batch: Batch) -> RunLog:
        """The run of a log after ``warmup`` iterations; ValueError where none counts."""
        found: list[Iteration] = []
        fault, memory, skipped = "", [math.nan], 0
        rates: list[str] = []
        for line in self._entries(text):
            fault = next((why for marks, why in self.beside if marks.search(line.text)), fault)
            if self.skipped and (counted := self.skipped.search(line.text)):
                fault = SKIPPED if int(counted[1]) > skipped else fault
                skipped = max(skipped, int(counted[1]))
            memory += self._memory(line.text)
            rates += [one["rate"] for one in self.iteration.finditer(line.text)] if "{" in self.remark else []
            for one in self._iterations(line, batch, fault, len(found) + 1):
                found.append(one)
                fault = ""
        rounding = max(statistics.median(map(_rounding, rates)), 0.001) if rates else 0.0
        found = [*_mean_between_lines(found)] if self.elapsed else found
        return run_log(found, 0 if self.whole else warmup, _largest(memory), self.remark.format(f"{rounding:.1%}"))

    def lines(self, text: str, batch: Batch) -> Iterator[tuple[Line, list[Iteration]]]:
        """Its entries in order, each with the iterations that it states."""
        yield from ((line, [*self._iterations(line, batch, "", 0)]) for line in self._entries(text))

    def _memory(self, text: str) -> list[float]:
        found = [m["memory"] for m in self.iteration.finditer(text) if "memory" in m.re.groupindex and m["memory"]]
        found += self.memory.findall(text) if self.memory else []
        return [_parse_number(value) * self.bytes_per_unit / GIB for value in found]

    def _iterations(self, line: Line, batch: Batch, fault: str, place: int) -> Iterator[Iteration]:
        for found in self.iteration.finditer(line.text):
            seconds = self.seconds(found, batch)
            stated = {name: _parse_number(text) for name in ("loss", "norm") if (text := found.groupdict().get(name))}
            loss = stated.get("loss", math.nan)
            if 0 < seconds < math.inf:
                bad = fault if all(map(math.isfinite, stated.values())) else NAN
                ended_s = moment_of(line.text[: found.start()])
                number = int(_parse_number(found["number"])) if found["number"] else place
                yield Iteration(number, seconds, line.rank, loss=loss, fault=bad, ended_s=ended_s)


def _parse_number(text: str) -> float:
    return float(text.replace(",", ""))


def _rounding(text: str) -> float:
    """How far a number may be off by its last digit, as a share of it."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2]) / _parse_number(text) if _parse_number(text) else math.inf


def _mean_between_lines(found: Iterable[Iteration]) -> Iterator[Iteration]:
    """The mean from one line to another where the lines of a bar state whole seconds since its start."""
    last, fault = Iteration(0, math.inf), ""
    for one in found:
        fault = fault or one.fault
        if one.number < last.number or one.seconds < last.seconds:
            last, fault = one, ""
        elif one.seconds - last.seconds >= _LEAST_WHOLE_S and one.number > last.number:
            each = (one.seconds - last.seconds) / (one.number - last.number)
            yield dataclasses.replace(one, seconds=each, fault=fault)
            last, fault = one, ""


def _by_tokens(found: Match, batch: Batch) -> float:
    """Seconds of an iteration from the tokens per second of one GPU."""
    rate = _parse_number(found["tps"])
    return batch.sequences * batch.seq_length / (rate * batch.num_gpus) if rate > 0 else math.nan


def _by_samples(found: Match, batch: Batch) -> float:
    rate = _parse_number(found["rate"])
    return batch.sequences / rate if rate > 0 else math.nan


def _by_rate(found: Match, batch: Batch) -> float:
    """Seconds of an iteration from a rate of seconds per iteration, or iterations per second."""
    rate = _parse_number(found["rate"])
    return rate if found.groupdict().get("unit") == "s/it" else 1.0 / rate if rate > 0 else math.nan


def _stated_seconds(found: Match, batch: Batch) -> float:
    return _parse_number(found["s"])


def _pattern(words: str, begin: str = "") -> re.Pattern[str]:
    """NUM is a number, ANY a text without another ``begin``, by which a line of another rank was written into it."""
    return re.compile(words.replace("ANY", f"(?:(?!{begin}).)*?").replace("NUM", _NUMBER).replace("BAR", _BAR))


# of tqdm: 5/100 [00:11<03:45,
_BAR = r"(?P<number>\d+)/[\d?]+ \[(?P<clock>[\d:]+)<[\d:?]+"
_MOST_ENTRY = 20_000  # characters of one that are looked at, from its end
_INDENTED = re.compile(r"\n(?![ \t])")  # lines that belong to the one above


_SAVING = re.compile(r"[Ss]aving (?:the |model )?checkpoint|[Ff]inished saving|\[Torch\] Sav(?:ing|ed)")
_CHECKPOINT = (_SAVING, CHECKPOINT)
_OVERFLOW = (re.compile(r"Skipping step|OVERFLOW!|Grad overflow"), SKIPPED)
TORCHTITAN = Format(
    "torchtitan",
    "mfu:",
    _pattern(
        r"(?<!validate )step:\s*(?P<number>\d+)\s+loss:\s*(?P<loss>NUM)\sANYmemory:\s*(?P<memory>[\d.]+)GiB"
        r"\([\d.]+%\)\s+(?:tps|wps):\s*(?P<tps>NUM)\sANYmfu:\s*(?:[\d.]+%|N/A)",
        "step:",
    ),
    _by_tokens,
    (_CHECKPOINT, (re.compile(r"validate step:"), EVALUATION)),
)
NANOTRON = Format(
    "nanotron",
    "time_per_iteration_ms:",
    _pattern(
        r"\biteration: (?P<number>\d+) / \d+ \|ANY\b(?:elapsed_)?time_per_iteration_ms: (?P<ms>NUM)(?P<unit>[KMBT]?) \|"
        r"ANY\b(?:lm_loss|loss): (?P<loss>NUM) \|",
        "iteration:",
    ),
    lambda found, batch: round(_parse_number(found["ms"]) * _MAGNITUDE[found["unit"] or ""] / 1e3, 9),
    (_CHECKPOINT, (re.compile(r"[Vv]alidation loss|Validating"), EVALUATION)),
    re.compile(r"Peak reserved: ([\d.]+)MiB"),
    2**20,
)
DEEPSPEED_PIPELINE = Format(
    "deepspeed",
    "iter time (s):",
    _pattern(r"\bsteps: (?P<number>\d+) loss: (?P<loss>NUM) ANYiter time \(s\): (?P<s>NUM) samples/sec: NUM", "steps:"),
    _stated_seconds,
    (_CHECKPOINT, _OVERFLOW),
    skipped=re.compile(r"\bstep=\d+, skipped=(\d+),"),
)
DEEPSPEED = Format(
    "deepspeed",
    "CurrSamplesPerSec=",
    _pattern(
        r"micro_step=\d+/global_step=(?P<number>\d+), RunningAvgSamplesPerSec=NUM, CurrSamplesPerSec=(?P<rate>NUM), "
        r"MemAllocated=[\d.]+GB, MaxMemAllocated=(?P<memory>[\d.]+)GB"
    ),
    _by_samples,
    (_CHECKPOINT, _OVERFLOW),
    skipped=re.compile(r"\bstep=\d+, skipped=(\d+),"),
)
DEEPSPEED_PHASES = Format(
    "deepspeed",
    "| fwd:",
    _pattern(
        r"time \(ms\) \| fwd: (?P<fwd>NUM) \| bwd: (?P<bwd>NUM) \|ANY\| step: (?P<step>\d+\.\d\d)(?P<number>)\s*$",
        "fwd:",
    ),
    lambda found, batch: sum(_parse_number(found[name]) for name in ("fwd", "bwd", "step")) / 1e3,
    (_CHECKPOINT, _OVERFLOW),
    remark="forward, backward and step, without what lies between them",
)
NEMO = Format(
    "nemo",
    "train_step_timing in s: ",
    _pattern(
        r"iteration (?P<number>\d+)/\d+ \|ANYreduced_train_loss: (?P<loss>NUM) \|ANY"
        r"train_step_timing in s: (?P<s>NUM)(?=\s*\||(?<=[\d.]{5})\s*$)",  # last in its line, it is whole by its digits
        "iteration ",
    ),
    _stated_seconds,
    (_CHECKPOINT, (re.compile(r"val_loss|Validation DataLoader"), EVALUATION)),
)
NEMO_BAR = Format(
    "nemo",
    "train_step_timing in s=",
    _pattern(
        r"\d+/\d+ \[ANYreduced_train_loss=(?P<loss>NUM),ANYglobal_step=(?P<number>NUM),ANY"
        r"train_step_timing in s=(?P<s>NUM)(?=[],])",
        r"\d+/\d+ \[",
    ),
    _stated_seconds,
    (_CHECKPOINT, (re.compile(r"Validation DataLoader|Validation:"), EVALUATION)),
    remark="times of three digits",
)
# its transformers.trainer_callback: a bar of tqdm, and a dictionary each logging_steps, of text since 5.0
TRAINER = Format(
    "",
    "{'loss':",
    _pattern(
        r"(?s)BAR, +(?P<rate>NUM)(?P<unit>s/it|it/s)[^\]]*\](?:(?!\d+/\d+ \[).)*\{'loss': '?(?P<loss>NUM)'?,"
        r"(?: 'grad_norm': '?(?P<norm>NUM))?"
    ),
    _by_rate,
    (_CHECKPOINT, (re.compile(r"'eval_\w+':"), EVALUATION)),
    remark="rates that a progress bar smooths over some steps, each precise to {}",
    ends=re.compile(r"(?<=\})\n"),
    program="Hugging Face Trainer",
)
TRAINER_SUMMARY = Format(
    "",
    "'train_runtime':",
    _pattern(
        r"(?P<number>)\{'train_runtime': '?NUM'?, 'train_samples_per_second': '?NUM'?, "
        r"'train_steps_per_second': '?(?P<rate>NUM)'?(?=[,}])(?:,ANY 'train_loss': '?(?P<loss>NUM))?",
        r"\{'train",
    ),
    _by_rate,
    remark="mean of a whole training, its start, checkpoints and evaluations included, precise to {}",
    program="Hugging Face Trainer",
    whole=True,
)
# its bars show the mean rate since the epoch's start, so that only the clock tells one stretch from another
LIGHTNING = Format(
    "",
    "Epoch ",
    _pattern(r"Epoch \d+:ANYBAR, +NUM(?:it/s|s/it)(?:,ANY\b(?:train[_/])?loss(?:_step)?=(?P<loss>NUM))?", "Epoch "),
    lambda found, batch: sum(  # of a time such as 1:02:03
        int(part) * 60.0**place for place, part in enumerate(reversed(found["clock"].split(":")))
    ),
    (_CHECKPOINT, (re.compile(r"Validation DataLoader|Validation:"), EVALUATION)),
    remark="means of 20 s or more by the whole seconds of a progress bar, whose batches are taken as iterations",
    program="Lightning",
    elapsed=True,
)
OLMO = Format(
    "",
    "throughput/device/",
    _pattern(
        r"(?s)\A[^\n]{0,200}?\[step=(?P<number>\d+)/[\d?]+[^\]\n]*\]"
        r"(?=(?:.*?train/(?:CrossEntropyLoss|CE loss)=(?P<loss>NUM))?)"
        r"(?=.*?throughput/device/(?:tokens_per_second|TPS)=(?P<tps>NUM))"
        r"(?=(?:.*?System/Peak GPU Memory \(MB\)=(?P<memory>[\d.,]+))?)"
    ),
    _by_tokens,
    (_CHECKPOINT, (re.compile(r"\[eval_step="), EVALUATION), (re.compile(r"optim/step skipped=1\b"), SKIPPED)),
    bytes_per_unit=1e6,
    ends=_INDENTED,
    program="OLMo",
)
COMPOSER = Format(
    "composer",
    "throughput/samples_per_sec:",
    _pattern(
        r"(?s)\A[^\n]{0,200}?\[\w+=\d+(?:/\d+)?\]:(?=.*?Train time/batch: (?P<number>\d+))"
        r"(?=(?:.*?Train memory/peak_reserved_mem: (?P<memory>[\d.]+))?)(?=.*?Train loss/train/total: (?P<loss>NUM))"
        r"(?=.*?Train throughput/samples_per_sec: (?P<rate>NUM))"
    ),
    _by_samples,
    (_CHECKPOINT, (re.compile(r"\[Eval batch="), EVALUATION)),
    bytes_per_unit=1e9,
    remark="means of its speed monitor's window",
    ends=_INDENTED,
)
# of a script of one's own, such as those that Accelerate starts: documented in docs/imports.md
PLAIN = Format(
    "",
    "step ",
    _pattern(r"^step (?P<number>\d+) loss (?P<loss>NUM) time (?P<s>\d+\.\d{3,})(?: s)?\s*$"),
    _stated_seconds,
    (_CHECKPOINT,),
)
FORMATS = (
    TORCHTITAN,
    NANOTRON,
    DEEPSPEED_PIPELINE,
    DEEPSPEED,
    NEMO,
    NEMO_BAR,
    OLMO,
    COMPOSER,
    TRAINER,
    LIGHTNING,
    DEEPSPEED_PHASES,
    TRAINER_SUMMARY,
    PLAIN,
)  # the first that fits counts


# Logs of Megatron-LM, Megatron-Bridge, Megatron-DeepSpeed and GPT-NeoX: ``training_log`` of their training loops.


_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|")
_FIELD = re.compile(r"\s*([a-z][^|:]*?)\s*:\s*([-+]?(?:(?i:nan|inf)|\d+\.?\d*(?:[eE][-+]?\d+)?))\s*\|")
_MEMORY = re.compile(r"memory \(MB\).*\bmax reserved:\s*([\d.]+)|\bmax reserved:\s*([\d.]+)")
_MEMORY_GB = re.compile(r"memory \(GB\).*\bmem-max-reserved-gigabytes:\s*([\d.]+)")  # 1e9 bytes
# its time in Megatron's words, and in those of BigScience's Megatron-DeepSpeed: seconds of a unit
_TIME, _UNITS = "elapsed time per iteration (", {"ms": 1e-3, "s": 1.0}
_SKIPPED, _NAN = "number of skipped iterations", "number of nan iterations"
_INTERRUPTIONS = {
    re.compile(r"saving checkpoint at iteration|successfully saved checkpoint|save-checkpoint"): CHECKPOINT,
    re.compile(r"validation loss at iteration|\bEvaluating on \d+|\bEvaluating iter|: evaluate\b"): (EVALUATION),
}


def read_log(text: str, dropped: int) -> RunLog:
    """The log of one run, of any rank or all mixed, after ``dropped`` iterations of warm-up; ValueError without any.

    Megatron sets its counters of skipped and NaN iterations back at each line, so that they are those of the line. The
    line after a checkpoint or an evaluation does not count: caches are cold, and early versions timed both with it.
    """
    found: list[Iteration] = []
    beside, megabytes = "", [math.nan]
    for line in lines_of(text):
        beside = next((why for marks, why in _INTERRUPTIONS.items() if marks.search(line.text)), beside)
        megabytes += _megabytes(line.text)
        for one in _iterations(line):
            found.append(dataclasses.replace(one, fault=one.fault or beside))
            beside = ""
    return run_log(found, dropped, _largest(megabytes) * 2**20 / GIB)


def is_log(text: str) -> bool:
    """Whether a text holds a line of iterations of this format."""
    return _TIME in text and any(
        _TIME in line.text and _ITERATION.search(line.text) and not _is_comment(line) for line in lines_of(text)
    )


def writer_of(text: str) -> tuple[str, str]:
    """The name of a log of this format, and its framework: GPT-NeoX runs Megatron's layers in DeepSpeed's engine."""
    if "approx flops per GPU:" in text:
        return "GPT-NeoX log", "megatron-deepspeed"
    return "Megatron-LM log", "megatron-lm"


def _megabytes(text: str) -> list[float]:
    if found := _MEMORY_GB.search(text):
        return [float(found[1]) * 1e9 / 2**20]
    return [float(found[1] or found[2])] if (found := _MEMORY.search(text)) else []


def _largest(values: list[float]) -> float:
    return max((value for value in values if math.isfinite(value)), default=math.nan)


def _iterations(line: Line) -> list[Iteration]:
    """The iterations of a line; where another rank wrote into it, there are several beginnings."""
    starts = [*_ITERATION.finditer(line.text)]
    befores = [0, *(start.end() for start in starts)]
    ends = [*(start.start() for start in starts[1:]), len(line.text)]
    found = (
        _iteration(int(start[1]), line.text[start.end() : end], line.rank, moment_of(line.text[before : start.start()]))
        for start, before, end in zip(starts, befores, ends, strict=False)
    )
    return [one for one in found if one is not None]


def _iteration(number: int, rest: str, rank: str, ended_s: float) -> Iteration | None:
    pairs = _FIELD.findall(rest)
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    # its label in 2021, and GPT-NeoX's
    fields = {re.sub("^lm[-_]loss$", "lm loss", name): float(value) for name, value in pairs}
    seconds = sum(fields.get(f"{_TIME}{unit})", 0.0) * each for unit, each in _UNITS.items())
    if not 0 < seconds < math.inf or twice:
        return None
    return Iteration(
        number, round(seconds, 9), rank, fields.get("energy per GPU (J/iter/GPU)", math.nan),
        fields.get("power per GPU (W/GPU)", math.nan), fields.get("lm loss", math.nan), _fault_of(fields), ended_s,
    )  # fmt: skip


def _fault_of(fields: dict[str, float]) -> str:
    """Why a line does not count; Megatron's own, which count samples, end with the counters or are cut off."""
    if fields.get(_SKIPPED, 0):
        return SKIPPED
    if fields.get(_NAN, 0) or any(math.isnan(fields.get(name, 0.0)) for name in ("lm loss", "grad norm")):
        return NAN
    return CUT if "consumed samples" in fields and not {_SKIPPED, _NAN} <= fields.keys() else ""


# The lines of a log as the program wrote them: without colours, the label of the rank taken off, and their times.


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_LINE_END = re.compile(r"\r\n|[\n\r]")
# labels of torchrun, torch.distributed and srun: [default0]:, [rank3]:, 12:
_LABEL = re.compile(r"((?:\[(?![^\]\s]*=\d+/)[^\]\s]*\]:\s?|\d+: ?)*)(.*)", re.DOTALL)
# text that a script writes into a file or a program: no logger wrote it
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_]\w*)\1[^\n]*\n.*?\n[ \t]*\2[ \t]*(?=\n|$)", re.DOTALL)
_MOST_SCRIPT, _MOST_HEREDOCS = 200_000, 200  # characters in which a script may stand, and their signs in it
_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_MONTH_FIRST = re.compile(r"(\d\d)/(\d\d)(?:/(\d{4}))? (\d\d):(\d\d):(\d\d)")  # nanotron's, without a year


class Line(NamedTuple):
    """One line: the label of the rank that wrote it (blank without one), and its text."""

    rank: str
    text: str


def lines_of(log: str) -> Iterator[Line]:
    """The lines of a log in order; a progress bar's returns count as ends of lines."""
    if 0 < log.count("<<", 0, _MOST_SCRIPT) <= _MOST_HEREDOCS:
        log = _HEREDOC.sub("", log[:_MOST_SCRIPT]) + log[_MOST_SCRIPT:]
    for raw in _LINE_END.split(_ANSI.sub("", log)):
        found = _LABEL.match(raw)
        if found:
            yield Line(found[1].strip(), found[2])


def _is_comment(line: Line) -> bool:
    """Whether a line is quoted in a comment of a script, where no program wrote it."""
    return line.text.lstrip().startswith("#")


def moment_of(text: str) -> float:
    """The last time in a text, of this machine's zone, in s since 1970; NaN without one."""
    if found := [*_MOMENT.finditer(text)]:
        *parts, fraction = found[-1].groups()
        return _local_seconds(*map(int, parts), int((fraction or "0").ljust(6, "0")))
    if found := [*_MONTH_FIRST.finditer(text)]:
        month, day, year, hour, minute, second = found[-1].groups()
        return _local_seconds(int(year or time.localtime().tm_year), *map(int, (month, day, hour, minute, second)))
    return math.nan


def _local_seconds(*parts: int) -> float:
    try:
        return datetime(*parts).timestamp()  # type: ignore[arg-type]
    except ValueError:
        return math.nan


# Conditions of a run that its log states: the framework's version, and the network that NCCL chose.


_READ_NUMBER = r"(\d+(?:\.\d+)+[\w.+-]*)"
# lines by which programs introduce themselves
_VERSIONS = {
    "torchtitan": (rf"torchtitan version: {_READ_NUMBER}",),
    "deepspeed": (rf"DeepSpeed info: version={_READ_NUMBER}", rf"deepspeed info \.+ {_READ_NUMBER}"),
    "megatron-lm": (rf"megatron[-_.]core(?: version)?[ =:]+v?{_READ_NUMBER}",),
    "nemo": (rf"nemo_version: ['\"]?{_READ_NUMBER}", rf"megatron[-_.]bridge(?: version)?[ =:]+v?{_READ_NUMBER}"),
    "nanotron": (rf"nanotron(?: version)?[ =:]+v?{_READ_NUMBER}",),
}
_VERSIONS |= {"megatron": _VERSIONS["megatron-lm"], "megatron-bridge": _VERSIONS["nemo"]}  # as launchers name them
_MOST_KNOWN = 0.7  # of options that every version has, in a list of all: some bear another name there
_NONE = "0.0.0"  # by which torchtitan says that it does not know
_NETWORK = re.compile(r"NCCL INFO Using network (\w+)")
_PORTS = re.compile(r"NCCL INFO NET/IB : Using (\[0\][^;\n]*)")
_PORT = re.compile(r"\[\d+\]([\w.-]+:\d+)/(IB|RoCE)")
_SOCKET = re.compile(r"NCCL INFO NET/Socket : Using \[0\](\w+):")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (\w+)")
_WITHIN = (
    ("NVLink SHARP", re.compile(r"NCCL INFO.*(?:NVLS multicast support is available|\b[1-9]\d* nvls channels)")),
    ("peer to peer", re.compile(r"NCCL INFO (?:Channel|Ring).* via P2P/")),
    ("shared memory", re.compile(r"NCCL INFO (?:Channel|Ring).* via SHM\b")),
)


def version_of(log: str, framework: str) -> str:
    """The version that a log states; of Megatron's list of arguments the bounds (``>=0.16``); blank without either."""
    for pattern in _VERSIONS.get(framework, ()):
        found = re.search(pattern, log, re.IGNORECASE)
        if found and found[1] != _NONE:
            return found[1]
    return ""


def version_by_options(names: Iterable[str]) -> str:
    """The bounds of Megatron Core's version from the names of all its options (with underscores): ``>=0.13 <0.15``."""
    given = {name.replace("_", "-") for name in names}
    # an option of no release yet bounds none
    table = {name: option for name, option in option_table("megatron").items() if option.since != NEWEST}
    has = {name: bool({name, *option.also} & given) for name, option in table.items()}
    old = [has[name] for name, option in table.items() if not (option.since or option.until or option.states)]
    whole = sum(old) > _MOST_KNOWN * len(old)  # else the list is cut off, and what it lacks says nothing
    low, high = "", ""
    for name, option in table.items():
        if option.since and has[name]:
            low = max(low, option.since, key=lambda text: version_key(text or "0"))
        ends = option.until if has[name] else option.since if whole and not option.until else ""
        high = min(high or NEWEST, ends, key=version_key) if ends else high
    if high and version_key(high) <= version_key(low or "0"):  # an option of a fork
        high = ""
    return " ".join([*([f">={low}"] if low else []), *([f"<{high}"] if high else [])])


def fabric_of(log: str) -> str:
    """The networks between nodes and within one, from NCCL's lines (``NCCL_DEBUG=INFO``); blank without any."""
    within = next((f"{words} within a node" for words, pattern in _WITHIN if pattern.search(log)), "")
    return ", ".join(filter(None, (_between_nodes(log), within)))


def _between_nodes(log: str) -> str:
    """``InfiniBand (8 ports)``, ``RoCE (2 ports)``, ``Ethernet``, ``IP over InfiniBand``, ``EFA``, or NCCL's name."""
    chosen, listed, provider = _NETWORK.findall(log), _PORTS.search(log), _PROVIDER.search(log)
    name = chosen[-1] if chosen else ""
    if provider and name not in ("Socket", "IB"):
        return provider[1].upper()
    if name.startswith("IB") or (listed and not name):
        ports = _PORT.findall(listed[1]) if listed else []
        kind = "RoCE" if ports and all(kind == "RoCE" for _, kind in ports) else "InfiniBand"
        return f"{kind} ({len(ports)} ports)" if ports else kind
    if socket := _SOCKET.search(log):
        return "IP over InfiniBand" if socket[1].startswith("ib") else "Ethernet"
    return {"Socket": "Ethernet"}.get(name, name)


def flags_text(flags: Mapping[str, object]) -> str:
    """Options as one cell: ``manual_gc overlap_grad_reduce fp8_recipe=tensorwise``, in the order of their names."""
    return " ".join(
        name
        if value in (True, "True", "true")
        else name + "=" + re.sub(r"\s+", "", ",".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in sorted(flags.items())
    )
