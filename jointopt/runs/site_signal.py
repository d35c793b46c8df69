"""What a grid or an operator asks of a site over time: limits of power, reductions, prices or carbon, by steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from jointopt.core.errors import TableError, nearest_hint
from jointopt.core.schema import Bools, Floats
from jointopt.runs.cells import quoted_cell
from jointopt.runs.table import read_table

KINDS = {  # the columns of a signal, of which it has one: the least and the greatest value of each
    "limit_kw": (0.0, np.inf),
    "reduce_percent": (0.0, 100.0),
    "price_per_kwh": (-1e6, 1e6),
    "carbon_g_per_kwh": (0.0, 1e6),
}
_STRICTEST = {"limit_kw": np.fmin, "reduce_percent": np.fmax}
_MOST_STEPS = 20_000
_WHOLE_PERCENT, _DEAR_KWH, _SHORT_STEP_S, _SHORT_S = 1.0, 5.0, 10.0, 3600.0  # beyond them the unit is in doubt
_REGULAR, _LIKE, _LONG = 0.8, 0.01, 1.5  # share of steps that are as long as the median, how alike, how much longer


@dataclass(frozen=True)
class SiteSignal:
    """One of `KINDS` by steps: their bounds in s, one more than ``values``."""

    source: str
    kind: str
    bounds_s: Floats
    values: Floats
    remarks: tuple[str, ...] = ()  # what stands in for what was not stated

    @classmethod
    def of(cls, table: pd.DataFrame, source: str = "the signal") -> SiteSignal:
        """The signal of a table with ``time_s``, the start of each step, and one of `KINDS`; the last row is its end.

        A blank value, and the limit of a step that is longer than the others, are the stricter ones of its neighbours;
        of prices and carbon the value before. TableError for times that do not rise, and for anything else.
        """
        kinds = [name for name in KINDS if name in table]
        if "time_s" not in table or len(kinds) != 1:
            hints = [nearest_hint(name, ("time_s", *KINDS)) for name in table if name not in ("time_s", *KINDS)]
            raise TableError(
                f"{source} has the columns {', '.join(map(str, table))}{next(filter(None, hints), '')}; "
                f"expected time_s and one of {', '.join(KINDS)}."
            )
        kind, count = kinds[0], len(table)
        if not 2 <= count <= _MOST_STEPS + 1:
            raise TableError(
                f"{source} has {count:,} row{'s' * (count != 1)}; expected 2 to {_MOST_STEPS + 1:,}: one for the start "
                "of each step, and one for the end."
            )
        time_s, values = (_numbers(table, name, source) for name in ("time_s", kind))
        _check_times(time_s, source)
        low, high = KINDS[kind]
        wrong = np.flatnonzero((values < low) | (values > high) | (np.isinf(values) & (kind != "limit_kw")))
        if len(wrong):
            most = "" if high == np.inf else f" to {high:g}"
            got = f"{kind} must be a number from {low:g}{most}; got {values[wrong[0]]:g}"
            raise TableError(f"{source}, row {wrong[0] + 1}: {got}.")
        filled, remarks = _filled(kind, time_s, values[:-1], source)
        return cls(source, kind, time_s, filled, (*remarks, *_doubts(kind, time_s, values, source)))


def read_signal(path: Path) -> SiteSignal:
    """The signal of a CSV file; TableError where it is none."""
    return SiteSignal.of(read_table(path), str(path))


def _numbers(table: pd.DataFrame, name: str, source: str) -> Floats:
    """The cells as numbers, NaN where they are blank."""
    found = pd.to_numeric(table[name], errors="coerce")
    text = np.flatnonzero(found.isna() & table[name].notna())
    if len(text):
        got = quoted_cell(table, int(text[0]), name)
        raise TableError(f"{source}, row {text[0] + 1}: {name} must be a number; got {got}.")
    return found.to_numpy(np.float64)


def _check_times(time_s: Floats, source: str) -> None:
    """TableError where a time is unknown, or not after the one before it."""
    for row in np.flatnonzero(~np.isfinite(time_s)).tolist():
        raise TableError(f"{source}, row {row + 1}: time_s is blank; expected the start of the step in seconds.")
    for row in np.flatnonzero(np.diff(time_s) <= 0.0).tolist():
        raise TableError(
            f"{source}, row {row + 2}: time_s {time_s[row + 1]:.10g} is not after {time_s[row]:.10g} of the row "
            "before; expected rows in order, by a clock that is never set back (UTC)."
        )


def _filled(kind: str, time_s: Floats, values: Floats, source: str) -> tuple[Floats, tuple[str, ...]]:
    """The values (T,) with what stands in for unknown ones and for gaps, and sentences on that."""
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        raise TableError(f"{source} has no {kind} at all; expected a number in each row but the last.")
    every, remarks = np.arange(len(values)), []
    before = values[known[np.maximum(np.searchsorted(known, every, side="right") - 1, 0)]]
    after = values[known[np.minimum(np.searchsorted(known, every), len(known) - 1)]]
    strictest = _STRICTEST.get(kind)
    filled = before if strictest is None else strictest(before, after)
    word = "the value before" if strictest is None else "the stricter one of its neighbours"
    if len(known) < len(values):
        row = int(np.flatnonzero(np.isnan(values))[0])
        blank = len(values) - len(known)
        remarks.append(f"{source}: {kind} is blank in {blank:,} row{'s' * (blank != 1)} (row {row + 1}); {word} holds.")
    if strictest is not None and (gaps := _gaps(np.diff(time_s))).any():
        row, following = int(np.flatnonzero(gaps)[0]), np.append(filled[1:], filled[-1])
        filled = np.where(gaps, strictest(filled, following), filled)
        remarks.append(
            f"{source}: {int(gaps.sum()):,} step{'s are' if gaps.sum() > 1 else ' is'} longer than the others (row "
            f"{row + 1}: {time_s[row + 1] - time_s[row]:,.6g} s), as if rows were missing; {word} holds."
        )
    return filled, tuple(remarks)


def _doubts(kind: str, time_s: Floats, values: Floats, source: str) -> Iterator[str]:
    """Sentences on what looks as if it were in another unit, and on a value that no step has."""
    asked, seconds = values[:-1][values[:-1] > 0.0], np.diff(time_s)
    if not np.isnan(values[-1]):
        yield f"{source}: the last row is the end of the signal; its {kind} of {values[-1]:.6g} holds for no step."
    if kind == "reduce_percent" and asked.size and asked.max() <= _WHOLE_PERCENT:
        yield f"{source}: reduce_percent is at most {asked.max():.6g}, as if it were a share; 25 is a quarter."
    if kind == "price_per_kwh" and np.nanmedian(values) > _DEAR_KWH:
        yield f"{source}: price_per_kwh is {np.nanmedian(values):.6g} in the median, as if it were the price of a MWh."
    if np.median(seconds) < _SHORT_STEP_S and seconds.sum() < _SHORT_S:
        yield f"{source}: most steps last {np.median(seconds):.6g} s or less, as if time_s were in minutes or hours."


def _gaps(seconds: Floats) -> Bools:
    """Which steps are longer than all others, of a signal whose steps are mostly of one length."""
    usual = float(np.median(seconds))
    regular = np.mean(np.abs(seconds - usual) <= _LIKE * usual) >= _REGULAR
    return np.asarray((seconds > _LONG * usual) & regular)
