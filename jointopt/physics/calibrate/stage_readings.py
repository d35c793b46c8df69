"""Rules that the readings of a GPU and the rows of a query must keep: clocks, limits and power that it can have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

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


# The span of a column, or of what is worked out from it: the column that is blamed, its values, the least and the most,
# what is expected, and the units that values below or above may have been mixed up in, of a factor of a thousand.
_Span = tuple[str, pd.Series, float, float, str, str, str]


def check_readings(table: ResponseTable, gpu: str, named: Named) -> None:
    """Raise TableError that names the first reading which cannot be one of that GPU, and the likeliest unit."""
    _refuse([*_settings(table.rows, gpu), *_results(table, gpu)], named)


def check_query(queried: ResponseTable, measured: ResponseTable, gpu: str, named: Named) -> None:
    """Raise TableError that names the first row of a query whose clock or limit that GPU cannot have.

    The maximum clock of a GPU of which the catalogue has none is the highest of its readings.
    """
    rows = queried.rows
    own = rows if "gpu" not in rows else rows[rows["gpu"].isna() | (rows["gpu"] == gpu)]
    _refuse(_settings(own, gpu, highest_clock_mhz(measured)), named)


def _refuse(spans: Iterable[_Span], named: Named) -> None:
    """TableError on the first value outside of its span, with the unit in which it would be within."""
    for column, values, low, high, expected, below, above in spans:
        at = np.flatnonzero((values < low) | (values > high))
        if len(at):
            place, value = cell_at(named(int(values.index[at[0]])), column), float(values.iloc[at[0]])
            unit, converted = (below, value * KILO) if value < low else (above, value / KILO)
            hint = f" ({unit}?)" if unit and 0.5 * low <= converted <= 2.0 * high else ""
            raise TableError(f"{place}: expected {expected}, got {value:.6g}{hint}; correct the row or delete it.")


def _settings(rows: pd.DataFrame, gpu: str, seen_mhz: float | None = None) -> Iterator[_Span]:
    """The spans of clocks and limits, clocks of a GPU of which the catalogue has none up to ``seen_mhz``."""
    known = known_gpu(gpu)
    low, high = known.clock_span_mhz if known else (0.0, math.inf)
    listed, low = math.isfinite(high), max(low, _CLOCKS_MHZ[0])
    high = high if listed else seen_mhz or _CLOCKS_MHZ[1]
    words = f"a clock from {low:g} to {high:g} MHz" + " on this GPU" * listed
    words += ", the highest of the readings, as the catalogue does not know this GPU" * bool(seen_mhz and not listed)
    for name in CLOCK_COLUMNS:
        if name in rows:
            yield name, rows[name], low - _TOLERANCE_MHZ, high + _TOLERANCE_MHZ, words, "MHz, not GHz", "MHz, not kHz"
    low, high = known.power_limit_span_w if known else (0.0, MOST_GPU_POWER_W)
    high = min(high, MOST_GPU_POWER_W)
    if "power_limit_w" in rows:
        words = f"a power limit from {low:g} to {high:g} W"
        yield "power_limit_w", rows["power_limit_w"], low, high, words, "W, not kW", "W, not mW"


def _results(table: ResponseTable, gpu: str) -> Iterator[_Span]:
    """The spans of power of one GPU and of the share of an iteration that a rank's passes sum to.

    Power as the energy gives it, and where that is blank as it is stated.
    """
    known, rows, seconds = known_gpu(gpu), table.rows, _SECONDS[table.kind]
    low, high = known.mean_power_span_w if known else (0.0, MOST_GPU_POWER_W)
    high = min(high, MOST_GPU_POWER_W)
    span = f"from {low:.4g} to {high:.4g} W"
    ratio = rows["energy_j"] / rows[seconds]
    over, gpus = "time_s" if table.kind == "stages" else "iteration_time_s", " and num_gpus" * ("num_gpus" in rows)
    words = f"energy_j over {over}{gpus * (table.kind == 'iterations')}, the mean power of one GPU, {span}"
    yield "energy_j", ratio, low, high, words, "s, not ms", "J, not mJ"
    stated = rows["avg_power_w"].where(ratio.isna())
    yield "avg_power_w", stated, low, high, f"the mean power of one GPU, {span}", "W, not kW", "W, not mW"
    names = ("forward_time_sum_s", "backward_time_sum_s")
    for name in names if {*names, "iteration_time_s"} <= set(rows) else ():
        words = f"{name} over iteration_time_s to be at most {_MOST_OF_ITERATION:g}"
        yield name, rows[name] / rows["iteration_time_s"], 0.0, _MOST_OF_ITERATION, words, "", "s, not ms"
