"""Samples of a meter, and readings of a window of time: energy, power, temperature, clocks of every GPU.

Numpy alone. Times are seconds since 1970, so that nodes can be cut at the same instants.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from jointopt.core.atomic_write import write_whole
from jointopt.core.errors import TableError
from jointopt.core.schema import Floats

LEAST_WINDOW_S = 2.0  # counters move every 10 to 100 ms, some sensors average over a second
_SLACK_S = 1.0  # how much a power sensor may lag behind the counter
_TOLERANCE = 0.25  # sensors see a part of the time and are off by 5 %: this finds what is broken, no more
_STILL_S = 1.0  # that a counter may stand still, and that samples may be missing at either edge of a window
_BLOCK_S = 1.0  # over which the power by the counter is compared with the sensor's peak
QUANTITIES = ("energy_j", "power_w", "temperature_c", "utilisation", "clock_mhz")


@dataclass(frozen=True)
class Reading:
    """GPUs over a window: arrays (gpus,) in J, W, °C, 0 to 1, MHz; NaN is "not measured".

    ``reason`` says why energy was not measured, of any GPU; blank where it was.
    """

    seconds: float
    energy_j: Floats
    avg_power_w: Floats
    peak_power_w: Floats
    temperature_c: Floats
    utilisation: Floats
    clock_mhz: Floats
    reason: str = ""

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return len(self.energy_j)

    @property
    def total_energy_j(self) -> float:
        """Energy of all GPUs in J; NaN where that of one is not known, or there is none."""
        return float(self.energy_j.sum()) if self.gpus and not self.reason else float("nan")

    def results(self, iterations: int) -> dict[str, float]:
        """Result columns of a measurement table for a window of that many iterations."""
        total = self.total_energy_j
        return {
            "energy_j": total / iterations,
            "avg_power_w": total / self.seconds / self.gpus if self.gpus and self.seconds else float("nan"),
            "peak_power_w": float(np.fmax.reduce(self.peak_power_w, initial=np.nan)),
            "temperature_c": float(np.fmax.reduce(self.temperature_c, initial=np.nan)),
        }

    def words(self) -> str:
        """One line for people."""
        if self.reason:
            return f"Energy not measured: {self.reason}"
        hottest, peak_w = (np.fmax.reduce(gpus, initial=np.nan) for gpus in (self.temperature_c, self.peak_power_w))
        heat = f", hottest {hottest:.0f} °C" if np.isfinite(hottest) else ""
        return (
            f"{self.gpus} GPUs, {self.seconds:.1f} s: {self.total_energy_j:,.0f} J, "
            f"{self.total_energy_j / self.seconds / self.gpus:.0f} W per GPU, "
            f"peak {peak_w:.0f} W{heat}"
        )


def not_measured(reason: str, seconds: float = 0.0) -> Reading:
    """The reading of a meter that is not there."""
    none = np.empty(0)
    return Reading(seconds, none, none, none, none, none, none, reason)


def join_readings(readings: Sequence[Reading]) -> Reading:
    """One reading of several nodes: energies add up; one node without energy leaves the sum unknown."""
    if not readings:
        return not_measured("no node has written a reading")
    reasons = [f"node {i}: {r.reason}" for i, r in enumerate(readings) if r.reason]
    arrays = ("energy_j", "avg_power_w", "peak_power_w", "temperature_c", "utilisation", "clock_mhz")
    parts = {name: np.concatenate([getattr(r, name) for r in readings]) for name in arrays}
    return Reading(max(r.seconds for r in readings), **parts, reason="; ".join(reasons))


@dataclass(frozen=True)
class Series:
    """Samples of the GPUs of one machine: ``time_s`` (n,), the others (n, gpus), NaN where unknown.

    ``energy_j`` is a counter that only rises; ``reason`` says why there is nothing, or nothing after the last sample.
    """

    gpus: tuple[str, ...]
    time_s: Floats
    energy_j: Floats
    power_w: Floats
    temperature_c: Floats
    utilisation: Floats
    clock_mhz: Floats
    reason: str = ""

    def between(
        self, start_s: float | None = None, end_s: float | None = None, *, still_s: float = _STILL_S
    ) -> Reading:
        """The window from ``start_s`` to ``end_s`` (by default all of it), energy only where it can be trusted.

        A counter moves at least every ``still_s`` seconds.
        """
        if len(self.time_s) < 2:
            return not_measured(self.reason or "the meter took no sample")
        start = float(self.time_s[0]) if start_s is None else start_s
        end = float(self.time_s[-1]) if end_s is None else end_s
        if (np.diff(self.time_s) < 0).any():
            return not_measured("the machine's clock was set back meanwhile")
        cut = self._cut(start, end)
        if len(cut.time_s) < 2:
            return not_measured(self.reason or "the meter took no sample in that time", end - start)
        early, late = self.time_s[0] - start, end - self.time_s[-1]
        reason = cut.counter_fault(still_s)
        if max(early, late) > _STILL_S:
            reason = self.reason or f"the meter ran {max(early, late):.1f} s less than what was to be measured"
        energy = np.full(len(self.gpus), np.nan) if reason else cut.energy_j[-1] - cut.energy_j[0]
        peak_w, hottest = (np.fmax.reduce(values, axis=0) for values in (cut.power_w, cut.temperature_c))
        with np.errstate(invalid="ignore"):  # of a GPU without a known sample
            mean = [np.nansum(values, axis=0) / np.isfinite(values).sum(axis=0)
                    for values in (cut.utilisation, cut.clock_mhz)]  # fmt: skip
        return Reading(end - start, energy, energy / (end - start), peak_w, hottest, mean[0], mean[1], reason)

    def counter_fault(self, still_s: float = _STILL_S) -> str:
        """What is wrong with the first energy counter that stands, falls, jumps or contradicts power, else blank."""
        seconds = self.time_s[-1] - self.time_s[0]
        if seconds < LEAST_WINDOW_S:
            return f"{seconds:.1f} s are too short for energy counters; measure {LEAST_WINDOW_S:.0f} s or more"
        for gpu, name in enumerate(self.gpus):
            wrong = _fault_of_counter(self.time_s, self.energy_j[:, gpu], self.power_w[:, gpu], still_s)
            if wrong:
                return f"the energy counter of {name} {wrong}"
        return ""

    def _cut(self, start: float, end: float) -> Series:
        """Samples inside and one on each edge: the counter's from both sides, the others' from the inside alone."""
        edges = np.clip([start, end], self.time_s[0], self.time_s[-1])
        inside = (self.time_s >= edges[0]) & (self.time_s <= edges[1])
        at = np.unique(np.concatenate([edges[:1], self.time_s[inside], edges[1:]]))
        known = inside if inside.any() else np.ones(len(self.time_s), bool)
        columns = {}
        for name in QUANTITIES:
            of = slice(None) if name == "energy_j" else known
            values: Floats = getattr(self, name)[of]
            columns[name] = np.stack([np.interp(at, self.time_s[of], gpu) for gpu in values.T], axis=1)
        return Series(self.gpus, at, **columns, reason=self.reason)

    def write(self, path: Path) -> None:
        """Writes the series as JSON, for the launcher that adds up the nodes."""
        write_whole(path, json.dumps(asdict(self), default=lambda v: v.tolist() if hasattr(v, "tolist") else str(v)))

    @classmethod
    def read(cls, path: Path) -> Series:
        """The series in a file of `write`; TableError for another file."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            arrays = {name: np.array(found[name], float) for name in ("time_s", *QUANTITIES)}
            return cls(tuple(found["gpus"]), **arrays, reason=str(found["reason"]))
        except (ValueError, KeyError, TypeError) as error:
            raise TableError(f"{path} is not a meter reading as `jointopt exec --reading` writes.") from error


