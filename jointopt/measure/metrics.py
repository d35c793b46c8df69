"""A run's figures for Prometheus, as a file of node_exporter's textfile collector, which needs no server of ours."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jointopt.core.atomic_write import write_whole
from jointopt.core.schema import Floats
from jointopt.measure.hardware.gpu_clocks import SettingsSession
from jointopt.measure.hardware.meter import Meter

_EXPORT_S = 1.0
_log = logging.getLogger(__name__)

HELP = {  # every metric: its type and what it says
    "jointopt_iteration_time_seconds": ("gauge", "Time of an iteration, predicted or measured."),
    "jointopt_power_watts": ("gauge", "Power of a GPU (predicted, drawn), or of the site (without gpu; limit too)."),
    "jointopt_clock_mhz": ("gauge", "Clock that the GPU is held at."),
    "jointopt_energy_joules_total": ("counter", "Energy of the GPUs of this machine since the start."),
    "jointopt_slow_ranks": ("gauge", "Ranks that are slow now."),
}


class Sample(NamedTuple):
    """One value of a metric."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


def metrics_text(samples: Iterable[Sample]) -> str:
    """Samples in Prometheus' text format, grouped by metric; what is not known (NaN) is left out."""
    return "".join(f"{line}\n" for line in _lines(list(samples)))


def _lines(samples: list[Sample]) -> Iterator[str]:
    for name, (kind, words) in HELP.items():
        known = [one for one in samples if one.name == name and not math.isnan(one.value)]
        if known:
            yield f"# HELP {name} {words}"
            yield f"# TYPE {name} {kind}"
        for one in known:
            labels = ",".join(f'{key}="{value}"' for key, value in one.labels.items())
            value = f"{one.value:.10g}".replace("inf", "+Inf")
            yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


class RunMetrics:
    """The figures of a run on this machine, written to ``file`` every second."""

    def __init__(self, file: Path, stages: Sequence[int]) -> None:
        self._file, self._stages, self._next_s, self._told = file, stages, -math.inf, False
        self._start_j: Floats | None = None

    def write(self, meter: Meter, session: SettingsSession, more: Sequence[Callable[[], Iterable[Sample]]]) -> None:
        """Write what is known now, and what ``more`` tell; a file that cannot be written ends nothing."""
        if (now_s := time.monotonic()) < self._next_s:
            return
        self._next_s = now_s + _EXPORT_S
        try:
            found = [*self._samples(meter.latest(_EXPORT_S), session), *(one for each in more for one in each())]
            write_whole(self._file, metrics_text(found))
        except OSError as error:
            if not self._told:
                _log.warning("%s cannot be written: %s.", self._file, error.strerror)
            self._told = True

    def _samples(self, found: Mapping[str, Floats], session: SettingsSession) -> Iterator[Sample]:
        for one in session.settings:
            labels = {"gpu": str(one.index), "stage": str(self._stages[one.index])}
            yield Sample("jointopt_clock_mhz", one.clock_mhz or math.nan, labels)
        for gpu, watts in enumerate(found.get("power_w", ())):
            yield Sample("jointopt_power_watts", float(watts), {"kind": "drawn", "gpu": str(gpu)})
        if "energy_j" in found:
            self._start_j = found["energy_j"] if self._start_j is None else self._start_j
            yield Sample("jointopt_energy_joules_total", float((found["energy_j"] - self._start_j).sum()))
