"""Stage profiles and whole iterations: one fit of all curves, and predictions at other clocks and limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from jointopt.core.errors import TableError
from jointopt.core.schema import Ints
from jointopt.physics.calibrate import results
from jointopt.physics.calibrate.grouping import Key, in_no_order, keys_of, stage_blocks, unlabelled_stages, work_columns
from jointopt.physics.calibrate.parameters import Board
from jointopt.physics.calibrate.stage_fit import StageFit, StageRows, fit_stages
from jointopt.physics.calibrate.tables import Kind, ResponseTable

_MOST_READINGS = 600  # of one fit, spread evenly over the file
_SLOWDOWNS_PERCENT = (1, 5, 10)


def fit_profiles(measured: ResponseTable, queried: pd.DataFrame, board: Board) -> results.FitsAndColumns:
    """One fit of all curves, and the predicted columns of the rows ``queried``, by position."""
    rows = measured.rows
    keys, wanted = _keys(rows, queried)
    stated = rows["clock_mhz"].notna() | rows["power_limit_w"].notna()
    whole = (rows["time_s"].notna() & rows["power_w"].notna() & stated).to_numpy()
    if not whole.any():
        raise TableError(
            "No row of the table has a clock or power limit, a time, and an energy or power; all are needed to "
            "calibrate."
        )
    kept = results.spread_evenly(np.flatnonzero(whole), _MOST_READINGS)
    curves = list(dict.fromkeys(keys[i] for i in kept))
    readings = _stage_rows(rows.iloc[kept], [keys[i] for i in kept], curves, board)
    pipelined = "pp" not in rows or bool((pd.to_numeric(rows["pp"], errors="coerce") != 1).any())
    readings = replace(readings, mixed=measured.kind == "iterations" and pipelined)
    profiles = _Profiles(measured.kind, board, curves, readings, fit_stages(readings, board.prior))
    return [profiles.fitted()], profiles.predicted(queried, wanted)


def _keys(rows: pd.DataFrame, queried: pd.DataFrame) -> tuple[list[Key], list[Key]]:
    """Keys of the curves of both tables' rows; the last cell numbers stages that no column distinguishes."""
    stage = ["stage"] if "stage" in rows and (queried.empty or "stage" in queried) else []
    columns = [*work_columns(rows, queried), *stage, "instruction"]
    keys, wanted = keys_of(rows, columns), keys_of(queried, columns)
    if unlabelled_stages(rows, keys, queried, wanted):
        unordered = in_no_order(rows, keys) or in_no_order(queried, wanted)
        keys = _numbered(keys, stage_blocks(rows, keys))
        wanted = wanted if unordered else _numbered(wanted, stage_blocks(queried, wanted))
    return keys, wanted


def _numbered(keys: Sequence[Key], number: Ints) -> list[Key]:
    return [(*key, f"profile {i + 1}") for key, i in zip(keys, number, strict=True)]


def _is_numbered(key: Key) -> bool:
    return key[-1].startswith("profile ")


def _stage_rows(
    rows: pd.DataFrame, keys: Sequence[Key], curves: Sequence[Key], board: Board, known: bool = True
) -> StageRows:
    """The rows, each of the curve of its key; without times and powers unless they are ``known``."""
    number = {key: i for i, key in enumerate(curves)}
    words = [key[-2] if _is_numbered(key) else key[-1] for key in curves]
    kinds = {word: i for i, word in enumerate(dict.fromkeys(words))}
    unknown = np.full(len(rows), np.nan)
    return StageRows(
        curve=np.array([number[key] for key in keys], np.int64),
        kind_of=np.array([kinds[word] for word in words], np.int64),
        x=rows["clock_mhz"].fillna(board.max_clock_mhz).to_numpy(float) / board.max_clock_mhz,
        limit_w=rows["power_limit_w"].to_numpy(float),
        time_s=rows["time_s"].to_numpy(float) if known else unknown,
        power_w=rows["power_w"].to_numpy(float) if known else unknown,
    )


