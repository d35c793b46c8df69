"""Rules that the readings of a GPU and the rows of a query must keep: clocks, limits and power that it can have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from jointopt.core.errors import TableError
from jointopt.core.schema import MOST_GPU_POWER_W
from jointopt.core.units import KILO
from jointopt.jobs.catalog.gpus import known_gpu
from jointopt.physics.calibrate.law_fit import CLOCK_COLUMNS, highest_clock_mhz
from jointopt.physics.calibrate.stage_tables import Named, ResponseTable, cell_at

_TOLERANCE_MHZ = 1.0  # tools round the half steps of V100 clocks differently
_CLOCKS_MHZ = (10.0, 1e4)  # of any GPU: in GHz they are below, in kHz above
_MOST_OF_ITERATION = 1.2  # that passes of a rank may take: clocks on the wall and on the GPU differ
_SECONDS = {"stages": "time_s", "iterations": "time_s", "ranks": "iteration_time_s"}  # that energy_j is of


@dataclass(frozen=True)
class _Span:
    """The span of a column, or of what is worked out from it, and the units that would explain what is outside."""

    column: str  # that is blamed
    values: pd.Series
    low: float
    high: float
    expected: str
    below: str = ""  # the units that a value below may have been mixed up in, of a factor of a thousand
    above: str = ""
    slack: float = 0.0

    def complaint(self, value: float) -> str:
        """The expectation and the value, with the unit in which it would be within the span."""
        unit, converted = (self.below, value * KILO) if value < self.low else (self.above, value / KILO)
        hint = f" ({unit}?)" if unit and 0.5 * self.low <= converted <= 2.0 * self.high else ""
        return f"expected {self.expected}, got {value:.6g}{hint}"

    def outside(self) -> pd.Series:
        """Which rows break it, (rows,); none that are blank."""
        return (self.values < self.low - self.slack) | (self.values > self.high + self.slack)


def check_readings(table: ResponseTable, gpu: str, named: Named) -> None:
    """Raise TableError that names the first reading which cannot be one of that GPU, and the likeliest unit."""
    _refuse([*_clocks(table.rows, gpu), *_limits(table.rows, gpu), *_powers(table, gpu), *_passes(table.rows)], named)


def check_query(queried: ResponseTable, measured: ResponseTable, gpu: str, named: Named) -> None:
    """Raise TableError that names the first row of a query whose clock or limit that GPU cannot have.

    The maximum clock of a GPU of which the catalogue has none is the highest of its readings.
    """
    rows = queried.rows
    own = rows if "gpu" not in rows else rows[rows["gpu"].isna() | (rows["gpu"] == gpu)]
    _refuse([*_clocks(own, gpu, highest_clock_mhz(measured)), *_limits(own, gpu)], named)


def _refuse(spans: Iterable[_Span], named: Named) -> None:
    for span in spans:
        at = np.flatnonzero(span.outside())
        if len(at):
            place = cell_at(named(int(span.values.index[at[0]])), span.column)
            raise TableError(
                f"{place}: {span.complaint(float(span.values.iloc[at[0]]))}; correct the row or delete it."
            )


def _clocks(rows: pd.DataFrame, gpu: str, seen_mhz: float | None = None) -> Iterator[_Span]:
    """The span of each clock, of a GPU of which the catalogue has none up to ``seen_mhz``."""
    known = known_gpu(gpu)
    low, high = known.clock_span_mhz if known else (0.0, math.inf)
    listed, low = math.isfinite(high), max(low, _CLOCKS_MHZ[0])
    high = high if listed else seen_mhz or _CLOCKS_MHZ[1]
    words = f"a clock from {low:g} to {high:g} MHz" + " on this GPU" * listed
    words += ", the highest of the readings, as the catalogue does not know this GPU" * bool(seen_mhz and not listed)
    for name in CLOCK_COLUMNS:
        if name in rows:
            yield _Span(name, rows[name], low, high, words, "MHz, not GHz", "MHz, not kHz", slack=_TOLERANCE_MHZ)


def _limits(rows: pd.DataFrame, gpu: str) -> Iterator[_Span]:
    known = known_gpu(gpu)
    low, high = known.power_limit_span_w if known else (0.0, MOST_GPU_POWER_W)
    high = min(high, MOST_GPU_POWER_W)
    if "power_limit_w" in rows:
        words = f"a power limit from {low:g} to {high:g} W"
        yield _Span("power_limit_w", rows["power_limit_w"], low, high, words, "W, not kW", "W, not mW")


def _powers(table: ResponseTable, gpu: str) -> Iterator[_Span]:
    """Power of one GPU: as the energy gives it, and where that is blank as it is stated."""
    known = known_gpu(gpu)
    low, high = known.mean_power_span_w if known else (0.0, MOST_GPU_POWER_W)
    high = min(high, MOST_GPU_POWER_W)
    seconds = "iteration_time_s" if table.kind in ("ranks", "iterations") else "time_s"
    span = f"from {low:.4g} to {high:.4g} W"
    ratio = table.rows["energy_j"] / table.rows[_SECONDS[table.kind]]
    gpus = " and num_gpus" * ("num_gpus" in table.rows)
    words = f"energy_j over {seconds}{gpus * (table.kind == 'iterations')}, the mean power of one GPU, {span}"
    yield _Span("energy_j", ratio, low, high, words, "s, not ms", "J, not mJ")
    stated = table.rows["avg_power_w"].where(ratio.isna())
    yield _Span("avg_power_w", stated, low, high, f"the mean power of one GPU, {span}", "W, not kW", "W, not mW")


def _passes(rows: pd.DataFrame) -> Iterator[_Span]:
    """The share of an iteration that a rank's passes sum to."""
    names = ("forward_time_sum_s", "backward_time_sum_s")
    if not {*names, "iteration_time_s"} <= set(rows):
        return
    for name in names:
        words = f"{name} over iteration_time_s to be at most {_MOST_OF_ITERATION:g}"
        yield _Span(name, rows[name] / rows["iteration_time_s"], 0.0, _MOST_OF_ITERATION, words, "", "s, not ms")
