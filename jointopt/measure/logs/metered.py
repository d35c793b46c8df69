"""Energy, power and temperature of a run's iterations, from what meters wrote beside its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from jointopt.core.schema import Floats
from jointopt.measure.devices.reading import Reading, Series, not_measured, together
from jointopt.measure.logs import zeus
from jointopt.measure.logs.run import Window
from jointopt.measure.logs.traces import Trace

# How often a value must change within a window. What a counter shows at the ends is as old as its last change; samples
# of a power sensor stand for all the time between them.
_COUNTED, _ADDED_UP = 10, 30


def of_windows(texts: Sequence[str], num_gpus: int, warmup: int) -> tuple[dict[str, float], str]:
    """Columns of Zeus' windows of all processes together (s, J, W per GPU), and the clause of their source.

    ValueError where they cover other than all GPUs.
    """
    found = [zeus.read_windows(text, warmup) for text in texts]
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
    return replace(together(readings), reason=reason), f"energy of {traces[0].program} ({how}) {span}{assumed}"


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
