"""Energy, power and temperature of a run's iterations, from what meters wrote beside its log; times of its ranks."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np

from jointopt.core.schema import Floats
from jointopt.frameworks.logs import Window, lines_of
from jointopt.runs.readings import Reading, Series, join_readings, not_measured

# How often a value must change within a window. What a counter shows at the ends is as old as its last change; samples
# of a power sensor stand for all the time between them.
_COUNTED, _ADDED_UP = 10, 30


def of_windows(texts: Sequence[str], num_gpus: int, warmup: int) -> tuple[dict[str, float], str]:
    """Columns of Zeus' windows of all processes together (s, J, W per GPU), and the clause of their source.

    ValueError where they cover other than all GPUs.
    """
    found = [read_windows(text, warmup) for text in texts]
    gpus, seconds = sum(one.num_gpus for one in found), max(one.seconds for one in found)
    if gpus != num_gpus:
        raise ValueError(f"its files cover {gpus} of {num_gpus} GPUs; give those of all processes")
    joules = sum(one.energy_j for one in found)
    columns = {"iteration_time_s": seconds, "energy_j": joules, "avg_power_w": joules / seconds / gpus}
    return columns, f"energy of {found[0].count} windows of Zeus"


def of_traces(traces: Sequence[Trace], window: Window, num_gpus: int) -> tuple[Reading, str]:
    """The reading of all GPUs of a run in a window, and the clause of its source.

    Energy is that of the counters; of a GPU that has none, its power samples added up. Why there is neither, is the
    reading's reason.
    """
    gpus = _gpus(traces)
    if reason := _unfit(traces, gpus, window, num_gpus):
        return not_measured(reason), ""
    readings = [gpu.between(window) for gpu in gpus]
    reason = next((reading.reason for reading in readings if reading.reason), "")
    how = "energy counters" if all(gpu.counted for gpu in gpus) else "power samples added up, for want of counters"
    zone = datetime.fromtimestamp(window.end_s).astimezone().strftime("UTC%z")
    assumed = f", times of the log taken as {zone}" if any(trace.universal for trace in traces) else ""
    span = f"over {window.iterations} iterations in {window.end_s - window.start_s:.1f} s"
    return replace(join_readings(readings), reason=reason), f"energy of {traces[0].program} ({how}) {span}{assumed}"


@dataclass(frozen=True)
class _Gpu:
    """The samples of one GPU; ``counted``: its energy is a counter's, else its power added up."""

    series: Series
    counted: bool

    @property
    def name(self) -> str:
        return self.series.gpus[0]

    def between(self, window: Window) -> Reading:
        """The reading of a window that its samples cover."""
        start, end, _ = window
        reading = self.series.between(start, end, still_s=(end - start) / _COUNTED)
        changes = self.series.time_s[1:][np.diff(self.series.power_w[:, 0]) != 0]
        still = np.diff([start, *changes[(changes > start) & (changes < end)], end]).max()
        if self.counted or still <= (end - start) / _ADDED_UP:
            return reading
        reason = f"the power of {self.name} stood still for {still:.1f} s, too long for a window of {end - start:.1f} s"
        return replace(reading, reason=reason)


def _unfit(traces: Sequence[Trace], gpus: Sequence[_Gpu], window: Window, num_gpus: int) -> str:
    """Why traces hold nothing of a window; blank where they do."""
    if len({trace.program for trace in traces}) > 1:
        return "the traces are of several programs; give those of one"
    if len({gpu.series.time_s.tobytes() + gpu.series.energy_j.tobytes() for gpu in gpus}) < len(gpus):
        return "the same trace is given twice"
    if not any(np.isfinite(one.time_s) for trace in traces for one in trace.samples):
        return "the trace holds no times; have `ts %.s` write them before each line"
    if len(gpus) != num_gpus:
        return f"the traces cover {len(gpus)} of {num_gpus} GPUs; give those of the run's GPUs alone"
    for gpu in gpus:
        first, last = gpu.series.time_s[[0, -1]]
        if not first <= window.start_s <= window.end_s <= last:
            return f"{gpu.name} has samples from {_clock(first)} to {_clock(last)}, the iterations ran from " \
                   f"{_clock(window.start_s)} to {_clock(window.end_s)} (TZ sets the zone of the log)"  # fmt: skip
    return ""


def _clock(time_s: float) -> str:
    return f"{datetime.fromtimestamp(time_s):%Y-%m-%d %H:%M:%S}"


