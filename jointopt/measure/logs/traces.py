"""Traces of GPUs that other programs wrote beside a run: ``dcgmi dmon``, dcgm-exporter, ``nvidia-smi --query-gpu``."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

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
