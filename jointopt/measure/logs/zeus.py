"""Windows that Zeus' ZeusMonitor logs (``log_file``): time and energy of the GPUs of one process, one line each."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter
from dataclasses import dataclass

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