def _gpus(traces: Sequence[Trace]) -> list[_Gpu]:
    """The GPUs with power or energy at known times, in the order of their names."""
    samples: dict[str, list[tuple[float, Mapping[str, float]]]] = {}
    for trace in traces:
        for gpu, time_s, values in trace.samples:
            if np.isfinite(time_s):
                samples.setdefault(gpu, []).append((time_s, values))
    found = (_gpu(name, sorted(samples[name], key=lambda pair: pair[0])) for name in sorted(samples))
    return [gpu for gpu in found if len(gpu.series.time_s)]


def _gpu(name: str, samples: Sequence[tuple[float, Mapping[str, float]]]) -> _Gpu:
    """One GPU at the times of its counter, or of its power where it has none."""
    known = {quantity: _known(samples, quantity) for quantity in ("energy_j", "power_w", "temperature_c")}
    counted = bool(len(known["energy_j"][0]))
    at = known["energy_j" if counted else "power_w"][0]
    columns = {quantity: _at(at, *pairs) for quantity, pairs in known.items()}
    if not counted:
        steps = np.diff(at) * (columns["power_w"][1:, 0] + columns["power_w"][:-1, 0]) / 2
        columns["energy_j"] = np.concatenate([[0.0], np.cumsum(steps)])[: len(at), np.newaxis]
    none = np.full((len(at), 1), np.nan)
    series = Series(
        (name,), at, columns["energy_j"], columns["power_w"], columns["temperature_c"], utilisation=none, clock_mhz=none
    )
    return _Gpu(series, counted)


def _known(samples: Sequence[tuple[float, Mapping[str, float]]], quantity: str) -> tuple[Floats, Floats]:
    """Times (n,) and values (n,) of the samples that have a quantity, each time once."""
    pairs = {time_s: values[quantity] for time_s, values in samples if np.isfinite(values.get(quantity, np.nan))}
    return np.array([*pairs]), np.array([*pairs.values()])


def _at(times: Floats, time_s: Floats, values: Floats) -> Floats:
    """Values (n, 1) at ``times``; NaN where there is none."""
    return np.interp(times, time_s, values)[:, np.newaxis] if len(time_s) else np.full((len(times), 1), np.nan)


# Traces of GPUs that other programs wrote beside a run: ``dcgmi dmon``, dcgm-exporter, ``nvidia-smi --query-gpu``.