def no_series(reason: str) -> Series:
    """The empty series of a meter that could not sample, for ``reason``."""
    none = np.empty((0, 0))
    return Series((), np.empty(0), none, none, none, none, none, reason)


def _fault_of_counter(time_s: Floats, energy_j: Floats, power_w: Floats, still_s: float) -> str:
    """What is wrong with one counter (n,) by itself or beside the same GPU's power sensor (n,); blank for nothing."""
    if not np.isfinite(energy_j).all():
        return "does not exist"
    rise_j = np.diff(energy_j)
    if (rise_j < 0).any():
        return "went backwards"
    still = float(np.diff(np.concatenate([time_s[:1], time_s[1:][rise_j > 0], time_s[-1:]])).max())
    if still > still_s:
        return f"stood still for {still:.1f} s"
    if not np.isfinite(power_w).all():
        return ""  # nothing to compare with
    length = max(_BLOCK_S, still_s)
    at = np.append(np.arange(time_s[0], time_s[-1] - length / 2, length), time_s[-1])  # blocks of about that length
    block = float((np.diff(np.interp(at, time_s, energy_j)) / np.diff(at)).max())
    if block > 2 * power_w.max():
        return f"jumped: {block:,.0f} W over {length:.0f} s where the sensor never saw more than {power_w.max():.0f} W"
    counted, integrated = energy_j[-1] - energy_j[0], float(np.trapezoid(power_w, time_s))
    allowed = _TOLERANCE * integrated + _SLACK_S * float(np.ptp(power_w))
    if abs(counted - integrated) > allowed:
        return f"reports {counted:,.0f} J where its power adds up to {integrated:,.0f} J"
    return ""
