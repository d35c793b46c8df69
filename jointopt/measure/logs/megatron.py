"""Logs of Megatron-LM, Megatron-Bridge and Megatron-DeepSpeed: ``training_log`` of their training loops."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter

from jointopt.core.units import GIB
from jointopt.measure.logs import iterations
from jointopt.measure.logs.iterations import Iteration, RunLog, run_log
from jointopt.measure.logs.lines import Line, lines_of, moment_of

_ITERATION = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|")
_FIELD = re.compile(r"\s*([a-z][^|:]*?)\s*:\s*([-+]?(?:nan|inf|\d+\.?\d*(?:[eE][-+]?\d+)?))\s*\|")
_MEMORY = re.compile(r"memory \(MB\).*\bmax reserved:\s*([\d.]+)|\bmax reserved:\s*([\d.]+)")
_MEMORY_GB = re.compile(r"memory \(GB\).*\bmem-max-reserved-gigabytes:\s*([\d.]+)")  # 1e9 bytes
_TIME = "elapsed time per iteration (ms)"
_SKIPPED, _NAN = "number of skipped iterations", "number of nan iterations"
_BESIDE = {
    re.compile(r"saving checkpoint at iteration|successfully saved checkpoint|save-checkpoint"): iterations.CHECKPOINT,
    re.compile(r"validation loss at iteration|\bEvaluating on \d+|\bEvaluating iter|: evaluate\b"): (
        iterations.EVALUATION
    ),
}


def read_log(text: str, dropped: int) -> RunLog:
    """The log of one run, of any rank or all mixed, after ``dropped`` iterations of warm-up; ValueError without any.

    Megatron sets its counters of skipped and NaN iterations back at each line, so that they are those of the line. The
    line after a checkpoint or an evaluation does not count: caches are cold, and early versions timed both with it.
    """
    found: list[Iteration] = []
    beside, megabytes = "", [math.nan]
    for line in lines_of(text):
        beside = next((why for marks, why in _BESIDE.items() if marks.search(line.text)), beside)
        megabytes += _megabytes(line.text)
        for one in _iterations(line):
            found.append(dataclasses.replace(one, fault=one.fault or beside))
            beside = ""
    return run_log(found, dropped, _largest(megabytes) * 2**20 / GIB)


def is_log(text: str) -> bool:
    """Whether a text holds a line of iterations of this format."""
    return any(_TIME in line.text and _ITERATION.search(line.text) for line in lines_of(text))


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
    fields = {name: float(value) for name, value in pairs}
    if not 0 < fields.get(_TIME, math.nan) < math.inf or twice:
        return None
    return Iteration(
        number, round(fields[_TIME] / 1e3, 9), rank, fields.get("energy per GPU (J/iter/GPU)", math.nan),
        fields.get("power per GPU (W/GPU)", math.nan), fields.get("lm loss", math.nan), _fault(fields), ended_s,
    )  # fmt: skip


def _fault(fields: dict[str, float]) -> str:
    """Why a line does not count; Megatron's own, which count samples, end with the counters or are cut off."""
    if fields.get(_SKIPPED, 0):
        return iterations.SKIPPED
    if fields.get(_NAN, 0) or math.isnan(fields.get("lm loss", 0.0)):
        return iterations.NAN
    return iterations.CUT if "consumed samples" in fields and not {_SKIPPED, _NAN} <= fields.keys() else ""