@dataclass(frozen=True)
class _Profiles:
    """Curves of passes or iterations, their readings, and the fit of all of them."""

    kind: Kind
    board: Board
    curves: list[Key]
    readings: StageRows
    fit: StageFit

    def fitted(self) -> results.Fitted:
        time = results.mean_error_percent(self.fit.time, self.readings.time_s)
        error = {"time": time, "power": results.mean_error_percent(self.fit.power, self.readings.power_w)}
        names = [" ".join(key) for key in self.curves]
        return results.Fitted(self.fit, self.readings.x, error, names, list(self._savings()))

    def _with(self, more: StageRows) -> StageFit:
        """The same fit for the readings and ``more`` rows after them."""
        return fit_stages(results.appended(self.readings, more), self.board.prior, self.fit.found)

    def predicted(self, queried: pd.DataFrame, wanted: list[Key]) -> pd.DataFrame:
        """Predicted columns of the rows; of one of several profiles the mean, with an interval that holds them all."""
        profiles = [self._profiles(key) for key in wanted]
        at = np.repeat(np.arange(len(queried)), [len(own) for own in profiles])
        of = [profile for own in profiles for profile in own]
        fit = self._predicted_each(queried.iloc[at].reset_index(drop=True), of)
        if len(at) == len(queried):
            return fit.set_index(queried.index)
        how = {"low": "min", "high": "max", "predicted": "first"}
        out = fit.groupby(at).agg({str(name): how.get(str(name).rsplit("_", 1)[-1], "mean") for name in fit})
        several = [f"mean of {len(own)} profiles" if len(own) > 1 else "" for own in profiles]
        return out.assign(assumed=several).set_index(queried.index)

    def _profiles(self, key: Key) -> list[Key]:
        """The key itself, or all profiles that were kept apart where it does not name one of them."""
        return [known for known in self.curves if known[:-1] == key and _is_numbered(known)] or [key]

    def _predicted_each(self, queried: pd.DataFrame, wanted: list[Key]) -> pd.DataFrame:
        curves = set(self.curves)
        known = np.array([key in curves for key in wanted], bool)
        stated = (queried["clock_mhz"].notna() | queried["power_limit_w"].notna()).to_numpy(bool)
        parts = [pd.DataFrame(index=queried.index[:0])]
        found = np.flatnonzero(known & stated)
        for at in (found[i : i + results.MOST_QUERIED] for i in range(0, len(found), results.MOST_QUERIED)):
            rows = queried.iloc[at]
            more = _stage_rows(rows, [wanted[i] for i in at], self.curves, self.board, known=False)
            parts.append(self._columns(self._with(more), rows))
        out = pd.concat(parts).reindex(queried.index)
        blank = np.where(stated, "", "clock_mhz and power_limit_w are blank").tolist()
        pairs = zip(wanted, blank, strict=True)
        reasons = [why if key in curves else results.unknown_work(key, self.curves) for key, why in pairs]
        return out.assign(**{results.NOT_PREDICTED: reasons})

    def _columns(self, fit: StageFit, rows: pd.DataFrame) -> pd.DataFrame:
        """Estimates of the rows, which stand last in ``fit``; of an iteration the energy of all its GPUs."""
        count, whole = len(rows), self.kind == "iterations"
        gpus = rows["num_gpus"].to_numpy(float) if whole and "num_gpus" in rows else 1.0
        estimates = {
            "predicted_iteration_time_s" if whole else "predicted_time_s": results.tail(fit.time, count),
            "predicted_energy_j": results.tail(fit.energy, count, gpus),
            "predicted_avg_power_w": results.tail(fit.power, count),
        }
        return results.estimate_columns(estimates, rows.index)

    def _savings(self) -> Iterator[dict[str, Any]]:
        """Clock of the least energy and savings over the maximum clock, of the curves that a calibration lists."""
        grid = np.linspace(min(float(self.readings.x.min()), 0.95), 1.0, 101)
        blank = np.full(len(grid), np.nan)
        for curve in range(min(len(self.curves), results.MOST_WORK)):
            rows = StageRows(np.full(len(grid), curve), self.readings.kind_of, grid, blank, blank, blank)
            fit = self._with(rows)
            time, energy = (results.tail(part, len(grid)).value for part in (fit.time, fit.energy))
            time, energy = time / time[-1], energy / energy[-1]
            figures = {
                "least_energy_clock_mhz": round(float(grid[np.argmin(energy)]) * self.board.max_clock_mhz),
                "least_energy_saving_percent": results.rounded(100 * float(1 - energy.min())),
            }
            for percent in _SLOWDOWNS_PERCENT:
                least = float(energy[time <= 1 + percent / 100].min())
                figures[f"saving_percent_at_{percent}_percent_slowdown"] = results.rounded(100 * (1 - least))
            yield figures