# Columns and metrics that are read, with the factor to the unit of `Series`. Names and units are those of
# dcgmlib/src/dcgm_fields.cpp (fields 155, 157, 156, 150), dcgm-exporter's etc/default-counters.csv and nvidia-smi.
_DMON = {
    "POWER": ("power_w", 1.0), "POWINST": ("power_w", 1.0), "TOTEC": ("energy_j", 1e-3),
    "TMPTR": ("temperature_c", 1.0),
}  # fmt: skip
_EXPORTER = {
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0), "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
}  # fmt: skip
_SMI = {
    "power.draw [W]": ("power_w", 1.0), "power.draw.average [W]": ("power_w", 1.0),
    "power.draw.instant [W]": ("power_w", 1.0), "temperature.gpu": ("temperature_c", 1.0),
}  # fmt: skip
_SMI_NAMES = ("uuid", "index", "pci.bus_id")  # that tell GPUs apart, the best first
_UNKNOWN = {"N/A", "[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU is lost]", "NaN"}
_NONE = (2.0**47, 2.0**47 + 15, 2.0**63 - 1024)  # DCGM's blank values: of numbers from the first to the second, of
# whole numbers (which a float rounds) from the third
_ENTITY = re.compile(r".{0,60}?#\s?Entity((?:\s+[A-Z0-9]{2,12})+)\s*$", re.MULTILINE)
_UNITS = re.compile(r".{0,40}?\bI[Dd](?:\s|$)")
_GPU = re.compile(r"(.*?)\bGPU (\d+)\s+(\S.*)")
_METRIC = re.compile(r"(\w+)\{(.*)\} +(\S+)(?: +(\d+))?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_HEAD = 100_000  # characters, in which the format shows
_LOCAL = re.compile(r"GPU \d+")  # a name that other nodes have too
_ZONE = re.compile(r"^\s*\[?\d{10}|:\d\d\S*(?:Z|[+-]\d\d:?\d\d)\b|\} +\S+ +\d{13}\s*$", re.MULTILINE)  # a stated one
_EPOCH = re.compile(r"\d{10}(?:\.\d+)?")


class Sample(NamedTuple):
    """One GPU at one time (s since 1970; NaN without one): quantities of `Series` by name; NaN is not available."""

    gpu: str
    time_s: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Trace:
    """The samples of one file, how many of its lines are none, and the first of these.

    ``universal``: its times are of a stated zone, or seconds since 1970; else they are of this machine's zone.
    """

    program: str
    samples: tuple[Sample, ...]
    unread: int = 0
    first_unread: str = ""
    universal: bool = False


def is_trace(text: str) -> bool:
    """Whether a text is a trace of any of these programs."""
    return _reader(text) is not None


def read_trace(text: str, source: str = "") -> Trace:
    """The samples of a trace; GPUs without a name of their own are named after ``source``, their file.

    A last line without an end is cut off, and counts among those that are not read.
    """
    program, reader = _reader(text) or ("", _smi)
    whole, _, rest = text.rpartition("\n")
    samples: list[Sample] = []
    unread = [rest.strip()] if rest.strip() else []
    for found in reader(whole.splitlines()):
        if isinstance(found, str):
            unread.append(found.strip())
        else:
            name = f"{found.gpu} of {source}" if source and _LOCAL.fullmatch(found.gpu) else found.gpu
            samples.append(found._replace(gpu=name))
    return Trace(program, tuple(samples), len(unread), unread[0] if unread else "", bool(_ZONE.search(text[:_HEAD])))


_Reader = Callable[[Sequence[str]], Iterator[Sample | str]]


def _reader(text: str) -> tuple[str, _Reader] | None:
    head = text[:_HEAD]
    if _ENTITY.search(head):
        return "dcgmi dmon", _dmon
    if re.search(r"^DCGM_FI_\w+\{", head, re.M):
        return "dcgm-exporter", _exporter
    first = head.lstrip().partition("\n")[0]
    return ("nvidia-smi", _smi) if "timestamp" in first and "power.draw" in first else None


def _dmon(lines: Sequence[str]) -> Iterator[Sample | str]:
    """Lines of ``dcgmi dmon``, each perhaps after the time that ``ts`` put there; the header stands again and again.

    dcgmi/DeviceMonitor.cpp: ``GPU 0`` and one cell for each column, ``N/A`` where a field is blank.
    """
    columns: list[str] = []
    for line in lines:
        if header := _ENTITY.match(line):
            columns = header[1].split()
        elif (row := _GPU.match(line)) and len(cells := row[3].split()) == len(columns):
            yield _sample(f"GPU {row[2]}", time_in(row[1]), dict(zip(columns, cells, strict=True)), _DMON) or line
        elif line.strip() and not _UNITS.match(line) and "dmon was stopped" not in line:
            yield line


def _exporter(lines: Sequence[str]) -> Iterator[Sample | str]:
    """Metrics in Prometheus' text format: with the time in ms of a federation, or after a line that is a time alone."""
    moment = math.nan
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        if math.isfinite(alone := time_in(line)):
            moment = alone
            continue
        found = _METRIC.match(line)
        labels = dict(_LABEL.findall(found[2])) if found else {}
        if not found or "GPU_I_ID" in labels:  # an instance (MIG) states the power of the whole GPU
            yield line
        elif found[1] in _EXPORTER:
            host = labels.get("Hostname") or labels.get("instance") or labels.get("UUID") or ""
            name = f"{host} GPU {labels.get('gpu', '')}".strip()
            at = int(found[4]) / 1e3 if found[4] else moment
            yield _sample(name, at, {found[1]: found[3]}, _EXPORTER) or line


def _smi(lines: Sequence[str]) -> Iterator[Sample | str]:
    """Rows of ``nvidia-smi --query-gpu=timestamp,index,power.draw,... --format=csv``, with units or without."""
    columns: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in next(csv.reader([line]), [])]
        if "timestamp" in cells:
            columns = cells
            continue
        row = dict(zip(columns, cells, strict=False))
        name = next((row[key] for key in _SMI_NAMES if key in row), "")
        if cells and (len(cells) != len(columns) or not name):
            yield line
        elif cells:
            plain = {key: cell if cell in _UNKNOWN else cell.partition(" ")[0] for key, cell in row.items()}
            gpu = f"GPU {name}" if name.isdecimal() else name
            yield _sample(gpu, time_in(row["timestamp"]), plain, _SMI) or line


def _sample(gpu: str, time_s: float, cells: Mapping[str, str], read: Mapping[str, tuple[str, float]]) -> Sample | None:
    """The sample of the columns that are read, the first of a quantity counting; None where one is no number."""
    values: dict[str, float] = {}
    try:
        for column, (quantity, factor) in read.items():
            if column in cells:
                values.setdefault(quantity, _number(cells[column]) * factor)
    except ValueError:
        return None
    return Sample(gpu, time_s, values)


