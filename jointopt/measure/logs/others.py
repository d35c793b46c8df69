"""Logs of torchtitan, nanotron, DeepSpeed and NeMo, each by the format string of its training loop."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jointopt.core.units import GIB
from jointopt.measure.logs import iterations
from jointopt.measure.logs.iterations import Iteration, RunLog, run_log
from jointopt.measure.logs.lines import Line, lines_of, moment_of

_NUMBER = r"[-+]?(?:nan|inf|\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?)"
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
    """One program's lines: of an iteration (groups ``number``, perhaps ``loss`` and ``memory``), and around them."""

    framework: str
    iteration: re.Pattern[str]
    seconds: _Times
    beside: tuple[tuple[re.Pattern[str], str], ...] = ()  # what makes the next iteration no ordinary one
    memory: re.Pattern[str] | None = None  # of a line of its own
    bytes_per_unit: float = GIB  # of memory
    skipped: re.Pattern[str] | None = None  # a line whose group counts the skipped iterations so far
    remark: str = ""

    def is_log(self, text: str) -> bool:
        """Whether a text holds a line of iterations of this format."""
        return any(self.iteration.search(line.text) for line in lines_of(text))

    def read(self, text: str, warmup: int, batch: Batch) -> RunLog:
        """The run of a log after ``warmup`` iterations; ValueError where none counts."""
        found: list[Iteration] = []
        fault, memory, skipped = "", [math.nan], 0
        for line in lines_of(text):
            fault = next((why for marks, why in self.beside if marks.search(line.text)), fault)
            if self.skipped and (counted := self.skipped.search(line.text)):
                fault = iterations.SKIPPED if int(counted[1]) > skipped else fault
                skipped = max(skipped, int(counted[1]))
            memory += self._memory(line.text)
            for one in self._iterations(line, batch, fault, len(found) + 1):
                found.append(one)
                fault = ""
        largest = max((value for value in memory if math.isfinite(value)), default=math.nan)
        return run_log(found, warmup, largest, self.remark)

    def _memory(self, text: str) -> list[float]:
        found = [m["memory"] for m in self.iteration.finditer(text) if "memory" in m.re.groupindex and m["memory"]]
        found += self.memory.findall(text) if self.memory else []
        return [float(value) * self.bytes_per_unit / GIB for value in found]

    def _iterations(self, line: Line, batch: Batch, fault: str, place: int) -> Iterator[Iteration]:
        for found in self.iteration.finditer(line.text):
            seconds = self.seconds(found, batch)
            loss = float(found["loss"]) if "loss" in found.re.groupindex and found["loss"] else math.nan
            if 0 < seconds < math.inf:
                bad = iterations.NAN if found.groupdict().get("loss") and not math.isfinite(loss) else fault
                ended_s = moment_of(line.text[: found.start()])
                yield Iteration(
                    int(found["number"] or place), seconds, line.rank, loss=loss, fault=bad, ended_s=ended_s
                )


def _plain(text: str) -> float:
    return float(text.replace(",", ""))


def _by_tokens(found: Match, batch: Batch) -> float:
    """From tokens per second of one GPU."""
    rate = _plain(found["tps"])
    return batch.sequences * batch.seq_length / (rate * batch.num_gpus) if rate > 0 else math.nan


def _by_samples(found: Match, batch: Batch) -> float:
    rate = _plain(found["rate"])
    return batch.sequences / rate if rate > 0 else math.nan


def _milliseconds(found: Match, batch: Batch) -> float:
    return round(_plain(found["ms"]) * _MAGNITUDE[found["unit"] or ""] / 1e3, 9)


def _seconds(found: Match, batch: Batch) -> float:
    return _plain(found["s"])


def _by_phases(found: Match, batch: Batch) -> float:
    return sum(_plain(found[name]) for name in ("fwd", "bwd", "step")) / 1e3


def _pattern(words: str, begin: str = "") -> re.Pattern[str]:
    """NUM is a number, ANY a text without another ``begin``, by which a line of another rank was written into it."""
    return re.compile(words.replace("ANY", f"(?:(?!{begin}).)*?").replace("NUM", _NUMBER))


_SAVING = re.compile(r"[Ss]aving (?:the |model )?checkpoint|[Ff]inished saving|\[Torch\] Sav(?:ing|ed)")
_CHECKPOINT = (_SAVING, iterations.CHECKPOINT)
_OVERFLOW = (re.compile(r"Skipping step|OVERFLOW!|Grad overflow"), iterations.SKIPPED)
TORCHTITAN = Format(
    "torchtitan",
    _pattern(
        r"(?<!validate )step:\s*(?P<number>\d+)\s+loss:\s*(?P<loss>NUM)\sANYmemory:\s*(?P<memory>[\d.]+)GiB"
        r"\([\d.]+%\)\s+(?:tps|wps):\s*(?P<tps>NUM)\sANYmfu:\s*(?:[\d.]+%|N/A)",
        "step:",
    ),
    _by_tokens,
    (_CHECKPOINT, (re.compile(r"validate step:"), iterations.EVALUATION)),
)
NANOTRON = Format(
    "nanotron",
    _pattern(
        r"\biteration: (?P<number>\d+) / \d+ \|ANY\b(?:elapsed_)?time_per_iteration_ms: (?P<ms>NUM)(?P<unit>[KMBT]?) \|"
        r"ANY\b(?:lm_loss|loss): (?P<loss>NUM) \|",
        "iteration:",
    ),
    _milliseconds,
    (_CHECKPOINT, (re.compile(r"[Vv]alidation loss|Validating"), iterations.EVALUATION)),
    re.compile(r"Peak reserved: ([\d.]+)MiB"),
    2**20,
)
DEEPSPEED_PIPELINE = Format(
    "deepspeed",
    _pattern(r"\bsteps: (?P<number>\d+) loss: (?P<loss>NUM) ANYiter time \(s\): (?P<s>NUM) samples/sec: NUM", "steps:"),
    _seconds,
    (_CHECKPOINT, _OVERFLOW),
    skipped=re.compile(r"\bstep=\d+, skipped=(\d+),"),
)
DEEPSPEED = Format(
    "deepspeed",
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
    _pattern(
        r"time \(ms\) \| fwd: (?P<fwd>NUM) \| bwd: (?P<bwd>NUM) \|ANY\| step: (?P<step>\d+\.\d\d)(?P<number>)\s*$",
        "fwd:",
    ),
    _by_phases,
    (_CHECKPOINT, _OVERFLOW),
    remark="forward, backward and step, without what lies between them",
)
NEMO = Format(
    "nemo",
    _pattern(
        r"iteration (?P<number>\d+)/\d+ \|ANYreduced_train_loss: (?P<loss>NUM) \|ANY"
        r"train_step_timing in s: (?P<s>NUM)(?=\s*\||(?<=[\d.]{5})\s*$)",  # last in its line, it is whole by its digits
        "iteration ",
    ),
    _seconds,
    (_CHECKPOINT, (re.compile(r"val_loss|Validation DataLoader"), iterations.EVALUATION)),
)
# of a script of one's own, such as those that Accelerate starts: documented in docs/imports.md
PLAIN = Format(
    "",
    _pattern(r"^step (?P<number>\d+) loss (?P<loss>NUM) time (?P<s>\d+\.\d{3,})(?: s)?\s*$"),
    _seconds,
    (_CHECKPOINT,),
)
FORMATS = (
    TORCHTITAN,
    NANOTRON,
    DEEPSPEED_PIPELINE,
    DEEPSPEED,
    NEMO,
    DEEPSPEED_PHASES,
    PLAIN,
)  # the first that fits counts