def _number(cell: str) -> float:
    value = math.nan if cell in _UNKNOWN else float(cell)
    low, high, whole = _NONE
    return math.nan if low <= value <= high or value >= whole else value


def time_in(text: str) -> float:
    """Seconds since 1970 of a timestamp or date; NaN for anything else.

    A date and a time are of this machine's zone where they state none.
    """
    word = text.strip().strip("[]").replace("/", "-")
    if _EPOCH.fullmatch(word):
        return float(word)
    try:
        return datetime.fromisoformat(word).timestamp() if ":" in word else math.nan
    except ValueError:
        return math.nan


# Windows that Zeus' ZeusMonitor logs (``log_file``): time and energy of the GPUs of one process, one line each.


_HEADER = "start_time,window_name,elapsed_time,gpu"
_ENERGY = re.compile(r"gpu\d+_energy")
_ITERATION = re.compile(r"iter|step|batch", re.IGNORECASE)


@dataclass(frozen=True)
class Windows:
    """Medians of the windows that stand for iterations: seconds, and joules of ``num_gpus`` together."""

    seconds: float
    energy_j: float
    num_gpus: int
    count: int


def is_zeus(text: str) -> bool:
    """Whether a text is such a log."""
    return text.lstrip().startswith(_HEADER)


def read_windows(text: str, warmup: int) -> Windows:
    """The windows of iterations after the first ``warmup``; ValueError where none is named like one.

    Windows inside of each other have different names; those that are most frequent count. A line that is cut off does
    not.
    """
    rows = [row for row in csv.DictReader(io.StringIO(text.lstrip())) if None not in row.values()]
    names = Counter(_plain(row["window_name"]) for row in rows if _ITERATION.search(row["window_name"]))
    if not names:
        raise ValueError("no window of Zeus is named like an iteration, step or batch")
    kept = [row for row in rows if _plain(row["window_name"]) == names.most_common(1)[0][0]][warmup:]
    if not kept:
        raise ValueError(f"{len(rows)} windows, of which {warmup} of warm-up")
    columns = [name for name in kept[0] if _ENERGY.fullmatch(name)]
    joules = [sum(float(row[name]) for name in columns) for row in kept]
    seconds = statistics.median(float(row["elapsed_time"]) for row in kept)
    return Windows(seconds, statistics.median(joules), len(columns), len(kept))


def _plain(name: str) -> str:
    return re.sub(r"\d+", "", name).strip(" _-")


# Times of every rank, as Megatron-LM's timers print them below the line of an iteration (``--timing-log-option all``).


_ALL_RANKS, _EXTREMES = "times across ranks (ms)", "time across ranks (ms)"
_AT = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+\s*\|.*?elapsed time per iteration \(ms\):\s*([\d.]+)")
_TIMER = re.compile(r"^\s+([a-z][\w-]*):\s*$")
_OF_RANK = re.compile(r"^\s+rank\s+(\d+):\s*([\d.]+)\s*$")
COMPUTE = ("forward-compute", "backward-compute")
# what a rank exchanges with the stage after it, and with the one before it
TO_NEXT = ("forward-send", "backward-recv", "forward-send-backward-recv")
TO_PREVIOUS = ("forward-recv", "backward-send", "backward-send-forward-recv")
INTERLEAVED = (  # of schedules in which each rank exchanges with both at once
    "forward-send-forward-recv", "backward-send-backward-recv", "forward-backward-send-forward-backward-recv",
)  # fmt: skip


def rank_timers(text: str) -> list[dict[str, float]]:
    """A row for every iteration and rank: iteration, rank, iteration_time_s, and seconds by the names of timers.

    ValueError where timers print the slowest rank alone.
    """
    rows: dict[tuple[int, int], dict[str, float]] = {}
    at, seconds, timer = 0, math.nan, ""
    for line in lines_of(text):
        if found := _AT.search(line.text):
            at, seconds, timer = int(found[1]), float(found[2]) / 1e3, ""
        elif _ALL_RANKS in line.text:
            timer = ""
        elif head := _TIMER.match(line.text):
            timer = head[1]
        elif timer and (value := _OF_RANK.match(line.text)):
            rank = int(value[1])
            row = {"iteration": float(at), "rank": float(rank), "iteration_time_s": seconds}
            rows.setdefault((at, rank), row)[timer] = float(value[2]) / 1e3
    if not rows and _EXTREMES in text:
        raise ValueError("its timers print the slowest rank alone; train with --timing-log-option all")
    if rows and not any(COMPUTE[0] in row for row in rows.values()):
        raise ValueError(f"its timers have no {COMPUTE[0]}; train with --timing-log-level 2")
    return list(rows.values())
